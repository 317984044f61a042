"""SELinux labels of files that containers read, the same whichever process made the file.

A container's policy (container-selinux) lets it read only some types, and a new file's type depends on the process
that makes it: an engine's child or a unit. Without SELinux no file has a label, and nothing is done. Labels that the
policy gives a path survive `restorecon -R`: packaging/selinux has the policy's module for those given here.
"""

from __future__ import annotations

import contextlib
import errno
import os

ATTRIBUTE = "security.selinux"
# Types of container-selinux.
STATE = "container_var_run_t"  # of an engine's state: containers read none of it
READABLE = "container_ro_file_t"  # containers read it
WRITABLE = "container_file_t"  # ... and write it
# Domains of processes.
ENGINE = "container_runtime_t"
DAEMON = "spc_t"  # containers may connect to its sockets


def type_of(file: str | int) -> str:
    """Return the type in the label of a path or fd; "" if it has none."""
    return (_label(file).split(":") + [""] * 3)[2]


def knows(kind: str, like: str, top: str = "") -> bool:
    """Return whether the policy has a type, in a label such as that of the file `like`; True if it is unknown."""
    parts = _label(like).split(":")
    try:
        with open(f"{top}/sys/fs/selinux/context", "wb", buffering=0) as file:  # as security_check_context(3) does
            file.write(":".join([*parts[:2], kind, *parts[3:]]).encode() + b"\0")
    except OSError as error:
        return error.errno != errno.EINVAL
    return True


def give(file: str | int, kind: str) -> None:
    """Set the type of a labelled file (path or fd); where that is not possible, it keeps its own."""
    label = _label(file)
    if label:
        level = ["s0"] if label.count(":") > 2 else []  # that all containers may read
        _set(file, label, ":".join(["system_u", "object_r", kind, *level]))


def as_above(file: str | int, folder: str | int) -> None:
    """Set the label of a labelled file (path or fd) to its directory's."""
    label = _label(file)
    if label:
        _set(file, label, _label(folder))


def _label(file: str | int) -> str:
    try:
        return os.getxattr(file, ATTRIBUTE).decode().rstrip("\0")
    except OSError:  # SELinux is off, or the file is gone
        return ""


def _set(file: str | int, old: str, new: str) -> None:
    if new and new != old:
        with contextlib.suppress(OSError):  # the policy has no such type, or this user may not
            os.setxattr(file, ATTRIBUTE, new.encode() + b"\0")
