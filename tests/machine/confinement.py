"""What a machine has besides, if SELinux or AppArmor confines its containers: engines' settings, a module, labels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import google.protobuf
import pytest

from e2e import cri, trees, upstream
from machine import policies

SOURCES = Path(__file__).with_name("sources")
FILES = Path(__file__).with_name("files-confined")  # at their places
BUILD = ("gcc", "libc6-dev", "make", "dash", "coreutils", "sed", "grep", "mawk", "findutils", "base-files")
# Of Debian's profiles for AppArmor those of containers; each of the others costs an emulated processor a second.
PROFILES = ("abi", "abstractions", "tunables", "local", "runc", "crun", "buildah", "podman", "busybox")
MODULE = "usr/share/gpushim/selinux/gpushim.cil"
FILECON = re.compile(r'\(filecon "(\S+)" (\w+) \((?:system_u object_r (\w+))?')
KINDS = {"any": "", "file": "--", "dir": "-d"}
# What the machine's Python and its modules need; it has no shell that ldd runs in.
LIBRARIES = """
for each in /usr/bin/python3 /usr/lib/python3.13/lib-dynload/*.so /usr/lib/python3/dist-packages/grpc/_cython/*.so; do
  /lib64/ld-linux-x86-64.so.2 --list "$each"
done
"""
LABEL = "security.selinux"
# Of the simulated host's directories that are file systems of their own on a real one, so that no policy names them.
KERNEL = {"proc": "proc_t", "sys": "sysfs_t"}


def prepare(root: Path, cache: Path) -> None:
    """Put into a root filesystem what the trial needs.

    Args:
        root: the machine's, with its kernel's modules.
        cache: directory that keeps what is built between runs.
    """
    shutil.copytree(FILES, root, symlinks=True, dirs_exist_ok=True)
    # The trial's client of the CRI, with what of it no package of the machine's has.
    (root / "srv/e2e").mkdir()
    shutil.copy(cri.__file__, root / "srv/e2e")
    shutil.copytree(
        Path(google.protobuf.__file__).parents[1], root / "srv/google", ignore=shutil.ignore_patterns("__pycache__")
    )
    _crio(root)
    _plugin(root)
    (version,) = os.listdir(root / "usr/lib/modules")
    shutil.copy(_module(version, cache), root / "usr/lib/modules" / version / "nvproc.ko")
    reach = root / "usr/local/bin/reach"
    reach.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["/usr/bin/gcc", "-static", "-O1", "-o", str(reach), str(SOURCES / "reach.c")], check=True)
    for path in (root / "etc/apparmor.d").iterdir():
        if path.is_file() and path.name not in PROFILES:
            path.unlink()
    _chroot(root, "/bin/systemctl", "--quiet", "enable", "apparmor.service")


def _plugin(root: Path) -> None:
    """Make an image of the device plugin, of the machine's Python and the image of others."""
    tree = root / "srv/plugin"
    shutil.copytree(root / "srv/rootfs", tree, symlinks=True)
    for folder in ("python3", "python3.13", "gpushim"):
        shutil.copytree(root / "usr/lib" / folder, tree / "usr/lib" / folder, symlinks=True)
    for name in ("python3", "python3.13", "gpushim-device-plugin"):
        shutil.copy2(root / "usr/bin" / name, tree / "usr/bin", follow_symlinks=False)
    for path in {word for word in _chroot(root, "/bin/sh", "-euc", LIBRARIES).split() if word.startswith("/lib/")}:
        shutil.copy(root / path[1:], tree / "usr" / path[1:])
    _chroot(tree, "/usr/bin/python3", "-m", "compileall", "-q", "/usr/lib")
    trees.image(tree, "plugin:local", ["/usr/bin/sleep", "1000000"]).rename(root / "srv/plugin.tar")
    shutil.rmtree(tree)


def _chroot(root: Path, *command: str) -> str:
    words = ["/usr/sbin/chroot", str(root), *command]
    return subprocess.run(
        words, check=True, capture_output=True, text=True, env={"PATH": "/usr/sbin:/usr/bin"}
    ).stdout


def _crio(root: Path) -> None:
    """Put CRI-O there, if it is to be had."""
    try:
        layer = upstream.layer(upstream.CRIO)
    except pytest.skip.Exception as missing:
        print(f"without CRI-O: {missing}", flush=True)
        return
    for name in ("crio", "pinns"):
        shutil.copy2(layer / "usr/bin" / name, root / "usr/bin")


def _module(version: str, cache: Path) -> Path:
    """Build nvproc.ko for a kernel, the first time."""
    made = cache / f"nvproc-{version}.ko"
    with trees.locked(cache):
        if not made.is_file() or made.stat().st_mtime < (SOURCES / "nvproc.c").stat().st_mtime:
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                root = Path(scratch) / "tree"
                trees.bootstrap(root, "trixie", "extract", (f"linux-headers-{version}", *BUILD))
                (root / "build").mkdir()
                shutil.copy(SOURCES / "nvproc.c", root / "build")
                (root / "build/Makefile").write_text("obj-m := nvproc.o\n")
                (root / "usr/bin/awk").symlink_to("mawk")  # its package's script would do it
                if not (root / "dev/null").exists():
                    os.mknod(root / "dev/null", 0o20666, os.makedev(1, 3))
                make = f"PATH=/usr/sbin:/usr/bin make -C /usr/src/linux-headers-{version} M=/build modules"
                done = subprocess.run(
                    ["/usr/sbin/chroot", str(root), "/bin/sh", "-euc", make],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, done.stdout + done.stderr
                shutil.copy(root / "build/nvproc.ko", made)
    return made


def label(root: Path, policy: Path, driver: Path) -> None:
    """Put a policy into a root filesystem, and label all of it as a relabelling boot would.

    Args:
        root: the machine's, with selinux-utils.
        policy: a directory, as in policies.py.
        driver: directory in it that is a driver's root, which gets the labels of /.
    """
    found = policies.install(root, policy)
    contexts, (compiled,) = found / "contexts/files", found.glob("policy/policy.*")
    (contexts / "file_contexts.subs").write_text(f"{driver} /\n")
    (contexts / "file_contexts.local").write_text(_module_contexts(root / MODULE, compiled.read_bytes()))
    for path in contexts.glob("*.bin"):
        path.unlink()
    # Before they are compiled, since the libselinux here may not know the form of the one there.
    subprocess.run(["/sbin/setfiles", "-F", "-r", str(root), str(contexts / "file_contexts"), str(root)], check=True)
    for name in ("file_contexts", "file_contexts.homedirs", "file_contexts.local"):
        # Without that form each program that looks up a label compiles thousands of patterns: seconds, emulated.
        subprocess.run(
            ["/usr/sbin/chroot", str(root), "/usr/sbin/sefcontext_compile", f"/{contexts.relative_to(root)}/{name}"],
            check=True,
        )
        _set(contexts / f"{name}.bin", "file_context_t")
    for folder, kind in KERNEL.items():
        top = root / driver.relative_to("/") / folder
        for path in (top, *top.rglob("*")):
            _set(path, kind)


def _module_contexts(module: Path, policy: bytes) -> str:
    """Return the file contexts of gpushim's module, as semodule would: a copied policy has no store of modules."""
    found = FILECON.findall(module.read_text())
    if not all(label.encode() in policy for _, _, label in found):
        return ""  # as the module's block is optional
    labels = {label: f"system_u:object_r:{label}:s0" if label else "<<none>>" for _, _, label in found}
    return "".join(f"{path}\t{KINDS[kind]}\t{labels[label]}\n" for path, kind, label in found)


def _set(path: Path, kind: str) -> None:
    os.setxattr(path, LABEL, f"system_u:object_r:{kind}:s0\0".encode(), follow_symlinks=False)
