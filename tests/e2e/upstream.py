"""Docker 29 and CRI-O, which no Debian has, on top of the newest Debian; their programs are those of programs.py.

Out of scope: how an engine is started (engines.py), the Debian below (chroots.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import scratch
from e2e import chroots, programs, trees
from e2e.chroots import Chroot

SUITE = "sid"
CACHE = scratch.CACHE / "upstream"
# Where Debian's packages have them, or would, so that these take their places.
DOCKER = ("usr/sbin/dockerd", "usr/bin/docker", "usr/bin/docker-proxy")
ROOTLESS = (
    *("usr/bin/rootlesskit", "usr/share/docker.io/contrib/dockerd-rootless.sh"),
    "usr/share/docker.io/contrib/dockerd-rootless-setuptool.sh",
)
CRIO = ("usr/bin/crio", "usr/bin/pinns")


# Its loopback device is up, as SIOCSIFFLAGS makes it with IFF_UP (netdevice(7)).
NETWORK = """
import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1))
print("ready", flush=True)
sys.stdin.read()
"""


def layer(places: tuple[str, ...], cache: Path = CACHE) -> Path:
    """Return a directory with programs in their places, made the first time; skip the test where one is missing.

    Args:
        places: of the programs, as DOCKER, ROOTLESS or CRIO.
        cache: directory that keeps it between runs.

    Returns:
        The directory. It is shared: it is the upper one of an overlay's lower layers.
    """
    sources = {place: programs.path(Path(place).name).resolve() for place in places}
    stats = {place: source.stat() for place, source in sources.items()}
    recipe = str([(place, str(sources[place]), stat.st_size, stat.st_mtime_ns) for place, stat in stats.items()])
    directory = cache / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    with trees.locked(cache):
        if not directory.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                fresh = Path(work) / "layer"
                for place, source in sources.items():
                    (fresh / place).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, fresh / place)
                fresh.chmod(0o755)
                fresh.rename(directory)
    return directory


def lower(*parts: tuple[str, ...]) -> str:
    """Return the root filesystems of a Debian with these programs, as chroots.entered takes them."""
    return ":".join(map(str, (*map(layer, parts), chroots.tree(SUITE))))


@contextlib.contextmanager
def entered(places: tuple[str, ...], *directories: Path, view: str) -> Iterator[Chroot]:
    """Enter a Debian with these programs, for the block.

    Args:
        places: of the programs, as DOCKER or CRIO.
        directories: to be seen in it under their own paths, read-only.
        view: of the cgroup file systems, as in views.SCRIPTS.

    Yields:
        The Debian, as of chroots.entered.
    """
    with chroots.entered(SUITE, *directories, view=view, lower=lower(places)) as place:
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
