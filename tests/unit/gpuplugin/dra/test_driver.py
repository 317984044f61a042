from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.dra.driver import NodeHalf
from gpuplugin.dra.ledger import Ledger
from gpuplugin.settings import settings
from gpuplugin.settings.sources import Sources
from gpuplugin.snapshot.node_snapshot import OutdatedError
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, snapshot


def test_nothing_is_offered_before_the_ledger_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    tries: list[Any] = []

    def begin(_: Ledger, homes: Any) -> None:
        tries.append(homes)
        if len(tries) == 1:
            raise GpushimError("the disk is full")

    monkeypatch.setattr(Ledger, "open", begin)
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(), ""))
    half = NodeHalf(settings.resolve({}, {}, {}), Sources({}, {}), "node-1", str(tmp_path / "s"), 0)
    found = snapshot([gpu(0)])
    with pytest.raises(GpushimError, match="the disk is full"):
        asyncio.run(half._take(found))
    assert half._slices() == [[]]
    for _ in range(2):
        asyncio.run(half._take(found))
    assert len(tries) == 2


@pytest.mark.parametrize("kind", [GpushimError, OutdatedError])
def test_it_ends_if_its_container_is_outdated_and_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[GpushimError]
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    half = NodeHalf(settings.resolve({}, {}, {}), Sources({}, {}), "node-1", str(tmp_path / "s"), 0)

    def read() -> None:
        with half._once("snapshot"):
            raise kind("as it is")

    if kind is OutdatedError:
        with pytest.raises(OutdatedError):
            read()
    else:
        read()
        assert half._offer.problem == "as it is"
