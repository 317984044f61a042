"""What the tests of engines' settings share: a program of ours, a command line, and no engine that runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpushim.cli.configure import configure
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import running

Configure = Callable[..., Result]


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for links, alone on the PATH of a dockerd that does not run yet."""
    folder = tmp_path_factory.mktemp("local")
    for name in ("LINKS", "PATH"):
        monkeypatch.setattr(dockerd, name, str(folder))
    return folder


@pytest.fixture
def impostors() -> list[running.Impostor]:
    """The processes that only look like an engine: a list to fill."""
    return []


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch, impostors: list[running.Impostor]) -> list[running.Engine]:
    """The engines that run: a list to fill."""
    found: list[running.Engine] = []
    monkeypatch.setattr(running, "look", lambda: (found, impostors))
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    return found


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A gpushim-runtime."""
    path = tmp_path / "bin" / "gpushim-runtime"
    path.parent.mkdir()
    path.touch(0o755)
    return str(path)


@pytest.fixture
def call(program: str) -> Configure:
    """Call `gpushim configure`: an engine, its file, more arguments."""

    def call(engine: str, config: Path | None, *args: str) -> Result:
        where = [f"--config={config}"] if config else []
        path = [] if {"--remove", "--verify"} & set(args) else [f"--runtime-path={program}"]
        return CliRunner().invoke(configure, [engine, *where, *path, *args])

    return call
