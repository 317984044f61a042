"""The container's state on the hook's stdin, and the bundle that it names."""

from __future__ import annotations

import json
import os
from typing import Any

from fuzz.oracles import scratch
from gpuhook import prestart
from gpuhook.inject import roots
from gpushim.ground.errors import GpushimError
from gpushim.oci.edits import edited

BUNDLE = scratch()
CONFIG = BUNDLE / "config.json"
VALUES: tuple[Any, ...] = (
    *("pid", "status", "bundle", "bundlePath", "creating", "created", "running", "root", "path", "hooks", "prestart"),
    *("createRuntime", "args", "/usr/bin/gpushim-hook", "--rootfs", str(BUNDLE), "/nowhere", "relative"),
    {"path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart", "--rootfs", "/r"]},
)
STDIN = os.memfd_create("state")


def seeds() -> list[bytes]:
    """Return what runc and crun write, with and without a bundle; each is its own bundle's config.json too."""
    state = {
        "ociVersion": "1.0.2",
        "id": "x",
        "status": "creating",
        "pid": 7,
        "bundle": str(BUNDLE),
        "annotations": {},
    }
    hooks = {"prestart": [{"path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart"]}]}
    states = [state, {**state, "root": {"path": "rootfs"}, "hooks": hooks}, {"pid": 1, "bundlePath": "/x"}, {}, []]
    return [*(json.dumps(each).encode() for each in states), b"", b"{}{}", b"\xff"]


def one(data: bytes) -> None:
    """Read a state, then the same bytes as its bundle's config.json."""
    os.ftruncate(STDIN, 0)
    os.pwrite(STDIN, data, 0)
    os.lseek(STDIN, 0, os.SEEK_SET)
    CONFIG.write_bytes(data)
    try:
        state = prestart.read_state(STDIN, 0.0)
        assert 0 < state["pid"] < 2**31
        assert roots.bundle_of(state).startswith("/")
        edited(state)
        assert roots.rootfs_of(state).startswith("/")
    except GpushimError as error:
        assert str(error)  # with the bundle's path as the runtime wrote it
