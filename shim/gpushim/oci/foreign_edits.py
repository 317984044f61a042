"""How edits of foreign CDI specs are put into a config.json: they replace what is there.

Imported where a container names a device of such a spec alone. Out of scope: making these edits (cdi/resolve.py).
"""

from __future__ import annotations

from gpushim.oci.bundle import member_at, objects_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


def _set_node(spec: dict[str, Any], node: dict[str, Any]) -> bool:
    """Replace any node of that path; without an owner, it belongs to the container's user, as with engines."""
    process = spec.get("process")
    user = process.get("user") if isinstance(process, dict) else None
    if isinstance(user, dict):
        node = {**{key: user[key] for key in ("uid", "gid") if user.get(key)}, **node}
    devices = objects_at(spec, "linux.devices")
    replaced = [device for device in devices if device.get("path") == node["path"]]
    numbers = ("type", "major", "minor")
    if len(replaced) == 1 and [replaced[0].get(key) for key in numbers] == [node.get(key) for key in numbers]:
        return False
    devices[:] = [device for device in devices if device not in replaced] + [node]
    return True


def _set_mount(spec: dict[str, Any], mount: dict[str, Any]) -> bool:
    """Replace the mount with the same destination, else insert it where it hides no other.

    The CDI library sorts all mounts by depth. Here a new mount goes before the first that lies below it, and the
    others keep the user's or the engine's order.
    """
    mounts = objects_at(spec, "mounts")
    paths = [str(entry.get("destination")) for entry in mounts]
    if mount["destination"] in paths:
        # Of several, the last is the one that is seen.
        position = len(paths) - 1 - paths[::-1].index(mount["destination"])
        changed = bool(mounts[position] != mount)
        mounts[position] = mount
        return changed
    top = mount["destination"].rstrip("/") + "/"
    # A spec has dozens of mounts and nearly always this answer, which one search in one string gives.
    below = "\n" + top in "\n" + "\n".join(paths) and [n for n, path in enumerate(paths) if path.startswith(top)]
    mounts.insert(below[0] if below else len(mounts), mount)
    return True


def _stage_hook(spec: dict[str, Any], pair: tuple[str, dict[str, Any]]) -> bool:
    stage, hook = pair
    hooks = objects_at(spec, "hooks." + stage)
    if hook in hooks:
        return False
    hooks.append(hook)
    return True


def _rdt(spec: dict[str, Any], rdt: dict[str, Any]) -> bool:
    linux = member_at(spec, "linux", {})
    changed = linux.get("intelRdt") != rdt
    linux["intelRdt"] = rdt
    return bool(changed)


LAND: dict[str, Callable[[dict[str, Any], Any], bool]] = {
    "set-node": _set_node,
    "set-mount": _set_mount,
    "stage-hook": _stage_hook,
    "rdt": _rdt,
}
