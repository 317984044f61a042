"""A host whose driver keeps limits of GPU memory, by the simulated NVML, and a bundle for its containers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import engines, leftovers, views
from e2e.bundles import Bundle
from e2e.cdihooks import run
from e2e.standalone import alone
from e2e.trees import TOP
from e2e.views import CRUN
from e2e.witness import RUNC, settings

GIB = 1 << 30
SECONDS = 30.0
SEEN = "/seen"  # where a container sees what the driver was told
# The container's first process: its own cgroup, and the limits that stand when it starts.
LOOK = ["/bin/sh", "-c", f"cat {SEEN}/memory-limits; echo; cat /proc/self/cgroup"]


class Scene:
    """A host with driver 615 and one bundle."""

    def __init__(self, host: fakehost.Host, bundle: Bundle, low: str) -> None:
        self.host, self.bundle, self.low = host, bundle, low
        self.limits = Path(host.root, "usr/lib/fakehost/memory-limits")
        self.limits.touch()
        self._config = ""
        mount = {"destination": SEEN, "source": str(self.limits.parent), "type": "bind", "options": ["bind", "ro"]}
        bundle.plain["mounts"].append(mount)
        bundle.plain["process"]["user"] = {"uid": 0, "gid": 0}

    def refresh(self, more: str = "") -> None:
        config = Path(self.bundle.env["GPUSHIM_CONFIG"])
        config.write_text(config.read_text() + more)
        engines.run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **self.bundle.env})

    def settle(self, text: str) -> None:
        """Refresh with this in config.toml, and no more than it had at first."""
        config = Path(self.bundle.env["GPUSHIM_CONFIG"])
        self._config = self._config or config.read_text()
        config.write_text(self._config)
        self.refresh(text)

    def log(self) -> str:
        return Path(self.bundle.env["GPUSHIM_CONFIG"]).with_name("gpushim.log").read_text()

    def child(self) -> int:
        """Return the process that the hook has for this host's NVML."""
        (pid,) = leftovers.processes(Path(self.host.root), "gpuhook.nvml_limits")
        return pid

    @property
    def state(self) -> str:
        """Where the low-level runtime keeps containers."""
        return f"{self.bundle.directory}/state"

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Call gpushim where the containers are."""
        env = {"PATH": engines.SYSTEM_PATH, **self.bundle.env}
        command = [*self.bundle.prefix, str(TOP / "bin" / "gpushim"), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True)

    def ps(self) -> Any:
        return json.loads(self.call("ps", "--format", "json", "--state", self.state).stdout)

    def start(self, way: str, *env: str) -> subprocess.CompletedProcess[str]:
        if way == "shim":
            self.bundle.ask(*env, args=LOOK)
            return self.bundle.call("run", "--bundle", str(self.bundle.directory), self.bundle.id, check=False)
        if way == "hook":
            alone(self.bundle, *env, args=LOOK)
        else:
            self.bundle.ask(*env, args=LOOK, **self.injected())
        return run(self.bundle, self.low, check=False)

    def injected(self) -> dict[str, Any]:
        """What an engine takes from the CDI spec for the device 0: nodes, their rules and hooks."""
        spec = json.loads(Path(self.bundle.env["GPUSHIM_STATE"], "cdi/nvidia.com-gpu.json").read_text())
        (device,) = [entry for entry in spec["devices"] if entry["name"] == "0"]
        edits = [spec["containerEdits"], device["containerEdits"]]
        nodes = [{**node, "permissions": None} for edit in edits for node in edit.get("deviceNodes", ())]
        variables = [f"{name}={value}" for name, value in self.bundle.env.items()]
        hooks = [{**hook, "env": [*hook["env"], *variables]} for edit in edits for hook in edit.get("hooks", ())]
        linux = json.loads(json.dumps(self.bundle.plain["linux"]))
        for node in nodes:
            del node["permissions"]
            node.pop("hostPath", None)
            rule = {"allow": True, "type": "c", "major": node["major"], "minor": node["minor"], "access": "rw"}
            linux["resources"]["devices"].append(rule)
        linux["devices"] = nodes
        for hook in hooks:
            del hook["hookName"]
        return {"linux": linux, "hooks": {"prestart": hooks}}


@pytest.fixture(params=[RUNC, CRUN], ids=["runc", "crun"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, debian_root: Path) -> Iterator[Scene]:
    cache = str(TOP / ".cache" / "fakehost")
    host = fakehost.build(str(tmp_path / "host"), 2, driver="615.71", compile_cache=cache)
    (tmp_path / "settings").mkdir()
    low = str(views.low_level(("v2", request.param), tmp_path))
    env = settings(tmp_path / "settings", host.root, low)
    with views.view("v2") as prefix:
        made = Scene(host, Bundle(tmp_path / "bundle", debian_root, env, prefix), low)
        made.refresh()
        yield made
