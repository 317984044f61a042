"""Whether the GPUs are let go: a file says so, until it is gone, or the driver was away and is back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.snapshot import release
from gpuplugin.snapshot.release import Release
from gpushim.ground.errors import GpushimError


@pytest.fixture(autouse=True)
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The driver's facts, which a test changes."""
    facts: dict[str, Any] = {"module": "580.65", "gpus": [11, 12]}
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(release, "_driver", lambda: dict(facts))
    return facts


def asked() -> Release:
    one = Release()
    one.ask()
    assert one.requested()
    return one


def test_it_is_asked_for_and_ended() -> None:
    one = Release()
    assert not one.requested()
    one.ask()
    assert one.requested()
    assert abs(one.since - time.time()) < 5
    one.take()
    assert not one.requested()
    assert one.since == 0
    one.take()


def test_another_process_goes_on_with_it(driver: dict[str, Any]) -> None:
    since = asked().since
    again = Release()
    assert again.requested()
    assert again.since == since
    driver["gpus"] = [21, 22]  # it was bound again while no plugin ran
    assert not Release().requested()
    assert not Path(again.path).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        '{"since": "x", "module": null, "gpus": []}',
        '{"gpus": 4}',
        '{"since": 1e99, "module": null, "gpus": []}',
        '{"since": 1, "module": null, "gpus": [1e999]}',
    ],
)
def test_the_file_of_a_script(text: str, driver: dict[str, Any]) -> None:
    release.prepare()
    one = Release()
    Path(one.path).write_text(text)
    assert one.requested()
    driver["gpus"] = [21, 22]
    assert not Release().requested()  # what the driver was like was kept


def test_the_driver_goes_and_comes_back(driver: dict[str, Any]) -> None:
    one, well = asked(), dict(driver)
    driver.update(module=None, gpus=[])
    assert one.requested()
    driver.update(module=well["module"])
    assert one.requested()  # no GPU is bound to it yet
    driver.update(gpus=well["gpus"])  # a file system that gives numbers again
    assert not one.requested()


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({"gpus": [21, 22]}, True),
        ({"module": "600.1"}, True),
        ({"gpus": [11]}, False),  # one GPU is given to a machine
        ({"gpus": [11, 13]}, False),
        ({"gpus": []}, False),
    ],
)
def test_what_counts_as_another_driver(driver: dict[str, Any], change: dict[str, Any], ends: bool) -> None:
    one = asked()
    driver.update(change)
    assert one.requested() is not ends


def test_a_directory_that_others_write_to_says_nothing() -> None:
    one = asked()
    os.chmod(release.folder(), 0o777)
    assert not one.requested()
    with pytest.raises(GpushimError, match="cannot be trusted"):
        one.ask()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    release.prepare()
    os.rmdir(release.folder())
    Path(release.folder()).touch()
    with pytest.raises(GpushimError, match="cannot be made"):
        Release().ask()
