"""Whether a process with an engine's name is one of this host's: where it runs, as whom, who made its program.

Its command line and environment play no part: whoever starts a process writes them.
Out of scope: which processes to look at (running.py).
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from gpushim.ground.errors import GpushimError, quote
from gpushim.paths import host_files

if TYPE_CHECKING:
    from collections.abc import Collection

READ_LIMIT = 1 << 17  # bytes of a file in /proc; an argument may have 128 KiB (execve(2))
UNSAFE = "others could have made its program"  # what an administrator can fix
# Hierarchies that runtimes put every container into; where systemd is, it decides about the first two.
HIERARCHIES = ("", "name=systemd", "devices", "pids")
# Where a host's services run: in no cgroup of their own, or in a unit of systemd's or OpenRC's. Not in scopes: the
# containers of Docker's systemd driver are scopes of system.slice. EKS has its engine in runtime.slice.
_SERVICE = re.compile(
    r"/|/openrc\.[^/]+|/(system|runtime|podruntime)\.slice(/[^/]+\.slice)*(/[^/]+\.service)?", re.ASCII
)
_SNAP = re.compile(r"/system\.slice/snap\.([^./]+)\.[^/]+\.service", re.ASCII)
# A user's own: services of the user's systemd, and sessions. Where systemd does not hand a controller of v1 down, its
# path ends at a slice.
_SERVICES = r"user@{0}\.service((/[^/]+\.slice)*/[^/]+\.service)?"
_USERS = rf"/user\.slice(/user-{{0}}\.slice(/({_SERVICES}|session-[^/]+\.scope))?)?"


def why_not(
    folder: str, proc: str, uids: list[int], exe: str, root: str, names: Collection[str], service: bool = True
) -> str:
    """Return why a process is no engine of this host's; what cannot be seen speaks against it.

    Args:
        folder: of the process in procfs.
        uids: real, effective and saved.
        exe: absolute path of the program within the process's root.
        root: of the process, as seen from here; "" if it is ours.
        names: of engines' programs.
        service: it runs as a service does; the monitor of a container may be in that one's cgroup.

    Returns:
        a clause; "" for an engine of this host.
    """
    me = os.geteuid()
    if uids != [me] * 3:
        return f"it is user {next((uid for uid in uids if uid != me), 'unknown')}'s"
    groups = _groups(folder)
    foreign = [path for path in groups if not _SERVICE.fullmatch(path) and not (me and _of(me).fullmatch(path))]
    if foreign and service:
        return f"its cgroup is {quote(foreign[0])}"
    moved = [kind for kind in ("mnt", "user") if not _same(f"{folder}/ns/{kind}", f"{proc}/self/ns/{kind}")]
    unit = groups[0] if groups else ""
    snap = _SNAP.fullmatch(unit)
    snapped = snap is not None and exe.startswith(f"/snap/{snap[1]}/") and moved == ["mnt"]
    rootless = me != 0 and unit.endswith(".service")
    if moved and not snapped and not rootless:
        return f"it is in another {'mount' if moved[0] == 'mnt' else 'user'} namespace"
    if os.path.basename(exe) not in names:
        return f"its program is {quote(exe)}"
    return "" if _trusted(folder, exe, root) else f"{UNSAFE}, {quote(exe)}"


def _trusted(folder: str, exe: str, root: str) -> bool:
    """Return whether nobody else could have made a process's program; an upgrade may have taken its name away."""
    try:
        status = os.stat(f"{folder}/exe")
        host_files.check_file(exe, status)
        with host_files.open_parent(f"{root}{exe}"):
            return stat.S_ISREG(status.st_mode)
    except (OSError, GpushimError):
        return False


def _groups(folder: str) -> list[str]:
    """List the cgroups of a process in HIERARCHIES, the longest path first; cgroups(7) has the form."""
    lines = [(*line.split(":", 2), "", "")[1:3] for line in lines_of(f"{folder}/cgroup")]
    paths = [path for hierarchy in HIERARCHIES for names, path in lines if hierarchy in names.split(",")]
    return sorted(paths, key=len, reverse=True) or (["unknown"] if lines else [])


def unit(folder: str) -> str:
    """Return the systemd unit of a process: the last component of its cgroup path that is a service."""
    for line in lines_of(f"{folder}/cgroup"):
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" or controllers == "name=systemd":
            for name in reversed(path.split("/")):
                if name.endswith(".service"):
                    return name
    return ""


def _of(uid: int) -> re.Pattern[str]:
    return re.compile(_USERS.format(uid), re.ASCII)


def program(folder: str, proc: str, names: tuple[str, ...], service: bool = True) -> str:
    """Return the name of a process's program; "" if it is another, or the process is a user's or a container's.

    Args:
        folder: of the process in procfs.
        names: that the program's may begin with.
        service: as for `why_not`.
    """
    exe = link(f"{folder}/exe").removesuffix(" (deleted)")
    name = os.path.basename(exe)
    if not name.startswith(names) or not _same(f"{proc}/self/ns/pid", f"{folder}/ns/pid"):
        return ""
    status = dict(line.split(":", 1) for line in lines_of(f"{folder}/status") if ":" in line)
    uids = [int(word) for word in status.get("Uid", "").split()[:3]]
    return "" if why_not(folder, proc, uids, exe, "", (name,), service) else name


def _same(link_path: str, other_path: str) -> bool:
    """Return whether two namespaces are one; those that this user may not see are not."""
    return link(link_path) == link(other_path) != ""


def text(path: str) -> str:
    """Read a file of procfs as text; "" if that cannot be done."""
    return data(path).decode("utf-8", "replace")


def lines_of(path: str) -> list[str]:
    """Read the lines of a file of procfs: a name may have any end of line that splitlines knows but the newline."""
    return [line for line in text(path).split("\n") if line]


def data(path: str) -> bytes:
    """Read a file of procfs; nothing if that cannot be done."""
    try:
        with open(path, "rb") as file:
            return file.read(READ_LIMIT)
    except OSError:
        return b""  # the process has ended, or belongs to another user


def link(path: str) -> str:
    """Read a link of procfs; "" if that cannot be done."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
