"""Debian packages of this checkout, and machines on which dpkg and apt install them.

A machine is the one that runs the tests, or a newer Debian, behind an overlay in namespaces of its own: what is
installed, started or written there is gone when it is left. Its systemd alone is missing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fakehost
from e2e import bundles, chroots, leftovers, trees
from e2e.engines import SYSTEM_PATH, Done
from e2e.installed import Machine

CACHE = trees.TOP / ".cache" / "packages"
HERE = "here"  # the machine that runs the tests
SUITES = (HERE, *chroots.SUITES)
# What packaging/deb/build takes from a checkout, and what it links to: tools that are not of the packages.
SOURCES = (
    *("bin", "docs", "hook", "packaging", "shim", "tools"),
    *("pyproject.toml", "CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md"),
)
TOOLS = (".venv", "vendor")
OLD = "0.0.1"  # the version before, made of the same sources
MAIN, COMPAT = "gpushim", "gpushim-nvidia-compat"
BUILD_SECONDS = 300.0
# The argument: the state directory. Engines' files cannot lie on an overlay.
MOUNT = """
ldconfig
rm -f /var/lib/man-db/auto-update # would take longer than all else
mkdir -p /root
for engine in docker containerd; do
    mkdir -p "$1/$engine" "/var/lib/$engine"
    mount --bind "$1/$engine" "/var/lib/$engine"
done
"""
ROOTFS = 'mkdir upper work rootfs; mount -t overlay overlay -o "lowerdir=$1,upperdir=upper,workdir=work" rootfs'
# All files but those that say what dpkg and apt have done, and what containers' engines keep.
LIST = r"""
find / /run -xdev \( -path /root -o -path /home -o -path /opt -o -path /work -o -path /tmp -o -path /mnt \
    -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache/apt -o -path /var/cache/debconf \
    -o -path /var/log/apt -o -path /var/log/dpkg.log -o -path /var/log/alternatives.log -o -path /var/cache/man \
    -o -path /var/lib/docker -o -path /var/lib/containerd -o -path /run/docker \
    -o -path /run/containerd -o -path "$1" \) -prune -o \
    \( -type d -printf '%p %y %m %U:%G\n' -o -printf '%p %y %m %U:%G %s %l\n' \) | sort
"""


def checkout(top: Path, directory: Path, version: str = "") -> Path:
    """Copy what packages are built from, as a checkout of its own without git.

    Args:
        top: the checkout to copy.
        directory: absent.
        version: what the copy shall say of itself.
    """
    directory.mkdir(parents=True)
    for name in SOURCES:
        subprocess.run(["/bin/cp", "--recursive", "--preserve=timestamps", top / name, directory], check=True)
    for name in TOOLS:
        (directory / name).symlink_to(trees.TOP / name)
    source = directory / "shim/gpushim/__init__.py"
    text = source.read_text()
    if version not in ("", version_here()):
        source.write_text(text.replace(f'"{version_here()}"', f'"{version}"'))
    return directory


def version_here() -> str:
    """Return the version of this checkout."""
    words = (trees.TOP / "shim/gpushim/__init__.py").read_text().split('__version__ = "')
    return words[1].partition('"')[0]


def build(top: Path, out: Path, **env: str) -> dict[str, Path]:
    """Build the packages of a checkout; returns their files by name."""
    environment = {"PATH": SYSTEM_PATH, "GPUSHIM_BUNDLED": str(bundled()), **env}
    command = [str(top / "packaging/deb/build"), str(out)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return _found(out)


def debs(version: str = "") -> dict[str, Path]:
    """Return the packages of these sources, built once for all tests.

    Args:
        version: that they shall have instead of this checkout's.
    """
    return _found(_built(version) / "out")


def sources() -> Path:
    """Return the checkout that `debs` has built, as it was then."""
    return _built("") / "top"


@functools.cache  # files may change while tests run
def _built(version: str) -> Path:
    version = version or version_here()
    place = CACHE / f"{_recipe(SOURCES)}-{version}"
    with trees.locked(CACHE), tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        if not place.is_dir():
            build(checkout(trees.TOP, Path(scratch, "place/top"), version), Path(scratch, "place/out"))
            for old in CACHE.glob(f"*-{version}"):
                shutil.rmtree(old)
            Path(scratch, "place").rename(place)
    return place


def bundled() -> Path:
    """Return the Python packages that are bundled, fetched once."""
    place = CACHE / "bundled" / _recipe(("packaging/bundled.txt", "tools/bundle"))
    with trees.locked(CACHE / "bundled"):
        if not place.is_dir():
            subprocess.run([trees.TOP / "tools/bundle", place], check=True, timeout=BUILD_SECONDS)
    return place


def _found(out: Path) -> dict[str, Path]:
    return {path.name.partition("_")[0]: path for path in sorted(out.glob("*.deb"))}


def _recipe(names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        for path in sorted([trees.TOP / name, *(trees.TOP / name).rglob("*")]):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path} {path.stat().st_mode:o}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def root(suite: str) -> str:
    """Return the lower directories of a machine: a Debian that dpkg knows, over one of its engines' files."""
    if suite == HERE:
        return "/"
    place = CACHE / "roots" / suite
    with trees.locked(place.parent):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
                fresh = Path(scratch, "tree")
                # Its lists of packages stay, and the dependencies, so that apt needs no network later.
                later = 'chroot "$1" apt-get install --yes --download-only --no-install-recommends python3-yaml'
                more = ("--skip=cleanup/apt", f"--customize-hook={later} >/dev/null")
                trees.bootstrap(fresh, suite, "apt", ("python3",), *more)
                fresh.rename(place)
    return f"{place}:{chroots.tree(suite)}"


@contextlib.contextmanager
def machine(suite: str, containers: Path) -> Iterator[Machine]:
    """Set a machine up, with three GPUs, on which nothing of gpushim is installed.

    Args:
        suite: one of SUITES.
        containers: root filesystem for those of `bundle`.
    """
    with leftovers.state() as state:
        host = fakehost.build(str(state / "driver"), 3, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
        with chroots.entered(suite, view="v1", lower=root(suite)) as place:
            (state / "containers").symlink_to(containers)
            subprocess.run([*place.prefix, "/bin/sh", "-euc", MOUNT, "sh", str(state)], check=True)
            found = Machine(place.prefix, state, host)
            try:
                yield found
            finally:
                for engine in [*found.running]:
                    found.stop(engine)


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


def bundle(there: Machine, runtime: str = "/usr/bin/gpushim-runtime") -> bundles.Bundle:
    """Make a bundle there, with a root filesystem of its own."""
    directory = Path(tempfile.mkdtemp(dir=there.state))
    there.run(f"cd {directory}; set -- {(there.state / 'containers').resolve()}; {ROOTFS}")
    return bundles.Bundle(
        directory / "bundle", directory / "rootfs", {"PATH": SYSTEM_PATH}, there.prefix, Path(runtime)
    )


def files(there: Machine) -> set[str]:
    """List all files there, with their kind, mode, owner, size and target."""
    done = there.run(f"set -- {there.state}; {LIST}")
    return {line for line in done.stdout.splitlines() if os.fsdecode(there.state) not in line}
