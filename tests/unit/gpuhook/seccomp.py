"""Deny system calls to the calling process, as an old kernel or a strict sandbox does (seccomp(2))."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
RET_ERRNO, RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def deny(numbers: Iterable[int], error: int) -> None:
    """Let these system calls of this process and its children fail, for good."""
    steps = [(LOAD, 0, 0, 0)]  # seccomp_data.nr
    for number in numbers:
        steps += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, RET_ERRNO | error)]
    steps.append((RETURN, 0, 0, RET_ALLOW))
    text = b"".join(struct.pack("=HBBI", *step) for step in steps)
    program = _Program(len(steps), text)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
