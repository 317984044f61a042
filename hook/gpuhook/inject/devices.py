"""Allow a created container device numbers: the rules of its cgroup, v1 or v2, and of its systemd unit.

Needed where an engine calls only the hook; after the shim, the low-level runtime has set the rules from
config.json. To be called in the host's mount namespace, for its mounts tell where the cgroup is.
"""

from __future__ import annotations

import posix
from errno import ESRCH

from gpushim.ground import bounds
from gpushim.ground.errors import FAILED, ROOTFS, GpushimError
from gpushim.paths.mountinfo import parse, read, read_proc, unescaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from gpushim.paths.mountinfo import Mount

    Warn = Callable[[str, Exception], None]

PROC = "/proc"
CRUN_ADDS = "container"  # a cgroup below the scope, so that the container may have others beside it
WHOLE_HOST = ["0", "0", "4294967295"]  # /proc/self/uid_map where there is no user namespace
_DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC


class Cgroup:
    """The cgroup that decides about a process's devices.

    Args:
        version: "1" or "2".
        path: as /proc/<pid>/cgroup names it.
        directories: candidates for its directory, each with the device number of its file system.
    """

    __slots__ = ("directories", "path", "version")

    def __init__(self, version: str, path: str, directories: list[tuple[str, int]]) -> None:
        self.version = version
        self.path = path
        self.directories = directories

    def open(self, above: int = 0) -> int:
        """Return an fd of the directory that lies so many levels above it.

        Raises:
            OSError: it is not mounted where this process sees it.
        """
        for directory, device in self.directories:
            try:
                fd = posix.open(directory + "/.." * above, _DIRECTORY)
            except OSError:
                continue
            if posix.fstat(fd).st_dev == device:  # else something else is mounted on top of it
                return fd
            posix.close(fd)
        raise FileNotFoundError(2, "no mount shows it here")


def paths(text: str) -> dict[str, str]:
    """Read /proc/<pid>/cgroup (cgroups(7)).

    Returns:
        the path of the v1 hierarchy with the controller "devices" as "1", that of v2 as "2".
    """
    hierarchies = {}
    for line in text.split("\n"):
        hierarchy, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        if path and "devices" in controllers.split(","):
            hierarchies["1"] = path
        elif path and hierarchy == "0" and not controllers:
            hierarchies["2"] = path
    return hierarchies


def list_directories(mounts: list[Mount], version: str, path: str) -> list[tuple[str, int]]:
    """Find directories that may be a cgroup's, each with the device number of its mount.

    Args:
        mounts: that this process sees.
        version: "1" for the hierarchy of "devices", "2".
        path: of the cgroup, as seen from this process's cgroup namespace.
    """
    directories = []
    for mount in mounts:
        if mount.type != (b"cgroup" if version == "1" else b"cgroup2"):
            continue
        root, point = (_decode(unescaped(text)) for text in (mount.root, mount.point))
        root = root.rstrip("/")
        inside = path == root or path.startswith(root + "/")
        if inside and (version == "2" or b"devices" in mount.options.split(b",")):
            major, _, minor = mount.device.partition(b":")
            directories.append((point + path[len(root) :], posix.makedev(int(major), int(minor))))
    return directories


def find(process: str, versions: tuple[str, ...] = ("1", "2")) -> Cgroup | None:
    """Find the cgroup that decides about a process's devices; v1's where both exist, None where the kernel has none.

    Args:
        process: its directory in /proc, held open.
        versions: of cgroups that count, the first that is there.

    Raises:
        GpushimError: the process has ended, or no mount that this process sees shows its cgroup.
    """
    try:
        mounts, hierarchies = parse(read(f"{PROC}/self")), paths(_read(f"{process}/cgroup"))
    except OSError as error:
        sentence = f"the cgroup of the container's process cannot be found: {error.strerror}"
        raise GpushimError(sentence, ROOTFS) from None
    for version in versions:
        path = hierarchies.get(version, "/..")
        # What begins so is outside of this process's cgroup namespace.
        if path != "/.." and not path.startswith("/../"):
            candidates = list_directories(mounts, version, path)
            if candidates:
                return Cgroup(version, path, candidates)
    if not {*versions} & {*hierarchies}:
        return None
    raise GpushimError(
        f"no cgroup mount shows the cgroup {' or '.join(hierarchies.values())} of the container's process, which "
        "must change; is the hook in another cgroup namespace than the runtime?",
        ROOTFS,
    )


def _read(path: str) -> str:
    return _decode(read_proc(path, bounds.MOUNT_TABLE))


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def unit(path: str, own: str) -> tuple[str, int]:
    """Find the systemd unit of a container in its cgroup's path.

    Returns:
        the unit's name and how many levels above the cgroup it lies: 0, or 1 with the cgroup that crun adds. "" and
        0 if there is none. runc and crun make scopes for containers: a service was there before, as the parent that
        --cgroup-parent names. One further up holds other things too, one that this process is in is the engine's.
    """
    parts = path.split("/")
    above = 1 if parts[-1] == CRUN_ADDS else 0
    depth = len(parts) - above
    name = parts[depth - 1]
    if not name.endswith(".scope") or own.split("/")[:depth] == parts[:depth]:
        return "", 0
    return name, above


def allow(process: str, numbers: list[tuple[int, int]], warn: Warn) -> None:
    """Allow a container to read and write character devices, now and when systemd reloads; once is enough.

    Args:
        process: directory of the container's process, which waits, in /proc, held open (mountinfo.held).
        numbers: majors and minors.
        warn: called with what was skipped and why: the rules of a rootless container, which are rarely in force
            (no engine of an ordinary user can set any), or systemd's part.

    Raises:
        GpushimError: the container would start without its devices.
    """
    if not numbers:
        return
    try:
        name = _change(process, numbers)
    except GpushimError as error:
        if not _rootless():
            raise
        warn("the device rules, which this user may not change", error)
        return
    if name:
        from gpuhook.inject import systemd  # a socket, and only where there is a unit

        try:
            systemd.extend(name, numbers)
        except GpushimError as error:
            reason = f"{error}; `systemctl daemon-reload` may take the GPUs away from the container"
            warn(f"the device rules of systemd's unit {name}", GpushimError(reason, FAILED))


def _change(process: str, numbers: list[tuple[int, int]]) -> str:
    """Change the rules of the container's cgroup, and return the name of its unit."""
    cgroup = find(process)
    if cgroup is None:
        return ""
    if is_shared(cgroup):
        raise GpushimError(
            f"the container has no cgroup of its own: it is in {cgroup.path}, which is the engine's too, and whose "
            "device rules are others' as well; give it one (no --cgroups=disabled, no --cgroup-manager=disabled), or "
            "use the runtime gpushim-runtime, which changes no cgroup",
            ROOTFS,
        )
    try:
        name, above = unit(cgroup.path, _own_path(cgroup.version))
        # From the unit down to the cgroup itself: each of them must allow, and v1 asks the parent first.
        for level in range(above, -1, -1):
            directory = cgroup.open(level)
            try:
                # As long as the process is in it, no other cgroup can have come to its path.
                if not is_in(process, cgroup):
                    raise OSError(ESRCH, "the container's process has left it")
                (_allow_v1 if cgroup.version == "1" else _allow_v2)(directory, numbers)
            finally:
                posix.close(directory)
    except OSError as error:
        raise GpushimError(
            f"the device rules of the container's cgroup {cgroup.path} (v{cgroup.version}) cannot be changed: "
            f"{error.strerror}; use the runtime gpushim-runtime, which needs no such change",
            ROOTFS,
        ) from None
    return name


def is_shared(cgroup: Cgroup) -> bool:
    """Return whether a cgroup is this process's, or above it."""
    return f"{_own_path(cgroup.version).rstrip('/')}/".startswith(f"{cgroup.path.rstrip('/')}/")


def is_in(process: str, cgroup: Cgroup) -> bool:
    """Return whether a process is in a cgroup: as long as it is, no other cgroup can have come to its path."""
    return paths(_read(f"{process}/cgroup")).get(cgroup.version) == cgroup.path


def _own_path(version: str) -> str:
    return paths(_read(f"{PROC}/self/cgroup")).get(version, "")


def _allow_v1(directory: int, numbers: list[tuple[int, int]]) -> None:
    rules = posix.open("devices.allow", posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=directory)
    try:
        for major, minor in numbers:  # one rule for each write(2)
            posix.write(rules, f"c {major}:{minor} rw".encode())
    finally:
        posix.close(rules)


def _allow_v2(directory: int, numbers: list[tuple[int, int]]) -> None:
    from gpuhook.inject import bpf  # ctypes, for bpf(2) has no Python name

    bpf.Kernel(posix.uname().machine).allow(directory, numbers)


def _rootless() -> bool:
    """Return whether this is an unprivileged user, or root of a user namespace."""
    return posix.geteuid() != 0 or _read(f"{PROC}/self/uid_map").split() != WHOLE_HOST
