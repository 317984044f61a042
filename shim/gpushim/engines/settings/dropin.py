"""Settings in TOML of engines that read a directory of such files: a file of ours, or somebody's own one.

Shared by CRI-O and Podman. Out of scope: which settings (crio.py, podman.py).
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings import files, undo
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.text import Toml
from gpushim.ground.errors import GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

HEADER = "# Made by `gpushim configure`; `gpushim configure {engine} --remove` takes it away."


def put(
    kind: undo.Kind,
    path: str,
    settings: dict[tuple[str, ...], Any],
    optional: dict[tuple[str, ...], Any],
    stays: Collection[str] | None = None,
) -> Change:
    """Work out a file with settings.

    Args:
        kind: of the file.
        path: of the file; a new one gets a header that tells whose it is.
        settings: value by key.
        optional: values for keys that are not there yet.
        stays: names of gpushim's runtimes that stay, "" for the default, where all others are to go.
    """
    base = undo.take_out(kind, path)
    start = base.old if stays is None else undo.take_out(replace(kind, spared=frozenset(stays)), path).new
    text = Toml.parse(start or b"", path)
    for keys, value in optional.items():
        if text.get(keys) is None:
            text = text.put(keys, value)
    for keys, value in settings.items():
        text = text.put(keys, value)
    header = f"{kind.comment}\n" if start is None else ""
    return replace(base, new=(header + text.text).encode(), before=base.new)


@dataclass(frozen=True)
class Engine:
    """An engine that reads several files.

    Attributes:
        title: its name, for sentences.
        kind: of its files; `others` are the runtimes that it has by itself.
    """

    title: str
    kind: undo.Kind

    def removal(self, paths: list[str], ours: list[str], spared: Collection[str] = ()) -> list[Change]:
        """Work out files without gpushim's settings.

        Args:
            paths: that the engine reads, as `merged` takes them.
            ours: files to take them out of.
            spared: names of gpushim's runtimes that stay, "" for the default.
        """
        others = table(merged(paths, dict.fromkeys(ours)), *self.kind.runtimes)
        kind = replace(self.kind, others=self.kind.others | {*others}, spared=frozenset(spared))
        return [undo.take_out(kind, path) for path in dict.fromkeys(ours)]

    def check_left(self, paths: list[str], changes: list[Change]) -> None:
        """Refuse to take back a runtime that a file of others names as the default.

        Args:
            paths: as `removal` takes them.
            changes: that take gpushim out.

        Raises:
            GpushimError: the engine would not start with what is left.
        """
        left = {change.path: change.new for change in changes}
        had, has = (table(merged(paths, instead), *self.kind.runtimes) for instead in ({}, left))
        *above, key = self.kind.default
        named = [(table(merged([path], left), *above).get(key), path) for path in _files(paths)]
        name, path = ([each for each in named if each[0] is not None] or [("", "")])[-1]
        if name in {*had} - {*has} - self.kind.others:
            raise goes_with(path, key, str(name), self.title)


def goes_with(path: str, default: str, name: str, title: str) -> GpushimError:
    """Return the refusal to take back a runtime that a line of others names as the default."""
    return GpushimError(
        f"{path}: {default} is {quote(name)}, which goes with gpushim's entry, and {title} does not start without "
        "it; remove that line, then try again"
    )


def merged(paths: list[str], instead: Mapping[str, bytes | None] | None = None) -> dict[str, Any]:
    """Read files as an engine does that merges them table by table, later ones last.

    Args:
        paths: files, and directories whose files are read in the order of their names; missing ones are skipped.
        instead: by path, what files are to become.

    Returns:
        all settings, without those of files that cannot be read, of which the engine itself will complain.
    """
    result: dict[str, Any] = {}
    for file in _files(paths):
        try:
            content = (instead or {})[file] if file in (instead or {}) else files.read(file)
            merge(result, Toml.parse(content or b"", file).get())
        except GpushimError:
            continue
    return result


def _files(paths: list[str]) -> list[str]:
    return [
        file
        for path in paths
        for file in (sorted(glob.glob(f"{glob.escape(path)}/*")) if os.path.isdir(path) else [path])
    ]


def table(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the table at these names, the outermost first; an empty one if there is no table."""
    found: Any = data
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Add settings to others, table by table."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value
