"""`gpushim explain claim` by the real command, beside a driver that gives claims."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import claims
from e2e.dranode import Driver, becomes, driver, folder, host
from e2e.engines import SYSTEM_PATH, run
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host

__all__ = ["folder", "host"]


@pytest.fixture
def one(host: Host, folder: Path) -> Iterator[Driver]:
    """A driver that is registered and has published, whose kubelet directory the settings name."""
    env = settings(folder, host.root)
    with open(env["GPUSHIM_CONFIG"], "a") as file:
        file.write(f'[device-plugin]\nkubelet-dir = "{folder}"\n')
    run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": SYSTEM_PATH, **env})
    with driver(folder, env) as found:
        becomes(found, lambda: found.devices())
        yield found


def explain(env: dict[str, str], *words: str, check: bool = True) -> str:
    """Run the command; return what it prints."""
    done = run([str(TOP / "bin" / "gpushim"), "explain", *words], check=check, env={"PATH": SYSTEM_PATH, **env})
    return done.stdout + done.stderr


def report(one: Driver, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(explain(one.env, *words, "--format=json"))
    return found


def test_a_claim_that_the_driver_refuses(one: Driver, host: Host) -> None:
    for uid in ("u1", "u2"):
        one.allocate(uid, host.gpus[1].uuid.lower())
    assert isinstance(one.prepare("u1")["u1"], list)
    why = one.prepare("u2")["u2"]
    said = explain(one.env, "claim", "d/c-u2", check=False)
    assert f"claim d/c-u2 has nothing on this node: its driver refuses it: {why}" in " ".join(said.split())
    one.unprepare("u1")
    assert isinstance(one.prepare("u2")["u2"], list)
    assert not [note for note in report(one, "claim", "d/c-u2")["notes"] if "refuses" in note]
    one.unprepare("u2")


def test_beside_another_driver_of_the_name(one: Driver, folder: Path, host: Host) -> None:
    one.allocate("u1", host.gpus[1].uuid.lower())
    assert isinstance(one.prepare("u1")["u1"], list)
    words = [sys.executable, "-m", "e2e.dradriver", str(folder), claims.DRIVER, "pool", "gpu-0", "x/y=z"]
    paths = ":".join(str(TOP / name) for name in ("plugin", "shim", "vendor", "tests"))

    def is_noted() -> bool:
        notes = report(one, "claim", "d/c-u1")["notes"]
        return any(note.startswith("another driver gpu.nvidia.com listens at ") for note in notes)

    with subprocess.Popen(words, env={"PATH": SYSTEM_PATH, "PYTHONPATH": paths}) as theirs:
        try:
            becomes(one, is_noted)
        finally:
            theirs.kill()
    becomes(one, lambda: not is_noted())
    one.unprepare("u1")


def test_a_claim_while_it_has_a_device_and_afterwards(one: Driver, host: Host) -> None:
    one.allocate("u1", host.gpus[1].uuid.lower())
    assert isinstance(one.prepare("u1")["u1"], list)
    held = report(one, "claim", "d/c-u1")
    ((device,),) = [claim["devices"] for claim in held["claims"]]
    assert (device["cdi"], device["health"], device["request"]) == (
        f"nvidia.com/gpu={host.gpus[1].uuid}",
        "healthy",
        "r",
    )
    assert device["since"]
    assert "kubelet does not say" in " ".join(held["notes"])
    assert host.gpus[1].uuid in explain(one.env, "claim", "d/c-u1")

    one.unprepare("u1")
    words = (
        "has nothing on this node; kubectl --namespace d get resourceclaim c-u1 -o yaml says whether it is allocated"
    )
    assert words in explain(one.env, "claim", "d/c-u1", check=False)


def test_a_claim_that_has_a_device_while_no_driver_runs(one: Driver, host: Host) -> None:
    one.allocate("u1", host.gpus[1].uuid.lower())
    assert isinstance(one.prepare("u1")["u1"], list)
    one.stop()
    found = report(one, "claim", "d/c-u1")
    ((device,),) = [claim["devices"] for claim in found["claims"]]
    assert (device["cdi"], device["health"]) == (f"nvidia.com/gpu={host.gpus[1].uuid}", "not known")
    assert any(note.startswith("no gpushim-dra-driver runs on this node") for note in found["notes"])
