"""Where Docker 29 and CRI-O come from, and what a test says where they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import builds
from e2e import programs, upstream


def test_without_them_a_test_is_skipped_and_says_which_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "find", lambda _: None)
    with pytest.raises(pytest.skip.Exception, match="there is no crio: GPUSHIM_TEST_PROGRAMS=DIRECTORY names"):
        upstream.layer(upstream.CRIO, tmp_path)


def test_they_lie_where_debian_has_them_and_another_program_is_another_layer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(builds.NAMED, str(tmp_path))
    for name in ("crio", "pinns"):
        (tmp_path / name).write_text("first")
    first = upstream.layer(upstream.CRIO, tmp_path / "cache")
    assert upstream.layer(upstream.CRIO, tmp_path / "cache") == first
    assert {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()} == set(upstream.CRIO)
    (tmp_path / "crio").write_text("another")
    second = upstream.layer(upstream.CRIO, tmp_path / "cache")
    assert (second / "usr/bin/crio").read_text() == "another"


@pytest.mark.parametrize(("named", "built"), [(("crio", "pinns"), True), (builds.PROGRAMS["docker"], False)])
def test_a_module_is_built_unless_all_its_programs_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: tuple[str, ...], built: bool
) -> None:
    """A directory with CRI-O alone, which no module gives, keeps nothing else from being built."""
    for name in named:
        (tmp_path / name).touch()
    modules: list[str] = []
    monkeypatch.setattr(builds, "build", lambda directory: modules.append(directory.name))
    monkeypatch.setenv(builds.NAMED, str(tmp_path))
    builds.main()
    assert ("docker" in modules) == built


def test_a_build_gives_what_the_module_is_said_to_give() -> None:
    for module in builds.modules():
        directory = builds.place(module)
        if directory.is_dir():
            assert {path.name for path in directory.iterdir()} == {*builds.PROGRAMS[module.name]}
