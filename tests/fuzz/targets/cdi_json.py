"""A CDI spec: good or a sentence; a good one becomes edits that land, and what the validator calls good is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fuzz.oracles import refused, scratch
from gpushim.cdi import form, resolve, validate
from gpushim.cdi.specs import load
from gpushim.ground import fastjson
from gpushim.ground.errors import GpushimError
from gpushim.oci import edits
from unit.gpushim.cdi.hosts import foreign

DATA = Path(__file__).parents[2] / "data" / "cdi"
SPECS = scratch()
FILE = SPECS / "x.json"
BUNDLE: Any = {"rootfs": "/b/rootfs", "userns": False, "hook": "/usr/bin/gpushim-hook"}
CONFIG = b'{"root":{"path":"/r"},"process":{"user":{"uid":1},"env":["A=1"]},"mounts":[{"destination":"/usr"}]}'
VALUES: tuple[Any, ...] = (
    *(
        "cdiVersion",
        "kind",
        "devices",
        "name",
        "containerEdits",
        "annotations",
        "env",
        "deviceNodes",
        "mounts",
        "hooks",
    ),
    *("intelRdt", "additionalGids", "netDevices", "hostInterfaceName", "path", "hostPath", "containerPath", "type"),
    *("major", "minor", "fileMode", "permissions", "uid", "gid", "options", "hookName", "args", "timeout", "closID"),
    *(
        "0.5.0",
        "1.1.0",
        "vendor.com/x",
        "/dev/null",
        "/dev/fuse",
        "/",
        "/etc/hosts",
        "c",
        "b",
        "u",
        "p",
        "rwm",
        "bind",
    ),
    *("prestart", "startContainer", "nvidia-ctk", "/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook", "hook", "A=b"),
    *("enableCMT", "schemata", "nvidia.com/gpu", "rbind", "none", "tmpfs"),
    {"path": "/dev/x", "hostPath": "/dev/null"},
    {"path": "/dev/x", "type": "p"},
    {"hookName": "createRuntime", "path": "/bin/sh"},
    {"containerPath": "/usr", "hostPath": "/etc"},
    {"hostInterfaceName": "a", "name": "b"},
)
LENGTH = 65536


def seeds() -> list[bytes]:
    """Return the specs that gpushim writes, and a small one of each kind of edit."""
    small = json.dumps(foreign()).replace("/host/dev/x0", "/dev/null").replace("/host/lib/x.so", "/etc/hosts")
    small = small.replace('"major": 10, "minor": 1, ', "").replace("/host/bin/x", "/usr/bin/nvidia-ctk")
    rich = foreign(containerEdits={"additionalGids": [7], "intelRdt": {"closID": "x", "enableCMT": True}})
    bare = foreign(
        devices=[{"name": "0", "containerEdits": {"hooks": [{"hookName": "prestart", "path": "/bin/sh"}]}}]
    )
    ours = [path.read_bytes() for path in sorted(DATA.glob("*.json"))]
    return [*ours, small.encode(), json.dumps(rich).encode(), json.dumps(bare).encode()]


def one(data: bytes) -> None:
    """Read a spec and take its devices."""
    FILE.write_bytes(data)
    specs, troubles = load([str(SPECS)])
    assert len(specs) + len(troubles) == 1
    assert all(trouble.isprintable() and len(trouble) < 2000 for trouble in troubles), troubles
    _validated(data, bool(specs))
    for _, _, document in specs:
        _resolved([f"{document['kind']}={device['name']}" for device in document["devices"]])


def _validated(data: bytes, good: bool) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    findings = validate.findings(document)
    assert good or any(level == validate.ERROR for level, _ in findings), "valid, and not used"


def _resolved(names: list[str]) -> None:
    spec = fastjson.loads(CONFIG)
    try:
        found = resolve.last_counts(resolve.edits(names, [str(SPECS)], BUNDLE))
        edits.apply(found, spec)
    except GpushimError as error:
        refused(error)
        return
    text = fastjson.dumps(spec)
    assert not edits.apply(found, spec), "a second time changes it again"
    assert fastjson.dumps(spec) == text
    for hook in [hook for stage in form.STAGES for hook in spec.get("hooks", {}).get(stage, ())]:
        assert hook["path"].startswith("/")
        assert hook["env"], "a hook with the image's environment"
