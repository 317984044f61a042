"""Find the owners of files where gpushim's would go: a package, somebody else, or gpushim-node itself.

Out of scope: writing and removing files (node_files.py).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuplugin.node import payload as payloads
from gpushim.config.policy import SYSTEM_PATH
from gpushim.engines.processes import ask
from gpushim.ground.errors import GpushimError
from gpushim.paths.replace import content

if TYPE_CHECKING:
    from gpuplugin.node.payload import Payload
    from gpuplugin.node.record import Record

# A package manager is asked if its database exists. Its answer begins with the package; rpm writes to stdout, too,
# that no package has a file.
QUESTIONS = (
    ("/var/lib/dpkg/status", ["/usr/bin/dpkg-query", "--search"]),
    ("/var/lib/rpm", ["/usr/bin/rpm", "--query", "--queryformat", "%{NAME}: \n", "--file"]),
    ("/usr/lib/sysimage/rpm", ["/usr/bin/rpm", "--query", "--queryformat", "%{NAME}: \n", "--file"]),
)
SECONDS = 60
PROGRAM = "gpushim-runtime"
# Beginning of the script that a removal leaves in a program's place (shim/gpushim/removed).
LEFT = b"#!/bin/sh\n# gpushim was removed."
# Where pip and uv install programs: the directories of PATH, and root's own.
PIP_FOLDERS = (*SYSTEM_PATH.split(":"), "/root/.local/bin")


def find_package(paths: list[str]) -> str:
    """Return the name of a package that has one of these files, or "".

    Raises:
        GpushimError: the package manager does not answer.
    """
    for database, words in QUESTIONS:
        if not os.path.exists(database) or not os.access(words[0], os.X_OK):
            continue
        answer = ask.program([*words, *paths], SECONDS)
        if answer.code is None:
            raise GpushimError(f"{words[0]} does not say whose {paths[0]} is ({answer.last}); see to it on the node")
        for line in answer.out.splitlines():
            names, colon, _ = line.partition(": ")
            if colon and " " not in (name := names.split(", ")[0]):  # no diversion
                return name
    return ""


def check_owners(payload: Payload, record: Record) -> None:
    """Raise if somebody else owns one of the files to be installed.

    Raises:
        GpushimError: a file is a package's, or of unknown origin.
    """
    programs = [path for path in payload.files if path.startswith("/usr/bin/") and os.path.lexists(path)]
    name = find_package(programs) if programs else ""
    if name:
        raise GpushimError(
            f"the package {name} has {programs[0]} on this node; remove the package there, or install nothing "
            "(node.enabled: false)"
        )
    existing = [path for path in payload.files if path != payloads.CONFIG and os.path.lexists(path)]
    strange = [path for path in existing if path not in record.files and content(path) != payload.files[path].data]
    strange = [path for path in strange if content(path, len(LEFT)) != LEFT]
    strange += [path for path in _find_pip_programs() if path not in payload.files]
    if strange:
        raise GpushimError(f"{strange[0]} already exists, and gpushim-node did not install it; remove it on the node")


def _find_pip_programs() -> list[str]:
    folders = {os.path.realpath(folder) for folder in PIP_FOLDERS} - {"/usr/bin"}
    return [path for folder in sorted(folders) if os.path.lexists(path := f"{folder}/{PROGRAM}")]
