from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushim.create import update
from gpushim.ground import bounds
from gpushim.ground.errors import GpushimError

ARGUMENTS = [
    (["update", "--resources", "-", "x"], (2, "", "-")),
    (["--root", "/r", "update", "--resources", "/f", "x"], (4, "", "/f")),
    (["update", "--resources=/f", "x"], (1, "--resources=", "/f")),
    (["update", "x", "-r", "/f"], (3, "", "/f")),
    (["update", "-r/f", "x"], (1, "-r", "/f")),
    (["update", "--res", "/f", "x"], (2, "", "/f")),
    (["update", "--r=/f", "x"], (1, "--r=", "/f")),
    (["update", "-r", "/f", "-r", "/g", "x"], (4, "", "/g")),
    (["update", "--memory", "1", "x"], None),
    (["update", "x"], None),
    (["update", "--", "-r", "x"], None),
]


@pytest.mark.parametrize(("args", "found"), ARGUMENTS)
def test_the_argument_that_names_the_resources(args: list[str], found: tuple[int, str, str] | None) -> None:
    assert update.resources(args) == found


RESOURCES = [
    (b'{"cpu":{"shares":512},"devices":[{"allow":false}]}', b'{"cpu":{"shares":512}}'),
    (b'{ "memory": {"limit": 1e3}, "devices": [] }', b'{"memory":{"limit":1e3}}'),
    (b'{"\\u0064evices":[]}', b"{}"),
    (b'{ "cpu": {} }', b'{ "cpu": {} }'),
    (b'["devices"]', b'["devices"]'),
    (b'{"devices":', b'{"devices":'),
    (b"", b""),
]


@pytest.mark.parametrize(("given", "left"), RESOURCES)
def test_resources_without_devices(given: bytes, left: bytes) -> None:
    assert update.without_devices(given) == left


def hooked(*args: str, path: str = "/usr/bin/gpushim-hook", stage: str = "prestart") -> dict[str, Any]:
    return {"hooks": {stage: [{"path": path, "args": list(args)}]}}


SPECS = [
    (hooked("gpushim-hook", "prestart", "--link"), True),
    (hooked("gpushim-hook", "createRuntime", "--link", stage="createRuntime"), True),
    (hooked("gpushim-hook", "prestart"), False),  # the hook alone, which an engine called
    (hooked("gpushim-hook", "prestart", "--link", path="/usr/bin/other"), False),
    ({"process": {"env": ["A=b", "NVIDIA_VISIBLE_DEVICES=void"]}}, True),
    ({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=none"]}}, False),
    ({"process": {"env": None}, "hooks": {"prestart": [1]}}, False),
    ({}, False),
    ([], False),
]


@pytest.mark.parametrize(("spec", "found"), SPECS)
def test_whether_a_create_has_added_devices(spec: Any, found: bool) -> None:
    assert update.added(spec) is found


def test_a_file_that_is_not_there_is_for_crun_to_complain_of(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SPECS[0][0]))
    args = ["update", "-r", str(tmp_path / "none"), "x"]
    assert update.keep_devices(args, str(tmp_path)) == args


def test_one_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CONFIG_JSON", 4)
    for text in ("1234", "12345"):
        (tmp_path / text).write_text(text)
    assert update._read(f"{tmp_path}/1234") == b"1234"
    with pytest.raises(GpushimError, match="the update has more than 4 bytes"):
        update._read(f"{tmp_path}/12345")
