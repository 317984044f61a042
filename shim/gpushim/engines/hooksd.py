"""The file that makes Podman and CRI-O call gpushim-hook for every container (oci-hooks(5)).

By default both read the same directory, so the file says for which of them it is there, and goes with the last.
Out of scope: which directory it is (podman.py, crio.py); what the hook does (gpuhook).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from gpushim.engines.settings import files
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import HOOK

if TYPE_CHECKING:
    from collections.abc import Iterable

DIRECTORY = "/usr/share/containers/oci/hooks.d"  # which both read where no file sets hooks_dir
DIRECTORIES = (DIRECTORY, "/etc/containers/oci/hooks.d")
FILE = "99-gpushim.json"
_PATH = re.compile(rf'"(/[^"]*/{HOOK})"'.encode())
_FOR = re.compile(rb'"GPUSHIM_HOOK_FOR=([a-z ]*)"')


def change(path: str, engine_name: str, program: str) -> Change:
    """Return the change after which the file is there for an engine too, or no longer for it.

    Args:
        engine_name: "podman" or "crio", which is to call the hook or no longer to call it.
        program: absolute path of gpushim-hook; "" takes the engine out, and the file if it was the last one.
    """
    old = files.read(path)
    path_there = _PATH.search(old or b"")
    match = _FOR.search(old or b"")
    engines = set((match[1].decode().split() if match else ["podman"]) if path_there else [])
    if not program and engine_name not in engines:
        return Change(path, old, old)
    text = path_there[1].decode("utf-8", "replace") if path_there else ""
    remaining = engines | {engine_name} if program else engines - {engine_name}
    edited = old is not None and old != content(text, engines)
    new = content(program or text, remaining) if remaining else None
    return Change(path, old, new, files.EDITED if edited else "")


def named(data: object) -> str:
    """Return the program that the content of any such file, parsed, names; "" if it names none."""
    hook = data.get("hook") if isinstance(data, dict) else None
    path = hook.get("path") if isinstance(hook, dict) else hook
    return path if isinstance(path, str) else ""


def content(program: str, engines: Iterable[str] = ("podman",)) -> bytes:
    """Write the file: for `engines`, of which Podman alone is not named, as in the packages' file."""
    names = sorted(engines)
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    env += [] if names == ["podman"] else [f"GPUSHIM_HOOK_FOR={' '.join(names)}"]
    hook = {"path": program, "args": [HOOK, "prestart"], "env": env, "timeout": 60}
    form = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["prestart"]}
    return (json.dumps(form, indent=2) + "\n").encode()
