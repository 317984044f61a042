"""Sharing, as NVIDIA's file says it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin import sharing
from gpushim.errors import CONFIG, GpushimError

GPU = {"name": "nvidia.com/gpu", "replicas": 4}


def sliced(*rows: Any, **more: Any) -> dict[str, Any]:
    return {"timeSlicing": {"resources": list(rows), **more}}


def test_replicas() -> None:
    notes: list[str] = []
    found = sharing.read(sliced(GPU, {"name": "mig-1g.5gb", "replicas": 2}, renameByDefault=True), "f", notes)
    assert found.replicas == {"nvidia.com/gpu": 4, "nvidia.com/mig-1g.5gb": 2}
    assert (found.renamed, found.single, notes) == (True, False, [])


@pytest.mark.parametrize("section", [None, {}, {"timeSlicing": None}, {"timeSlicing": {"resources": None}}])
def test_nothing_is_shared(section: Any) -> None:
    assert sharing.read(section, "f", []) == sharing.Sharing()


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ([], "f: sharing is no mapping"),
        ({"timeSlicing": []}, "f: sharing.timeSlicing is no mapping"),
        ({"timeSlicing": {"resources": {}}}, "resources is no list"),
        (sliced("gpu"), "f: an entry of sharing.timeSlicing.resources is no mapping"),
        (sliced({"replicas": 2}), "has no name"),
        (sliced({"name": "gpu"}), "replicas of gpu is None, not a number between 2 and 1000"),
        (sliced({"name": "gpu", "replicas": 1}), "replicas of gpu is 1, not a number between"),
        (sliced({"name": "gpu", "replicas": True}), "replicas of gpu is True, not a number between"),
        (sliced({"name": "gpu", "replicas": 10**9}), "replicas of gpu is 1000000000, not"),
        (sliced(GPU, {"name": "gpu", "replicas": 2}), "has a resource twice"),
        (sliced(GPU, renameByDefault="yes"), "renameByDefault is yes, not true or false"),
        (sliced(GPU, failRequestsGreaterThanOne=1), "failRequestsGreaterThanOne is 1, not true or false"),
    ],
)
def test_what_is_wrong(section: Any, why: str) -> None:
    with pytest.raises(GpushimError, match=why) as told:
        sharing.read(section, "f", [])
    assert told.value.exit_code == CONFIG


def test_what_does_nothing_is_said() -> None:
    notes: list[str] = []
    row = {**GPU, "rename": "x", "devices": ["0"]}
    sharing.read({**sliced(row, renameByDefalt=True), "mps": {"resources": [GPU]}, "mqs": {}}, "f", notes)
    assert notes == [
        "f: sharing.mqs means nothing",
        "f: sharing.mps is read and does nothing: MPS is not offered",
        "f: sharing.timeSlicing.renameByDefalt means nothing",
        "f: rename of nvidia.com/gpu is read and does nothing, as in NVIDIA's plugin",
        "f: devices of nvidia.com/gpu is read and does nothing, as in NVIDIA's plugin",
    ]
