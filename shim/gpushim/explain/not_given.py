"""What a container does not get, and why: capabilities that it does not ask for, programs that its image cannot run.

Also names of variables that are nearly one that counts. What the policy forbids stands in `Request.ignored`.
Out of scope: what is given (decide.py).
"""

from __future__ import annotations

import copy
import difflib
import posix
from typing import TYPE_CHECKING

from gpushim.decision import plan
from gpushim.ground import bounds
from gpushim.ground.errors import GpushimError
from gpushim.ground.machines import LOADERS
from gpushim.oci import authorization, request
from gpushim.oci.require import PREFIX
from gpushim.paths.rootfs import Rootfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpushim.decision.decide import Decision
    from gpushim.ground.model import Snapshot
    from gpushim.oci.bundle import Bundle
    from gpushim.oci.edits import Edit

    Rows = Iterator[dict[str, str]]

CLOSE = 0.9  # of difflib's 1: two names of nine letters with one that differs


def capabilities(decision: Decision, bundle: Bundle) -> Rows:
    """List the capabilities that would bring something of this host, if they were asked for.

    Args:
        decision: made for the bundle.
        bundle: what it was made for.

    Returns:
        {"what", "why"} of each.
    """
    asked, has = decision.request, {*_brought(decision.edits)}
    for name in request.CAPABILITIES:
        if asked is None or asked.own is None or name in asked.capabilities:
            continue
        other = copy.copy(asked)
        other.capabilities, other.ignored = [*asked.capabilities, name], []
        try:
            more = [path for path in _brought(plan.plan(other, decision.inventory, bundle)[0]) if path not in has]
        except GpushimError:  # with this it would be refused
            continue
        if more:
            some = f"{more[0]} and {len(more) - 1} more" if more[1:] else more[0]
            why = f"NVIDIA_DRIVER_CAPABILITIES does not name it; it would bring {some}"
            yield {"what": f"capability {name}", "why": why}


def _brought(edits: list[Edit]) -> list[str]:
    """List the device nodes and the files of a plan, by their paths in the container."""
    nodes = [edit.value["path"] for edit in edits if edit.kind == "node"]
    return nodes + [edit.value["destination"] for edit in edits if edit.kind == "mount"]


def programs(edits: list[Edit], inventory: Snapshot, rootfs: str) -> Rows:
    """List the driver's programs of a plan, if the image cannot run them: they need glibc.

    Args:
        edits: of the plan.
        inventory: the snapshot.
        rootfs: absolute path of all of it; one that is not there says nothing.

    Returns:
        {"what", "why"} for all of them together, or nothing.
    """
    known = {file["path"] for files in inventory["files"].values() for file in files if file["kind"] == "binary"}
    mounts = [edit.value["destination"] for edit in edits if edit.kind == "mount"]
    mounted = [path for path in mounts if path in known]
    why = _no_glibc(rootfs) if mounted and rootfs else ""
    if why:
        yield {"what": "programs of the driver", "why": f"{', '.join(mounted)}: mounted, but cannot run: {why}"}


def _no_glibc(rootfs: str) -> str:
    """Say why an image cannot run what is linked with glibc; "" if it can, or is not there to be looked at."""
    machine = posix.uname().machine
    musl = f"/lib/ld-musl-{machine}.so.1"
    loader = LOADERS.get(machine, musl)
    try:
        root = Rootfs("", rootfs)
    except (OSError, ValueError):
        return ""
    try:
        seen = {each for each in (loader, musl, "/etc") if root.exists(each)}
    finally:
        posix.close(root.fd)
    if loader in seen or not seen:
        return ""
    other = f"it has musl's ({musl})" if musl in seen else "its programs are static"
    return f"the image lacks glibc's loader {loader}; {other}"


def meant(name: str, swarm: Iterable[str] = ()) -> str:
    """Name the variable that one may have meant who set one that does not count.

    Args:
        name: of a variable.
        swarm: variables that count beside those of the table.

    Returns:
        one that differs little, as by a letter, or by case and hyphens; "" if none does, or the name counts itself.
    """
    known = [*authorization.VARIABLES, *swarm]
    if name in known or name.startswith(PREFIX) or len(name) > bounds.MEANT:
        return ""
    plain = name.upper().replace("-", "_")
    found = difflib.get_close_matches(plain, known, 1, CLOSE)
    ends = [plain[: len(PREFIX) + more] for more in (-1, 0, 1)]
    return found[0] if found else PREFIX + "*" if difflib.get_close_matches(PREFIX, ends, 1, CLOSE) else ""
