"""`gpushim explain` of claims by the real command, beside a driver that gives them.

tests/e2e/test_dra_explain.py holds what it says of selectors and requests against the real scheduler.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import claims, pages
from e2e.dranode import Driver, becomes, driver, folder, host
from e2e.engines import SYSTEM_PATH, run
from e2e.test_dra_node import refresh
from e2e.test_dra_sharing import ONE, sharing
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


def written(folder: Path, *objects: dict[str, Any]) -> str:
    path = folder / "claim.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


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


def test_beside_another_driver_of_the_name(one: Driver, folder: Path) -> None:
    path = written(folder, claims.claim("two"))
    words = [sys.executable, "-m", "e2e.dradriver", str(folder), claims.DRIVER, "pool", "gpu-0", "x/y=z"]
    paths = ":".join(str(TOP / name) for name in ("plugin", "shim", "vendor", "tests"))

    def answer() -> str:
        (found,) = report(one, f"--claim={path}")["claims"]
        return f"{found['answer']}: {found['why']}"

    with subprocess.Popen(words, env={"PATH": SYSTEM_PATH, "PYTHONPATH": paths}) as theirs:
        try:
            becomes(one, lambda: answer().startswith("not now: another driver gpu.nvidia.com listens at "))
        finally:
            theirs.kill()
    becomes(one, lambda: answer().startswith("yes: "))


def test_a_claim_before_and_after_it_has_a_device(one: Driver, host: Host, folder: Path) -> None:
    path = written(folder, claims.claim("two", claims.request(count=2)))
    (before,) = report(one, f"--claim={path}")["claims"]
    assert before["answer"] == "yes"
    one.allocate("u1", host.gpus[1].uuid.lower())
    assert isinstance(one.prepare("u1")["u1"], list)
    (after,) = report(one, f"--claim={path}")["claims"]
    rows = {row["device"]: (row["answer"], row["why"]) for row in after["requests"][0]["devices"]}
    assert (after["answer"], rows[host.gpus[1].uuid.lower()]) == ("not now", ("not now", "claim d/c-u1 has it"))
    assert rows[host.gpus[2].uuid.lower()] == ("yes", "")
    assert {rows[mig.uuid.lower()][0] for mig in host.gpus[0].mig} == {"no"}

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
    assert report(one, f"--claim={path}")["claims"][0]["answer"] == "yes"
    words = (
        "has nothing on this node; kubectl --namespace d get resourceclaim c-u1 -o yaml says whether it is allocated"
    )
    assert words in explain(one.env, "claim", "d/c-u1", check=False)


def test_nothing_is_given_while_no_driver_runs(one: Driver, folder: Path) -> None:
    path = written(folder, claims.claim("one"))
    one.stop()
    (found,) = report(one, f"--claim={path}")["claims"]
    assert (found["answer"], found["why"].startswith("no gpushim-dra-driver runs on")) == ("not now", True)


@pytest.mark.parametrize("limits", [{"9": "5Gi"}, {}], ids=["no such device", "no program"])
def test_what_prepare_refuses_is_no_before(one: Driver, host: Host, folder: Path, limits: dict[str, str]) -> None:
    program = Path(f"{host.root}/usr/bin/nvidia-cuda-mps-control")
    aside = program.rename(program.with_suffix(".aside"))
    try:
        refresh(one.env, "--force")
        sharing(one, ONE, "MPS", host.gpus[1].uuid.lower(), defaultPerDevicePinnedMemoryLimit=limits)
        becomes(one, lambda: ("is unknown in" if limits else "there is no nvidia-cuda") in str(one.prepare(ONE)[ONE]))
        rows = one.claims[ONE]["status"]["allocation"]["devices"]["config"]
        path = written(folder, claims.claim("c", config=[{"opaque": row["opaque"]} for row in rows]))
        (found,) = report(one, f"--claim={path}")["claims"]
        why, _, _ = str(one.prepare(ONE)[ONE]).partition(";")  # then which GPUs there are, here another one
        assert (found["answer"], found["why"].partition(";")[0]) == ("no", f"the driver refuses it: {why}")
    finally:
        aside.rename(program)


def test_what_the_page_shows(one: Driver, folder: Path) -> None:
    """Its claims and templates are served here, by its DeviceClasses; these GPUs are not near each other."""
    blocks = [block.text for block in pages.blocks((TOP / "docs/dra.md").read_text()) if block.info == "yaml"]
    path = folder / "page.yaml"
    path.write_text("---\n".join(blocks))
    found = {row["name"]: row["answer"] for row in report(one, f"--claim={path}")["claims"]}
    assert found == {"one-gpu": "yes", "large-gpu": "yes", "mig-or-gpu": "yes", "by-mps": "yes", "two-near": "no"}
    assert "ResourceClaim one-gpu: yes, this node can serve it now" in explain(one.env, f"--claim={path}")
