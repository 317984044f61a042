"""Who configures an engine without sudo, while root's runs alone, is told so: nobody would read that file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.engines.processes import running
from unit import ordinary
from unit.gpushim.engines.conftest import Configure


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, impostors: list[running.Impostor]) -> Path:
    """An ordinary user's settings, beside a dockerd of root's."""
    impostors.append(running.Impostor("dockerd", 7, 0, "it is user 0's"))
    monkeypatch.setattr("os.geteuid", lambda: ordinary.UID)
    return Path("/nowhere")


def test_a_file_that_nobody_reads_is_not_written(
    call: Configure, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = call("docker", None)
    assert (done.exit_code, [*tmp_path.glob("docker*")]) == (1, [])
    path = tmp_path / "docker/daemon.json"
    assert str(done.exception).startswith(
        f"dockerd (process 7) is root's, and none of this user's runs, so nobody reads {path}; run this as root"
    )
    assert "is root's" in call("docker", None, "--dry-run").output
    assert call("docker", None, "--remove").exit_code == 0


@pytest.mark.parametrize("way", ["named", "files", "nobody", "mine"])
def test_where_somebody_may_read_it_goes_on(
    call: Configure, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str,
    engines: list[running.Engine], impostors: list[running.Impostor],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    if way == "nobody":
        impostors.clear()
    if way == "mine":
        engines.append(running.Engine("dockerd", 8, uid=ordinary.UID, environ={"XDG_CONFIG_HOME": str(tmp_path)}))
    options = {"named": [], "files": ["--files-only"]}.get(way, [])
    done = call("docker", tmp_path / "d.json" if way == "named" else None, *options, "--dry-run")
    assert "is root's" not in done.output
