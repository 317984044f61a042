"""The parts that a container does not get, and why: capabilities that it does not ask for, programs that cannot run.

Also names of variables that are nearly one that counts. Parts that the policy forbids are in `Request.ignored`.
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
    """List {"what", "why"} of the capabilities that would bring something of this host, if they were asked for.

    `decision` was made for the bundle.
    """
    own_request, has = decision.request, {*_brought(decision.edits)}
    for name in request.CAPABILITIES:
        if own_request is None or own_request.own is None or name in own_request.capabilities:
            continue
        wider = copy.copy(own_request)
        wider.capabilities, wider.ignored = [*own_request.capabilities, name], []
        try:
            added = [path for path in _brought(plan.plan(wider, decision.inventory, bundle)[0]) if path not in has]
        except GpushimError:  # with this it would be refused
            continue
        if added:
            label = f"{added[0]} and {len(added) - 1} more" if added[1:] else added[0]
            reason = f"NVIDIA_DRIVER_CAPABILITIES does not name it; it would bring {label}"
            yield {"what": f"capability {name}", "why": reason}


def _brought(edits: list[Edit]) -> list[str]:
    nodes = [edit.value["path"] for edit in edits if edit.kind == "node"]
    return nodes + [edit.value["destination"] for edit in edits if edit.kind == "mount"]


def programs(edits: list[Edit], inventory: Snapshot, rootfs: str) -> Rows:
    """List {"what", "why"} for the driver's programs of a plan, if the image cannot run them: they need glibc.

    `rootfs` is an absolute path; a missing one means that nothing is known.
    """
    binaries = {file["path"] for files in inventory["files"].values() for file in files if file["kind"] == "binary"}
    mounts = [edit.value["destination"] for edit in edits if edit.kind == "mount"]
    mounted = [path for path in mounts if path in binaries]
    reason = _no_glibc(rootfs) if mounted and rootfs else ""
    if reason:
        yield {"what": "programs of the driver", "why": f"{', '.join(mounted)}: mounted, but cannot run: {reason}"}


def _no_glibc(rootfs: str) -> str:
    """Return why an image cannot run programs that are linked with glibc; "" if it can, or is not there."""
    machine = posix.uname().machine
    musl = f"/lib/ld-musl-{machine}.so.1"
    loader = LOADERS.get(machine, musl)
    try:
        root = Rootfs("", rootfs)
    except (OSError, ValueError):
        return ""
    try:
        present = {path for path in (loader, musl, "/etc") if root.exists(path)}
    finally:
        posix.close(root.fd)
    if loader in present or not present:
        return ""
    libc = f"it has musl's ({musl})" if musl in present else "its programs are static"
    return f"the image lacks glibc's loader {loader}; {libc}"


def meant(name: str, swarm: Iterable[str] = ()) -> str:
    """Return the variable that was probably meant by one that does not count.

    It differs little, as by a letter, or by case and hyphens; "" if none does, or the name counts itself. `swarm` are
    variables that count beside those of the table.
    """
    names = [*authorization.VARIABLES, *swarm]
    if name in names or name.startswith(PREFIX) or len(name) > bounds.MEANT:
        return ""
    plain = name.upper().replace("-", "_")
    matches = difflib.get_close_matches(plain, names, 1, CLOSE)
    ends = [plain[: len(PREFIX) + excess] for excess in (-1, 0, 1)]
    return matches[0] if matches else PREFIX + "*" if difflib.get_close_matches(PREFIX, ends, 1, CLOSE) else ""
