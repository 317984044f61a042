"""Call the hooks of CDI specs as a runtime does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from unit.gpuhook.sandbox import HOOK, as_root


def call(
    root: Path, pid: int, *words: str, name: str = "nvidia-cdi-hook", state: object = None, inside: int = 0
) -> tuple[int, str]:
    """Run a hook; with `inside`, in the mount namespace of that process, as createContainer hooks run."""
    if pid == inside or not inside:
        as_root(pid, root)
    text = json.dumps({"pid": pid, "bundle": str(root.parent), "status": "creating"} if state is None else state)
    enter = ["/usr/bin/nsenter", f"--mount=/proc/{inside}/ns/mnt"] if inside else []
    command = [*enter, str(HOOK.with_name(name)), *words]
    done = subprocess.run(command, input=text.encode(), capture_output=True, env={}, timeout=60)
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


def done(root: Path, pid: int, *words: str) -> str:
    code, said = call(root, pid, *words)
    assert code == 0
    return said
