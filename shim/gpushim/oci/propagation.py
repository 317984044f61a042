"""Where mounts of ours stand among a container's, so that none of them reaches the host.

A volume can be shared with the host: what is mounted on it in the container is then mounted on the host, too, and
stays there. Which mount lies on which, links of the image decide, when the low-level runtime follows them. So no
mount of ours comes behind one that can propagate, wherever their paths seem to lead, nor before one that is above it
by its path, which would hide it; where both cannot be, the container is refused. The user's own mounts keep their
order. All this is known from config.json alone, but for what the host has mounted below the rootfs.

Not on the create path of most containers: theirs has no `rootfsPropagation`, or one that lets nothing pass.
Out of scope: what is mounted (plan.py); a second look when it is done (gpuhook.inject.leaks).
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
    """Say whether mounts on a mount of config.json can reach the host, where rootfsPropagation is not CONFINED.

    A new file system is nobody's peer. The hierarchies of cgroup v1 are bound one by one, without an option's say.
    """
    listed = mount.get("options")
    options = {option for option in listed if isinstance(option, str)} if isinstance(listed, list) else set()
    if str(mount.get("type")).startswith("cgroup"):
        return options.isdisjoint(APART_BELOW)
    if mount.get("type") not in (None, "", "none", "bind") and options.isdisjoint(BINDS):
        return False
    return options.isdisjoint(APART_BELOW if "rbind" in options else APART | APART_BELOW)


def arrange(edits: Sequence[Edit], spec: dict[str, Any], rootfs: str) -> None:
    """Put the mounts of edits, which `edits.apply` has put into a spec, where none of them can reach the host.

    Where something can propagate, our hook is told to look for them, too.

    Args:
        edits: a plan's.
        spec: a parsed config.json, changed in place.
        rootfs: path of its rootfs.

    Raises:
        GpushimError: a mount has no such place; the sentence names the volume.
    """
    mounts, linux = spec.get("mounts"), spec.get("linux")
    confined = not isinstance(linux, dict) or linux.get("rootfsPropagation") in CONFINED
    if confined or not isinstance(mounts, list):
        return
    given = {id(edit.value) for edit in edits if edit.kind in ("mount", "set-mount")}
    ours = [mount for mount in mounts if id(mount) in given]
    if not ours:
        return
    theirs = [mount for mount in mounts if id(mount) not in given]
    for mount in ours:  # of CDI specs, which leave it to the engine
        options = mount.get("options") or []
        if can_propagate(mount) and SHARED.isdisjoint(options):
            mount["options"] = [*options, "rprivate"]
    _check_rootfs(rootfs)
    if not any(map(can_propagate, mounts)):
        return
    mounts[:] = _merged(sorted(ours, key=can_propagate), theirs)
    _check(mounts, given)
    _tell_hook(edits, [mount for mount in ours if not can_propagate(mount)])


def _check_rootfs(path: str) -> None:
    """Refuse a rootfs below which the host has mounts: they come before all others, and are the host's peers."""
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
        where, _, _ = line.partition(b" - ")
        if b" shared:" in where and where.split(b" ", 5)[4].startswith(top.rstrip(b"/") + b"/"):
            place = where.split(b" ", 5)[4]
            for byte, escaped in ESCAPED[::-1]:
                place = place.replace(escaped, byte)
            shown = quote(place.decode(errors="backslashreplace"))
            raise GpushimError(
                f"{shown} is a mount below the rootfs that is shared with the host, and what is mounted for the "
                f"container could reach the host there; make it private (mount --make-private '{shown}'), or use no "
                "volume with shared propagation",
                BUNDLE,
            )


def _merged(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put ours among theirs: before the first that can propagate or lies below it, but behind what is above it."""
    paths = [words(mount) for mount in theirs]
    first = next((at for at, mount in enumerate(theirs) if can_propagate(mount)), len(theirs))
    places: list[list[dict[str, Any]]] = [[] for _ in range(len(theirs) + 1)]
    for mount in ours:
        path = words(mount)
        above = [at for at, other in enumerate(paths) if other == path[: len(other)]]
        below = [at for at, other in enumerate(paths) if path == other[: len(path)] and other != path]
        places[max([min([first, *below]), *[at + 1 for at in above]])].append(mount)
    merged = places[-1]
    for mount, before in zip(theirs[::-1], places[-2::-1]):
        merged = [*before, mount, *merged]
    return merged


def _check(mounts: list[dict[str, Any]], given: set[int]) -> None:
    """Refuse a container of which a mount of ours comes behind one that can propagate."""
    shared = None
    for at, mount in enumerate(mounts):
        if id(mount) in given and shared:
            path, volume, above = [quote(str(one.get("destination"))) for one in (mount, shared, _above(mounts, at))]
            where = f"comes after the volume {volume}"
            if above == volume:
                where = f"lies on the volume {volume}"
            elif above != path:
                where = f"lies on {above}, which comes after the volume {volume}"
            raise GpushimError(
                f"{path} {where}, and what is mounted there can reach the host too, as the volume's propagation is "
                f"shared; mount {volume} with the propagation rslave or rprivate",
                BUNDLE,
            )
        if can_propagate(mount):
            shared = shared or mount


def _above(mounts: list[dict[str, Any]], at: int) -> dict[str, Any]:
    """Return the last mount before this one that its path lies below, or itself."""
    path = words(mounts[at])
    return next((one for one in mounts[at - 1 :: -1] if (other := words(one)) == path[: len(other)]), mounts[at])


def words(mount: dict[str, Any]) -> list[str]:
    """Return the components of a mount's destination, as far as they can be told without looking."""
    found: list[str] = []
    for word in str(mount.get("destination")).split("/"):
        if word == "..":
            del found[-1:]
        elif word not in ("", "."):
            found.append(word)
    return found


def _tell_hook(edits: Sequence[Edit], mounts: list[dict[str, Any]]) -> None:
    for edit in edits:
        if edit.kind == "hook":
            for mount in mounts:
                source, path = mount.get("source"), mount["destination"]
                edit.value["args"] += hookargs.words("--mounted", source, path) if source else []
