"""Add devices to those that the BPF programs of a cgroup v2 allow (BPF_PROG_TYPE_CGROUP_DEVICE).

A program cannot be changed. So it is read back, its instructions get ours in front, and the result replaces it: ours
allow the given devices, and for every other access the old ones run as before.

Not for the hot path: bpf(2) has no Python name, and ctypes costs 2.5 ms. The layouts are those of <linux/bpf.h>.
"""

from __future__ import annotations

import ctypes
import posix
from errno import EINVAL, ENOENT
from struct import Struct, pack_into, unpack_from

from gpushim.ground.machines import BPF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LOAD, ATTACH, DETACH, FD_BY_ID, INFO, QUERY = 5, 8, 9, 13, 15, 16  # enum bpf_cmd
NAMES = {LOAD: "load", ATTACH: "attach", DETACH: "detach", FD_BY_ID: "open by id", INFO: "read", QUERY: "list"}
PROGRAM_TYPE, ATTACH_TYPE = 15, 6  # BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE
MULTI, REPLACE = 2, 4  # BPF_F_ALLOW_MULTI, BPF_F_REPLACE
ATTR_SIZE = 128  # of union bpf_attr; the kernel takes a longer one than its own while the rest is zero
PROGRAMS_LIMIT = 64  # BPF_CGROUP_MAX_PROGS
CODE_LIMIT = 8 << 16  # bytes; runc's and systemd's programs have some hundred instructions of 8
TRIES = 10

_SCRATCH = 11  # BPF_REG_AX: the kernel's own register
_insn = Struct("<BBhi")  # code, registers (source << 4 | destination), offset, immediate


def allowing(numbers: Iterable[tuple[int, int]]) -> bytes:
    """Return instructions that allow reading and writing some character devices, given as (major, minor).

    They leave the program with 1, or reach their own end with R1 as it was.
    """
    devices = sorted(set(numbers))
    code = [
        _insn.pack(0x61, 0x12, 0, 0),  # r2 = context->access_type: access << 16 | type
        _insn.pack(0x54, 0x02, 0, 0x1FFFF),  # r2 &= the type and BPF_DEVCG_ACC_MKNOD
        _insn.pack(0x55, 0x02, 2 * len(devices) + 4, 2),  # another type than BPF_DEVCG_DEV_CHAR, or mknod: to the end
        _insn.pack(0x61, 0x13, 4, 0),  # r3 = context->major
        _insn.pack(0x61, 0x14, 8, 0),  # r4 = context->minor
    ]
    for index, (major, minor) in enumerate(devices):
        is_last = index == len(devices) - 1
        code.append(_insn.pack(0x55, 0x03, 3 if is_last else 1, major))  # another major: the next, or the end
        # The right minor: to the two last instructions.
        code.append(
            _insn.pack(0x55 if is_last else 0x15, 0x04, 2 if is_last else 2 * (len(devices) - index) - 2, minor)
        )
    code += [_insn.pack(0xB7, 0, 0, 1), _insn.pack(0x95, 0, 0, 0)]  # return 1
    return b"".join(code)


def plain(code: bytes) -> bytes:
    """Undo what the kernel did to the constants of a program (sysctl net.core.bpf_jit_harden).

    It hides each constant c as `ax = c ^ random; ax ^= random; ... ax`, and a zero as `r ^= r`; a program that
    names ax is not accepted (kernel/bpf/core.c, bpf_jit_blind_insn).
    """
    old = [_insn.unpack_from(code, at) for at in range(0, len(code), 8)]
    new: list[tuple[int, int, int, int]] = []
    origin: list[int] = []  # where the old one was, for each new one
    moved: list[int] = []  # where the new one is, for each old one
    constant = 0
    for at, (op, registers, offset, value) in enumerate(old):
        moved.append(len(new))
        if op in (0xB4, 0xB7) and registers == _SCRATCH:  # ax = value
            constant = value
        elif op in (0xA4, 0xA7) and registers == _SCRATCH:  # ax ^= value
            constant ^= value
        else:
            if registers >> 4 == _SCRATCH:
                op, registers, value = op & ~8, registers & 15, constant
            elif op == 0xAF and registers >> 4 == registers & 15:
                op, registers = 0xB7, registers & 15
            new.append((op, registers, offset, value))
            origin.append(at)
    if len(new) < len(old) and any(op == 0x06 or (op == 0x85 and registers >> 4) for op, registers, _, _ in new):
        return code  # distances in immediates, which no device program has; the kernel will refuse ax
    for at, (op, registers, offset, value) in enumerate(new):
        target = origin[at] + 1 + offset
        if op & 7 in (5, 6) and op not in (0x85, 0x95) and 0 <= target < len(moved):  # a jump, not call or exit
            new[at] = (op, registers, moved[target] - at - 1, value)
    return b"".join([_insn.pack(*fields) for fields in new])


class Kernel:
    """The bpf(2) of one machine, named as uname(2) does.

    Raises:
        OSError: its number there is not known.
    """

    __slots__ = ("number", "syscall")

    def __init__(self, machine: str) -> None:
        if machine not in BPF:
            raise OSError(EINVAL, f"the number of bpf(2) on {machine} is not known")
        self.number = BPF[machine]
        self.syscall = ctypes.CDLL(None, use_errno=True).syscall
        self.syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_long)
        self.syscall.restype = ctypes.c_long

    def call(self, command: int, form: str, *values: int) -> tuple[int, bytes]:
        """Call bpf(2); return its result, and its attributes afterwards."""
        attributes = ctypes.create_string_buffer(ATTR_SIZE)
        pack_into(form, attributes, 0, *values)
        result: int = self.syscall(self.number, command, ctypes.addressof(attributes), ATTR_SIZE)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{NAMES[command]}: {posix.strerror(number)}")
        return result, attributes.raw

    def attached(self, cgroup: int) -> tuple[list[int], int]:
        """Return the ids of a cgroup's own device programs and the flags that they were attached with."""
        ids = (ctypes.c_uint32 * PROGRAMS_LIMIT)()
        try:
            answer = self.call(QUERY, "<IIIIQI", cgroup, ATTACH_TYPE, 0, 0, ctypes.addressof(ids), PROGRAMS_LIMIT)[1]
        except OSError as error:
            if error.errno == EINVAL:  # a kernel that knows no such programs
                return [], 0
            raise
        flags, _, count = unpack_from("<IQI", answer, 12)
        return list(ids[:count]), flags

    def info(self, program: int, room: int = 0, code: int = 0) -> tuple[int, int, int]:
        """Return a program's id, the length of its code, and the address that it was written to (0: nowhere)."""
        info = ctypes.create_string_buffer(56)  # struct bpf_prog_info as far as Linux 4.15 knew it
        pack_into("<IQQ", info, 20, room, 0, code)
        self.call(INFO, "<IIQ", program, len(info), ctypes.addressof(info))
        length, _, address = unpack_from("<IQQ", info, 20)
        return unpack_from("<I", info, 4)[0], length, address

    def code(self, program: int) -> bytes:
        """Read a program's instructions.

        Raises:
            OSError: the kernel does not show them, or they are too many.
        """
        length = self.info(program)[1]
        if not 0 < length <= CODE_LIMIT:
            raise OSError(EINVAL, f"a program of {length} bytes; 8 to {CODE_LIMIT} are taken (0: it may not be read)")
        buffer = ctypes.create_string_buffer(length)
        if not self.info(program, length, ctypes.addressof(buffer))[2]:
            raise OSError(
                EINVAL, "the kernel hides its programs (sysctl net.core.bpf_jit_harden, kernel.kptr_restrict)"
            )
        return buffer.raw

    def load(self, code: bytes) -> int:
        buffer, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"Apache-2.0")
        values = (PROGRAM_TYPE, len(code) // 8, ctypes.addressof(buffer), ctypes.addressof(licence))
        try:
            return self.call(LOAD, "<IIQQ", *values)[0]
        except PermissionError:
            _lift_memory_limit()
        return self.call(LOAD, "<IIQQ", *values)[0]

    def swap(self, cgroup: int, flags: int, old: int, new: int) -> None:
        """Replace an attached program.

        Raises:
            OSError: ENOENT where the old one is no longer attached.
        """
        if not flags & MULTI:  # one program at most: the new one pushes the old one out
            self.call(ATTACH, "<IIIII", cgroup, new, ATTACH_TYPE, flags, 0)
            return
        try:
            self.call(ATTACH, "<IIIII", cgroup, new, ATTACH_TYPE, MULTI | REPLACE, old)
        except OSError as error:
            if error.errno != EINVAL:
                raise
            # Before Linux 5.6. Never a moment without a guard, for the new one is there first.
            self.call(ATTACH, "<IIIII", cgroup, new, ATTACH_TYPE, MULTI, 0)
            self.call(DETACH, "<III", cgroup, old, ATTACH_TYPE)

    def allow(self, cgroup: int, numbers: Iterable[tuple[int, int]]) -> None:
        """Make all device programs of a cgroup pass some devices; without a program nothing is forbidden.

        Args:
            cgroup: fd of its directory.
            numbers: majors and minors of character devices.

        Raises:
            OSError: the programs may not be read, replaced, or are replaced by others all the time.
        """
        prefix = allowing(numbers)
        loaded: set[int] = set()
        for _ in range(TRIES):
            programs, flags = self.attached(cgroup)
            changed = False
            try:
                for program in programs:
                    if program not in loaded and self._precede(cgroup, flags, program, prefix, loaded):
                        changed = True
            except FileNotFoundError:
                continue  # somebody else replaced it meanwhile
            if not changed:
                return
        raise OSError(ENOENT, "the programs change all the time, or are attached by links (bpf_link)")

    def _precede(self, cgroup: int, flags: int, program: int, prefix: bytes, loaded: set[int]) -> bool:
        """Put instructions in front of one program, unless they are there; return whether that was needed."""
        old = self.call(FD_BY_ID, "<III", program, 0, 0)[0]
        try:
            code = plain(self.code(old))
            if code.startswith(prefix):
                return False
            new = self.load(prefix + code)
            try:
                loaded.add(self.info(new)[0])
                self.swap(cgroup, flags, old, new)
            finally:
                posix.close(new)
        finally:
            posix.close(old)
        return True


def _lift_memory_limit() -> None:
    """Before Linux 5.11 programs count as locked memory, of which a daemon may have 64 KiB."""
    from resource import RLIM_INFINITY, RLIMIT_MEMLOCK, getrlimit, setrlimit  # rarely needed

    for limit in (RLIM_INFINITY, getrlimit(RLIMIT_MEMLOCK)[1]):
        try:
            setrlimit(RLIMIT_MEMLOCK, (limit, limit))
        except (OSError, ValueError):
            continue
        return
