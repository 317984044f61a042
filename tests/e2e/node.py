"""A node on which gpushim-node installs gpushim, as its container does: with a root and a Python of its own.

The node is an entered Debian (chroots.py) in which nothing of gpushim is. The container is this machine, in the
node's PID namespace (hostPID); the node's root is seen by way of /proc.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fakehost
from e2e import chroots, engines, leftovers, trees
from e2e.engines import Done
from e2e.installed import CONTAINERD, Machine

PROGRAM = trees.TOP / "bin" / "gpushim-node"
# The argument: a directory for what an overlay cannot hold.
MOUNT = """
mkdir -p /root /usr/local/bin /etc/containerd
for engine in docker containerd; do
    mkdir -p "$1/$engine" "/var/lib/$engine"
    mount --bind "$1/$engine" "/var/lib/$engine"
done
mkdir -p "$1/run" /run/containerd
mount --bind "$1/run" /run/containerd
"""
NOT_LISTED = ("/run/containerd", "/var/lib/containerd", "/tmp", "/root")
TELLING = ("sys/bus/pci/devices", "sys/module", "proc/driver")  # of a device
VERSION = re.compile(r'(?m)^__version__ = "(.*)"$')


@dataclass
class Node(Machine):
    """A machine, and gpushim-node's way to it.

    Attributes:
        lower: the tree that it is an overlay on.
    """

    lower: Path = Path("/")

    @property
    def holder(self) -> str:
        """The process that has the node's mount namespace, in this machine's /proc."""
        return self.prefix[1].removeprefix("--mount=/proc/").partition("/")[0]

    def command(self, *words: str, payload: Path | None = None, before: tuple[str, ...] = ()) -> list[str]:
        """Return the command line of gpushim-node for this node, with words before the program."""
        enter = ["/usr/bin/nsenter", f"--pid=/proc/{self.holder}/ns/pid_for_children", "--"]
        program = [*before, "/usr/bin/python3", "-IB", str(PROGRAM), words[0]]
        more = [f"--payload={payload}"] if payload else []
        return [*enter, *program, f"--host=/proc/{self.holder}/root", *more, *words[1:]]

    def call(self, *words: str, payload: Path | None = None, check: bool = True) -> Done:
        """Run gpushim-node until it ends."""
        return engines.run(self.command(*words, payload=payload), check=check)

    def files(self) -> dict[str, str]:
        """What has been changed or made on the node since it was entered, with kind, mode and content.

        Not directories that were there: an overlay has a copy of each in which there was something new once.
        """
        root, found = Path(f"/proc/{self.holder}/root"), {}
        for top, place in (("", root / "mnt"), ("/run", root / "run")):
            for path in place.rglob("*"):
                name = f"{top}/{path.relative_to(place)}"
                if not name.startswith(NOT_LISTED) and not ((self.lower / name[1:]).is_dir() and path.is_dir()):
                    found[name] = _facts(path)
        return found


def _facts(path: Path) -> str:
    mode, more = path.lstat().st_mode, ""
    if stat.S_ISLNK(mode):
        more = str(path.readlink())
    elif stat.S_ISREG(mode):
        more = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{mode:o} {more}"


@contextlib.contextmanager
def node(suite: str, below: str = "") -> Iterator[Node]:
    """Set a node up, with three GPUs, whose containerd runs.

    Args:
        suite: one of chroots.SUITES.
        below: one more root filesystem, of which it has what the suite's has not.
    """
    lower = f"{chroots.tree(suite)}:{below}" if below else ""
    with leftovers.state() as state:
        host = fakehost.build(str(state / "driver"), 3, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
        with chroots.entered(suite, view="v1", lower=lower) as place:
            subprocess.run([*place.prefix, "/bin/sh", "-euc", MOUNT, "sh", str(state)], check=True)
            found = Node(place.prefix, state, host, lower=chroots.tree(suite))
            found.write("/etc/gpushim/config.toml", f'[driver]\nroot = "{host.root}"\n')
            found.write("/etc/containerd/config.toml", CONTAINERD)
            try:
                found.restart("containerd")
                yield found
            finally:
                for engine in [*found.running]:
                    found.stop(engine)


def without_device(host: fakehost.Host) -> None:
    """Take the devices out of a simulated host, and the driver with them, which would tell of itself."""
    for name in TELLING:
        (Path(host.root) / name).rename(Path(host.root) / f"{name}.aside")
    (Path(host.root) / TELLING[0]).mkdir()


def with_device(host: fakehost.Host) -> None:
    """Put back what `without_device` has taken."""
    (Path(host.root) / TELLING[0]).rmdir()
    for name in reversed(TELLING):
        (Path(host.root) / f"{name}.aside").rename(Path(host.root) / name)


def payload(folder: Path, version: str = "") -> Path:
    """Make what an image has for nodes; with another version, if one is given.

    Args:
        folder: that is to be made.
        version: other than that of the checkout.
    """
    made = folder / "node"
    bundled = trees.TOP / "vendor"
    for package in ("main", "device-plugin"):
        subprocess.run([trees.TOP / "packaging/install", made, package, bundled], check=True)
    subprocess.run([trees.TOP / "packaging/install", folder / "own", "node"], check=True)
    for name in ("written.sh", "removed"):
        shutil.copy(folder / "own/usr/share/gpushim" / name, folder)
    if version:
        _renamed(made, version)
    return made


def _renamed(made: Path, version: str) -> None:
    (lib,) = (made / "usr/lib/gpushim").iterdir()
    old = lib.name
    (lib / "whole").write_text(f"{version}\n")
    source = lib / "gpushim/__init__.py"
    source.write_text(VERSION.sub(f'__version__ = "{version}"', source.read_text()))
    for program in (made / "usr/bin").iterdir():
        program.write_text(program.read_text().replace(f"/lib/gpushim/{old}", f"/lib/gpushim/{version}"))
    lib.rename(lib.with_name(version))
