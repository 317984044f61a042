"""The OCI image of this checkout, built once for all tests by packaging/image/build."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import built, trees

CACHE = trees.TOP / ".cache" / "image"
BASE = ("packaging/image/base", "packaging/image/common.sh", "packaging/image/packages.txt")
SOURCES = (
    *("bin", "hook", "plugin", "shim", "packaging/bundled.txt", "packaging/config.toml"),
    *("tools/man.py", "tools/page_errors.py"),
    *("packaging/deb/debian", "packaging/image", "packaging/install", "packaging/systemd"),
)
NAME = f"docker.io/library/gpushim:{built.version_here()}"
BUILD_SECONDS = 600.0


@dataclass
class Image:
    """An image as an archive has it.

    Args:
        config: of the image.
        files: of all layers by absolute path: what tar says, and a regular file's content.
    """

    config: dict[str, Any]
    files: dict[str, tuple[tarfile.TarInfo, bytes]]

    def text(self, path: str) -> str:
        """Return the content of a file."""
        return self.files[path][1].decode()


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


def build(directory: Path, arch: str, top: Path = trees.TOP, **env: str) -> Path:
    """Build the image of a checkout on the tests' base; returns the archive in the directory."""
    _run(top / "packaging/image/build", "--arch", arch, "--base", f"oci-archive:{base(arch)}", directory, **env)
    return directory / f"gpushim-{built.version_here()}-{arch}.tar"


def base(arch: str) -> Path:
    """Return the image that it begins with, as an archive."""
    cache = CACHE / f"base-{arch}"
    found = cache / f"{built.recipe(BASE)}.tar"
    with trees.locked(cache):
        if not found.is_file():
            for old in cache.glob("*.tar"):
                old.unlink()
            _run(trees.TOP / "packaging/image/base", found, arch)
    return found


def _run(*command: str | Path, **env: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "GPUSHIM_BUNDLED": str(built.bundled()), **env}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr


def read(path: Path) -> Image:
    """Read an image's archive."""
    files = {}
    with tarfile.open(path) as whole:

        def blob(name: str) -> Any:
            return whole.extractfile(name)

        (manifest,) = json.load(blob("manifest.json"))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=blob(layer)) as inner:
                for member in inner:
                    content = inner.extractfile(member) if member.isreg() else None
                    files[posixpath.join("/", member.name)] = (member, content.read() if content else b"")
        return Image(json.load(blob(manifest["Config"])), files)
