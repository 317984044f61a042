"""The order of gpushim's mounts among a container's, so that none of them reaches the host.

A volume can be shared with the host: a mount on it in the container then appears on the host, too, and stays there.
Links of the image decide which mount lies on which, when the low-level runtime follows them. So no mount of ours
comes after one that can propagate, wherever their paths seem to lead, nor before one that is above it by its path,
which would hide it; where both cannot be, the container is refused. The user's own mounts keep their order.

Most containers on the create path have no `rootfsPropagation`, or one that lets nothing pass, and skip this.
"""

from __future__ import annotations

import posix

from gpushim.ground import bounds
from gpushim.ground.errors import BUNDLE, GpushimError, quote
from gpushim.oci import hookargs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    from gpushim.oci.edits import Edit

# Under these nothing reaches the host. The others of runc's, private and unbindable too, leave mounts below the
# host's root directory shared as they are, and a volume that is bound from there is its source's peer.
CONFINED = (None, "", "rprivate", "rslave")
# A mount with one of these is no peer of its source's. With `rbind`, mounts below it need the recursive ones.
APART = {"private", "slave", "unbindable"}
APART_BELOW = {"rprivate", "rslave", "runbindable"}
SHARED = {"shared", "rshared"}
BINDS = {"bind", "rbind"}
# How mountinfo spells them; proc_pid_mountinfo(5).
ESCAPED = ((b"\\", b"\\134"), (b" ", b"\\040"), (b"\t", b"\\011"), (b"\n", b"\\012"))


def can_propagate(mount: dict[str, Any]) -> bool:
    """Return whether mounts on a mount of config.json can reach the host, where rootfsPropagation is not CONFINED.

    A new file system is nobody's peer. The hierarchies of cgroup v1 are bound one by one, whatever the options.
    """
    listed = mount.get("options")
    options = {option for option in listed if isinstance(option, str)} if isinstance(listed, list) else set()
    if str(mount.get("type")).startswith("cgroup"):
        return options.isdisjoint(APART_BELOW)
    if mount.get("type") not in (None, "", "none", "bind") and options.isdisjoint(BINDS):
        return False
    return options.isdisjoint(APART_BELOW if "rbind" in options else APART | APART_BELOW)


def arrange(edits: Sequence[Edit], spec: dict[str, Any], rootfs: str) -> None:
    """Move the mounts of edits, which `edits.apply` has put into a spec, where none of them can reach the host.

    Where something can propagate, the hook is told to look for them on the host, too.

    Raises:
        GpushimError: a mount has no such position; the sentence names the volume.
    """
    mounts, linux = spec.get("mounts"), spec.get("linux")
    confined = not isinstance(linux, dict) or linux.get("rootfsPropagation") in CONFINED
    if confined or not isinstance(mounts, list):
        return
    edit_ids = {id(edit.value) for edit in edits if edit.kind in ("mount", "set-mount")}
    own_mounts = [mount for mount in mounts if id(mount) in edit_ids]
    if not own_mounts:
        return
    user_mounts = [mount for mount in mounts if id(mount) not in edit_ids]
    for mount in own_mounts:  # of CDI specs, which leave it to the engine
        options = mount.get("options") or []
        if can_propagate(mount) and SHARED.isdisjoint(options):
            mount["options"] = [*options, "rprivate"]
    _check_rootfs(rootfs)
    if not any(map(can_propagate, mounts)):
        return
    mounts[:] = _insert(sorted(own_mounts, key=can_propagate), user_mounts)
    _check(mounts, edit_ids)
    _add_hook_options(edits, [mount for mount in own_mounts if not can_propagate(mount)])


def _check_rootfs(path: str) -> None:
    """Raise if the host has mounts below a rootfs: they come before all others, and are the host's peers."""
    try:
        folder = posix.open(path, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
        mounts = posix.open("/proc/self/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return  # nor can the low-level runtime, and says so
    top, parts, size = posix.readlink(f"/proc/self/fd/{folder}".encode()), [], 0
    while size < bounds.MOUNT_TABLE and (part := posix.read(mounts, 1 << 20)):  # of which the kernel gives 4 KiB
        parts.append(part)
        size += len(part)
    for fd in (folder, mounts):
        posix.close(fd)
    for byte, escaped in ESCAPED:
        top = top.replace(byte, escaped)
    for line in b"".join(parts).split(b"\n"):
        fields, _, _ = line.partition(b" - ")
        if b" shared:" in fields and fields.split(b" ", 5)[4].startswith(top.rstrip(b"/") + b"/"):
            mountpoint = fields.split(b" ", 5)[4]
            for byte, escaped in ESCAPED[::-1]:
                mountpoint = mountpoint.replace(escaped, byte)
            label = quote(mountpoint.decode(errors="backslashreplace"))
            raise GpushimError(
                f"{label} is a mount below the rootfs that is shared with the host, and what is mounted for the "
                f"container could reach the host there; make it private (mount --make-private '{label}'), or use no "
                "volume with shared propagation",
                BUNDLE,
            )


def _insert(own_mounts: list[dict[str, Any]], user_mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Insert our mounts: before the first that can propagate or lies below them, but after those above them."""
    paths = [words(mount) for mount in user_mounts]
    first = next((at for at, mount in enumerate(user_mounts) if can_propagate(mount)), len(user_mounts))
    slots: list[list[dict[str, Any]]] = [[] for _ in range(len(user_mounts) + 1)]
    for mount in own_mounts:
        path = words(mount)
        above = [at for at, parts in enumerate(paths) if parts == path[: len(parts)]]
        below = [at for at, parts in enumerate(paths) if path == parts[: len(path)] and parts != path]
        slots[max([min([first, *below]), *[at + 1 for at in above]])].append(mount)
    merged = slots[-1]
    for mount, before in zip(user_mounts[::-1], slots[-2::-1]):
        merged = [*before, mount, *merged]
    return merged


def _check(mounts: list[dict[str, Any]], edit_ids: set[int]) -> None:
    shared = None
    for at, mount in enumerate(mounts):
        if id(mount) in edit_ids and shared:
            path, volume, above = [
                quote(str(entry.get("destination"))) for entry in (mount, shared, _above(mounts, at))
            ]
            reason = f"comes after the volume {volume}"
            if above == volume:
                reason = f"lies on the volume {volume}"
            elif above != path:
                reason = f"lies on {above}, which comes after the volume {volume}"
            raise GpushimError(
                f"{path} {reason}, and what is mounted there can reach the host too, as the volume's propagation is "
                f"shared; mount {volume} with the propagation rslave or rprivate",
                BUNDLE,
            )
        if can_propagate(mount):
            shared = shared or mount


def _above(mounts: list[dict[str, Any]], at: int) -> dict[str, Any]:
    """Return the last mount before this one that its path lies below, or itself."""
    path = words(mounts[at])
    return next(
        (entry for entry in mounts[at - 1 :: -1] if (parts := words(entry)) == path[: len(parts)]), mounts[at]
    )


def words(mount: dict[str, Any]) -> list[str]:
    """Return the components of a mount's destination, without following links."""
    parts: list[str] = []
    for word in str(mount.get("destination")).split("/"):
        if word == "..":
            del parts[-1:]
        elif word not in ("", "."):
            parts.append(word)
    return parts


def _add_hook_options(edits: Sequence[Edit], mounts: list[dict[str, Any]]) -> None:
    for edit in edits:
        if edit.kind == "hook":
            for mount in mounts:
                source, path = mount.get("source"), mount["destination"]
                edit.value["args"] += hookargs.words("--mounted", source, path) if source else []
