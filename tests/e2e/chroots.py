"""Newer Debians with their own engines, low-level runtimes and Python, entered without leaving this machine.

Each is built once per recipe for the machine. An entered one is a root filesystem of its own, pivoted into,
in a mount and a PID namespace of its own: when it is left, all that was started or mounted in it is gone, also if
the tests were killed. /tmp, the tests' files, /dev and the kernel are the machine's. What is built once for the
machine, and this checkout are there under their own paths, read-only; without vendor/, which no container may need to
start.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import scratch
from e2e import engines, trees, views
from e2e.witness import settings

T = TypeVar("T")

CACHE = scratch.CACHE / "chroots"
SUITES = ("trixie", "sid")
PACKAGES = (
    *("containerd", "crun", "docker-cli", "docker.io", "podman", "runc"),
    *("dash", "grep", "libpython3-stdlib", "python3-minimal"),  # all that the shim and the hook need
    *("base-files", "coreutils", "libc-bin", "mount", "util-linux"),  # SCRIPT's and the tests'
)
# For a Kubernetes of its own: the node's engine, and what plane.py starts beside Kubernetes' programs.
PLANE = (
    *("containerd", "containernetworking-plugins", "etcd-server", "iproute2", "kubernetes-client", "runc"),
    *("dash", "grep", "libpython3-stdlib", "python3-minimal"),
    *("base-files", "coreutils", "libc-bin", "mount", "util-linux"),
)
# With the programs by which Fedora and RHEL build and install rpms; dpkg comes along as a dependency.
RPM = (
    *("dnf", "rpm", "xz-utils", "python3-venv"),
    *("dash", "findutils", "grep", "gzip", "sed", "tar"),
    *("base-files", "coreutils", "libc-bin", "mount", "util-linux"),
)
# Another init than systemd; it goes below one of the others.
OPENRC = ("openrc", "init-system-helpers", "sed", "base-files")
# With CRIU, and what it packs a tmpfs with.
RESTORE = (*PACKAGES, "criu", "libcriu2", "gzip", "sed", "tar")
# What an ordinary user's Docker or containerd is started with.
ROOTLESS = (*PACKAGES, "rootlesskit", "slirp4netns", "uidmap", "iproute2", "hostname", "sed", "procps", "findutils")
RECIPES = {
    "restore": ("trixie", RESTORE),
    "restore-sid": ("sid", RESTORE),
    "rootless": ("trixie", ROOTLESS),
    "trixie": ("trixie", PACKAGES),
    "sid": ("sid", PACKAGES),
    "plane": ("sid", PLANE),
    "rpm": ("trixie", RPM),
    "openrc": ("trixie", OPENRC),
}
# The packages' scripts do not run, which would take half the time again. This is what is missed of their work.
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
}
LINKS = {"var/run": "/run"}  # instead of directories

# The arguments: the tree, the checkout, the directory of tests, paths to bind.
SCRIPT = """
tree=$1 top=$2 scratch=$3 work=/mnt
shift 3
mount -t tmpfs none $work
mkdir $work/upper $work/work $work/root
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$work/upper,workdir=$work/work" $work/root
cd $work/root
mount -t proc proc proc
mount -t tmpfs -o mode=755 run run
mount --rbind /dev dev
mount --rbind /sys sys
mkdir -p ".$scratch"
for directory in /tmp "$scratch"; do mount --bind "$directory" ".$directory"; done # without other tests' mounts
mkdir -p mnt
mount --bind $work/upper mnt # what is changed
mount -o remount,bind,ro mnt
for path in "$top" "$@"; do
    if [ -d "$path" ]; then mkdir -p ".$path"; elif [ ! -e ".$path" ]; then mkdir -p ".${path%/*}"; : >".$path"; fi
    mount --bind "$path" ".$path"
    mount -o remount,bind,ro ".$path"
done
if [ -d "$top/vendor" ]; then mount -t tmpfs -o mode=755 none ".$top/vendor"; fi
mkdir -p .old
pivot_root . .old
umount -l /.old
mount --make-rshared /
echo ready
# Until the pipe is closed; what daemons leave behind becomes its child, and the kernel reaps it. No trap of dash's
# outlasts exec for this signal.
exec env --ignore-signal=CHLD cat
"""


@dataclass(frozen=True)
class Chroot:
    """An entered Debian.

    Args:
        suite: its codename, or another name of RECIPES.
        prefix: what to put before a command that shall run in it.
        network: file of its network namespace, if it has one of its own.
    """

    suite: str
    prefix: tuple[str, ...]
    network: str = ""

    def reach(self, call: Callable[[], T]) -> T:
        """Call a function in its network, in a thread that ends then.

        Args:
            call: what opens the connections.

        Returns:
            What it returns.
        """
        if not self.network:
            return call()

        def there() -> T:
            with open(self.network, "rb") as namespace:
                assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0, ctypes.get_errno()
            return call()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(there).result()


def tree(suite: str, cache: Path = CACHE) -> Path:
    """Return the root filesystem of a Debian suite with engines, building it the first time.

    Args:
        suite: a name of RECIPES.
        cache: directory that keeps trees between runs.

    Returns:
        The tree's directory. It is shared: `entered` puts an overlay on it.
    """
    codename, packages = RECIPES[suite]
    recipe = hashlib.sha256(json.dumps([packages, FILES, LINKS, trees.LEFT_OUT]).encode()).hexdigest()
    place = cache / suite  # a lock for each: they are built side by side
    found = place / recipe[:12]
    with trees.locked(place):
        if not found.is_dir():
            with tempfile.TemporaryDirectory(dir=place) as scratch:
                fresh = Path(scratch) / "tree"
                trees.bootstrap(fresh, codename, "extract", packages)
                for path, text in FILES.items():
                    (fresh / path).write_text(text)
                for path, target in LINKS.items():
                    shutil.rmtree(fresh / path)
                    (fresh / path).symlink_to(target)
                fresh.rename(found)
    return found


@contextlib.contextmanager
def entered(
    suite: str, *directories: Path, view: str = "hybrid", lower: str = "", network: bool = False
) -> Iterator[Chroot]:
    """Enter a Debian for the block.

    Args:
        suite: a name of RECIPES; any name with `lower`.
        directories: to be seen in it under their own paths, read-only.
        view: of the cgroup file systems, as in views.SCRIPTS, or "hybrid" for the machine's own.
        lower: root filesystems, the uppermost first, parted by colons, instead of the suite's tree.
        network: whether it has one of its own, with a loopback interface that is down.

    Yields:
        The Debian; commands with its prefix share one mount and one PID namespace.
    """
    scratch.CACHE.mkdir(parents=True, exist_ok=True)
    script = views.SCRIPTS.get(view, "") + SCRIPT
    words = ["/usr/bin/unshare", "--mount", "--propagation=private", "--pid", "--kill-child", *["--net"] * network]
    words += ["/bin/sh", "-euc", script, "sh", lower or str(tree(suite)), str(trees.TOP), str(scratch.top())]
    words += map(str, (scratch.CACHE, *directories))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n", f"{suite} cannot be entered"
        namespaces = f"/proc/{holder.pid}/ns"
        try:
            names = {"mount": "mnt", "pid": "pid_for_children", **({"net": "net"} if network else {})}
            enter = (f"--{option}={namespaces}/{name}" for option, name in names.items())
            prefix = ("/usr/bin/nsenter", *enter, "--")
            yield Chroot(suite, prefix, f"{namespaces}/net" if network else "")
        finally:
            holder.stdin.close()


def publish(prefix: tuple[str, ...], specs: Path) -> None:
    """Let engines find CDI specs where they look for them by themselves: in /var/run/cdi.

    Args:
        prefix: command that enters a mount namespace with a /run of its own.
        specs: directory with the specs.
    """
    script = 'mkdir /run/cdi; mount --bind "$1" /run/cdi'
    subprocess.run([*prefix, "/bin/sh", "-euc", script, "sh", str(specs)], check=True)


def shim(directory: Path, root: str, low_level: str, more: str = "") -> Path:
    """Write a script that is our runtime with settings of its own, and list the host's GPUs for it.

    Args:
        directory: existing directory for the script, configuration, state and log.
        root: the host's driver root.
        low_level: absolute path of the runtime below the shim, here and in the Debian that shall use it.
        more: of the configuration.

    Returns:
        The script's path.
    """
    env = settings(directory, root, low_level)
    with Path(env["GPUSHIM_CONFIG"]).open("a") as config:
        config.write(more)
    # Here, because NVIDIA's bindings lie in vendor/.
    engines.run([str(trees.TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
    words = [*(f"{name}={value}" for name, value in env.items()), str(trees.TOP / "bin" / "gpushim-runtime")]
    script = directory / "runtime"
    script.write_text(f'#!/bin/sh\nexec /usr/bin/env {shlex.join(words)} "$@"\n')
    script.chmod(0o755)
    return script
