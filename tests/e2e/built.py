"""The packages of this checkout, built once for all tests by packaging/deb/build and packaging/rpm/build."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from e2e import trees
from e2e.engines import SYSTEM_PATH

CACHE = trees.TOP / ".cache" / "packages"
# What packaging/deb/build takes from a checkout, and what it links to: tools that are not of the packages.
SOURCES = (
    *("bin", "docs", "hook", "packaging", "plugin", "shim", "tools"),
    *("pyproject.toml", "CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md"),
)
TOOLS = (".venv", "vendor")
OLD = "0.0.1"  # the version before, made of the same sources
BUILD_SECONDS = 300.0


def packages(kind: str, version: str = "") -> dict[str, Path]:
    """Return the packages of these sources by name, that of the source rpm with ".src" behind it.

    Args:
        kind: "deb" or "rpm".
        version: that they shall have instead of this checkout's.
    """
    return _found(kind, _built(kind, version) / "out")


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


def build(kind: str, top: Path, out: Path, **env: str) -> dict[str, Path]:
    """Build the packages of a checkout; returns their files by name."""
    environment = {"PATH": SYSTEM_PATH, "GPUSHIM_BUNDLED": str(bundled()), **env}
    command = [str(top / "packaging" / kind / "build"), str(out)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return _found(kind, out)


@functools.cache  # files may change while tests run
def _built(kind: str, version: str) -> Path:
    version = version or version_here()
    cache = CACHE / kind
    place = cache / f"{recipe(SOURCES)}-{version}"
    with trees.locked(cache), tempfile.TemporaryDirectory(dir=cache) as scratch:
        if not place.is_dir():
            build(kind, checkout(trees.TOP, Path(scratch, "place/top"), version), Path(scratch, "place/out"))
            for old in cache.glob(f"*-{version}"):
                shutil.rmtree(old)
            Path(scratch, "place").rename(place)
    return place


def bundled() -> Path:
    """Return the Python packages that are bundled, fetched once."""
    place = CACHE / "bundled" / recipe(("packaging/bundled.txt", "tools/vendor"))
    with trees.locked(CACHE / "bundled"):
        if not place.is_dir():
            subprocess.run([trees.TOP / "tools/vendor", place], check=True, timeout=BUILD_SECONDS)
    return place


def _found(kind: str, out: Path) -> dict[str, Path]:
    if kind == "deb":
        return {path.name.partition("_")[0]: path for path in sorted(out.glob("*.deb"))}
    names = {path: re.sub(r"-[^-]*-[^-]*$", "", path.name) for path in out.glob("*.rpm")}
    return {name + (".src" if path.name.endswith(".src.rpm") else ""): path for path, name in names.items()}


def recipe(names: tuple[str, ...]) -> str:
    """Return what changes with the files of this checkout that have these names, or lie below them."""
    digest = hashlib.sha256()
    for name in names:
        for path in sorted([trees.TOP / name, *(trees.TOP / name).rglob("*")]):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path} {path.stat().st_mode:o}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
