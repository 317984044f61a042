"""What stays on a node for containers that run when gpushim goes: the stub, by the rule of the packages.

Out of scope: the rule (packaging/deb/debian/stub.sh), and what the stub does (packaging/removed).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpushim.engines.processes import ask
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from gpuplugin.node.record import Record

PROGRAM = "/usr/lib/gpushim-removed/runtime"
SUFFIX = "/removed"  # the end of its path among a version's files
SHOWN = 8
SECONDS = 60
KEEP = """
for tool in cat cp grep head mv readlink sort stat tr; do
  command -v "$tool" >/dev/null || { echo "there is no $tool" >&2; exit 1; } # else no container would be found
done
keep_stub gpushim-runtime "$1"
[ -d "$STUB" ] || recorded gpushim-runtime | sort -u
"""


def functions(folder: str) -> str:
    """Return the shell functions by which packages are removed; no directory can be read later (host.enter).

    Args:
        folder: absolute path of the payload, which they lie beside.
    """
    with open(f"{os.path.dirname(folder)}/written.sh", encoding="ascii") as file:
        return f"DPKG_ROOT=\n{file.read()}\n"


def keep(shell: str, record: Record) -> None:
    """Lay the stub out, where running containers need gpushim-runtime; it takes the program's place by link_stub.

    Args:
        shell: what `functions` returned.
        record: of the files that are here.

    Raises:
        GpushimError: they need it, and there is none to be laid out.
    """
    lib = next((path[: -len(SUFFIX)] for path in record.files if path.endswith(SUFFIX)), "/none")
    answer = ask.program(["/bin/sh", "-c", shell + KEEP, "sh", lib], SECONDS)
    if answer.code != 0:
        raise GpushimError(f"what running containers need cannot be found out: {answer.last}; nothing was removed")
    if used := answer.out.split():
        more = f" and {len(used) - SHOWN} more" if len(used) > SHOWN else ""
        raise GpushimError(
            f"{len(used)} containers still need gpushim-runtime for their end: {', '.join(used[:SHOWN])}{more}, and "
            "there is no runc or crun to take its place; the files stay: run gpushim-node uninstall again when these "
            "have ended"
        )


def drop(shell: str) -> None:
    """Take away what an earlier removal has left, now that the program is there again.

    Args:
        shell: what `functions` returned.
    """
    ask.program(["/bin/sh", "-c", f"{shell}drop_stub"], SECONDS)


def leads_to(path: str) -> bool:
    """Say whether a path is the link that a removal has left."""
    return os.path.islink(path) and os.readlink(path) == PROGRAM
