"""Write files on the node, and remove them: each atomically, in an order in which no create sees half a version.

Out of scope: whether they may be written (owners.py).
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
# Seconds for containers that are being created with an old version: most take a fraction of a second; a create that
# lists the GPUs first shows on its command line.
CREATE_TIME, LONGEST_WAIT, POLL = 2.0, 30.0, 0.5


def write_files(payload: Payload, record: Record, tag: str) -> list[str]:
    """Write the files that are missing or different; return their paths.

    Args:
        payload: with all files.
        record: gets all files, and is saved before the first one is written.
        tag: cache tag of the node's Python.
    """
    present = os.path.lexists(payloads.CONFIG)
    # An administrator's config.toml is never overwritten; an unchanged one of ours gets the payload's driver root.
    skip = {payloads.CONFIG} if present and not (payload.root and record.is_unchanged(payloads.CONFIG)) else set()
    if not os.path.isdir(system.SYSTEMD):
        skip.add(payloads.UNIT)
    files = {path: file for path, file in payload.files.items() if path not in skip}
    fresh = [path for path, file in files.items() if not _is_written(path, file)]
    record.files.update({path: records.digest(files[path].data) for path in files})
    for path in fresh:
        record.note_folder(os.path.dirname(path))
    record.save()
    if payloads.CONFIG in fresh:  # first: after a kill, it would count as an administrator's
        _write(payloads.CONFIG, files[payloads.CONFIG])
    if any(path.startswith(payload.lib) for path in fresh):
        _mark_incomplete(payload)
        fresh = [path for path, file in files.items() if not _is_written(path, file)]
    for path in fresh:
        if path.startswith("/usr/bin/"):
            break
        _write(path, files[path])
    compile_version(payload, tag)
    for path in fresh:
        if path.startswith("/usr/bin/"):
            _write(path, files[path])
    return fresh


def compile_version(payload: Payload, tag: str) -> None:
    """Compile a version for the node's Python unless that was done; containers start without, too, but slower."""
    if not os.path.exists(f"{payload.lib}gpushim/create/__pycache__/create.{tag}.precompiled"):
        ask.program([PYTHON, "-IBS", f"{payload.lib}gpushim/create/stub.py", "compile"], COMPILE)
        folders = [f"{payload.lib}{name}" for name in ("gpuplugin", "vendor")]
        ask.program([PYTHON, "-IBS", "-m", "compileall", "-q", *folders], COMPILE)


def _is_written(path: str, file: payloads.File) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_mode & 0o777 == file.mode and status.st_uid == 0 and content(path) == file.data


def _write(path: str, file: payloads.File) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    replace(path, file.data, file.mode)


def _mark_incomplete(payload: Payload) -> None:
    """Make creates wait until this version, which differs on the node, is whole; remove its bytecode."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(payload.lib + payloads.WHOLE)
    _remove_bytecode(payload.lib)


def _remove_bytecode(lib: str) -> None:
    for folder, names, _ in os.walk(lib):  # follows no link: its target is not ours
        if "__pycache__" in names:
            names.remove("__pycache__")
            if not os.path.islink(cache := f"{folder}/__pycache__"):
                shutil.rmtree(cache)


def remove_files(record: Record, paths: list[str]) -> list[str]:
    """Remove files, and directories that become empty; return the files that somebody has changed, which stay."""
    changed = []
    for path in sorted(paths, reverse=True):
        if record.is_unchanged(path):
            os.unlink(path)
        elif os.path.lexists(path):
            changed.append(path)
        record.files.pop(path)
    for version in _list_versions(paths):
        _remove_bytecode(f"{payloads.LIB}{version}/")
    for folder in sorted(record.folders, reverse=True):
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(folder)
    record.folders = [folder for folder in record.folders if os.path.isdir(folder)]
    return changed


def remove_old_versions(record: Record, version: str) -> list[str]:
    """Remove other versions when no container is being created with them; return those that are still in use."""
    old = _list_versions([*record.files]) - {version}
    if not old:
        return []
    time.sleep(CREATE_TIME)
    until = time.monotonic() + LONGEST_WAIT
    while (used := {name for name in old if _is_used(f"{payloads.LIB}{name}/")}) and time.monotonic() < until:
        time.sleep(POLL)
    for name in old - used:
        remove_files(record, [path for path in record.files if path.startswith(f"{payloads.LIB}{name}/")])
    return sorted(used)


def _list_versions(paths: list[str]) -> set[str]:
    lib = payloads.LIB
    return {path[len(lib) :].partition("/")[0] for path in paths if path.startswith(lib)}


def _is_used(lib: str) -> bool:
    """Return whether a process of root's has a file of a version on its command line; other users' do not count."""
    return any(
        os.fsencode(lib) in origin.data(f"{folder}/cmdline") and _is_of_root(folder)
        for folder in glob.glob("/proc/[0-9]*")
    )


def _is_of_root(folder: str) -> bool:
    """Return whether a process is root's (real, effective and saved) and in our PID namespace: no container's."""
    status = dict(line.split(":", 1) for line in origin.lines_of(f"{folder}/status") if ":" in line)
    own_namespace = origin.link("/proc/self/ns/pid")
    return status.get("Uid", "").split()[:3] == ["0"] * 3 and origin.link(f"{folder}/ns/pid") == own_namespace
