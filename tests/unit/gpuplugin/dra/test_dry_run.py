"""What `gpushim-dra-driver --check` says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuplugin.book import by_device, claimed
from gpuplugin.book.book import Book
from gpuplugin.dra import dry_run
from gpuplugin.settings import settings
from gpuplugin.snapshot import node_snapshot
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

HOST = snapshot([gpu(0), gpu(1), gpu(2)])


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is the tests', and all devices are in the CDI spec."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr(node_snapshot, "current", lambda: HOST)
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(), ""))


def test_who_has_what(capsys: pytest.CaptureFixture[str]) -> None:
    shared = Book()
    shared.prepare()
    with shared.locked() as before:
        page = shared.now(before)
        entry = by_device.noted_entry(by_device.PLUGIN, "pod d/p", uuid(0), ("nvidia.com/gpu", ""), "allocate", 1.0)
        page["gpus"] = {uuid(0): {"divisions": {}, "entries": {f"nvidia.com/gpu {uuid(0)}": entry}}}
        for number, name in ((1, "claim d/theirs of other.org"), (2, "claim d/ours of gpu.nvidia.com")):
            page = by_device.claim(page, {uuid(number): uuid(number)}, name, 1.0)
        shared.write(page)
        device = {"request": "r", "device": f"gpu-{uuid(2)}", "uuid": uuid(2), "admin": False}
        claimed.write({"u": {"namespace": "d", "name": "ours", "devices": [device]}})
    dry_run.tell(settings.resolve({}, {}, {}), lambda _: "")
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("gpu-")}
    for number, words in enumerate(("device plugin", "claim d/theirs of other.org", "claim d/ours")):
        assert words in rows[uuid(number).lower()]


def test_a_gpu_that_a_claim_has_left_as_it_is_not_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "mps/claim-12345678-1234-4234-8234-123456789012-0"
    place.mkdir(parents=True)
    (place / "compute-modes.json").write_text(json.dumps({uuid(1): 0}))
    dry_run.tell(settings.resolve({}, {}, {}), lambda _: "")
    said = capsys.readouterr().out
    assert "2 of 3 can be given out" in said
    rows = [line for line in said.splitlines() if "has not ended yet" in line]
    assert [row.split()[0] for row in rows] == [uuid(1).lower()]


def test_another_driver_is_named() -> None:
    with pytest.raises(GpushimError, match=r"^another driver gpu\.nvidia\.com listens at /k/x\.sock, so"):
        dry_run.tell(settings.resolve({}, {}, {}), lambda _: "/k/x.sock")
