from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import builds
import scratch
from e2e import programs

# What stands for Go: it has no module where there is a file that says so.
GO = '#!/bin/sh\n[ "$1" = list ] || [ ! -e "$0.away" ] || { echo "module lookup disabled" >&2; exit 1; }\n'
BUILD = '#!/bin/sh\ngo list >/dev/null\necho built >>"$(dirname "$0")/../count"\nsleep 0.3\ncp go.mod "$1/program"\n'
COMMAND = "import pathlib, sys, builds; builds.build(pathlib.Path(sys.argv[1]))"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of one program, which a stand-in of Go builds."""
    found = tmp_path / "modules" / "module"
    found.mkdir(parents=True)
    (found / "go.mod").write_text("module x\n")
    for path, text in {found / "build": BUILD, tmp_path / "go": GO}.items():
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv(builds.NAMED, raising=False)
    monkeypatch.setattr(scratch, "CACHE", tmp_path / "gpushim-tests")
    monkeypatch.setattr(builds, "modules", lambda: [found])
    return found


def times(module: Path) -> int:
    """How many times it was built."""
    return len((module.parent / "count").read_text().splitlines())


def test_two_at_once_build_once(module: Path) -> None:
    words = [sys.executable, "-c", COMMAND, str(module)]
    env = {"XDG_CACHE_HOME": str(scratch.CACHE.parent), "PYTHONPATH": str(Path(builds.__file__).parent)}
    env["PATH"] = f"{module.parents[1]}:/usr/bin:/bin"
    both = [subprocess.Popen(words, env=env) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    builds.build(module)
    assert times(module) == 1
    assert programs.path("program") == builds.place(module) / "program"


def test_another_version_is_built_beside_it(module: Path) -> None:
    builds.build(module)
    first = builds.place(module)
    (module / "go.mod").write_text("module x\n\ngo 1.26\n")
    builds.build(module)
    assert times(module) == 2
    assert {first, builds.place(module)} <= {*first.parent.iterdir()}


def test_what_a_killed_build_has_left_is_no_program(module: Path) -> None:
    left = scratch.CACHE / "module" / "new"
    left.mkdir(parents=True)
    (left / "other").touch()
    builds.build(module)
    assert [path.name for path in builds.place(module).iterdir()] == ["program"]


def test_modules_that_cannot_be_had(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"{module.parents[1]}/go.away").touch()
    builds.main()
    said = capsys.readouterr().out
    assert "tests/module is not built, and tests that run its programs are skipped: module lookup disabled" in said
    with pytest.raises(pytest.skip.Exception, match="there is no program"):
        programs.path("program")


def test_what_does_not_build_is_no_want(module: Path) -> None:
    (module / "build").write_text("#!/bin/sh\necho undefined: x\nexit 1\n")
    with pytest.raises(SystemExit, match="tests/module does not build: undefined: x"):
        builds.main()
    assert not builds.place(module).exists()


def test_a_named_directory_and_path(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds.build(module)
    for place in ("named", "installed"):
        (tmp_path / place).mkdir()
        for name in ("program", "crio"):
            (tmp_path / place / name).touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'installed'}:/usr/bin")
    assert programs.find("program") == builds.place(module) / "program"
    assert programs.find("crio") == tmp_path / "installed/crio"
    monkeypatch.setenv(builds.NAMED, str(tmp_path / "named"))
    assert programs.find("program") == tmp_path / "named/program"


@pytest.mark.parametrize(("version", "taken"), [("20.10.24+dfsg1", False), ("28.5.2", False), ("29.0.0", True)])
def test_docker_of_path_is_new(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, taken: bool
) -> None:
    programs._is_new_docker.cache_clear()
    for name in programs.DOCKER:
        (tmp_path / name).write_text(f"#!/bin/sh\necho Docker version {version}, build x\n")
        (tmp_path / name).chmod(0o755)
    found = [programs.find(name) for name in programs.DOCKER]
    programs._is_new_docker.cache_clear()
    assert found == [tmp_path / name if taken else None for name in programs.DOCKER]
