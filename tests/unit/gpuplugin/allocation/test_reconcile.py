"""When a device that the host has not any more may leave kubelet's list; the daemon's tests have the rest."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.allocation import reconcile
from gpuplugin.kubelet import podresources

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("idle", "listed", "held", "dropped"),
    [
        (11.0, True, {}, [{"GPU-0", "GPU-1"}]),
        (10.0, True, {}, []),  # an Allocate may be under way
        (11.0, False, {}, []),  # kubelet has not read the list since
        (11.0, True, {GPU: {"GPU-0": "pod default/a"}}, [{"GPU-1"}]),
        (11.0, True, None, []),  # it does not answer
    ],
)
def test_what_is_gone_is_dropped(
    monkeypatch: pytest.MonkeyPatch, idle: float, listed: bool, held: Any, dropped: list[set[str]]
) -> None:
    async def pods(folder: str) -> Any:
        return None if held is None else SimpleNamespace(held=lambda: held)

    monkeypatch.setattr(podresources, "listed", pods)
    found: list[set[str]] = []
    resource = SimpleNamespace(gone={"GPU-0", "GPU-1"}, idle=idle, devices=[1], drop=found.append)
    one = SimpleNamespace(resource=resource, endpoint=SimpleNamespace(listed=listed), tell=list)
    asyncio.run(reconcile.drop(SimpleNamespace(served={GPU: one}), "", 10.0))  # type: ignore[arg-type]
    assert found == dropped
