"""Root filesystems and image archives for the engines.

The Debian tree is a real one: glibc, its loader and ldconfig, Python with ctypes, and NVIDIA's Python
bindings; those of later Debians have glibc alone. Each is built once per recipe for the machine, and tests put
an overlay on it, so that none of them can change what the next one sees. Nothing here knows about GPUs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import scratch

TOP = Path(__file__).resolve().parents[2]
CACHE = scratch.CACHE / "trees"

SUITE = "bookworm"
PACKAGES = ("python3-minimal", "libpython3-stdlib")
LOADER = ("base-files", "libc6", "libc-bin")  # base-files has the links of a merged /usr
# None of these is read by a test; without them the images load in half the time.
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/zoneinfo/*")
APPLETS = ("sh", "ls", "cat", "env", "sleep", "mknod", "head", "stat", "true")


def busybox(dest: Path) -> Path:
    """Build a root filesystem of one static busybox.

    Args:
        dest: absent directory, made here.

    Returns:
        dest.
    """
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr"):
        (dest / name).mkdir(parents=True)
    shutil.copy2("/bin/busybox", dest / "bin" / "busybox")
    for applet in APPLETS:
        (dest / "bin" / applet).symlink_to("busybox")
    return dest


def debian(cache: Path = CACHE) -> Path:
    """Return a Debian root filesystem with Python and pynvml, building it the first time.

    Args:
        cache: directory that keeps trees between runs.

    Returns:
        The tree's directory. It is shared: mount `overlay` on it instead of writing to it.
    """
    bindings = _pynvml()
    recipe = json.dumps([SUITE, PACKAGES, LEFT_OUT]).encode() + bindings.read_bytes()
    tree = cache / f"debian-{hashlib.sha256(recipe).hexdigest()[:12]}"
    with locked(cache):
        if not tree.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                fresh = Path(scratch) / "tree"
                bootstrap(fresh, SUITE, "essential", PACKAGES)
                modules = fresh / "usr/lib/python3/dist-packages"
                modules.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bindings, modules / "pynvml.py")
                _compile(fresh, "/usr/lib/python3/dist-packages/pynvml.py")
                fresh.rename(tree)
    return tree


def glibc(suite: str, cache: Path = CACHE, architecture: str = "") -> Path:
    """Return a root filesystem of a Debian suite's glibc, loader and ldconfig, building it the first time.

    Its packages are unpacked without running their scripts: it has neither a shell nor an ld.so.cache.

    Args:
        suite: codename, as in `trixie`.
        cache: directory that keeps trees between runs.
        architecture: Debian's name of it, this machine's without it.

    Returns:
        The tree's directory. It is shared: mount `overlay` on it instead of writing to it.
    """
    recipe = hashlib.sha256(json.dumps([LOADER, LEFT_OUT]).encode()).hexdigest()
    tree = cache / f"{suite}{architecture and '-'}{architecture}-{recipe[:12]}"
    more = [f"--architectures={architecture}"] if architecture else []
    with locked(cache):
        if not tree.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                fresh = Path(scratch) / "tree"
                bootstrap(fresh, suite, "extract", LOADER, *more)
                fresh.rename(tree)
    return tree


def _pynvml() -> Path:
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None, "nvidia-ml-py is not installed beside pytest"
    assert spec.origin is not None
    return Path(spec.origin)


def bootstrap(dest: Path, suite: str, variant: str, packages: tuple[str, ...], *more: str) -> None:
    """Make a Debian root filesystem out of the mirror's packages.

    Args:
        dest: absent directory.
        suite: codename, as in `trixie`.
        variant: mmdebstrap's: `essential`, or `extract` for packages whose scripts do not run.
        packages: names of those to add.
        more: options of mmdebstrap's.
    """
    command = ["/usr/bin/mmdebstrap", "--quiet", "--mode=root", f"--variant={variant}"]
    command += [f"--include={','.join(packages)}"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    # A mirror may be a copy of some weeks ago, and sid's index says that it is stale after one.
    command += ['--aptopt=Acquire::Check-Valid-Until "false"']
    # A user's own Python may stand first on PATH; maintainer scripts expect Debian's.
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    subprocess.run([*command, *more, suite, str(dest)], check=True, env=environment, timeout=600)


def _compile(root: Path, module: str) -> None:
    # Every container starts from this tree and would compile the large module again.
    command = ["/usr/sbin/chroot", str(root), "/usr/bin/python3", "-m", "py_compile", module]
    subprocess.run(command, check=True, env={})


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Let nobody else build in a directory for the block; it is made if need be."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def overlay(lower: Path, scratch: Path, *above: Path) -> Iterator[Path]:
    """Mount a writable view of a tree.

    Args:
        lower: the tree, which stays as it is.
        scratch: existing directory for what gets written, on a file system that can be an upper layer.
        above: trees whose files stand on top of the first, each over the one before.

    Yields:
        The mount point, below scratch; it is unmounted afterwards.
    """
    upper, work, merged = (scratch / name for name in ("upper", "work", "merged"))
    for directory in (upper, work, merged):
        directory.mkdir()
    lowers = ":".join(map(str, reversed((lower, *above))))
    layers = f"lowerdir={lowers},upperdir={upper},workdir={work}"
    subprocess.run(["/bin/mount", "-t", "overlay", "overlay", "-o", layers, str(merged)], check=True)
    try:
        yield merged
    finally:
        _unmount(merged)


def _unmount(mount: Path) -> None:
    # A container that has just ended holds it for a moment: the kernel takes its namespace down behind our back.
    for _ in range(50):
        if subprocess.run(["/bin/umount", "--quiet", str(mount)], check=False).returncode == 0:
            return
        time.sleep(0.1)
    subprocess.run(["/bin/umount", str(mount)], check=True)


def image(tree: Path, name: str, command: list[str]) -> Path:
    """Pack a tree as an archive that `docker load` and `ctr images import` read.

    Args:
        tree: the root filesystem; the archive is kept beside it.
        name: repository and tag, as in `debian:local`.
        command: what a container of this image runs by default.

    Returns:
        The archive's path.
    """
    archive = tree.with_name(f"{tree.name}.{name.replace(':', '-')}.tar")
    with locked(tree.parent):
        if not archive.is_file():
            with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
                _pack(tree, name, command, Path(scratch)).rename(archive)
    return archive


def _pack(tree: Path, name: str, command: list[str], scratch: Path) -> Path:
    layer = scratch / "layer.tar"
    _tar(layer, tree, "--exclude=./dev/*", ".")
    with layer.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    (scratch / "config.json").write_text(json.dumps(config))
    (scratch / "manifest.json").write_text(json.dumps(manifest))
    archive = scratch / "image.tar"
    _tar(archive, scratch, "manifest.json", "config.json", "layer.tar")
    return archive


def _tar(archive: Path, directory: Path, *members: str) -> None:
    command = ["/bin/tar", "--create", "--sort=name", "--numeric-owner", f"--file={archive}"]
    subprocess.run([*command, f"--directory={directory}", *members], check=True)
