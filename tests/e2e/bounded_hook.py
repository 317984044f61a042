"""A hook that meets an image which brings as much as it may, or more: what it costs, and says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e import cost
from e2e.bad_images import MORE
from e2e.cost import Cost
from e2e.hostile_places import Place
from gpushim.ground import bounds
from unit.gpuhook.sandbox import as_root
from unit.gpuhook.trees import LIBS, LINK

FINISH = ("gpushim-hook", "prestart", "--rootfs", "ROOT", "--log", "LOG", *LIBS, *LINK, *MORE)


def finish(
    work: Path, place: Place, pid: int, words: tuple[str, ...] = FINISH, state: bytes = b""
) -> tuple[Cost, str]:
    """Run a hook for the image in `work`; return what it cost, and what it said on stderr and in its log."""
    as_root(pid, work / "root")
    known = {"ROOT": str(work / "root"), "LOG": str(work / "log")}
    (work / "log").unlink(missing_ok=True)
    (work / "config.json").write_text(json.dumps({"root": {"path": "root"}}))
    state = state or json.dumps({"pid": pid, "bundle": str(work), "status": "creating"}).encode()
    done = cost.of(work, place.top / "bin" / words[0], *(known.get(word, word) for word in words[1:]), state=state)
    log = (work / "log").read_text() if (work / "log").exists() else ""
    assert all(len(json.loads(line)["msg"]) <= bounds.LOG_TEXT for line in log.splitlines())
    return done, done.stderr + log


def hook_of(work: Path, place: Place, pid: int, words: tuple[str, ...], config: bytes) -> Cost:
    """Run a hook that finds the rootfs in this config.json."""
    as_root(pid, work / "root")
    (work / "config.json").write_bytes(config)
    state = json.dumps({"pid": pid, "bundle": str(work)})
    return cost.of(
        work,
        place.top / "bin" / words[0],
        *[word for word in words[1:] if word not in ("--log", "LOG")],
        state=state.encode(),
    )


def padded(value: dict[str, Any], size: int) -> bytes:
    """Return JSON of a size, most of it small values, which take most memory."""
    text = json.dumps(value)[:-1] + ', "annotations": ['
    rest = size - len(text) - len("0]}")
    return (text + "[]," * (rest // 3) + " " * (rest % 3) + "0]}").encode()
