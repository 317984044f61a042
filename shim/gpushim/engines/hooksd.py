"""The file that makes Podman and CRI-O call gpushim-hook for every container (oci-hooks(5)).

Both read the same directory where their settings name no other, so the file says for which of them it was put there,
and goes with the last. Out of scope: which directory it is (podman.py, crio.py); what the hook does (gpuhook).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from gpushim.engines import HOOK, files
from gpushim.engines.files import Change

if TYPE_CHECKING:
    from collections.abc import Iterable

DIRECTORY = "/usr/share/containers/oci/hooks.d"  # which both read where no file sets hooks_dir
FILE = "99-gpushim.json"
_PATH = re.compile(rf'"(/[^"]*/{HOOK})"'.encode())
_FOR = re.compile(rb'"GPUSHIM_HOOK_FOR=([a-z ]*)"')


def change(path: str, engine: str, program: str) -> Change:
    """Work out the file.

    Args:
        path: of the file.
        engine: for which it is put there, or no longer: "podman" or "crio".
        program: absolute path of gpushim-hook; "" takes the engine out, and the file if it was the last one.
    """
    old = files.read(path)
    named = _PATH.search(old or b"")
    told = _FOR.search(old or b"")
    engines = set((told[1].decode().split() if told else ["podman"]) if named else [])
    if not program and engine not in engines:
        return Change(path, old, old, recorded=False)
    ours = named[1].decode("utf-8", "replace") if named else ""
    left = engines | {engine} if program else engines - {engine}
    edited = old is not None and old != content(ours, engines)
    new = content(program or ours, left) if left else None
    return Change(path, old, new, recorded=False, lost=("settings of the hook",) if edited else ())


def content(program: str, engines: Iterable[str] = ("podman",)) -> bytes:
    """Write the file.

    Args:
        program: absolute path of gpushim-hook.
        engines: for which it is there; Podman alone is not named, as in the packages' file.
    """
    names = sorted(engines)
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    env += [] if names == ["podman"] else [f"GPUSHIM_HOOK_FOR={' '.join(names)}"]
    hook = {"path": program, "args": [HOOK, "prestart"], "env": env, "timeout": 60}
    form = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["prestart"]}
    return (json.dumps(form, indent=2) + "\n").encode()
