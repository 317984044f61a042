"""What the hook asks of the kernel, seen by strace: nothing is executed, and no place of a container has a path."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.hostile import HOOK, Trap
from e2e.hostile_code import library
from e2e.trees import TOP
from fakehost import Host
from gpushim.oci.edits import hook_args

LAUNCHER = Path(__file__).with_name("nosyscalls.py")
PATHS = "trace=%file,%process,setns,open_tree,move_mount,mount_setattr,umount2"
# `strace` names a call that was refused too.
CALL = re.compile(r"^\d+ +(?P<name>\w+)\((?P<words>.*)")
PIVOT = """
mount --bind "$0" "$0"
cd "$0"
mkdir old
./busybox pivot_root . old
/busybox umount -l /old
exec /busybox sleep 100
"""


def traced(trap: Trap, *before: str) -> list[str]:
    """Write a hook that is the real one under strace, after a command; return the words to start it."""
    script, hook = trap.work / "traced", str(trap.place.top / "bin" / HOOK.name)
    command = [*before, "/usr/bin/strace", "-f", "-s", "4096", "-e", PATHS, "-o", str(trap.work / "trace"), hook]
    script.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    script.chmod(0o755)
    return [str(script), "prestart"]


def calls(work: Path) -> list[tuple[str, str]]:
    """Name and arguments of each system call that was seen."""
    found = [CALL.match(line) for line in (work / "trace").read_text().splitlines()]
    return [(match["name"], match["words"]) for match in found if match]


DENIED = {"all": (), "no new calls": (sys.executable, str(LAUNCHER), "EPERM")}


@pytest.mark.parametrize("before", DENIED.values(), ids=DENIED)
def test_nothing_is_executed_and_nothing_below_the_rootfs_has_a_path(
    trap: Trap, gpu_host: Host, before: tuple[str, ...]
) -> None:
    """T-0135, T-30465, P-4, P-8."""
    trap.look("NVIDIA_VISIBLE_DEVICES=all")
    trap.run()  # the first time, a refresh may be a process of its own, in the host's namespaces
    hook = traced(trap, *before)
    trap.way, spec = "hook", trap.bundle.spec  # from here on without the shim, but with its edits
    (entry,) = spec["hooks"]["prestart"]
    entry["path"], entry["args"] = hook[0], [hook[0], *(hook_args(entry) or entry["args"][1:])]
    trap.bundle.config.write_text(json.dumps(spec))
    trap.saw_nothing(trap.run(), gpu_host)
    seen = calls(trap.work)
    assert [name for name, _ in seen].count("execve") == 1
    assert not [name for name, _ in seen if name in ("clone", "clone3", "fork", "vfork", "execveat", "chdir")]
    named = [(name, text) for name, text in seen if str(trap.root) in text and name != "execve"]
    assert not named
    mounts = [text for name, text in seen if name in ("mount", "umount2")]
    assert all(text.startswith(('"/proc/self/fd/', 'NULL, "/proc/self/fd/')) for text in mounts)
    assert bool(mounts) == (bool(before) and "setns" in dict(seen))


def pivoted(trap: Trap) -> subprocess.Popen[bytes]:
    """Start a process whose mount namespace has the image as its root, as after runc's pivot_root."""
    process = subprocess.Popen(["/usr/bin/unshare", "--mount", "/bin/sh", "-ec", PIVOT, str(trap.root)])
    root = Path(f"/proc/{process.pid}/root")
    while not (root / "busybox").exists():
        assert process.poll() is None
    return process


@pytest.mark.parametrize("before", DENIED.values(), ids=DENIED)
@pytest.mark.parametrize("trap", ["hook"], indirect=True)
def test_nothing_is_loaded_from_inside(trap: Trap, gpu_host: Host, before: tuple[str, ...]) -> None:
    """P-5 to P-7: poisoned Python code at the very paths of the host's, and an error in that namespace."""
    marker = trap.work / "owned"
    library(trap.work / "poc.so", marker)
    modules = [path for path in Path("/usr/lib/python3.11").rglob("*") if path.suffix in (".py", ".so")]
    for path in (*modules, *Path(f"{TOP}/hook/gpuhook").glob("*.py")):
        code = f"open({str(marker)!r}, 'w')\n".encode() if path.suffix == ".py" else b""
        trap.write(str(path)[1:], code or (trap.work / "poc.so").read_bytes())
    trap.bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=[], root={"path": "/"}, linux=everything_allowed())
    hook = traced(trap, *before)
    with pivoted(trap) as process:
        state = json.dumps({"pid": process.pid, "status": "created", "bundle": str(trap.bundle.directory)})
        done = subprocess.run(hook, input=state.encode(), env=trap.bundle.env, capture_output=True, check=False)
        process.kill()
    # mount(2) needs the host's file in that namespace, where it is not.
    assert done.returncode == (16 if before else 0), done.stderr
    assert (b"cannot be mounted in the container: it is not there" in done.stderr) == bool(before)
    seen = calls(trap.work)
    inside = [index for index, (name, _) in enumerate(seen) if name == "setns"]
    between = [call for call in seen[inside[0] + 1 : inside[1]] if "/proc/self/fd" not in call[1]]
    assert {name for name, _ in between} <= {"move_mount", "mount_setattr", *(("openat",) if before else ())}
    assert all(gpu_host.root in words for name, words in between if name == "openat")
    assert not marker.exists()


def everything_allowed() -> dict[str, Any]:
    """A container's devices that need no rule of ours."""
    return {"resources": {"devices": [{"allow": True, "access": "rwm"}]}, "namespaces": [{"type": "mount"}]}
