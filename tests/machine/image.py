"""The emulated machine's disk: Debian with systemd and Docker, gpushim where a package installs it, a simulated host.

The Debian, its kernel and the first file system that it needs to find its disk are built once per recipe below
`.cache/machine`. Each disk is made again from them and from this checkout.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from e2e import programs, trees
from machine import aarch64, confinement, node
from machine.machines import CONFINED, Machine
from machine.processors import Processor

CACHE = trees.TOP / ".cache" / "machine"
HERE = Path(__file__).parent
SUITE = "trixie"
# The packages' scripts do not run. This is what is missed of their work.
FINISH = """
depmod "$1"
systemd-sysusers
groupadd --system docker
systemd-machine-id-setup
rm -r /etc/init.d /etc/resolv.conf /etc/fstab /var/run
ln -s /run /var/run
systemctl enable dbus.socket docker.service docker.socket containerd.service
"""
MODULES = ("virtio_blk",)  # without which the kernel does not see the disk
# A small module that gets the name of the driver's: for the udev rule it is the driver.
STAND_IN, NAME_SIZE = "crc7", 56
INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs none /dev
for module in /modules/*; do $b insmod $module; done
until [ -b /dev/vda ]; do $b sleep 0.1; done
$b mount -t ext4 /dev/vda /root
$b mount --move /dev /root/dev
exec $b switch_root /root /sbin/init
"""
# What no case needs, and costs an emulated processor seconds.
MASKED = (
    *(f"modprobe@{name}.service" for name in ("configfs", "dm_mod", "drm", "efi_pstore", "fuse", "loop")),
    *("dev-hugepages.mount", "sys-fs-fuse-connections.mount", "sys-kernel-config.mount", "sys-kernel-debug.mount"),
    *("sys-kernel-tracing.mount", "systemd-journal-flush.service", "systemd-logind.service"),
    *("systemd-random-seed.service", "systemd-user-sessions.service", "systemd-hostnamed.socket", "getty.target"),
    *("systemd-networkd.service", "systemd-networkd-wait-online.service"),
    *("systemd-tpm2-setup-early.service", "systemd-tpm2-setup.service", "systemd-sysusers.service"),
)
# Its place in the machine: absolute, since the simulated driver's libraries name it.
HOST = Path("/srv/gpus")
GPUS = 2
APPLETS = ("sh", "head", "sleep", "true", "cat", "ls", "cp", "mkdir", "mount", "nsenter")
# What takes the place of Debian's, where the variable names it.
NEWER = (
    "dockerd",
    "docker",
    "docker-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    "runc",
)  # than Debian's, if named


def debian(processor: Processor, packages: tuple[str, ...], cache: Path = CACHE) -> Path:
    """Return the directory with `tree`, `kernel` and `initrd` of a Debian, building them the first time."""
    parts = [SUITE, processor.debian, packages, FINISH, MODULES, STAND_IN, INIT, trees.LEFT_OUT]
    recipe = hashlib.sha256(json.dumps(parts).encode())
    found = cache / recipe.hexdigest()[:12]
    with trees.locked(cache):
        if not found.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                fresh = Path(scratch) / "fresh"
                fresh.mkdir()
                with processor.runs():
                    _build(fresh, Path(scratch), processor, packages)
                fresh.rename(found)
    return found


def _build(dest: Path, scratch: Path, processor: Processor, packages: tuple[str, ...]) -> None:
    tree = dest / "tree"
    more = (f"--architectures={processor.debian}", "--skip=cleanup/apt/cache")
    kernel_package = f"linux-image-cloud-{processor.debian}"
    trees.bootstrap(tree, SUITE, "extract", (kernel_package, *packages), *more)
    aarch64.known(tree)
    (kernel,) = (tree / "boot").glob("vmlinuz-*")
    shutil.move(kernel, dest / "kernel")
    version = kernel.name.removeprefix("vmlinuz-")
    _stand_in(tree / "usr/lib/modules" / version)
    _chroot(tree, "/bin/sh", "-euxc", FINISH, "sh", version)
    first = scratch / "first"
    for name in ("bin", "dev", "modules", "root"):
        (first / name).mkdir(parents=True)
    shutil.copy2(tree / "usr/bin/busybox", first / "bin")
    (first / "init").write_text(INIT)
    (first / "init").chmod(0o755)
    for number, path in enumerate(_modules(tree, version)):
        (first / "modules" / f"{number}-{path.stem}").write_bytes(lzma.decompress(path.read_bytes()))
    members = sorted(str(path.relative_to(first)) for path in first.rglob("*"))
    with (dest / "initrd").open("wb") as output:
        command = ["/bin/busybox", "cpio", "-o", "-H", "newc"]
        subprocess.run(command, cwd=first, input="\n".join(members).encode(), stdout=output, check=True)


def _stand_in(modules: Path) -> None:
    (path,) = modules.rglob(f"{STAND_IN}.ko.xz")
    # Without the end of its signature it is a module without one, which may be loaded.
    data = lzma.decompress(path.read_bytes()).removesuffix(b"~Module signature appended~\n")
    old, new = (name.encode().ljust(NAME_SIZE, b"\0") for name in (STAND_IN, "nvidia"))
    assert data.count(old) == 1
    (modules / "nvidia.ko").write_bytes(data.replace(old, new))


def _modules(tree: Path, version: str) -> list[Path]:
    command = ("/sbin/modprobe", "--show-depends", "--set-version", version, "--all", *MODULES)
    lines = _chroot(tree, *command).splitlines()
    return [tree / line.split()[1].lstrip("/") for line in lines if line.startswith("insmod ")]


def _chroot(tree: Path, *command: str) -> str:
    words = ["/usr/sbin/chroot", str(tree), *command]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def disk(machine: Machine, parts: list[str]) -> Iterator[Path]:
    """Make a directory with `disk`, `kernel` and `initrd` for the block.

    Args:
        machine: what the disk is for.
        parts: of its trial, names of those to run; none for all.
    """
    base, processor = debian(machine.processor, machine.packages), machine.processor
    with tempfile.TemporaryDirectory(prefix="machine-") as name:
        scratch = Path(name)
        with processor.runs(), trees.overlay(base / "tree", scratch) as root:
            if machine.trial == "arm64":
                aarch64.install(root, _chroot)
            else:
                install(root)
            for program in filter(None, map(programs.named, NEWER)):
                shutil.copy2(program, root / "usr/sbin")
            _host(root, processor, machine.driver)
            _container(root / "srv/rootfs", processor)
            shutil.copytree(HERE / "files", root, symlinks=True, dirs_exist_ok=True)
            for unit in (*MASKED, f"serial-getty@{processor.console}.service"):
                (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
            _trial(root, machine.trial, parts)
            if machine.trial == "arm64":
                at_its_place(root, processor, str(HERE / "fixtures.py"), processor.libraries)
                aarch64.prepare(root)
            if machine.is_node:
                node.prepare(root)
            if machine.packages == CONFINED:
                confinement.prepare(root, CACHE)
            for name in ("etc", "var"):  # or the first boot makes caches of its own
                (root / name / ".updated").touch()
            if machine.policy:
                confinement.label(root, machine.policy(), HOST)
            command = ["/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", str(root)]
            subprocess.run([*command, str(scratch / "disk"), machine.disk], check=True, stdout=subprocess.DEVNULL)
        (scratch / "kernel").symlink_to(machine.own_kernel() if machine.own_kernel else base / "kernel")
        (scratch / "initrd").symlink_to(base / "initrd")
        yield scratch


def _trial(root: Path, name: str, parts: list[str]) -> None:
    shutil.copytree(HERE / "trials", root / "srv/machine/trials", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "etc/trial.env").write_text(f"TRIAL={name}\nPARTS={' '.join(parts)}\n")


def install(root: Path) -> None:
    """Put what packages contain into a root filesystem, with the Python packages of vendor/."""
    lay_down = str(trees.TOP / "packaging/install")
    for words in (["main", str(trees.TOP / "vendor")], ["compat"]):
        subprocess.run([lay_down, str(root), *words], check=True)
    units = ("refresh-boot.service", "refresh.path", "refresh-cdi.path", "refresh.timer", "refresh.socket")
    _chroot(root, "/bin/systemctl", "enable", *(f"gpushim-{name}" for name in units))
    _chroot(root, "/usr/bin/python3", "-m", "compileall", "-q", "/usr/lib/gpushim")


def _host(root: Path, processor: Processor, driver: str) -> None:
    options = ["--root", str(HOST), "--gpus", str(GPUS), "--libdir", processor.libraries, "--driver", driver]
    said = at_its_place(root, processor, str(trees.TOP / "tests/fakehost"), *options)
    (root / "srv/gpus.txt").write_bytes(said)
    _chroot(root, "/sbin/ldconfig", "-i", "-r", str(HOST))  # a processor's own, where fakehost's finds nothing


def at_its_place(root: Path, processor: Processor, *words: str) -> bytes:
    """Run a Python program that builds hosts beside HOST, in the machine; return what it prints."""
    (root / HOST.relative_to("/")).parent.mkdir(exist_ok=True)
    script = 'mount --bind "$1" "$2"; shift 2; exec "$@"'
    enter = ["/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-euc", script, "sh"]
    place = str(HOST.parent)
    command = [*enter, f"{root}{place}", place, "/usr/bin/python3", *words]
    env = {**os.environ, "CC": processor.gcc, "PYTHONPATH": str(trees.TOP / "tests")}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env).stdout


def _container(dest: Path, processor: Processor) -> None:
    """A container's root filesystem: glibc with its loader, and a shell."""
    # Without dev: copytree would read what /dev/full says, for ever.
    tree = trees.glibc(SUITE, architecture=processor.debian)
    shutil.copytree(tree, dest, symlinks=True, ignore=shutil.ignore_patterns("dev"))
    shutil.copy2(dest.parents[1] / "usr/bin/busybox", dest / "usr/bin/busybox")
    for applet in APPLETS:
        (dest / "usr/bin" / applet).symlink_to("busybox")
    archive = ["/bin/tar", "--create", f"--file={dest.with_suffix('.tar')}", f"--directory={dest}", "."]
    subprocess.run(archive, check=True)
