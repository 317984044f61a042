"""`gpushim configure podman`: the drop-in, the hook's file, and what a stand-in for Podman says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit
from click.testing import Result

from gpushim.engines import hooksd, podman
from gpushim.engines.processes import programs
from unit.gpushim.engines.results import ok

Call = Callable[..., Result]
TOP = Path(__file__).parents[4]


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Podman's directory; the distribution's is empty."""
    path = tmp_path / "containers"
    path.mkdir()
    monkeypatch.setattr(podman, "SYSTEM_DIRECTORIES", (f"{tmp_path}/share", str(path)))
    monkeypatch.setattr(podman, "HOOKS", f"{tmp_path}/share/oci/hooks.d")
    return path


def test_a_drop_in_is_made_and_deleted_again(etc: Path, call: Call, program: str) -> None:
    ok(call("podman", None, "--set-as-default"))
    drop_in = etc / "containers.conf.d" / "99-gpushim.conf"
    first, _, text = drop_in.read_text().partition("\n")
    assert first.startswith("# Made by `gpushim configure`; `gpushim configure podman --remove` takes it away.")
    assert text == f'\n[engine]\nruntime = "nvidia"\n\n[engine.runtimes]\nnvidia = ["{program}"]\n'
    assert "nothing to change" in ok(call("podman", None, "--set-as-default"))
    ok(call("podman", None, "--remove"))
    assert os.listdir(etc) == ["containers.conf.d"]
    assert os.listdir(etc / "containers.conf.d") == []


def test_containers_conf_replaces_all_others(
    etc: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman reads nothing else where this variable is set; a file of others there is not edited."""
    path = tmp_path / "other.conf"
    monkeypatch.setenv("CONTAINERS_CONF", str(path))
    ok(call("podman", None))
    assert (path.exists(), os.listdir(etc)) == (True, [])
    ok(call("podman", None, "--remove"))
    path.write_text("# theirs\n")
    assert f"{path} is not gpushim's" in str(call("podman", None).exception)
    ok(call("podman", None, "--remove"))
    assert path.read_text() == "# theirs\n"


def test_somebody_elses_runtime_of_that_name(etc: Path, call: Call, program: str) -> None:
    conf = etc / "containers.conf"
    theirs = '[engine.runtimes]\nnvidia = ["/usr/bin/nvidia-container-runtime"]\n'
    conf.write_text(theirs)
    assert "the runtime nvidia is ['/usr/bin/nvidia-container-runtime']" in str(call("podman", None).exception)
    ok(call("podman", None, "--force"))
    drop_in = etc / "containers.conf.d" / "99-gpushim.conf"
    assert tomlkit.parse(drop_in.read_text())["engine"]["runtimes"]["nvidia"] == [program]
    ok(call("podman", None, "--remove"))
    assert (conf.read_text(), os.listdir(drop_in.parent)) == (theirs, [])


def test_the_hook_is_off_by_default_and_goes_with_the_rest(etc: Path, call: Call, tmp_path: Path) -> None:
    hooks = tmp_path / "share" / "oci" / "hooks.d"
    ok(call("podman", None))
    assert not hooks.exists()
    ok(call("podman", None, "--hooks"))
    assert json.loads((hooks / "99-gpushim.json").read_text())["hook"]["path"] == f"{TOP}/bin/gpushim-hook"
    ok(call("podman", None, "--remove"))
    assert os.listdir(hooks) == []


def test_the_hooks_directory_is_the_one_that_podman_reads(etc: Path, call: Call, tmp_path: Path) -> None:
    (etc / "containers.conf").write_text(f'[engine]\nhooks_dir = ["/nonexistent", "{tmp_path}/hooks"]\n')
    ok(call("podman", None, "--hooks"))
    assert os.listdir(tmp_path / "hooks") == ["99-gpushim.json"]


def test_somebody_elses_hook_stays(etc: Path, call: Call, tmp_path: Path) -> None:
    hooks = tmp_path / "share" / "oci" / "hooks.d"
    hooks.mkdir(parents=True)
    (hooks / "99-gpushim.json").write_text('{"hook": {"path": "/usr/bin/other"}}')
    ok(call("podman", None, "--remove"))
    assert os.listdir(hooks) == ["99-gpushim.json"]


def test_the_hooks_file_is_the_one_in_the_packages() -> None:
    packaged = (TOP / "hook" / "oci-hooks.d" / "99-gpushim.json").read_bytes()
    assert json.loads(hooksd.content("/usr/bin/gpushim-hook")) == json.loads(packaged)


def test_an_ordinary_users_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/u/.config")
    assert podman.default_config() == "/home/u/.config/containers/containers.conf.d/99-gpushim.conf"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ('echo \'{"path": "/usr/bin/gpushim-runtime"}\'', ""),
        ('echo \'{"path": "/usr/bin/crun"}\'', "its runtime is"),
        ("echo warning >&2; echo no such runtime >&2; exit 125", "no such runtime"),
        ("", "its runtime is"),
    ],
)
def test_verify_asks_podman(
    script: str, sentence: str, etc: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "podman").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    result = call("podman", None, "--verify")
    assert result.exit_code == bool(sentence)
    assert sentence in str(result.exception or "")


def test_a_default_of_others_keeps_our_entry_until_it_is_taken_out(etc: Path, call: Call) -> None:
    """Podman does nothing at all without its default runtime."""
    ok(call("podman", None))
    (etc / "containers.conf").write_text('[engine]\nruntime = "nvidia"\n')
    said = str(call("podman", None, "--remove").exception)
    assert f"{etc}/containers.conf: runtime is nvidia, which goes with gpushim's entry" in said
    (etc / "containers.conf").write_text("[engine]\n")  # as it says
    ok(call("podman", None, "--remove"))
    assert os.listdir(etc / "containers.conf.d") == []
