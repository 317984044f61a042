"""Lay files down on the node, and take them away: each atomically, in an order that no create sees half a version.

Out of scope: whether they may be laid down (owners.py).
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import time
from typing import TYPE_CHECKING

from gpuplugin.node import payload as payloads
from gpuplugin.node import record as records
from gpuplugin.node.host import PYTHON
from gpushim.engines.processes import ask, origin
from gpushim.ground import system
from gpushim.paths.replace import content, replace

if TYPE_CHECKING:
    from gpuplugin.node.payload import Payload
    from gpuplugin.node.record import Record

COMPILE = 120  # seconds
# Seconds for containers that are being created with an old version: most take a fraction of a second; one that has to
# list the GPUs first can be seen by its command line.
SETTLE, LEAVE, POLL = 2.0, 30.0, 0.5


def down(payload: Payload, record: Record, tag: str) -> list[str]:
    """Lay down what is missing or different; returns the paths.

    Args:
        payload: what there shall be.
        record: gets all of it, and is saved before the first file is written.
        tag: cache tag of the node's Python.
    """
    present = os.path.lexists(payloads.CONFIG)
    # An administrator's is never written over; one that is as it was laid down gets the root that is asked for.
    skip = {payloads.CONFIG} if present and not (payload.root and record.has(payloads.CONFIG)) else set()
    if not os.path.isdir(system.SYSTEMD):
        skip.add(payloads.UNIT)
    files = {path: file for path, file in payload.files.items() if path not in skip}
    fresh = [path for path, file in files.items() if not _is(path, file)]
    record.files.update({path: records.digest(files[path].data) for path in files})
    for path in fresh:
        record.note(os.path.dirname(path))
    record.save()
    if payloads.CONFIG in fresh:  # first: after a kill before that, it would count as an administrator's
        _put(payloads.CONFIG, files[payloads.CONFIG])
    if any(path.startswith(payload.lib) for path in fresh):
        _halve(payload)
        fresh = [path for path, file in files.items() if not _is(path, file)]
    for path in fresh:
        if path.startswith("/usr/bin/"):
            break
        _put(path, files[path])
    compiled(payload, tag)
    for path in fresh:
        if path.startswith("/usr/bin/"):
            _put(path, files[path])
    return fresh


def compiled(payload: Payload, tag: str) -> None:
    """Compile a version for the node's Python, unless it is; a container starts without it too, only not as soon."""
    if not os.path.exists(f"{payload.lib}gpushim/create/__pycache__/create.{tag}.precompiled"):
        ask.program([PYTHON, "-IBS", f"{payload.lib}gpushim/create/stub.py", "compile"], COMPILE)
        more = [f"{payload.lib}{name}" for name in ("gpuplugin", "vendor")]
        ask.program([PYTHON, "-IBS", "-m", "compileall", "-q", *more], COMPILE)


def _is(path: str, file: payloads.File) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_mode & 0o777 == file.mode and status.st_uid == 0 and content(path) == file.data


def _put(path: str, file: payloads.File) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    replace(path, file.data, file.mode)


def _halve(payload: Payload) -> None:
    """Let creates wait for this version, of which other files are there, and forget what they were compiled to."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(payload.lib + payloads.WHOLE)
    _uncompile(payload.lib)


def _uncompile(lib: str) -> None:
    for folder, names, _ in os.walk(lib):  # which follows no link: what one leads to is not ours
        if "__pycache__" in names:
            names.remove("__pycache__")
            if not os.path.islink(cache := f"{folder}/__pycache__"):
                shutil.rmtree(cache)


def away(record: Record, paths: list[str]) -> list[str]:
    """Remove files, and the directories that are empty then; returns those that somebody has changed, which stay."""
    changed = []
    for path in sorted(paths, reverse=True):
        if record.has(path):
            os.unlink(path)
        elif os.path.lexists(path):
            changed.append(path)
        record.files.pop(path)
    for version in _versions(paths):
        _uncompile(f"{payloads.LIB}{version}/")
    for folder in sorted(record.folders, reverse=True):
        with contextlib.suppress(OSError):  # others have something there
            os.rmdir(folder)
    record.folders = [folder for folder in record.folders if os.path.isdir(folder)]
    return changed


def retired(record: Record, version: str) -> list[str]:
    """Remove other versions when no container is being created with them; returns those that are still in use."""
    old = _versions([*record.files]) - {version}
    if not old:
        return []
    time.sleep(SETTLE)
    until = time.monotonic() + LEAVE
    while (used := [each for each in old if _used(f"{payloads.LIB}{each}/")]) and time.monotonic() < until:
        time.sleep(POLL)
    for each in old.difference(used):
        away(record, [path for path in record.files if path.startswith(f"{payloads.LIB}{each}/")])
    return sorted(used)


def _versions(paths: list[str]) -> set[str]:
    """Return the versions of which these are files."""
    lib = payloads.LIB
    return {path[len(lib) :].partition("/")[0] for path in paths if path.startswith(lib)}


def _used(lib: str) -> bool:
    """Say whether a process of root's names a file of a version on its command line; others may write anything."""
    return any(
        os.fsencode(lib) in origin.data(f"{folder}/cmdline") and _of_root(folder)
        for folder in glob.glob("/proc/[0-9]*")
    )


def _of_root(folder: str) -> bool:
    """Say whether a process is root's, real, effective and saved, and in our PID namespace: no container's."""
    status = dict(line.split(":", 1) for line in origin.lines_of(f"{folder}/status") if ":" in line)
    here = origin.link("/proc/self/ns/pid")
    return status.get("Uid", "").split()[:3] == ["0"] * 3 and origin.link(f"{folder}/ns/pid") == here
