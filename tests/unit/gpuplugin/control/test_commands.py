"""Root's commands to the agent, of which the release tells who has GPUs by claims."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.control.commands import Commands
from gpuplugin.control.letting_go import LettingGo
from gpuplugin.kubelet import podresources
from gpuplugin.kubelet.podresources import Listed
from gpushim.containers.kubelet import OWN_DRIVER, Claim


def test_who_has_a_claim_is_told_with_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They must end before the driver can be unloaded."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr("gpuplugin.processes.spawn.wait_for_all", nothing)
    rows = [Claim("a", "claim", driver, "node", "gpu-0", (), "pod", "main") for driver in (OWN_DRIVER, "other.com")]

    async def listed(_: str) -> Listed:
        return Listed([], rows)

    async def status() -> dict[str, Any]:
        return {"pods": []}

    monkeypatch.setattr(podresources, "listed", listed)

    async def story() -> None:
        letting = LettingGo(asyncio.get_running_loop().create_task, nothing, lambda: None, lambda _: None, "x")
        by_word = Commands(letting, lambda: "/none", status).by_word
        answer = await by_word["release"]()
        assert (answer["closed"], [row["driver"] for row in answer["claims"]]) == (True, [OWN_DRIVER])
        assert answer["claims"][0]["pod"] == "pod"
        assert letting.held()
        told = (await by_word["claims"]())["claims"]
        assert json.loads(json.dumps(told)) == [{**row._asdict(), "cdi": [], "uids": []} for row in rows]
        await by_word["take"]()
        assert not letting.held()

    asyncio.run(story())


async def nothing() -> None:
    """Be done at once."""
