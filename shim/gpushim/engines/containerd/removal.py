"""What `--remove` takes out of containerd's settings: gpushim's files, text in templates, and a line in imports.

Out of scope: what is put in (__init__.py).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from gpushim.engines.containerd import imports, services
from gpushim.engines.containerd.imports import File
from gpushim.engines.settings import files, former, own
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import goes_with

if TYPE_CHECKING:
    from gpushim.engines.containerd.process import Daemon

DEFAULT = "default_runtime_name"


def changes(daemon: Daemon, config: str) -> list[Change]:
    """Return the changes that take gpushim out, whatever state the files of others are in."""
    tree, place = imports.load(daemon, config, {}, strict=False), daemon.seen(config)
    templates = services.templates(config).values() or [config] * config.endswith(services.MICROK8S)
    changes = [services.take_out(daemon.seen(each)) for each in templates]
    for path in dict.fromkeys([*imports.own_paths(daemon, config, tree), *(file.path for file in tree[1:])]):
        changes += own.remove(daemon.seen(path))
    changes += [record for each in templates for record in former.records(daemon.seen(each))]
    if place not in [each.path for each in changes]:
        old = files.read(place)
        new = imports.without_import(former.without(place, old), place, imports.own_pattern(config))
        if new != old:  # nobody else has that directory imported
            own_path = daemon.seen(f"{os.path.dirname(config)}/{imports.FOLDER}/{imports.OURS}")
            changes = [replace(each, folder=True) if each.path == own_path else each for each in changes]
        copy = files.copy_path(place, files.BEFORE)
        backup = [Change(copy, files.read(copy), None)]
        changes += [Change(place, old, new), *(former.records(place) or backup)]
    return changes


def check_left(daemon: Daemon, config: str, changes: list[Change]) -> None:
    """Refuse to take back a runtime that a line of others names as the default.

    Raises:
        GpushimError: the CRI would not start with what is left.
    """
    had, has = (
        imports.load(daemon, config, draft, strict=False)
        for draft in ({}, {change.path: change.new for change in changes})
    )
    gone = {*_runtimes(had, daemon.merges)} - {*_runtimes(has, daemon.merges)} - {"runc"}
    named = [
        (file.path, name) for file in has if (name := imports.engine_table(has, file, daemon.merges).get(DEFAULT))
    ]
    if named and named[-1][1] in gone:
        raise goes_with(daemon.seen(named[-1][0]), DEFAULT, named[-1][1], "the CRI")


def _runtimes(tree: list[File], merges: bool) -> list[str]:
    return [name for file in tree for name in imports.engine_table(tree, file, merges).get("runtimes", {})]
