"""A change of a file that settings come from is noticed, however it is made, and once."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuplugin.settings import settings
from gpuplugin.settings.sources import Sources
from gpuplugin.snapshot.inotify import Watch
from gpushim.config import policy
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config.toml, and a ConfigMap as kubelet has it in a pod."""
    monkeypatch.setenv("GPUSHIM_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "map").mkdir()
    swap(tmp_path, "1", "profiles: {a: {flags: {gdsEnabled: true}}, b: {}}\ndefault: b\n")
    (tmp_path / "map/nvidia.yaml").symlink_to("..data/nvidia.yaml")
    lines = f'config-file = "{tmp_path}/map/nvidia.yaml"\nprofile-file = "{tmp_path}/profile"\n'
    (tmp_path / "config.toml").write_text(f"[device-plugin]\n{lines}")
    return tmp_path


def swap(top: Path, name: str, content: str) -> None:
    """Replace what a ConfigMap has, as kubelet does: a new directory, and ..data led there at one stroke."""
    folder = top / "map"
    (folder / f"..{name}").mkdir()
    (folder / f"..{name}/nvidia.yaml").write_text(content)
    (folder / "..data_tmp").symlink_to(f"..{name}")
    os.rename(folder / "..data_tmp", folder / "..data")


def replaced(top: Path) -> None:
    (top / "new").write_text("a")
    os.rename(top / "new", top / "profile")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a profile file comes": lambda top: (top / "profile").write_text("a"),
    "a profile file is replaced": replaced,
    "..data is swapped": lambda top: swap(top, "2", "flags: {gdsEnabled: true}"),
    "config.toml is written": lambda top: (top / "config.toml").write_text("[device-plugin]\ngds = true\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_told_by_inotify_and_counts_once(top: Path, change: Callable[[Path], object]) -> None:
    sources, watch = Sources({}, {}), Watch()
    assert not sources.read().values["gds"]
    watch.add(*sources.folders, written=True)
    assert not sources.changed()
    change(top)
    assert select.select([watch.fd], [], [], 5)[0]
    watch.close()
    assert (sources.changed(), sources.changed()) == (True, False)
    assert sources.read().values["gds"]


def test_a_file_that_is_written_where_it_is_wakes_when_it_is_closed(top: Path) -> None:
    (top / "profile").write_text("b")
    sources, watch = Sources({}, {}), Watch()
    sources.read()
    watch.add(*sources.folders)
    watch.add(*sources.folders, written=True)
    with (top / "profile").open("w") as file:
        file.write("a")
        file.flush()
        assert not select.select([watch.fd], [], [], 0)[0]
    assert select.select([watch.fd], [], [], 5)[0]
    watch.close()
    assert sources.changed()


def test_a_file_that_is_wrong_is_read_again_when_it_changes_and_not_before(top: Path) -> None:
    sources = Sources({}, {})
    sources.read()
    (top / "config.toml").write_text('[device-plugin]\nconfig-file = "/none"\n')
    assert sources.changed()
    with pytest.raises(GpushimError, match="/none cannot be read"):
        sources.read()
    assert not sources.changed()
    (top / "config.toml").write_text(f'[device-plugin]\nconfig-file = "{top}/late"\n')
    assert sources.changed()
    with pytest.raises(GpushimError, match="late cannot be read"):
        sources.read()
    (top / "late").write_text("flags: {gdsEnabled: true}")
    assert sources.changed()
    assert sources.read().values["gds"]


def test_a_profile_that_does_not_exist_stops_no_start_and_changes_nothing_later(top: Path) -> None:
    (top / "profile").write_text("typo")
    sources = Sources({}, {})
    found = sources.read()
    assert (found.profile, 'names the profile "typo"' in found.notes[0]) == ("b", True)
    (top / "profile").write_text("a")
    assert (sources.changed(), sources.read().profile) == (True, "a")
    (top / "profile").write_text("typo")
    with pytest.raises(GpushimError, match='names the profile "typo"'):
        sources.read()


def test_a_wrong_config_toml_leaves_the_other_files_looked_at(top: Path) -> None:
    sources = Sources({}, {})
    sources.read()
    (top / "config.toml").write_text("[")
    assert sources.changed()
    with pytest.raises(GpushimError, match="is not TOML"):
        sources.read()
    (top / "profile").write_text("a")
    assert sources.changed()


@pytest.mark.parametrize(
    ("name", "room", "read"), [("config.toml", policy, "load"), ("profile", settings, "resolve")]
)
def test_a_change_while_they_are_read_is_one(
    top: Path, monkeypatch: pytest.MonkeyPatch, name: str, room: ModuleType, read: str
) -> None:
    sources, reader = Sources({}, {}), getattr(room, read)

    def changed_then(*args: object, **options: object) -> object:
        found = reader(*args, **options)
        (top / name).write_text("a")
        return found

    monkeypatch.setattr(room, read, changed_then)
    sources.read()
    assert sources.changed()
