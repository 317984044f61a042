"""A small kernel of Debian's source with the controller dmem, which no kernel of Debian's has, and a driver for it.

It is built once per recipe, in a Debian of its own: six minutes on two cores.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import scratch
from e2e import trees

HERE = Path(__file__).with_name("kernel")
SUITE = "sid"
PACKAGES = ("linux-source", "gcc", "make", "flex", "bison", "bc", "libelf-dev", "perl", "xz-utils", "python3-minimal")
BUILD = """
cd /usr/src
tar xf linux-source-*.tar.xz
cd linux-source-*/
cp /kernel/gpu_memory.c drivers/misc
echo 'obj-y += gpu_memory.o' >>drivers/misc/Makefile
make -s tinyconfig
cat /kernel/config >>.config
make -s olddefconfig
grep -q CONFIG_CGROUP_DMEM=y .config
make -s -j "$(nproc)" bzImage
cp arch/x86/boot/bzImage /kernel
"""


def with_dmem() -> Path:
    """Return the kernel's file, building it the first time."""
    recipe = hashlib.sha256("".join([SUITE, *PACKAGES, BUILD, *map(Path.read_text, sorted(HERE.iterdir()))]).encode())
    kernel = scratch.CACHE / "kernels" / recipe.hexdigest()[:12]
    with trees.locked(kernel.parent):
        if not kernel.is_file():
            with tempfile.TemporaryDirectory(dir=kernel.parent) as name:
                root = Path(name, "root")
                trees.bootstrap(root, SUITE, "essential", PACKAGES)
                shutil.copytree(HERE, root / "kernel")
                subprocess.run(["/usr/sbin/chroot", root, "/bin/sh", "-euxc", BUILD], check=True)
                shutil.move(root / "kernel/bzImage", kernel)
    return kernel
