"""tools/release: what it refuses before it does anything, and that its checks find what is wrong with a release.

tests/e2e/test_release.py makes whole ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from release import charts, checkout, repositories, verify
from release.steps import ReleaseError, digest

TOP = Path(__file__).parents[2]
GIT = ["/usr/bin/git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
COMMIT = checkout.Commit("0.1.0", 86400)
CHART = TOP / "packaging/kubernetes/chart"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository that is ready to release 1.2.3, in which nothing can be built."""
    found = tmp_path / "checkout"
    shutil.copytree(
        TOP / "packaging/release", found / "packaging/release", ignore=shutil.ignore_patterns("__pycache__")
    )
    (found / "packaging/image").mkdir()
    shutil.copy(TOP / "packaging/image/sbom.py", found / "packaging/image")
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
    assert "Traceback" not in done.stderr
    assert not [*(top.parent / "out").glob("*"), *(top.parent / "out").glob(".*")]


def test_a_directory_with_something_in_it_stays_as_it_is(top: Path) -> None:
    done = release(top, top)
    assert (done.returncode, done.stderr) == (
        1,
        f"release: {top} is there and not empty; name another, or remove it\n",
    )


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """The chart as an OCI artifact."""
    charts.artifact(COMMIT, CHART, charts.packed(COMMIT, CHART, tmp_path), tmp_path / "layout")
    return tmp_path / "layout"


def test_the_chart_is_packed_alike_whenever_its_files_were_written(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(CHART, tmp_path / "chart"))
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    (tmp_path / "again").mkdir()
    again = charts.packed(COMMIT, copy, tmp_path / "again")
    assert charts.packed(COMMIT, CHART, tmp_path).read_bytes() == again.read_bytes()


def test_the_artifact_is_of_helms_media_types(layout: Path) -> None:
    verify.layout(layout)
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads((layout / "blobs/sha256" / entry["digest"][7:]).read_text())
    kinds = [manifest["config"]["mediaType"], *(layer["mediaType"] for layer in manifest["layers"])]
    assert kinds == [
        "application/vnd.cncf.helm.config.v1+json",
        "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
    ]


@pytest.mark.parametrize("fault", ["changed", "one too many"])
def test_a_layout_that_is_not_whole_is_found(layout: Path, fault: str) -> None:
    blob = next((layout / "blobs/sha256").iterdir())
    (blob if fault == "changed" else blob.parent / "other").write_text("x")
    with pytest.raises((ReleaseError, ValueError)):
        verify.layout(layout)


@pytest.mark.parametrize(("listed", "sentence"), [("", "SHA256SUMS lacks a"), ("0" * 64 + "  a\n", "sha256sum")])
def test_a_file_that_is_not_as_listed_is_found(tmp_path: Path, listed: str, sentence: str) -> None:
    other = tmp_path / "b"
    other.write_text("")
    (tmp_path / "SHA256SUMS").write_text(f"{digest(other)}  b\n{listed}")
    (tmp_path / "a").write_text("x")
    with pytest.raises(ReleaseError, match=sentence):
        verify.sums(tmp_path)


def test_repositories_are_for_each_architecture_that_the_release_names() -> None:
    assert repositories.RELEASE["Architectures"].split() == [*repositories.ARCHITECTURES]
