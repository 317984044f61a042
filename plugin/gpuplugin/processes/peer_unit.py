"""Which process is at the other end of a UNIX socket, and whether it is of one systemd unit.

A user's number is no name: whoever may start a container may choose it. A cgroup is made by systemd alone, or below
what it has delegated. This process has to be of the same systemd, in the host's PID namespace.
Source: cgroups(7), unix(7).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct

from gpushim.ground import system

_PEERPIDFD = 77  # SO_PEERPIDFD of <asm-generic/socket.h>
_INT, _UCRED = struct.Struct("i"), struct.Struct("3i")  # a pidfd; struct ucred of unix(7): pid, uid, gid
_HIERARCHIES = ("", "name=systemd")  # cgroup v2; v1, and beside v2
_LIMIT = 1 << 14  # bytes of a file of cgroups; v1 has a dozen lines


def peer(connected: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process that has connected, as they were then."""
    pid, uid, gid = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


def is_of_unit(connected: socket.socket, unit: str) -> bool:
    """Return whether the process that has connected is still there, and of a unit such as a.service."""
    groups, own = _groups(peer(connected)[0]), _groups("self")
    pairs = [
        (groups.get(name, [""]), own_group) for name, own_group in own.items() if own_group[-1].endswith(".service")
    ]
    matches = [group[-1] == unit and _manager(group) == _manager(own_group) for group, own_group in pairs]
    return bool(matches) and all(matches) and _is_alive(connected)


def _is_alive(connected: socket.socket) -> bool:
    """Return whether the process that has connected lives, so that no other one has its number.

    Linux before 6.5 does not tell: there it is the one that has the number as it is looked at.
    """
    try:
        process = _INT.unpack(connected.getsockopt(socket.SOL_SOCKET, _PEERPIDFD, _INT.size))[0]
    except OSError as error:
        return error.errno == errno.ENOPROTOOPT
    try:
        asking = select.poll()
        asking.register(process, select.POLLIN)  # pidfd_open(2): when it has ended
        return not asking.poll(0)
    finally:
        os.close(process)


def _groups(process: int | str) -> dict[str, list[str]]:
    """Return the components of a process's cgroups, by the hierarchies that systemd may have its units in."""
    lines = [line.split(":", 2) for line in (system.text(f"/proc/{process}/cgroup", _LIMIT) or "").splitlines()]
    return {line[1]: line[2].split("/") for line in lines if len(line) == 3 and line[1] in _HIERARCHIES}


def _manager(group: list[str]) -> list[str]:
    """Return the cgroup of the systemd that has a unit: that of a user, or of a container, has one of its own."""
    above = group[:-1]
    while above and above[-1].endswith(".slice"):
        above.pop()
    return above
