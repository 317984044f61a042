"""What the version before kept in two files is taken over once, and not read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.record.allocations_file import AllocationsFile
from gpushim.ground import system
from unit.gpuplugin.record.rows import GPU, ONE, TWO

PART = "MIG-00000000-0000-4000-8000-000000000001"
ENTRY = {
    "giver": "device-plugin", "to": "pod d/a", "uuid": ONE, "division": ["", GPU], "source": "pod-resources",
    "time": 5.0, "uid": "u-a",
}  # fmt: skip
CLAIMED = {
    **ENTRY,
    "giver": "dra-driver",
    "to": "claim d/c of gpu.nvidia.com",
    "division": ["claim", ""],
    "uuid": TWO,
}
PARTS = {GPU: {"count": 1, "numbered": False, "share": None}}
DIVISIONS = {ONE: {"parts": PARTS, "owner": 7, "place": ""}}
DEVICES = [
    {"request": "r", "device": "gpu-1", "uuid": TWO, "admin": False},
    {"request": "r", "device": "mig-1", "uuid": PART, "admin": True, "gpu": ONE, "place": "1/0"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    folder = tmp_path / "device-plugin"
    folder.mkdir(mode=0o700)
    return folder


def write(folder: Path, book: Any, claims: Any = None, line: Any = None) -> None:
    lines = [json.dumps(book)] + ([json.dumps(line)] if line else [])
    (folder / "book.json").write_text("\n".join(lines) + "\n")
    if claims is not None:
        (folder / "claims.json").write_text(json.dumps({"form": 1, "claims": claims}))


def book(entries: Any = None) -> dict[str, Any]:
    return {
        "form": 1, "boot": system.boot(), "turn": 3, "unknown": "", "kubelet": ["k", 1.0],
        "gpus": {ONE: {"divisions": DIVISIONS, "entries": entries or {}}},
    }  # fmt: skip


def read(folder: Path) -> Any:
    file = AllocationsFile()
    file.prepare()
    assert [path.name for path in folder.iterdir() if path.suffix != ".lock"] in ([], ["allocations.json"])
    return file.read()


def test_pods_claims_and_divisions(folder: Path) -> None:
    entries = {f"{GPU} {ONE}": ENTRY, f"claim {TWO}": CLAIMED}
    claims = {"u": {"namespace": "d", "name": "c", "devices": DEVICES, "pods": ["u-c"]}}
    write(folder, book(entries), claims, {ONE: {f"{GPU} later": {**ENTRY, "to": "", "uid": ""}}})
    record = read(folder)
    assert {key: (row["pod"], row["uid"]) for key, row in record["gpus"][ONE]["allocations"].items()} == {
        f"{GPU} {ONE}": ("pod d/a", "u-a"),
        f"{GPU} later": ("", ""),
    }
    assert record["gpus"][ONE]["divisions"][ONE] == {"parts": PARTS, "owner": 7, "placement": ""}
    (claim,) = record["claims"].values()
    facts = [(row["uuid"], row["gpu"], row["placement"], row["admin"]) for row in claim["devices"]]
    assert facts == [(TWO, TWO, "", False), (PART, ONE, "1/0", True)]
    assert (claim["pods"], record["generation"], record["kubelet"]) == (["u-c"], 3, ["k", 1.0])


def test_an_instance_of_the_version_before_that_still_runs_takes_nothing_from_the_record(folder: Path) -> None:
    """It writes its files again, of what it knows: in a rolling update, or when it was installed once more."""
    write(folder, book({f"{GPU} {ONE}": ENTRY}), {"u": {"namespace": "d", "name": "c", "devices": DEVICES}})
    first = read(folder)
    write(folder, book({f"{GPU} later": ENTRY}), {"v": {"namespace": "d", "name": "v", "devices": DEVICES}})
    after = read(folder)
    assert {*after["gpus"][ONE]["allocations"]} == {f"{GPU} {ONE}", f"{GPU} later"}
    assert {*after["claims"]} == {"u", "v"}
    write(folder, {**book(), "boot": "before", "gpus": {}})
    assert (read(folder)["gpus"], first["boot"]) == (after["gpus"], after["boot"])


@pytest.mark.parametrize("text", ["", "{", '{"form": 1}', '{"boot": 1}\n'])
def test_what_says_nothing_is_left_to_kubelet(folder: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "book.json").write_text(text)
    (folder / "claims.json").write_text("{")
    assert read(folder)["unknown"] == f"{folder}/book.json was damaged"  # until that has told all
    assert "book.json, of the version before, is damaged: it is removed, and goes by kubelet" in caplog.text
