"""tools/release: what it refuses before it does anything, and what it does in which order."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
STEPS = ("tools/test", "packaging/deb/build", "packaging/rpm/build")
GIT = ["/usr/bin/git", "-c", "user.name=x", "-c", "user.email=x@example.org"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that is ready to release 1.2.3; its steps write down that they were called."""
    for name in STEPS:
        step = tmp_path / name
        step.parent.mkdir(parents=True, exist_ok=True)
        step.write_text(
            f'#!/bin/sh\necho "{name} $*" >>.git/steps\ncase $1 in dist*) mkdir -p $1; : >$1/a.deb;; esac\n'
        )
        step.chmod(0o755)
    shutil.copy(TOP / "tools/release", tmp_path / "tools/release")
    (tmp_path / "shim/gpushim").mkdir(parents=True)
    (tmp_path / "shim/gpushim/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 — 2026-11-21\n\n- All.\n")
    (tmp_path / ".gitignore").write_text("/dist/\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "All"]):
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True)
    return tmp_path


def release(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {"PATH": "/usr/bin:/bin", **names}
    return subprocess.run(
        [checkout / "tools/release", *words], cwd="/", env=env, capture_output=True, text=True, check=False
    )


def steps(checkout: Path) -> list[str]:
    done = checkout / ".git/steps"
    return done.read_text().splitlines() if done.exists() else []


def tags(checkout: Path) -> str:
    done = subprocess.run([*GIT, "tag", "--list"], cwd=checkout, check=True, capture_output=True, text=True)
    return done.stdout


def test_all_steps_and_the_tag_last(checkout: Path) -> None:
    done = release(checkout, "1.2.3")
    assert done.returncode == 0, done.stderr
    assert steps(checkout) == ["tools/test all", *(f"{step} dist/1.2.3" for step in STEPS[1:])]
    assert (tags(checkout), "a.deb" in (checkout / "dist/1.2.3/SHA256SUMS").read_text()) == ("v1.2.3\n", True)


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("shim/gpushim/__init__.py", '__version__ = "1.2.2"\n', 'does not say __version__ = "1.2.3"'),
        ("CHANGELOG.md", "# Changelog\n\n## 1.2.3 — unreleased\n", "CHANGELOG.md has no heading"),
        ("new", "", "not committed"),
    ],
)
def test_not_ready(checkout: Path, path: str, text: str, sentence: str) -> None:
    (checkout / path).write_text(text)
    if path != "new":
        subprocess.run([*GIT, "commit", "--quiet", "--all", "--message", "Less"], cwd=checkout, check=True)
    done = release(checkout, "1.2.3")
    assert (done.returncode, sentence in done.stderr, steps(checkout), tags(checkout)) == (1, True, [], "")


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_ends_it(checkout: Path, step: str) -> None:
    (checkout / step).write_text("#!/bin/sh\nexit 7\n")
    subprocess.run([*GIT, "commit", "--quiet", "--all", "--message", "Broken"], cwd=checkout, check=True)
    assert (release(checkout, "1.2.3").returncode, tags(checkout)) == (7, "")


def test_a_version_is_released_once(checkout: Path) -> None:
    subprocess.run([*GIT, "tag", "v1.2.3"], cwd=checkout, check=True)
    assert "the tag v1.2.3 is there already" in release(checkout, "1.2.3").stderr
