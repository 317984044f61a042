"""What hostile images look like, each for one route that is known from a published escape."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from e2e.hostile import LIBS, Trap
from fakehost import Host

Lay = Callable[[Trap, Host], None]
ONE, TWO = "libnvidia-ml.so.6", "libnvidia-ml.so.7"
COMPAT = "usr/local/cuda/compat"


def compat(one: str, two: str, folder: str = "../../../usr/local/cuda/compat", library: str = ONE) -> Lay:
    """CVE-2024-0132: the first mount changes what the path of the second one means.

    `one` and `two` say what the names of two libraries are: a directory with a link, a link, or a file.
    `library` is the one whose place leads to them.
    """

    def lay(trap: Trap, host: Host) -> None:
        (trap.root / COMPAT).mkdir(parents=True)
        for name, other, kind in ((ONE, TWO, one), (TWO, ONE, two)):
            place = f"{COMPAT}/{name}"
            if kind == "directory":
                trap.link(f"{place}/{other}", "../../../../..")
            elif kind == "file":
                trap.write(place, b"")
            else:
                trap.link(place, kind)
        trap.link(f"{LIBS}/{library.format(host)}", folder)

    return lay


def together(trap: Trap, host: Host) -> None:
    """The places of two libraries are one, in the very directory of the image's own libcuda."""
    shutil.copytree(trap.root / LIBS, trap.root / COMPAT, symlinks=True)
    trap.link(LIBS, "../local/cuda/compat")
    trap.link(f"{COMPAT}/libcuda.so.{host.driver}", f"libnvidia-ml.so.{host.driver}")
    trap.link(f"{COMPAT}/libnvidia-ml.so.{host.driver}", trap.up("new"))


def out(name: str, inside: str) -> Lay:
    """A link in the image to a place of the canary, by its absolute path."""
    return lambda trap, host: trap.link(name.format(host), trap.canary / inside)


def up(name: str, inside: str) -> Lay:
    """The same by way of the root's parent."""
    return lambda trap, host: trap.link(name.format(host), trap.up(inside))


def to(name: str, target: str) -> Lay:
    """A link to anywhere."""
    return lambda trap, host: trap.link(name.format(host), target)


def write(name: str, data: bytes) -> Lay:
    """A file with odd contents."""
    return lambda trap, host: trap.write(name, data)


def fifo(name: str) -> Lay:
    """Opening it would wait for ever."""

    def lay(trap: Trap, host: Host) -> None:
        trap.remove(name.format(host))
        os.mkfifo(trap.root / name.format(host))

    return lay


def closed(trap: Trap, host: Host) -> None:
    """Nobody but root may go in."""
    (trap.root / "etc/ld.so.conf.d").chmod(0)
    (trap.root / LIBS).chmod(0)


def sparse(trap: Trap, host: Host) -> None:
    """Reading it would fill the memory."""
    os.truncate(trap.root / "etc/ld.so.cache", 10 << 30)
    os.utime(trap.root / "etc/ld.so.cache", times=(0, 0))  # so that `look` does not read it either


def loop(trap: Trap, host: Host) -> None:
    """Links without an end."""
    trap.link("etc", "etc2")
    trap.link("etc2", "etc")


def many(trap: Trap, host: Host) -> None:
    """An include that names very many files."""
    for number in range(3000):
        (trap.root / f"etc/ld.so.conf.d/{number}.conf").touch()


TRAPS: dict[str, Lay] = {
    "T-0132": compat("directory", "file"),
    "T-0132 two directories": compat("directory", "directory"),
    "T-0132 a link": compat("directory", "/"),
    "T-0132 links": compat("../../../../..", "/"),
    "T-0132 files": compat("file", "file"),
    "T-0132 root": compat("file", "directory", "/"),
    "T-0132 a driver library": compat("directory", "file", library="libcuda.so.{0.driver}"),
    "T-0132 a driver library, root": compat("directory", "file", "/", "libnvidia-ml.so.{0.driver}"),
    "T-0132 together": together,
    "T-0132 compat is the root": to(COMPAT, "/"),
    "T-0132 compat is up": up(COMPAT, ""),
    "T-0132 loop": compat(TWO, ONE, ONE),
    "T-0133 driver library": out(f"{LIBS}/libcuda.so.{{0.driver}}", "new"),
    "T-0133 driver library, existing": up(f"{LIBS}/libcuda.so.{{0.driver}}", "x"),
    "T-0133 program": out("usr/bin/nvidia-smi", "new2"),
    "T-0133 programs": up("usr/bin", "etc"),
    "T-0133 firmware": up("usr/lib/firmware/nvidia/{0.driver}", ""),
    "T-0133 all firmware": out("usr/lib/firmware", ""),
    "T-0133 socket directory": out("run/nvidia-persistenced", ""),
    "T-0133 run": up("run", ""),
    "T-0133 proc": out("proc", ""),
    "T-0133 etc": out("etc", "etc"),
    "T-0133 etc, up": up("etc", "etc"),
    "T-0134 SONAME": out(f"{LIBS}/libcuda.so.1", "new"),
    "T-0134 SONAME, existing": up(f"{LIBS}/libcuda.so.1", "x"),
    "T-0134 library directory": out(LIBS, "lib"),
    "T-0134 library directory, up": up("usr/lib", "lib"),
    "T-0134 library directory is the root": to(LIBS, "/"),
    "T-0134 library directory dangles": to(LIBS, "/nowhere"),
    "T-0134 library directory loops": to(LIBS, "x86_64-linux-gnu"),
    "T-0134 library directory is a file": write(LIBS, b""),
    "T-0134 library directory leads to a file": to(LIBS, "/etc/passwd"),
    "T-0134 library directory is a FIFO": fifo(LIBS),
    "T-0134 closed directories": closed,
    "T-0134 loop": loop,
    "T-23267 cache": out("etc/ld.so.cache", "x"),
    "T-23267 cache, up": up("etc/ld.so.cache", "etc/ld.so.cache"),
    "T-23267 cache, new": out("etc/ld.so.cache", "new"),
    "T-23267 cache~": out("etc/ld.so.cache~", "x"),
    "T-23267 aux-cache": out("var/cache/ldconfig/aux-cache", "x"),
    "T-23267 conf.d": out("etc/ld.so.conf.d", ""),
    "T-23267 conf.d, up": up("etc/ld.so.conf.d", "etc/ld.so.conf.d"),
    "T-23267 conf": out("etc/ld.so.conf", "new"),
    "T-23267 our conf": up("etc/ld.so.conf.d/00-gpushim.conf", "x"),
    "T-23267 our other conf": up("etc/ld.so.conf.d/zz-gpushim.conf", "x"),
    "T-23267 endless conf": to("etc/ld.so.conf", "/dev/zero"),
    "T-23267 conf is a FIFO": fifo("etc/ld.so.conf"),
    "T-23267 our conf is a FIFO": fifo("etc/ld.so.conf.d/zz-gpushim.conf"),
    "T-23267 FIFO": fifo("etc/ld.so.cache"),
    "T-23267 sparse": sparse,
    "T-23267 conf includes itself": write("etc/ld.so.conf", b"include /etc/ld.so.conf\n" * 40),
    "T-23267 include of many": many,
    "T-23267 long lines": write("etc/ld.so.conf", b"/" + b"x" * (1 << 20) + b"\n"),
    "T-23267 no text": write("etc/ld.so.conf.d/a.conf", b"\0\xff\xfe\n" * 99),
    "T-23267 no cache": write("etc/ld.so.cache", b"glibc-ld.so.cache1.1" + b"\xff" * 99),
    "T-41579 dev dangles": to("dev", "../../canary"),
    "T-41579 dev is a file": write("dev", b""),
}
# What is in the way of files or of runc's own mounts stops the container. All others start, as they must where only
# the loader's configuration is odd.
REFUSED = {
    "T-0132 a driver library",
    "T-0132 a driver library, root",
    "T-0133 proc",
    "T-0134 library directory loops",
    "T-0134 library directory is a file",
    "T-0134 library directory leads to a file",
    "T-0134 library directory is a FIFO",
    "T-41579 dev dangles",
    "T-41579 dev is a file",
}
