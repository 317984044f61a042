"""Debian packages of this checkout, and machines on which dpkg and apt install them.

A machine is the one that runs the tests, or a newer Debian, behind an overlay in namespaces of its own: what is
installed, started or written there is gone when it is left. Its systemd alone is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fakehost
import scratch
from e2e import bundles, chroots, leftovers, trees
from e2e.engines import SYSTEM_PATH, Done
from e2e.installed import Machine

HERE = "here"  # the machine that runs the tests
MAIN, COMPAT, PLUGIN = "gpushim", "gpushim-nvidia-compat", "gpushim-device-plugin"
# What a removal leaves for containers that run.
LEFT = {
    *("/etc/tmpfiles.d", "/etc/tmpfiles.d/gpushim-removed.conf", "/run/gpushim-removed"),
    *("/run/gpushim-removed/runtime", "/run/gpushim-removed/triggers"),
    *("/usr/bin/gpushim-hook", "/usr/bin/gpushim-runtime", "/usr/bin/nvidia-container-runtime"),
}
NEEDED = ("python3-yaml", "python3-grpcio")  # of the distribution
# The argument: the state directory. Engines' files cannot lie on an overlay.
MOUNT = """
ldconfig
rm -f /var/lib/man-db/auto-update # would take longer than all else
mkdir -p /root
rm -f /var/log/gpushim.log # which tests have left on the machine that runs them
for engine in docker containerd containers; do
    mkdir -p "$1/lib/$engine" "/var/lib/$engine"
    mount --bind "$1/lib/$engine" "/var/lib/$engine"
done
"""
ROOTFS = 'mkdir upper work rootfs; mount -t overlay overlay -o "lowerdir=$1,upperdir=upper,workdir=work" rootfs'
# All files but those that say what dpkg and apt have done, and what containers' engines keep.
LIST = r"""
find / /run -xdev \( -path /root -o -path /home -o -path /opt -o -path "$2" -o -path /tmp -o -path /mnt \
    -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache/apt -o -path /var/cache/debconf \
    -o -path /var/log/apt -o -path /var/log/dpkg.log -o -path /var/log/alternatives.log -o -path /var/cache/man \
    -o -path /var/lib/docker -o -path /var/lib/containerd -o -path /var/lib/containers -o -path '/run/docker*' \
    -o -path /run/containerd -o -path /run/containers -o -path /run/libpod -o -path "$1" \) -prune -o \
    \( -type d -printf '%p %y %m %U:%G\n' -o -printf '%p %y %m %U:%G %s %l\n' \) | sort
"""


def root(suite: str) -> str:
    """Return the lower directories of a machine: a Debian that dpkg knows, over one of its engines' files."""
    if suite == HERE:
        return "/"
    place = scratch.CACHE / "roots" / "-".join((suite, *NEEDED))
    with trees.locked(place.parent):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=place.parent) as work:
                fresh = Path(work, "tree")
                # Its lists of packages stay, and the dependencies, so that apt needs no network later.
                later = 'chroot "$1" apt-get install --yes --download-only --no-install-recommends'
                more = ("--skip=cleanup/apt", f"--customize-hook={later} {' '.join(NEEDED)} >/dev/null")
                trees.bootstrap(fresh, suite, "apt", ("python3",), *more)
                fresh.rename(place)
    return f"{place}:{chroots.tree(suite)}"


@contextlib.contextmanager
def machine(
    suite: str, containers: Path, layer: Path | None = None, *, view: str = "v1", below: str = ""
) -> Iterator[Machine]:
    """Set a machine up, with three GPUs, on which nothing of gpushim is installed.

    Args:
        suite: a Debian's codename, or HERE.
        containers: root filesystem for those of `bundle`.
        layer: what `changed` has kept of another machine of the suite, to go on from there.
        view: of the cgroup file systems; Docker works in "v1", Podman in "v2".
        below: one more root filesystem, of which it has what is in no other.
    """
    lower = ":".join(filter(None, (str(layer or ""), root(suite), below)))
    with leftovers.state() as state:
        host = fakehost.build(str(state / "driver"), 3, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
        with chroots.entered(suite, view=view, lower=lower) as place:
            (state / "containers").symlink_to(containers)
            subprocess.run([*place.prefix, "/bin/sh", "-euc", MOUNT, "sh", str(state)], check=True)
            found = Machine(place.prefix, state, host)
            try:
                yield found
            finally:
                for engine in [*found.running]:
                    found.stop(engine)


def changed(there: Machine, directory: Path) -> Path:
    """Copy what is other there than in its Debian, but for /run, below a directory that it sees; returns the copy."""
    there.run(f"cp --archive /mnt {directory}/layer")
    return directory / "layer"


def install(there: Machine, *packages: Path, check: bool = True) -> Done:
    """Let apt install package files, with their dependencies."""
    options = "--yes --quiet --no-install-recommends --allow-downgrades -o APT::Sandbox::User=root"
    copies = there.state / "debs"
    copies.mkdir(exist_ok=True)
    paths = [str(shutil.copy(package, copies)) for package in packages]
    return there.run(f"DEBIAN_FRONTEND=noninteractive apt-get install {options} {' '.join(paths)}", check=check)


def settle(there: Machine) -> None:
    """Point the installed configuration at the simulated host, as an administrator edits a file with comments."""
    there.run(f"""sed -i 's|^# root = .*|root = "{there.host.root}"  # mine|' /etc/gpushim/config.toml""")


def bundle(
    there: Machine, runtime: str = "/usr/bin/gpushim-runtime", containers: Path | None = None
) -> bundles.Bundle:
    """Make a bundle there, with a root filesystem of its own, over the machine's or another one for containers."""
    directory = Path(tempfile.mkdtemp(dir=there.state))
    there.run(f"cd {directory}; set -- {containers or (there.state / 'containers').resolve()}; {ROOTFS}")
    return bundles.Bundle(
        directory / "bundle", directory / "rootfs", {"PATH": SYSTEM_PATH}, there.prefix, Path(runtime)
    )


def files(there: Machine) -> set[str]:
    """List all files there, with their kind, mode, owner, size and target."""
    done = there.run(f"set -- {there.state} {trees.TOP}; {LIST}")
    return {line for line in done.stdout.splitlines() if os.fsdecode(there.state) not in line}


def traces(there: Machine, before: set[str]) -> list[str]:
    """List what is other than before, but what changed below the overlay, on the machine that runs the tests."""
    ours = set(there.run("cd /mnt; find -printf '/%P\\n'").stdout.splitlines())
    changed = ((line.split(" ")[0], line) for line in files(there) ^ before)
    return sorted(line for path, line in changed if path in ours or path.startswith("/run/"))


def removal_traces(there: Machine, before: set[str]) -> list[str]:
    """List the same, but for what a removal leaves for containers that run."""
    return [line for line in traces(there, before) if line.split(" ")[0] not in LEFT]
