"""What `--remove` takes out of containerd's settings: of all files of a tree, and of those that it once had.

Out of scope: what is put in (__init__.py); templates (generated.py).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpushim.engines.containerd import generated, imports
from gpushim.engines.containerd.imports import RUNC, File
from gpushim.engines.settings import dropin, records, undo
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.text import Text, Toml
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpushim.engines.containerd.process import Daemon

_DEFAULT = "default_runtime_name"
_COMMENT = dropin.HEADER.format(engine="containerd")


def changes(daemon: Daemon, tree: list[File]) -> list[Change]:
    """Take our settings out of all files of a tree, or out of the templates where its first file is made of one."""
    templates = [generated.of(tree[0].path, version) for version in (2, 3)]
    found = [generated.take_out(daemon.seen(template)) for template in templates if template]
    own = generated.dropped_in(tree[0].path, daemon.seen(tree[0].path))
    for file in tree[1:] if found else tree:
        if own and file is not tree[0] and os.path.dirname(file.path) != os.path.dirname(own):
            continue  # k0s makes it again when the other is gone
        others = _runtimes([each for each in tree if each is not file], daemon.merges, imports.is_ours)
        found.append(undo.take_out(kind(imports.keys(tree, file, daemon.merges), others), daemon.seen(file.path)))
    # One that was imported when it was written, and is not any more.
    for path in records.led(daemon.seen(tree[0].path), [change.path for change in found]):
        found.append(undo.take_out(kind(imports.keys(tree, File(path, {}), daemon.merges)), path))
    if own and daemon.seen(own) not in [change.path for change in found]:
        found.append(undo.take_out(kind(imports.keys(tree, File(own, {}), daemon.merges)), daemon.seen(own)))
    own = "" if own else imports.directory(daemon, tree)
    if own and own not in [file.path for file in tree]:  # records may be there all the same
        found.append(Change(daemon.seen(own), None, None))
    return found


def check_left(daemon: Daemon, tree: list[File], changes: list[Change]) -> None:
    """Refuse to take back a runtime that a line of others names as the default.

    Raises:
        GpushimError: the CRI would not start with what is left.
    """
    content = {change.path: change.new for change in changes}
    left = [
        replace(file, data=Toml.parse(content[path] or b"", path).get()) if path in content else file
        for file, path in ((each, daemon.seen(each.path)) for each in tree)
    ]
    gone = {*_runtimes(tree, daemon.merges)} - {*_runtimes(left, daemon.merges)} - {"runc"}
    tables = [(file.path, _sound(left, file, daemon.merges).get("containerd", {})) for file in left]
    named = [(path, table[_DEFAULT]) for path, table in tables if table.get(_DEFAULT)]
    if named and named[-1][1] in gone:
        raise dropin.goes_with(daemon.seen(named[-1][0]), _DEFAULT, named[-1][1], "the CRI")


def _runtimes(tree: list[File], merges: bool, without: Callable[[object], bool] = lambda _: False) -> list[str]:
    """List the runtimes of a tree."""
    tables = [_sound(tree, file, merges).get("containerd", {}).get("runtimes", {}) for file in tree]
    return [name for table in tables for name, entry in table.items() if not without(entry)]


def _sound(tree: list[File], file: File, merges: bool) -> dict[str, Any]:
    """Return the CRI's settings of a file; {} if it has none, or they are broken, which the CRI itself says."""
    try:
        return imports.cri(tree, file, merges)
    except GpushimError:
        return {}


def kind(key: tuple[str, str], others: Sequence[str] = ()) -> undo.Kind:
    """Describe a file that has the CRI's settings in that place; `others` are the runtimes of other files."""
    engine = (*key, "containerd")
    return undo.Kind(
        Toml,
        imports.is_ours,
        (*engine, "runtimes"),
        (*engine, _DEFAULT),
        lambda text, names: _more(text, key, names),
        _COMMENT,
        frozenset(["version"]),
        frozenset(["runc", *others]),
    )


def _more(text: Text, key: tuple[str, str], names: list[str]) -> list[undo.Setting]:
    """List what is gpushim's beside its runtimes, above all in a file that it has made.

    The entry of runc stays where another runtime would take the built-in one away.
    """
    own, engine = text.text.startswith(_COMMENT), (*key, "containerd")
    settings = [undo.Setting((*engine, _DEFAULT), certain=own), undo.Setting((*key, "enable_cdi"), certain=own)]
    runtimes = dropin.table(text.data, *engine, "runtimes")
    if set(runtimes) <= {"runc", *names}:
        made = own and runtimes.get("runc") == {"runtime_type": RUNC}
        settings.append(undo.Setting((*engine, "runtimes", "runc"), certain=made))
    return settings
