"""A machine with processes, and with containers that runtimes know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpushim.containers import holders
from unit.gpushim.decision import inventories


class Machine:
    """A /proc, and a directory in which runc and crun keep states."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.proc, self.states = folder, folder / "proc", folder / "states"
        self.pid = 100

    def process(self, start: int = 5, state: str = "S", mounts: str = "") -> int:
        self.pid += 1
        folder = self.proc / str(self.pid)
        folder.mkdir(parents=True)
        between = " ".join(["0"] * 18)
        (folder / "stat").write_text(f"{self.pid} (a ) b) {state} {between} {start} 0")
        (folder / "mountinfo").write_text(mounts)
        return self.pid

    def bundle(self, name: str, spec: Any) -> str:
        folder = self.folder / "bundles" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(spec))
        return str(folder)

    def runc(self, name: str, spec: Any, pid: int, start: int = 5) -> None:
        labels = ["a=b", f"bundle={self.bundle(name, spec)}"]
        self.state(name, "state.json", init_process_pid=pid, init_process_start=start, config={"labels": labels})

    def crun(self, name: str, spec: Any, pid: int) -> None:
        self.state(name, "status", pid=pid, bundle=self.bundle(name, spec), **{"process-start-time": 5})

    def state(self, name: str, file: str, **members: Any) -> None:
        (self.states / name).mkdir(parents=True)
        (self.states / name / file).write_text(json.dumps(members))

    def found(self) -> list[dict[str, Any]]:
        found, notes = holders.holders(inventories.snapshot(), [str(self.states)], str(self.proc))
        assert notes == []
        return found

    def held(self) -> dict[str, tuple[list[str], str]]:
        return {each["id"]: (each["devices"], each["how"]) for each in self.found()}


def given(*paths: str, **members: Any) -> dict[str, Any]:
    nodes = inventories.snapshot()["nodes"]
    devices = [{"path": path, "type": "c", "major": nodes[path][0], "minor": nodes[path][1]} for path in paths]
    return {"linux": {"devices": devices}, **members}
