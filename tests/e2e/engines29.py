"""The engines of today, Docker 29.7 and CRI-O 1.36, which no Debian has yet, on top of the newest Debian.

Their programs come from an archive that the project does not contain: $GPUSHIM_ENGINES names it, or it lies beside
the checkout. Without it the tests that want them are skipped, and say so.

Out of scope: how an engine is started (engines.py), the Debian below (chroots.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import chroots, trees
from e2e.chroots import Chroot

SUITE = "sid"
CACHE = trees.TOP / ".cache" / "engines29"
BESIDE = trees.TOP.parent / "shared" / "engines29" / "engines.tar.xz"
# Where Debian's packages have them, so that these take their places.
PLACES = {
    "usr/sbin/dockerd": "dockerd",
    "usr/bin/docker": "docker",
    "usr/bin/docker-proxy": "docker-proxy",
    "usr/bin/crio": "crio",
    "usr/bin/pinns": "pinns",
}


# Its loopback device is up, as SIOCSIFFLAGS makes it with IFF_UP (netdevice(7)).
NETWORK = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1))
print("ready", flush=True)
sys.stdin.read()
"""


def archive() -> Path:
    """Return the archive of the programs; skip the test where there is none."""
    found = Path(os.environ.get("GPUSHIM_ENGINES") or BESIDE)
    if not found.is_file():
        pytest.skip(f"there is no {found}, an archive of dockerd 29.7 and crio 1.36; GPUSHIM_ENGINES names another")
    return found


def layer(cache: Path = CACHE) -> Path:
    """Return a directory with the programs in their places, unpacking them the first time.

    Args:
        cache: directory that keeps it between runs.

    Returns:
        The directory. It is shared: it is the upper one of an overlay's lower layers.
    """
    packed = archive()
    stat = packed.stat()
    recipe = f"{sorted(PLACES.items())} {packed} {stat.st_size} {stat.st_mtime_ns}"
    found = cache / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    with trees.locked(cache):
        if not found.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                fresh = Path(scratch) / "layer"
                fresh.mkdir(mode=0o755)
                subprocess.run(["/bin/tar", "-xf", packed, "-C", scratch], check=True)
                for place, name in PLACES.items():
                    (fresh / place).parent.mkdir(parents=True, exist_ok=True)
                    Path(scratch, name).rename(fresh / place)
                fresh.rename(found)
    return found


def lower() -> str:
    """Return the root filesystems of a Debian whose engines are these, as chroots.entered takes them."""
    return f"{layer()}:{chroots.tree(SUITE)}"


@contextlib.contextmanager
def entered(*directories: Path, view: str) -> Iterator[Chroot]:
    """Enter a Debian whose engines are these, for the block.

    Args:
        directories: to be seen in it under their own paths, read-only.
        view: of the cgroup file systems, as in views.SCRIPTS.

    Yields:
        The Debian, as of chroots.entered.
    """
    with chroots.entered(SUITE, *directories, view=view, lower=lower()) as place:
        yield place


@contextlib.contextmanager
def network(prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Hold a network namespace, because a Swarm makes devices and listens.

    Args:
        prefix: what to put before a command elsewhere.

    Yields:
        The same for a command that shall have that namespace, too.
    """
    words = ["/usr/bin/unshare", "--net", sys.executable, "-c", NETWORK]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n", "there is no network namespace to be had"
        try:
            yield ("/usr/bin/nsenter", f"--net=/proc/{holder.pid}/ns/net", "--", *prefix)
        finally:
            holder.stdin.close()
