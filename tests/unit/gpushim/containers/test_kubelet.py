"""kubelet's checkpoint: as kubelet writes it, and damaged in any way."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpushim.containers import kubelet
from unit.gpushim.containers.checkpoints import ANSWER, CLAIM, ENTRY, promise, write


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ([], "own"),  # no kubelet has run
        (["own/"], "own"),
        (["usual/"], "usual"),
        (["own/", "usual/"], "own"),
        (["own/", f"usual/{kubelet.KUBELET_SOCKET}"], "usual"),  # somebody has made the other one
        (["own/", f"usual/{kubelet.CHECKPOINT}"], "usual"),  # between two kubelets
        ([f"own/{kubelet.KUBELET_SOCKET}", f"usual/{kubelet.CHECKPOINT}"], "own"),
    ],
)
def test_the_directory_of_device_plugins(tmp_path: Path, there: list[str], found: str) -> None:
    """Not in kubelet's own directory, if that is another than the usual one."""
    own, usual = tmp_path / "own", Path(f"{tmp_path}/top{kubelet.USUAL}")
    folders = {"own": own / kubelet.PLUGINS, "usual": usual / kubelet.PLUGINS}
    for name, _, file in (each.partition("/") for each in there):
        folders[name].mkdir(parents=True)
        (folders[name] / (file or "other")).touch()
    assert kubelet.plugins(str(own), f"{tmp_path}/top") == str(folders[found])


def test_what_kubelet_writes(tmp_path: Path) -> None:
    found = kubelet.checkpoint(write(tmp_path, [ENTRY], {"nvidia.com/gpu": ["GPU-1", "GPU-2"]}))
    assert found.registered == {"nvidia.com/gpu": ["GPU-1", "GPU-2"]}
    (given,) = found.given
    assert given[:4] == ("u", "c", "nvidia.com/gpu", ["GPU-1", "GPU-2"])
    assert given.answer == [
        "variable A=b",
        "mount /c from /h",
        "device node /dev/x",
        "annotation k: v",
        "CDI device nvidia.com/gpu=0",
    ]


def test_none_at_all_and_ids_without_numa(tmp_path: Path) -> None:
    assert kubelet.checkpoint(write(tmp_path)) == kubelet.Checkpoint({}, [])
    (given,) = kubelet.checkpoint(write(tmp_path, [{**ENTRY, "DeviceIDs": ["GPU-1"], "AllocResp": None}])).given
    assert (given.devices, given.answer) == (["GPU-1"], [])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"Data": 3}', '{"Data": {}}', "[" * 100000,
             '{"Data": {"RegisteredDevices": 3, "PodDeviceEntries": null}}',
             '{"Data": {"RegisteredDevices": {"a": 3}, "PodDeviceEntries": null}}',
             '{"Data": {"RegisteredDevices": null, "PodDeviceEntries": [3]}}',
             '{"Data": {"RegisteredDevices": null, "PodDeviceEntries": [{"PodUID": 1}]}}'],
)  # fmt: skip
def test_damaged(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path, text=text)
    with pytest.raises(ValueError, match=r".+"):
        kubelet.checkpoint(folder)


@pytest.mark.parametrize("cut", [*range(1, len(ANSWER) - 1, 5)])
def test_an_answer_that_is_cut_short_says_nothing(tmp_path: Path, cut: int) -> None:
    entry = {**ENTRY, "AllocResp": base64.b64encode(ANSWER[:cut]).decode()}
    (given,) = kubelet.checkpoint(write(tmp_path, [entry])).given
    assert len(given.answer) < 5


@pytest.mark.parametrize(
    "answer", ["%", 3, base64.b64encode(b"\xff" * 20).decode(), base64.b64encode(b"\x0b").decode()]
)
def test_what_is_no_answer(tmp_path: Path, answer: Any) -> None:
    (given,) = kubelet.checkpoint(write(tmp_path, [{**ENTRY, "AllocResp": answer}])).given
    assert given.answer == []


def test_what_would_hang_or_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet, "LIMIT", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        kubelet.checkpoint(write(tmp_path))
    (tmp_path / kubelet.PLUGINS / kubelet.CHECKPOINT).unlink()
    os.mkfifo(tmp_path / kubelet.PLUGINS / kubelet.CHECKPOINT)
    with pytest.raises(ValueError, match="not a regular file"):
        kubelet.checkpoint(str(tmp_path))


def test_claims_that_kubelet_keeps(tmp_path: Path) -> None:
    (found,) = kubelet.claims(promise(tmp_path, [CLAIM]))
    assert found[:6] == ("ns", "gpu", "gpu.nvidia.com", "node", "gpu-0", ("nvidia.com/gpu=0",))
    assert found.uids == {"u"}
    assert found.uid == "k"


def test_claims_that_kubelet_has_even_before_a_driver_answers(tmp_path: Path) -> None:
    new = {**CLAIM, "ClaimUID": "new", "DriverState": None}
    assert kubelet.claim_uids(promise(tmp_path, [CLAIM, new])) == {"k", "new"}
    assert kubelet.claim_uids(promise(tmp_path, None)) == frozenset()
    (tmp_path / kubelet.CLAIMS).unlink()
    with pytest.raises(FileNotFoundError):
        kubelet.claim_uids(str(tmp_path))


def test_no_driver_ever_gave_anything(tmp_path: Path) -> None:
    assert kubelet.claims(str(tmp_path)) == [] == kubelet.claims(promise(tmp_path, None))


DAMAGED = ("", "[]", '{"Data": {}}', *(json.dumps({"Data": one}) for one in ("[]", "{}", "[" * 99999)))


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_claims(tmp_path: Path, text: str) -> None:
    (tmp_path / kubelet.CLAIMS).write_text(text)
    for read in (kubelet.claims, kubelet.claim_uids):
        with pytest.raises(ValueError, match=r"kubelet writes|nested|Expecting"):
            read(str(tmp_path))
