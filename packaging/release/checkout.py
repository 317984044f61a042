"""The commit that is released: what must be true of it, and its files, without what else lies in the checkout."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from release.steps import ReleaseError, run

TOP = Path(__file__).resolve().parents[2]
VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)


@dataclass(frozen=True)
class Commit:
    """What is released.

    Args:
        version: of gpushim, as its source has it.
        epoch: the commit's time, in seconds.
    """

    version: str
    epoch: int


def ready() -> Commit:
    """Return the commit, if it can be released.

    Raises:
        ReleaseError: something is not committed, CHANGELOG.md lacks the version, or its tag is another commit's.
    """
    if not (TOP / ".git").exists():
        raise ReleaseError(f"{TOP} is no checkout of git; a release is made of a commit")
    if _git("status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed; commit or stash them")
    found = VERSION.search((TOP / "shim/gpushim/__init__.py").read_text())
    version = found[1] if found else ""
    heading = rf"^## {re.escape(version)} — \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (TOP / "CHANGELOG.md").read_text(), re.MULTILINE):
        wanted = f'"## {version} — YEAR-MONTH-DAY"'
        raise ReleaseError(f"CHANGELOG.md has no heading {wanted}; write it, and what has changed since the last")
    tagged = _git("for-each-ref", "--format=%(*objectname)%(objectname)", f"refs/tags/v{version}")
    if tagged and not tagged.startswith(_git("rev-parse", "HEAD")):
        raise ReleaseError(f"the tag v{version} is another commit's; check that out, or release another version")
    return Commit(version, int(_git("log", "-1", "--format=%ct")))


def unpacked(commit: Commit, work: Path) -> Path:
    """Archive the commit, and unpack it where everything else is made of it; return the directory.

    Args:
        commit: that is checked out.
        work: directory that gets the archive, gpushim-VERSION.tar.gz.
    """
    name = f"gpushim-{commit.version}"
    _git("archive", "--format=tar", f"--prefix={name}/", f"--output={work / name}.tar", "HEAD")
    run("tar", "--extract", f"--file={work / name}.tar", f"--directory={work}")
    run("gzip", "-9n", work / f"{name}.tar")
    (work / name / ".venv").symlink_to(TOP / ".venv")  # tools/vendor's pip
    return work / name


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Make a directory for the block, on the file system of the release.

    Args:
        parent: of the release; it is made if need be.
    """
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".gpushim-release-") as directory:
        yield Path(directory)


def _git(*words: str) -> str:
    return run("git", "-C", TOP, *words).strip()
