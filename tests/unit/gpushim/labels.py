"""SELinux's labels in a test: file systems keep them without SELinux, too."""

from __future__ import annotations

import os

import pytest

from gpushim.paths import selinux

RUN = "var_run_t"


def label(path: os.PathLike[str] | str, kind: str) -> None:
    """Label a file as an administrator's `chcon -t` does; without SELinux, for root alone."""
    os.setxattr(path, selinux.ATTRIBUTE, f"unconfined_u:object_r:{kind}:s0:c1,c2\0".encode())


def of(path: os.PathLike[str] | str) -> str:
    return os.getxattr(path, selinux.ATTRIBUTE).decode().rstrip("\0")


def new_files(patch: pytest.MonkeyPatch, kind: str) -> None:
    """Let files that nobody has labelled have a type, as the kernel gives one to what a process makes."""
    real = os.getxattr

    def got(file: str | int, name: str) -> bytes:
        try:
            return real(file, name)
        except OSError:
            os.stat(file)
            return f"system_u:object_r:{kind}:s0\0".encode()

    patch.setattr(os, "getxattr", got)
