"""tools/release: what it refuses before it makes anything; tests/e2e/test_release.py makes whole releases."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
GIT = ["/usr/bin/git", "-c", "user.name=x", "-c", "user.email=x@example.org"]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository that is ready to release 1.2.3, in which nothing can be built."""
    found = tmp_path / "checkout"
    for name, text in (
        ("shim/gpushim/__init__.py", '__version__ = "1.2.3"\n'),
        ("CHANGELOG.md", "# Changelog\n\n## 1.2.3 — 2026-11-21\n\n- All.\n"),
        ("tools/setup.sh", "#!/bin/sh\necho setup has failed >&2\nexit 7\n"),
    ):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text)
        (found / name).chmod(0o755)
    shutil.copy(TOP / "tools/release", found / "tools/release")
    git(found, "init", "--quiet")
    commit(found)
    return found


def git(top: Path, *words: str) -> None:
    subprocess.run([*GIT, *words], cwd=top, check=True, capture_output=True)


def commit(top: Path) -> None:
    git(top, "add", ".")
    git(top, "commit", "--quiet", "--message", "Some")


def release(top: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "GNUPGHOME": str(top.parent)}
    return subprocess.run(
        [top / "tools/release", *words], cwd=top, env=env, capture_output=True, text=True, check=False
    )


def old_version(top: Path) -> None:
    (top / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 — unreleased\n")
    commit(top)


def tagged_before(top: Path) -> None:
    git(top, "tag", "--annotate", "--message", "x", "v1.2.3")
    (top / "more").write_text("")
    commit(top)


STATES: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "uncommitted": (lambda top: (top / "new").write_text(""), [], "there are changes that are not committed"),
    "changelog": (old_version, [], 'CHANGELOG.md has no heading "## 1.2.3 — YEAR-MONTH-DAY"'),
    "tag": (tagged_before, [], "the tag v1.2.3 is another commit's"),
    "no git": (lambda top: shutil.rmtree(top / ".git"), [], "is no checkout of git"),
    "key": (lambda top: None, ["--key", "nobody"], 'gpg has no secret key "nobody"'),
    "base": (lambda top: None, ["--base", "/nowhere"], "--base: there is no file /nowhere"),
    "a step": (lambda top: git(top, "tag", "v1.2.3"), [], "setup has failed"),
}


@pytest.mark.parametrize("state", STATES)
def test_what_cannot_be_released_leaves_nothing(top: Path, state: str) -> None:
    change, words, sentence = STATES[state]
    change(top)
    done = release(top, *words, top.parent / "out/release")
    assert (done.returncode, sentence in done.stderr) == (1, True), done.stderr
    assert not [*(top.parent / "out").glob("*"), *(top.parent / "out").glob(".*")]


def test_a_directory_with_something_in_it_stays_as_it_is(top: Path) -> None:
    done = release(top, top)
    assert (done.returncode, done.stderr) == (
        1,
        f"release: {top} is there and not empty; name another, or remove it\n",
    )
