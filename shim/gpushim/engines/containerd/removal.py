"""What `--remove` takes out of containerd's settings: gpushim's files, text in templates, and a line in imports.

Out of scope: what is put in (__init__.py).
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from gpushim.engines.containerd import imports, services
from gpushim.engines.containerd.imports import File
from gpushim.engines.settings import files, former, own
from gpushim.engines.settings.files import Change
from gpushim.engines.settings.setup import check_default

if TYPE_CHECKING:
    from gpushim.engines.containerd.process import Daemon

DEFAULT = "default_runtime_name"


def changes(daemon: Daemon, config: str) -> list[Change]:
    """Return the changes that take gpushim out, whatever state the files of others are in."""
    tree = imports.load(daemon, config, {}, strict=False)
    host_path = daemon.host_path(config)
    templates = [config] if config.endswith(services.MICROK8S) else [*services.templates(config).values()]
    changes = [services.plan_removal(daemon.host_path(template)) for template in templates]
    for path in dict.fromkeys([*imports.own_paths(daemon, config, tree), *(file.path for file in tree[1:])]):
        changes += own.plan_removal(daemon.host_path(path))
    changes += [record for template in templates for record in former.records(daemon.host_path(template))]
    if host_path not in [change.path for change in changes]:
        old = files.read(host_path)
        new = imports.without_import(former.without(host_path, old), host_path, imports.own_pattern(config))
        if new != old:  # nobody else has that directory imported
            own_path = daemon.host_path(f"{os.path.dirname(config)}/{imports.FOLDER}/{imports.OURS}")
            changes = [replace(change, folder=True) if change.path == own_path else change for change in changes]
        copy = files.copy_path(host_path, files.BEFORE)
        backup = [Change(copy, files.read(copy), None)]
        changes += [Change(host_path, old, new), *(former.records(host_path) or backup)]
    return changes


def by_hand(changes: list[Change], config: str) -> list[str]:
    """Return the commands that do what `changes` of this module do, where there is no gpushim.

    `config` is the path of the settings within containerd's root.
    """
    pattern = imports.own_pattern(config)
    commands = [text for change in changes for text in services.by_hand(change)]
    for change in changes:
        if change.new is None and change.old is not None:
            commands.append(shlex.join(["rm", "-f", change.path]))
        elif change.new != change.old and pattern.encode() in (change.old or b""):
            commands.append(shlex.join(["sed", "-i", imports.sed_script(pattern), change.path]))
    return commands


def check_left(daemon: Daemon, config: str, changes: list[Change]) -> None:
    """Refuse what `check_default` does, for the CRI."""
    had, has = (
        imports.load(daemon, config, draft, strict=False)
        for draft in ({}, {change.path: change.new for change in changes})
    )
    removed = {*_runtimes(had, daemon.merges)} - {*_runtimes(has, daemon.merges)} - {"runc"}
    defaults = [
        (daemon.host_path(file.path), imports.containerd_table(has, file, daemon.merges).get(DEFAULT)) for file in has
    ]
    check_default("the CRI", DEFAULT, [pair for pair in defaults if pair[1]], removed)


def _runtimes(tree: list[File], merges: bool) -> list[str]:
    return [name for file in tree for name in imports.containerd_table(tree, file, merges).get("runtimes", {})]
