"""A host that changes, and creates on it: what a container was given, and which GPUs had which nodes when."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import fakehost
from e2e import recorder
from e2e.engines import SYSTEM_PATH
from e2e.trees import TOP
from e2e.witness import RUNC, settings

Done = subprocess.CompletedProcess[str]
Node = tuple[str, int, int]  # path, major, minor
MIG = [(1, 0, "3g.20gb"), (2, 0, "2g.10gb")]
# Two whole GPUs; and a first one that has two MIG instances.
HOSTS = {"scene": 2, "divided": [{"mig": MIG}, {}]}


class Scene:
    """A simulated host, its snapshot, and bundles.

    Args:
        work: empty directory.
        gpus: as fakehost.build takes them.
        top: the checkout whose programs are called.
        options: more of them.
    """

    def __init__(self, work: Path, gpus: Any, top: Path = TOP, **options: Any) -> None:
        self.work, self.top = work, top
        self.cache = str(TOP / ".cache" / "fakehost")
        self.host = fakehost.build(str(work / "host"), gpus, compile_cache=self.cache, **options)
        self.env = settings(work, self.host.root, str(recorder.build(work))) | {"PATH": SYSTEM_PATH}
        self.state = work / "state"
        subprocess.run([RUNC, "spec", "--bundle", work], check=True)
        self.plain = json.loads((work / "config.json").read_text())

    def call(self, *words: object, before: tuple[str, ...] = (), **env: str) -> Done:
        """Call a program of ours, maybe by way of another."""
        command = [*before, str(self.top / "bin" / str(words[0])), *map(str, words[1:])]
        return subprocess.run(command, env=self.env | env, check=False, capture_output=True, text=True, timeout=120)

    def refresh(self) -> Done:
        """Look at the host."""
        return self.call("gpushim", "refresh")

    def ask(self, devices: str, name: str = "one", before: tuple[str, ...] = ()) -> tuple[Done, set[Node]]:
        """Create a container that asks for devices; return the call, and the GPUs' nodes and uvm's that it got."""
        bundle = self.work / "bundles" / name
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir(parents=True)
        process = self.plain["process"]
        env = [*process["env"], f"NVIDIA_VISIBLE_DEVICES={devices}"]
        (bundle / "config.json").write_text(json.dumps({**self.plain, "process": {**process, "env": env}}))
        record = str(self.work / f"{name}.record")
        done = self.call("gpushim-runtime", "create", "--bundle", bundle, name, before=before, RECORD=record)
        return done, nodes(json.loads((bundle / "config.json").read_text()))

    def saved(self) -> dict[str, Any]:
        """Return the snapshot."""
        found: dict[str, Any] = json.loads((self.state / "inventory.json").read_text())
        return found

    def age(self, seconds: float = 1e6) -> None:
        """Let the snapshot be older, as if the time had passed."""
        found = self.saved()
        found["looked"] -= min(seconds, found["life"] or seconds)
        fresh = self.state / "aged"
        fresh.write_text(json.dumps(found))
        os.rename(fresh, self.state / "inventory.json")

    def given(self, index: int) -> Node:
        """Return the node that a whole GPU has now."""
        minor = self.host.gpus[index].minor
        return f"/dev/nvidia{minor}", 195, minor


def nodes(spec: dict[str, Any]) -> set[Node]:
    """List a config.json's nodes that give access to a GPU or to unified memory."""
    listed = [(node["path"], node["major"], node["minor"]) for node in spec["linux"].get("devices", ())]
    return {
        node for node in listed if node[0][len("/dev/nvidia") :].isdigit() or "uvm" in node[0] or "caps/" in node[0]
    }


def gpus(found: set[Node]) -> set[Node]:
    """Leave out all but the GPUs' own nodes."""
    return {node for node in found if node[0][len("/dev/nvidia") :].isdigit()}


def listed(name: str, work: Path, top: Path = TOP) -> Scene:
    """Make one of these hosts, its snapshot taken.

    Args:
        name: of HOSTS, which is that of a fixture.
        work: empty directory.
        top: the checkout whose programs are called.
    """
    scene = Scene(work, HOSTS[name], top)
    assert scene.refresh().returncode == 0
    return scene
