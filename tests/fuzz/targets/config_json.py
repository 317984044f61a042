"""config.json through a whole create: refused and untouched, or edited so that all else stays."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

from fuzz.oracles import host, refused, scratch
from gpushim.create import ahead, create
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.oci import bundle

DATA = Path(__file__).parents[2] / "data"
BUNDLE = scratch()
CONFIG = BUNDLE / "config.json"
SAVED = BUNDLE / f"config.json{bundle.SAVED}"
SPECS = scratch()
NODES = [{"path": "/dev/x0", "hostPath": "/dev/null"}, {"path": "/dev/x1", "type": "p"}]
OURS_BEFORE = {"path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart", "--rootfs", "/r"]}
THROUGH_SHELL = ahead.through_shell(OURS_BEFORE)  # type: ignore[arg-type]  # of another release, without an env
HOOK = {"hookName": "createContainer", "path": "/bin/sh", "args": ["sh", "-c", ":"]}
EDITS: dict[str, Any] = {
    "env": ["A=b"],
    "deviceNodes": NODES,
    "mounts": [{"hostPath": "/etc/hosts", "containerPath": "/etc/x"}],
    "hooks": [HOOK],
    "intelRdt": {"closID": "x"},
    "additionalGids": [5],
}
VALUES: tuple[Any, ...] = (
    *("process", "env", "capabilities", "bounding", "CAP_SYS_ADMIN", "user", "additionalGids", "uid", "gid"),
    *("linux", "devices", "resources", "namespaces", "mounts", "hooks", "prestart", "createRuntime", "annotations"),
    *("root", "path", "intelRdt", "type", "major", "minor", "access", "allow", "args", "destination", "source"),
    *("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1,2:0", "CUDA_VERSION=12.1"),
    *("NVIDIA_VISIBLE_DEVICES=vendor.com/x=0", "NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_VISIBLE_DEVICES=", "=", "void"),
    *("NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_IMEX_CHANNELS=3"),
    *("CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps", "NVIDIA_MIG_CONFIG_DEVICES=all", "cdi.k8s.io/x", "nvidia.com/gpu=0"),
    *("/dev/null", "/var/run/nvidia-container-devices/0", "/var/run/nvidia-container-devices/cdi/vendor.com/x/0"),
    *("/dev/nvidia0", "/dev/nvidiactl", "/dev/x0", "/usr/bin/gpushim-hook", "/usr/bin/nvidia-container-runtime-hook"),
    {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1},
    {"allow": False, "access": "rwm"},
    {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"},
    {"destination": "/usr/bin/nvidia-smi", "source": "/x"},
    {"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/GPU-01111111"},
    {"type": "user"},
    {"path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart"]},
    *(OURS_BEFORE, THROUGH_SHELL, {**THROUGH_SHELL, "path": 1}),
    *(THROUGH_SHELL["args"][:length] for length in range(5)),
    *("/bin/sh", "sh", "-c", "/usr/bin/gpushim-hook", "prestart", "--rootfs"),
)  # fmt: skip
LENGTH = 65536
INVENTORY = host()
INVENTORY["policy"]["cdi"]["spec-dirs"] = [str(SPECS)]
INVENTORY["policy"]["cdi"]["foreign-kinds"] = ["vendor.com/x"]
PRISTINE = copy.deepcopy(INVENTORY)
OURS = ("NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "A")  # variables that edits set
(SPECS / "x.json").write_text(
    json.dumps({"cdiVersion": "0.7.0", "kind": "vendor.com/x", "devices": [{"name": "0", "containerEdits": EDITS}]})
)
FREE = os.open("/dev/null", os.O_RDONLY)
os.close(FREE)


def seeds() -> list[bytes]:
    """Return runc's own config.json and Docker's, with requests of each form, whole and small."""
    found = []
    for name in ("runc", "docker", "docker-privileged"):
        spec = json.loads((DATA / f"{name}-config.json").read_text())
        spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
        found.append(json.dumps(spec).encode())
    for env in (["NVIDIA_VISIBLE_DEVICES=0,2:0"], ["NVIDIA_VISIBLE_DEVICES=vendor.com/x=0"], ["CUDA_VERSION=12.1"]):
        found.append(json.dumps({"root": {"path": "r"}, "process": {"env": env}}).encode())
    rule = {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"}
    linux = {"devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3}], "resources": {"devices": [rule]}}
    process = {"env": ["NVIDIA_VISIBLE_DEVICES=0"], "user": {"additionalGids": [5]}}
    members = {"mounts": [{"destination": "/x"}], "linux": linux, "process": process}
    found.append(
        json.dumps({"root": {"path": "r"}, **members, "hooks": {"prestart": [THROUGH_SHELL, HOOK]}}).encode()
    )
    found.append(json.dumps({"root": {"path": "r"}, **members}).encode())
    mount = {"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/1"}
    found.append(json.dumps({"root": {"path": "/r"}, "mounts": [mount], "process": {"user": {"uid": 1}}}).encode())
    found.append(json.dumps({"root": {"path": "/r"}, "annotations": {"cdi.k8s.io/a": "vendor.com/x=0"}}).encode())
    return found


def one(data: bytes) -> None:
    """Create a container, and once more."""
    with mock.patch.object(ensure, "last", return_value=(INVENTORY, "")):
        _create(data)


def _create(data: bytes) -> None:
    CONFIG.write_bytes(data)
    SAVED.unlink(missing_ok=True)
    os.closerange(FREE, FREE + 4)  # execve would close what a create leaves open
    try:
        create.edit("/usr/sbin/runc", str(BUNDLE), "id", 0.0)
    except GpushimError as error:
        refused(error)
        assert CONFIG.read_bytes() == data, "refused, and the file is another"
        assert not SAVED.exists()
        return
    finally:
        assert {*BUNDLE.iterdir()} <= {CONFIG, SAVED}
        assert INVENTORY == PRISTINE, "the snapshot has been changed"
    after = CONFIG.read_bytes()
    if after == data:
        return
    _unharmed(_spelled(data), _spelled(after))
    create.edit("/usr/sbin/runc", str(BUNDLE), "id", 0.0)
    assert CONFIG.read_bytes() == after, "a second time changes it again"


def _spelled(data: bytes) -> Any:
    return json.loads(data, parse_float=lambda text: ("float", text), parse_int=lambda text: ("int", text))


def _unharmed(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check that what nobody asked to change is as it was."""
    _same(before, after, "process", "linux", "mounts", "hooks")
    old, new = _member(before, "process"), _member(after, "process")
    _same(old, new, "env", "user")
    _same(_member(old, "user"), _member(new, "user"), "additionalGids")
    assert _others(old) == _others(new)
    old, new = _member(before, "linux"), _member(after, "linux")
    _same(old, new, "devices", "resources", "intelRdt")
    _same(_member(old, "resources"), _member(new, "resources"), "devices")
    _kept(_member(old, "resources"), _member(new, "resources"), "devices")
    hooks, ours = _member(before, "hooks"), _member(after, "hooks")
    _same(hooks, ours, "prestart", "createRuntime", "createContainer")
    assert [
        mount for mount in before.get("mounts") or () if mount not in after["mounts"] and not _replaced(mount)
    ] == []
    assert [node for node in old.get("devices") or () if node not in new["devices"] and not _replaced(node)] == []


def _replaced(entry: dict[str, Any]) -> bool:
    return entry.get("destination") == "/etc/x" or entry.get("path") in ("/dev/x0", "/dev/x1")


def _member(parent: dict[str, Any], key: str) -> dict[str, Any]:
    found = parent.get(key)
    return found if isinstance(found, dict) else {} if found is None else {"": found}


def _same(before: dict[str, Any], after: dict[str, Any], *but: str) -> None:
    left = [{key: value for key, value in side.items() if key not in but} for side in (before, after)]
    assert left[0] == left[1], "a member that no edit is about has changed"


def _kept(before: dict[str, Any], after: dict[str, Any], key: str) -> None:
    old, new = before.get(key) or [], after.get(key) or []
    begins = new[: len(old)] == old if isinstance(new, list) else new == old  # of a wrong type, where nobody asks
    assert begins, f"{key} does not begin with what it had"


def _others(process: dict[str, Any]) -> list[Any]:
    return [entry for entry in process.get("env") or () if entry.partition("=")[0] not in OURS]
