"""containerd's settings: config.toml and the files that it imports, in the order in which containerd reads them.

Where the CRI's settings are depends on the file's version (containerd's docs/cri/config.md). How files add up depends
on containerd's: since 2.0 later ones are merged into earlier ones, before that the whole table of a plugin, such as
the CRI's, replaces the one of the files before. Out of scope: changing anything (__init__.py).
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpushim.engines.containerd import services
from gpushim.engines.settings import files, own, setup, toml
from gpushim.ground.errors import GpushimError, quote

if TYPE_CHECKING:
    from gpushim.engines.containerd.process import Daemon

CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
OURS = "99-gpushim.toml"
FOLDER, PATTERN = "conf.d", "99-gpushim*.toml"  # beside config.toml
MARK = " # `gpushim configure containerd`"  # behind an `imports` that has nothing else
# What names a runtime's program; a runtime made like another one has all its other settings.
PROGRAM = ("runtime_type", "runtime_path", "runtime_engine", "runtime_root")
LIMIT = 200  # files; a host has a handful
Draft = Mapping[str, "bytes | None"]  # what files are to become, by the path at which this process opens them


@dataclass(frozen=True)
class File:
    """One file.

    Attributes:
        path: absolute, within containerd's root.
        data: what it says; {} for one that does not exist.
        version: that it states; 0 if none.
        own: whether it is a drop-in file that gpushim has made.
    """

    path: str
    data: dict[str, Any]
    version: int = 0
    own: bool = False


def load(daemon: Daemon, path: str, draft: Draft, strict: bool = True) -> list[File]:
    """Read a file and all it imports, each once.

    Args:
        path: absolute, within containerd's root.
        draft: what some of them are to become.
        strict: False skips imported files that are missing or broken, and takes a broken first one for empty.

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
            loaded[path] = file = _file(daemon, path, importer, draft)
            pending += [(imported, path) for imported in _imports(daemon, file, draft)]
        except GpushimError:
            if strict:
                raise
            if not importer:
                loaded[path] = File(path, {})
    return list(loaded.values())


def keys(tree: list[File], file: File, merges: bool) -> tuple[str, str]:
    """Return where a file of a tree has the CRI's settings.

    `merges` says whether containerd takes each file by its own version, as since 2.0, or all by the last one stated.
    """
    stated = [tree[0].version, file.version] if merges else [member.version for member in tree]
    version = ([1] + [number for number in stated if number])[-1]
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
    runtimes = _table(file, _table(file, table, "containerd"), "runtimes")
    for name in runtimes:
        _table(file, _table(file, runtimes, name), "options")
    return dict(table)


def effective(tree: list[File], merges: bool) -> dict[str, Any]:
    """Return the CRI's settings of all files together, without containerd's defaults."""
    result: dict[str, Any] = {}
    for file in tree:
        table = deepcopy(cri(tree, file, merges))
        if merges:
            toml.merge(result, table)
        else:
            result = table or result
    return result


def directories(daemon: Daemon, file: File) -> list[str]:
    """Return the directories, within containerd's root, in which a file named OURS is imported."""
    folders = []
    for pattern, written in zip(_patterns(daemon, file), file.data.get("imports", [])):
        folder, last = os.path.split(pattern)
        in_root = _from_root(daemon) and not written.startswith("/")  # where nobody meant it to be
        if "*" in last and not glob.has_magic(folder) and not in_root and fnmatch.fnmatchcase(OURS, last):
            folders.append(folder)
    return folders


def program(entry: dict[str, Any]) -> str:
    candidates = [entry.get("options", {}).get("BinaryName"), *(entry.get(key) for key in reversed(PROGRAM))]
    return str(next((candidate for candidate in candidates if candidate), ""))


def is_ours(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("options", {}), dict) and setup.is_ours(program(entry))


def disabled(data: dict[str, Any]) -> bool:
    """Return whether settings turn the CRI off."""
    plugins = data.get("disabled_plugins")
    return isinstance(plugins, list) and any(name in plugins for name in CRI.values())


def by_plugins(file: File) -> bool:
    """Return whether a file says something that depends on its version."""
    return any(file.data.get(key) for key in ("plugins", "disabled_plugins", "required_plugins"))


def containerd_table(tree: list[File], file: File, merges: bool) -> dict[str, Any]:
    """Return a file's table `containerd` of the CRI; {} if it has none, or one that the CRI itself refuses."""
    try:
        return dict(cri(tree, file, merges).get("containerd", {}))
    except GpushimError:
        return {}


def own_paths(daemon: Daemon, config: str, tree: list[File]) -> list[str]:
    folders = [f"{os.path.dirname(config)}/{FOLDER}", services.directory(config, daemon.host_path(config))]
    folders += directories(daemon, tree[0])
    folders += [f"{template.removesuffix('.tmpl')}.d" for template in services.templates(config).values()]
    paths = [f"{folder}/{OURS}" for folder in folders if folder]
    return [*dict.fromkeys([*paths, *(file.path for file in tree if file.own)])]


def own_pattern(config: str) -> str:
    """Return what gpushim adds to imports; with a star, as a file that is named without one must be there."""
    return f"{os.path.dirname(config)}/{FOLDER}/{PATTERN}"


def importing(old: bytes | None, path: str, pattern: str, version: int) -> bytes:
    """Return the main file with gpushim's pattern as the last of its imports."""
    if old is None:
        return f"version = {version or 2}\nimports = {toml.value_text([pattern])}{MARK}\n".encode()
    text = toml.decoded(old, path)
    listed = toml.parse(old, path).get("imports", [])
    if pattern in listed:
        return old
    try:
        return toml.with_value(text, "", "imports", [*listed, pattern], path, MARK).encode()
    except GpushimError:
        raise GpushimError(f"{path}: add {toml.value_text(pattern)} to imports by hand, then try again") from None


def without_import(old: bytes | None, path: str, pattern: str) -> bytes | None:
    """Return the main file without gpushim's pattern, as it is where that is not in it; None if nothing else is."""
    try:
        listed = toml.parse(old or b"", path).get("imports")
    except GpushimError:
        return old  # broken by others, who see the line in it
    if not isinstance(listed, list) or pattern not in listed:
        return old
    text = toml.decoded(old or b"", path)
    remaining = [imported for imported in listed if imported != pattern]
    if re.fullmatch(rf"version = \d\nimports = .*{re.escape(MARK)}\n", text) and not remaining:
        return None
    new = toml.with_value(text, "", "imports", (remaining or None) if MARK in text else remaining, path)
    return new.replace(MARK, "").encode()


def sed_script(pattern: str) -> str:
    """Return the script of sed that takes gpushim's pattern out of the main file, as it is by then."""
    text = re.sub(r"([].*[/^$\\])", r"\\\1", toml.value_text(pattern))
    line = rf"/^imports = \[{text}\]{MARK}/d"
    return f"{line}; s/, *{text}//; s/{text}, *//; s/{text}//; s/{MARK}//"


def _file(daemon: Daemon, path: str, importer: str, draft: Draft) -> File:
    host_path = daemon.host_path(path)
    content = draft[host_path] if host_path in draft else files.read(host_path)
    if content is None and importer:
        raise GpushimError(f"{importer} imports {path}, which does not exist; make that file or drop the import")
    try:
        data = toml.parse(content or b"", host_path)
    except GpushimError:
        if not services.templates(path):
            raise
        # A runtime stands there twice, say, as an earlier gpushim's template made it: what it says without ours.
        data = toml.parse(services.without_ours(toml.decoded(content or b"", host_path)).encode(), host_path)
    version = data.get("version", 0)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise GpushimError(f"{host_path}: version is {quote(str(version))}, not a number; correct it first")
    return File(path, data, version, bool(importer) and own.is_own(content))


def _patterns(daemon: Daemon, file: File) -> list[str]:
    """Return the absolute form of a file's imports.

    Before containerd 1.7 one with a star is relative to the working directory, "/" for a service.
    """
    imports = file.data.get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(pattern, str) for pattern in imports):
        raise GpushimError(f"{daemon.host_path(file.path)}: imports is not a list of paths; correct it first")
    folder = os.path.dirname(file.path)
    return [
        os.path.normpath(os.path.join("/" if _from_root(daemon) and "*" in pattern else folder, pattern))
        for pattern in imports
    ]


def _from_root(daemon: Daemon) -> bool:
    """Return whether patterns with a star are relative to the working directory."""
    return (0, 0) < daemon.version < (1, 7)


def _imports(daemon: Daemon, file: File, draft: Draft) -> list[str]:
    paths = []
    for pattern in _patterns(daemon, file):
        if "*" in pattern:
            paths += _matches(daemon, pattern, draft)
        else:
            paths.append(pattern)
    return paths


def _matches(daemon: Daemon, pattern: str, draft: Draft) -> list[str]:
    """List files as Go's filepath.Glob does: names that begin with a dot count too."""
    folder, last = os.path.split(pattern)
    folders = sorted(glob.glob(folder)) if glob.has_magic(folder) else [folder]
    paths = []
    for folder_path in folders:
        host_path = daemon.host_path(f"{folder_path}/{OURS}")[: -len(OURS) - 1]
        drafted = {
            os.path.basename(path): new is not None
            for path, new in draft.items()
            if os.path.dirname(path) == host_path
        }
        present = os.listdir(host_path) if os.path.isdir(host_path) else []
        names = sorted({*present, *drafted} - {name for name, stays in drafted.items() if not stays})
        paths += [f"{folder_path}/{name}" for name in names if fnmatch.fnmatchcase(name, last)]
    return paths


def _table(file: File, owner: dict[str, Any], name: str) -> dict[str, Any]:
    table = owner.get(name, {})
    if not isinstance(table, dict):
        raise GpushimError(f"{file.path}: {name} is {quote(str(table)[:40])}, not a table; correct it first")
    return table
