"""Settings in TOML of engines that read a directory of such files: a file of ours, or somebody's own one.

Shared by CRI-O and Podman. Out of scope: which settings (crio.py, podman.py).
"""

from __future__ import annotations

import glob
import os
from typing import Any

from gpushim.engines import files, tomltext, undo
from gpushim.engines.files import Change
from gpushim.errors import GpushimError, quote

HEADER = "# Made by `gpushim configure`; `gpushim configure {engine} --remove` takes it away."


def put(
    kind: undo.Kind, path: str, settings: dict[tuple[str, ...], Any], optional: dict[tuple[str, ...], Any]
) -> Change:
    """Work out a file with settings.

    Args:
        kind: of the file.
        path: of the file; one that does not exist gets a header that tells whose it is.
        settings: value by key; what already has the value stays as it is written.
        optional: settings that only go into a table that is not there yet.
    """
    old = files.read(path)
    text = tomltext.parse(old or b"", path)
    for keys, value in optional.items():
        if tomltext.get(text, keys) is None:
            text = tomltext.put(text, keys, value)
    for keys, value in settings.items():
        if tomltext.get(text, keys) != value:
            text = tomltext.put(text, keys, value)
    text = f"{kind.comment}\n{text}" if old is None else text
    base = undo.undone(kind, path, old)
    return Change(path, old, text.encode(), before=base.content, lost=base.lost)


def take_out(kind: undo.Kind, path: str) -> Change:
    """Work out a file without our settings; a file of ours goes when nothing else is in it.

    Args:
        kind: of the file.
        path: of the file.
    """
    old = files.read(path)
    base = undo.undone(kind, path, old)
    return Change(path, old, base.content, lost=base.lost)


def settings(text: str, runtimes: tuple[str, ...], default: tuple[str, ...], ours: list[str]) -> list[undo.Setting]:
    """List the settings that may be ours: each runtime that is gpushim-runtime, and the default if that is one.

    Args:
        text: of the file.
        runtimes: key of the table of runtimes.
        default: key of the default one's name.
        ours: names of the runtimes that are gpushim-runtime.
    """
    found = [undo.Setting((*runtimes, name), certain=True) for name in ours]
    return [*found, undo.Setting(default, certain=tomltext.get(text, default) in ours)]


def merged(paths: list[str]) -> dict[str, Any]:
    """Read files as an engine does that lets later ones win, table by table.

    Args:
        paths: files, and directories of files, whose names decide about their order; those missing count for nothing.

    Returns:
        all they say; what cannot be read, which the engine will complain about, says nothing.
    """
    result: dict[str, Any] = {}
    for path in paths:
        for file in sorted(glob.glob(f"{glob.escape(path)}/*")) if os.path.isdir(path) else [path]:
            try:
                _merge(result, tomltext.get(tomltext.parse(files.read(file) or b"", file), ()))
            except GpushimError:
                continue
    return result


def table(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a table within tables; an empty one for what is not there or no table.

    Args:
        data: from `merged`.
        names: from the outermost inwards.
    """
    found: Any = data
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def check_entry(path: str, name: str, program: object, ours: bool, force: bool) -> None:
    """Refuse to replace a runtime that somebody else made.

    Args:
        path: of the settings.
        name: of the runtime.
        program: that it runs now; None if there is no such runtime.
        ours: whether that is gpushim-runtime.
        force: replace it all the same.
    """
    if program is not None and not ours and not force:
        raise GpushimError(
            f"{path}: the runtime {name} is {quote(str(program))}; take another --runtime-name, or replace it with "
            "--force, which --remove undoes"
        )


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
