"""containerd's settings: config.toml and the files that it imports, in the order in which containerd reads them.

Where the CRI's settings are depends on the file's version (containerd's docs/cri/config.md). How files add up depends
on containerd's: since 2.0 later ones are merged into earlier ones, before that the whole table of a plugin, such as
the CRI's, replaces the one of the files before. Out of scope: changing anything (__init__.py).
"""

from __future__ import annotations

import fnmatch
import glob
import os
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpushim.engines.containerd import generated
from gpushim.engines.settings import dropin, files, setup
from gpushim.engines.settings.text import Toml, decoded
from gpushim.ground.errors import GpushimError, quote

if TYPE_CHECKING:
    from gpushim.engines.containerd.process import Daemon

CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
OURS = "99-gpushim.toml"
RUNC = "io.containerd.runc.v2"
# What names a runtime's program; a runtime made like another one has all its other settings.
PROGRAM = ("runtime_type", "runtime_path", "runtime_engine", "runtime_root")
LIMIT = 200  # files; a host has a handful


@dataclass(frozen=True)
class File:
    """One file.

    Attributes:
        path: absolute, within containerd's root.
        data: what it says; {} for one that does not exist.
        version: that it states; 0 if none.
    """

    path: str
    data: dict[str, Any]
    version: int = 0


def load(daemon: Daemon, path: str, strict: bool = True) -> list[File]:
    """Read a file and all it imports, each once.

    Args:
        daemon: that reads them.
        path: absolute, within containerd's root.
        strict: False skips imported files that are missing or broken, and takes a broken generated one for empty.

    Raises:
        GpushimError: a file cannot be read or understood, or an imported one is missing.
    """
    loaded: dict[str, File] = {}
    pending = [(path, "")]
    while pending:
        (path, importer), pending = pending[0], pending[1:]
        if path in loaded:
            continue
        if len(loaded) == LIMIT:
            raise GpushimError(f"{importer} and its imports are more than {LIMIT} files; see what they import")
        try:
            loaded[path] = file = _file(daemon, path, importer, strict)
            pending += [(each, path) for each in _imports(daemon, file)]
        except GpushimError:
            if strict or not importer:
                raise
    return list(loaded.values())


def keys(tree: list[File], file: File, merges: bool) -> tuple[str, str]:
    """Return where a file of a tree has the CRI's settings.

    `merges` says whether containerd takes each file by its own version, as since 2.0, or all by the last one stated.
    """
    stated = [tree[0].version, file.version] if merges else [each.version for each in tree]
    version = ([1] + [each for each in stated if each])[-1]
    return ("plugins", CRI[min(version, 3)])


def cri(tree: list[File], file: File, merges: bool) -> dict[str, Any]:
    """Return the CRI's settings of one file of a tree; {} if it has none.

    Raises:
        GpushimError: something on the way to a runtime's settings is no table.
    """
    outer, inner = keys(tree, file, merges)
    table: Any = file.data
    for name in (outer, inner):
        table = _table(file, table, name)
    engine = _table(file, table, "containerd")
    for name in _table(file, engine, "runtimes"):
        _table(file, _table(file, engine["runtimes"], name), "options")
    return dict(table)


def effective(tree: list[File], merges: bool) -> dict[str, Any]:
    """Return the CRI's settings of all files together, without containerd's defaults."""
    result: dict[str, Any] = {}
    for file in tree:
        table = deepcopy(cri(tree, file, merges))
        if merges:
            dropin.merge(result, table)
        else:
            result = table or result
    return result


def directory(daemon: Daemon, tree: list[File]) -> str:
    """Find the path within containerd's root at which a file of gpushim's would be imported; "" if none."""
    for pattern in _patterns(daemon, tree[0]):
        folder, last = os.path.split(pattern)
        if "*" in last and not glob.has_magic(folder):
            for name in (OURS, last.replace("*", OURS[: -len(".toml")], 1).replace("*", "")):
                if fnmatch.fnmatchcase(name, last):
                    return f"{folder}/{name}"
    return ""


def program(entry: dict[str, Any]) -> str:
    """Return the program of a runtime."""
    named = [entry.get("options", {}).get("BinaryName"), *(entry.get(key) for key in reversed(PROGRAM))]
    return str(next((each for each in named if each), ""))


def is_ours(entry: Any) -> bool:
    """Say whether a runtime is gpushim-runtime."""
    return isinstance(entry, dict) and isinstance(entry.get("options", {}), dict) and setup.is_ours(program(entry))


def disabled(data: dict[str, Any]) -> bool:
    """Say whether settings turn the CRI off."""
    plugins = data.get("disabled_plugins")
    return isinstance(plugins, list) and any(name in plugins for name in CRI.values())


def by_plugins(file: File) -> bool:
    """Say whether a file says something that depends on its version."""
    return any(file.data.get(key) for key in ("plugins", "disabled_plugins", "required_plugins"))


def _file(daemon: Daemon, path: str, importer: str, strict: bool) -> File:
    place = daemon.seen(path)
    content = files.read(place)
    if content is None and importer:
        raise GpushimError(f"{importer} imports {path}, which does not exist; make that file or drop the import")
    data = _made(content or b"", place, strict) if generated.of(path, 2) else Toml.parse(content or b"", place).get()
    version = data.get("version", 0)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise GpushimError(f"{place}: version is {quote(str(version))}, not a number; correct it first")
    return File(path, data, version)


def _made(content: bytes, place: str, strict: bool) -> dict[str, Any]:
    """Return what a generated file says; of a broken one, where a runtime may stand twice, what it says without ours.

    Not `strict`: nothing, if that is broken, too; what is taken back is in a template.
    """
    try:
        return dict(Toml.parse(content, place).get())
    except GpushimError:
        try:
            return dict(Toml.parse(generated.without_ours(decoded(content, place)).encode(), place).get())
        except GpushimError:
            if strict:
                raise
    return {}


def _patterns(daemon: Daemon, file: File) -> list[str]:
    """Return the absolute form of a file's imports.

    Before containerd 1.7 one with a star is relative to the working directory, "/" for a service.
    """
    imports = file.data.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(each, str) for each in imports):
        raise GpushimError(f"{daemon.seen(file.path)}: imports is not a list of paths; correct it first")
    here = os.path.dirname(file.path)
    old = (0, 0) < daemon.version < (1, 7)
    return [os.path.normpath(os.path.join("/" if old and "*" in each else here, each)) for each in imports]


def _imports(daemon: Daemon, file: File) -> list[str]:
    found = []
    for pattern in _patterns(daemon, file):
        if "*" in pattern:
            found += _matches(daemon, pattern)
        else:
            found.append(pattern)
    return found


def _matches(daemon: Daemon, pattern: str) -> list[str]:
    """List files as Go's filepath.Glob does: names that begin with a dot count too."""
    folder, last = os.path.split(pattern)
    folders = sorted(glob.glob(folder)) if glob.has_magic(folder) else [folder]
    found = []
    for each in folders:
        try:
            names = sorted(os.listdir(daemon.seen(f"{each}/{OURS}")[: -len(OURS)]))
        except OSError:
            continue  # no such directory: nothing is imported from there
        found += [f"{each}/{name}" for name in names if fnmatch.fnmatchcase(name, last)]
    return found


def _table(file: File, owner: dict[str, Any], name: str) -> dict[str, Any]:
    table = owner.get(name, {})
    if not isinstance(table, dict):
        raise GpushimError(f"{file.path}: {name} is {quote(str(table)[:40])}, not a table; correct it first")
    return table
