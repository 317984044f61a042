"""Groups of device nodes, where a container or this process is in a user namespace.

A group of the host's has another id in the namespace, or none: the same number there is another group, and where it
is not mapped, setgroups(2) fails and with it the container's start.

Out of scope: nodes that everybody may open; most hosts have no others, so creates rarely import this.
"""

from __future__ import annotations

from gpushim.oci.edits import Edit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from gpushim.ground.model import Snapshot


def inside(paths: list[str], inventory: Snapshot, maps: Any, ignored: list[str]) -> list[Edit]:
    """List the groups that a container gets for nodes, by their ids in it.

    Args:
        paths: of nodes of the snapshot.
        maps: gidMappings of config.json; anything else than a list of them maps nothing.
        ignored: gets a sentence about nodes that the container's user cannot open.
    """
    edits: list[Edit] = []
    closed: dict[tuple[int, int], list[str]] = {}  # by group and mode
    for path in paths:
        _, _, mode, _, gid = inventory["nodes"][path]
        if mode & 0o006 == 0o006:
            continue
        inner_gid = _mapped(gid, maps)
        if inner_gid:
            edits.append(Edit("gid", inner_gid, [f"group of {path}, {gid} on the host"]))
        elif inner_gid is None and mode & 0o060:
            closed.setdefault((gid, mode), []).append(path)
    for (gid, mode), (path, *further_paths) in closed.items():
        count = f" and {len(further_paths)} more" if further_paths else ""
        ignored.append(
            f"group {gid}, which alone may open {path}{count} (mode {mode:04o}), has no id in this user namespace: "
            "give the nodes mode 0666, or map that group"
        )
    return edits


def _mapped(gid: int, maps: Any) -> Optional[int]:
    for mapping in maps if isinstance(maps, list) else ():
        if not isinstance(mapping, dict):
            continue
        first, start, size = mapping.get("hostID"), mapping.get("containerID"), mapping.get("size")
        if not (isinstance(first, int) and isinstance(start, int) and isinstance(size, int)):
            continue
        if first <= gid < first + size:
            return start + gid - first
    return None
