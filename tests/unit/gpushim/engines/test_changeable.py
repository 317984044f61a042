"""Settings of root's name no program that somebody else could change, in whatever engine and by whatever command."""

from __future__ import annotations

import os
import posix
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushim.cli.cdi import cdi
from gpushim.cli.configure import configure
from gpushim.engines.docker import dockerd
from gpushim.engines.processes import table
from gpushim.nvidia import ctk
from unit.gpushim.engines.conftest import Configure

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which gives files away")


@pytest.fixture
def theirs(program: str) -> str:
    os.chown(program, 1000, 1000)
    return program


@pytest.mark.parametrize("engine", table.ENGINES)
def test_no_engine_is_told(call: Configure, theirs: str, tmp_path: Path, engine: str) -> None:
    """A dry run says why; what names it already is taken back all the same."""
    config = tmp_path / "settings"
    done = call(engine, config)
    assert (done.exit_code, str(done.exception).partition(";")[0]) == (
        1,
        f"{theirs} runs with every container, and users other than root own or can write to {theirs}",
    )
    assert not config.exists()
    dry = call(engine, config, "--dry-run")
    assert (dry.exit_code, "users other than root own or can write to" in dry.output) == (0, True)
    os.chown(theirs, 0, 0)
    assert call(engine, config).exit_code == 0
    os.chown(theirs, 1000, 1000)
    assert call(engine, config, "--remove").exit_code == 0
    assert not config.exists()


def test_nvidia_ctk_goes_by_it(theirs: str, tmp_path: Path) -> None:
    config = tmp_path / "daemon.json"
    words = ["runtime", "configure", f"--config={config}", f"--runtime-path={theirs}"]
    done = CliRunner().invoke(ctk.main, words)
    assert (done.exit_code, "users other than root own or can write to" in done.output) == (1, True)
    assert not config.exists()


@pytest.mark.parametrize(("engine", "option"), [("docker", ""), ("podman", "--hooks"), ("crio", "--hooks")])
def test_nor_is_the_hook_linked_or_registered(
    monkeypatch: pytest.MonkeyPatch, program: str, local: Path, tmp_path: Path, engine: str, option: str
) -> None:
    hook = Path(program).with_name("gpushim-hook")
    hook.touch(0o755)
    os.chown(hook, 1000, 1000)
    monkeypatch.setattr("gpushim.engines.settings.setup.decide.hook_program", lambda: str(hook))
    words = [engine, f"--runtime-path={program}", "--dry-run", *filter(None, [option])]
    done = CliRunner().invoke(configure, words)
    assert f"{hook} runs with every container" in done.output


def test_a_link_to_one_is_made_again(local: Path, program: str, tmp_path: Path) -> None:
    """By `configure` from a place of root's."""
    theirs = tmp_path / "home/gpushim-hook"
    theirs.parent.mkdir()
    shutil.copy("/bin/true", theirs)
    (local / dockerd.RUNTIME_HOOK).symlink_to(theirs)
    (local / dockerd.CDI_HOOK).symlink_to(theirs)
    assert dockerd.missing_links(None, program, "29.7") == ([], [])
    os.chown(theirs, 1000, 1000)
    links, notes = dockerd.missing_links(None, program, "29.7")
    paths = {str(local / name) for name in (dockerd.RUNTIME_HOOK, dockerd.CDI_HOOK)}
    assert ({link.path for link in links}, notes) == (paths, [])
    dockerd.apply_links(links)
    assert os.readlink(local / dockerd.RUNTIME_HOOK) == program


def test_no_spec_names_one(monkeypatch: pytest.MonkeyPatch, theirs: str, tmp_path: Path) -> None:
    monkeypatch.setitem(posix.environ, b"GPUSHIM_STATE", os.fsencode(tmp_path / "state"))
    target = tmp_path / "nvidia.yaml"
    words = ["generate", "--mode=management", f"--hook-path={theirs}"]
    refused = CliRunner().invoke(cdi, [*words, f"--output={target}"])
    assert refused.exit_code == 1
    assert not target.exists()
