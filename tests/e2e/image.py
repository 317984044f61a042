"""The OCI image of this checkout, built once for all tests by packaging/image/build."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e import built, trees

CACHE = trees.TOP / ".cache" / "image"
BASE = ("packaging/image/base", "packaging/image/common.sh", "packaging/image/packages.txt")
SOURCES = (
    *("bin", "hook", "plugin", "shim", "tools/man.py", "packaging/bundled.txt", "packaging/config.toml"),
    *("packaging/deb/debian/copyright", "packaging/image", "packaging/install", "packaging/systemd"),
)
NAME = f"docker.io/library/gpushim:{built.version_here()}"
BUILD_SECONDS = 600.0


def archive(arch: str = "x86_64") -> Path:
    """Return the image NAME as an archive for `ctr images import`; its SBOM is beside it.

    Args:
        arch: x86_64 or aarch64.
    """
    cache = CACHE / arch
    place = cache / built.recipe((*BASE, *SOURCES))
    with trees.locked(cache):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                build(Path(scratch, "place"), arch)
                for old in cache.glob("????????????"):
                    shutil.rmtree(old)
                Path(scratch, "place").rename(place)
    return place / f"gpushim-{built.version_here()}-{arch}.tar"


def build(directory: Path, arch: str) -> None:
    """Build the image on the base of the tests, into a directory."""
    _run(trees.TOP / "packaging/image/build", "--arch", arch, "--base", f"oci-archive:{base(arch)}", directory)


def base(arch: str) -> Path:
    """Return the image that it begins with, as an archive."""
    cache = CACHE / f"base-{arch}"
    found = cache / f"{built.recipe(BASE)}.tar"
    with trees.locked(cache):
        if not found.is_file():
            _run(trees.TOP / "packaging/image/base", found, arch)
    return found


def _run(*command: str | Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "GPUSHIM_BUNDLED": str(built.bundled())}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
