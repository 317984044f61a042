"""A simulated host that is watched by real children, and what they tell."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Optional

import pytest

import fakehost
from gpuplugin.health import nvml_child
from gpuplugin.processes.child import Child
from gpushim.inventory import procfs

PYTHON = "import json, os, signal, sys, time\ndef tell(**line): print(json.dumps(line), flush=True)\n"


def snapshot(host: fakehost.Host) -> Any:
    """Return of a host's snapshot what a child is told."""
    nvml = os.path.realpath(host.nvml)[len(host.root) :]
    gpus = [{"uuid": gpu.uuid, "pci": procfs.pci_address(gpu.pci)} for gpu in host.gpus]
    return {"inputs": {"root": host.root}, "files": {"utility": [{"path": nvml}]}, "gpus": gpus}


class Heard:
    """A child, by default of a script, and what it said."""

    def __init__(
        self, script: str = "", words: Any = None, name: str = "events", silence: float = 5.0, fed: bool = False
    ) -> None:
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self.blind: list[tuple[str, str]] = []
        self.suspects: list[list[str]] = []

        def command(suspects: Any) -> list[str]:
            self.suspects.append([*suspects])
            return words(suspects) if words else [sys.executable, "-ISc", PYTHON + script]

        self.child = Child(name, command, self._heard, self._blind, silence, fed=fed)

    def _heard(self, line: dict[str, Any]) -> None:
        self.lines.append((time.monotonic(), line))

    def _blind(self, why: str, gpu: str) -> None:
        self.blind.append((why, gpu))

    def run(self, body: Callable[[], Awaitable[Any]]) -> None:
        """Run a body beside the child; afterwards no process and no descriptor is left."""

        async def whole() -> None:
            before = len(os.listdir("/proc/self/fd"))
            self.child.begin()
            try:
                await body()
            finally:
                pid = self.child.pid
                assert await self.child.stop()
            assert not os.path.exists(f"/proc/{pid}")
            assert len(os.listdir("/proc/self/fd")) <= before

        asyncio.run(whole())

    def last(self, key: str) -> Optional[dict[str, Any]]:
        """Return the last line that has a key."""
        return next((line for _, line in reversed(self.lines) if key in line), None)

    def told(self, condition: Callable[[dict[str, Any]], Any], key: str) -> Callable[[], bool]:
        return lambda: bool((line := self.last(key)) and condition(line))


def watch(host: fakehost.Host, mode: str, silence: float = 5.0) -> Heard:
    """Watch a host."""
    return Heard(
        "", lambda suspects: nvml_child.command(mode, snapshot(host), f"{host.root}/proc", suspects), mode, silence
    )


@pytest.fixture
def host(tmp_path: Path) -> fakehost.Host:
    return fakehost.build(str(tmp_path / "host"), 2)
