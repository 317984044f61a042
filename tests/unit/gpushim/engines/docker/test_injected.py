"""CDI devices that an engine itself injects: one story, whichever runtime and image; clients are scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines.docker import injected
from gpushim.explain import explain
from unit.gpushim.engines.docker.test_inspect import DEVICES, OURS, Engine, container
from unit.gpushim.engines.docker.test_inspect import engine as engine  # a fixture

NAME = "nvidia.com/gpu=2"


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A directory of CDI specs, as `gpushim refresh` writes them."""
    folder = tmp_path / "cdi"
    folder.mkdir()
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": {"env": [f"{DEVICES}=void"]}}
    node = {"containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}
    (folder / "a.json").write_text(json.dumps({**document, "devices": [{"name": "2", **node}]}))
    return folder


@pytest.mark.parametrize("env", [[], [f"{DEVICES}=all"]])
@pytest.mark.parametrize("runtime", ["nvidia", "runc"])
def test_docker_injects_and_gpushim_adds_nothing(engine: Engine, specs: Path, runtime: str, env: list[str]) -> None:
    requests = [{"Driver": "cdi", "DeviceIDs": [NAME]}]
    info = {"Runtimes": OURS, "ServerVersion": "28.2.2", "CDISpecDirs": [str(specs)]}
    found = engine.knows(container(env, Runtime=runtime, DeviceRequests=requests), info=info)
    report = explain.explain(found.spec, "", found.origins)
    assert f"docker itself injects the CDI device {NAME}, as {specs}/a.json says" in found.notes
    assert not [note for note in found.notes if "NO GPU" in note]
    assert report["nothing"] == f"{DEVICES} says void: whoever set it so has given the container what it gets"
    *before, last = [row for row in report["asked"] if row["what"] == DEVICES]
    assert ["container" in row["from"] or "image" in row["from"] for row in before] == [True for _ in env]
    assert last["from"].startswith(f"CDI device {NAME} of {specs}/a.json")
    assert (report["edits"], report["refusal"]) == ([], None)


def test_podmans_own_words_stand_once(engine: Engine, specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes what the devices' specs say into the variables of the container that it tells."""
    monkeypatch.setattr(injected, "SPEC_DIRECTORIES", (str(specs),))
    made = {**container([f"{DEVICES}=void"]), "ImageName": "img"}
    made["Config"]["CreateCommand"] = ["podman", "run", "--device", NAME, "img"]
    found = engine.knows(made, program="podman")
    report = explain.explain(found.spec, "", found.origins)
    (row,) = [row for row in report["asked"] if row["what"] == DEVICES]
    assert row["from"] == f"CDI device {NAME} of {specs}/a.json"


def test_a_device_that_no_spec_has_is_refused_by_the_engine(engine: Engine, specs: Path) -> None:
    requests = [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=7"]}]
    info = {"Runtimes": OURS, "ServerVersion": "28.2.2", "CDISpecDirs": [str(specs)]}
    notes = engine.knows(container([], DeviceRequests=requests), info=info).notes
    assert [note for note in notes if "injects the CDI device nvidia.com/gpu=7, and will refuse: " in note]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["podman", "run", "--device", NAME, "img", "sh"], [NAME]),
        (["podman", "run", f"--device={NAME}", "--device", NAME, "img"], [NAME]),
        (["podman", "run", "--device", "/dev/fuse", "img"], []),
        (["podman", "run", "img", "prog", "--device", NAME], []),
        (["podman", "run", "--device"], []),
        ("podman", []),
        (None, []),
    ],
)
def test_podman_tells_them_in_its_command_line(words: Any, names: list[str]) -> None:
    assert injected.podmans({"ImageName": "img", "Config": {"CreateCommand": words}}) == names


@pytest.mark.parametrize(
    ("data", "running", "rootfs"),
    [
        ({"MergedDir": "/m", "UpperDir": "/u", "LowerDir": "/l1:/l2"}, True, "/m"),
        ({"MergedDir": "/m", "UpperDir": "/u", "LowerDir": "/l1:/l2"}, False, ""),
        ({"UpperDir": "/u", "LowerDir": "/l1"}, True, ""),
        ({"UpperDir": "/u"}, False, "/u"),
        ({"UpperDir": 3}, False, ""),
        ({"UpperDir": "relative"}, False, ""),
        (None, True, ""),
    ],
)
def test_the_directory_of_a_rootfs(data: Any, running: bool, rootfs: str) -> None:
    assert injected.rootfs({"GraphDriver": {"Data": data}, "State": {"Running": running}}) == rootfs


def test_of_odd_answers_there_is_none() -> None:
    assert injected.rootfs({"GraphDriver": 3, "State": []}) == ""
