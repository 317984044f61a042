"""Programs in the kernel that guard a cgroup for real."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable

import pytest

from gpuhook.inject import bpf
from unit.gpuhook.cgroups import ALLOWED, DENIED, DENY, attach, group, opens, programs, show
from unit.gpuhook.sandbox import forked

GPU = bpf.allowing([(195, 0)])
OTHER = bpf.allowing([(195, 0), (195, 1), (507, 3)])


def kernel() -> bpf.Kernel:
    return bpf.Kernel(os.uname().machine)


def allow(path: Path, *numbers: tuple[int, int]) -> None:
    cgroup = os.open(path, os.O_DIRECTORY)
    try:
        kernel().allow(cgroup, numbers)
    finally:
        os.close(cgroup)


def guarded(work: Callable[[Path], str], *codes: bytes, flags: int = bpf.MULTI) -> str:
    """Run a function on a cgroup that has device programs."""

    def inside() -> str:
        with group(show("2"), "b") as path:
            attach(path, *codes, flags=flags)
            return work(path)

    return forked(inside, namespace=True)


@pytest.mark.parametrize("codes", [[DENY], [DENY, DENY], [OTHER + DENY, DENY, GPU + DENY]], ids=len)
def test_every_program_lets_them_pass(tmp_path: Path, codes: list[bytes]) -> None:
    def work(path: Path) -> str:
        before = opens(path, tmp_path, "c195:0", "c195:254")
        allow(path, (195, 254), (195, 0), (195, 254))
        return f"{before}, {opens(path, tmp_path, 'c195:0', 'c195:254', 'c195:1', 'c194:0', 'b195:0')}"

    denied = f"{DENIED} {DENIED}"
    assert guarded(work, *codes) == f"{denied}, {ALLOWED} {ALLOWED} {DENIED} {DENIED} {DENIED}"


@pytest.mark.parametrize("count", [1, 2, 5, 600])
def test_each_of_many_numbers(tmp_path: Path, count: int) -> None:
    def work(path: Path) -> str:
        allow(path, *[(200 + index % 3, index) for index in range(count)])
        last = f"c{200 + (count - 1) % 3}:{count - 1}"
        wrong = f"c{200 + count % 3}:{count - 1}"
        return opens(path, tmp_path, "c200:0", last, wrong, f"c200:{count}")

    assert guarded(work, DENY) == f"{ALLOWED} {ALLOWED} {DENIED} {DENIED}"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_reading_and_writing(tmp_path: Path, flags: int) -> None:
    def work(path: Path) -> str:
        allow(path, (195, 0))
        return opens(path, tmp_path, "c195:0", flags=flags)

    assert guarded(work, DENY) == ALLOWED


def test_not_making_nodes(tmp_path: Path) -> None:
    def work(path: Path) -> str:
        allow(path, (195, 0))

        def make() -> str:
            (path / "cgroup.procs").write_text(str(os.getpid()))
            with pytest.raises(PermissionError):
                os.mknod(tmp_path / "node", 0o020600, os.makedev(195, 0))
            return "refused"

        return forked(make)

    assert guarded(work, DENY) == "refused"


def test_what_the_old_program_allowed_stays(tmp_path: Path) -> None:
    def work(path: Path) -> str:
        allow(path, (195, 0))
        return opens(path, tmp_path, "c195:0", "c195:1", "c507:3", "c507:4")

    assert guarded(work, OTHER + DENY) == f"{ALLOWED} {ALLOWED} {ALLOWED} {DENIED}"


@pytest.mark.parametrize("again", [[(195, 0), (195, 255)], [(195, 255), (195, 0), (195, 0)]])
def test_a_second_time_changes_nothing(again: list[tuple[int, int]]) -> None:
    def work(path: Path) -> str:
        allow(path, (195, 0), (195, 255))
        first = programs(path)
        allow(path, *again)
        assert programs(path) == first == [bpf.allowing(again) + DENY] * 2
        return ""

    guarded(work, DENY, DENY)


def test_without_a_program_none_is_made() -> None:
    def work(path: Path) -> str:
        allow(path, (195, 0))
        return str(programs(path))

    assert guarded(work) == "[]"


@pytest.mark.parametrize("flags", [0, 1], ids=["exclusive", "override"])
def test_attached_in_the_old_ways(tmp_path: Path, flags: int) -> None:
    def work(path: Path) -> str:
        allow(path, (195, 0))
        return f"{len(programs(path))} {opens(path, tmp_path, 'c195:0', 'c195:1')}"

    assert guarded(work, DENY, flags=flags) == f"1 {ALLOWED} {DENIED}"


def test_a_kernel_that_cannot_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf, "REPLACE", 1 << 30)

    def work(path: Path) -> str:
        allow(path, (195, 0))
        return f"{len(programs(path))} {opens(path, tmp_path, 'c195:0', 'c195:1')}"

    assert guarded(work, DENY, OTHER + DENY) == f"2 {ALLOWED} {DENIED}"


@pytest.mark.parametrize("times", [1, bpf.TRIES - 2, bpf.TRIES])
def test_somebody_replaces_them_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    left = [times]
    real = bpf.Kernel.swap

    def swap(self: bpf.Kernel, cgroup: int, flags: int, old: int, new: int) -> None:
        if left[0]:
            left[0] -= 1
            others = self.load(OTHER + DENY)
            real(self, cgroup, flags, old, others)
            os.close(others)
        real(self, cgroup, flags, old, new)

    monkeypatch.setattr(bpf.Kernel, "swap", swap)

    def work(path: Path) -> str:
        try:
            allow(path, (195, 2))
        except OSError as error:
            return str(error.strerror)
        return opens(path, tmp_path, "c195:2", "c507:3", "c195:4")

    gave_up = "the programs change all the time, or are attached by links (bpf_link)"
    assert guarded(work, DENY) == (gave_up if times == bpf.TRIES else f"{ALLOWED} {ALLOWED} {DENIED}")


def test_no_fd_stays_open() -> None:
    def work(path: Path) -> str:
        before = os.listdir("/proc/self/fd")
        allow(path, (195, 0))
        return str(os.listdir("/proc/self/fd") == before)

    assert guarded(work, DENY, DENY) == "True"


def test_the_kernel_refuses_nonsense() -> None:
    with pytest.raises(OSError, match="load: Invalid argument"):
        kernel().load(b"\xff" * 16)


def test_a_program_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf.Kernel, "info", lambda *_: (1, 0, 0))
    with pytest.raises(OSError, match="a program of 0 bytes"):
        kernel().code(0)


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 321), ("aarch64", 280)])
def test_the_number_of_the_system_call(machine: str, number: int) -> None:
    assert bpf.Kernel(machine).number == number


def test_an_unknown_machine() -> None:
    with pytest.raises(OSError, match="on riscv64 is not known"):
        bpf.Kernel("riscv64")


# allowing([(195, 0), (195, 255)]) + a program `r2 = major; r3 = minor; if major 1 and minor 5: deny; allow`,
# read back from Linux 6.18 with net.core.bpf_jit_harden=2.
HIDDEN = bytes.fromhex(
    "6112000000000000b40b00001f576268a40b0000e0a863685cb2000000000000b70b0000d27d5465a70b0000d07d5465"
    "5db212000000000061130400000000006114080000000000b70b0000688a9e3da70b0000ab8a9e3d5db3030000000000"
    "b70b00004e7ecc01a70b00004e7ecc011db4060000000000b70b0000a8eda05ea70b00006beda05e5db3070000000000"
    "b70b0000b87e7f33a70b0000477e7f335db4040000000000b70b000017c87292a70b000016c87292bfb0000000000000"
    "950000000000000061120400000000006113080000000000b70b0000ee348ba3a70b0000ef348ba35db2050000000000"
    "b70b0000195501b4a70b00001c5501b45db3020000000000af000000000000009500000000000000b70b0000fe0ee462"
    "a70b0000ff0ee462bfb00000000000009500000000000000"
)
SHOWN = bpf.allowing([(195, 0), (195, 255)]) + bytes.fromhex(
    "6112040000000000 6113080000000000 5502030001000000 5503020005000000"
    "b700000000000000 9500000000000000 b700000001000000 9500000000000000"
)


def test_hidden_constants() -> None:
    assert bpf.plain(HIDDEN) == SHOWN
    os.close(kernel().load(bpf.plain(HIDDEN)))


@pytest.mark.parametrize("code", [b"", DENY, SHOWN, OTHER + DENY])
def test_what_is_not_hidden_stays(code: bytes) -> None:
    assert bpf.plain(code) == code


@pytest.mark.parametrize("call", ["0600000000000000", "8510000001000000"], ids=["gotol", "call"])
def test_distances_that_cannot_be_mended(call: str) -> None:
    """The kernel refuses such a program, for the hidden constants are still there."""
    code = HIDDEN + bytes.fromhex(call)
    assert bpf.plain(code) == code
