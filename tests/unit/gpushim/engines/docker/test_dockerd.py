"""The links that `docker run --gpus` needs: made where nobody has the name, taken back, never anybody else's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from gpushim.engines.docker import dockerd
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings.setup import Link
from unit.gpushim.engines.results import ok

Call = Callable[..., Result]
NAMES = ["nvidia-cdi-hook", "nvidia-container-runtime-hook"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The daemon.json of a dockerd that does not run."""
    path = tmp_path / "etc" / "daemon.json"
    monkeypatch.setattr(dockerd, "SYSTEM_CONFIG", str(path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return path


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)
    return path


def targets(folder: Path) -> dict[str, str]:
    """The links in a directory, with the name of what each leads to."""
    return {path.name: os.path.basename(os.readlink(path)) for path in sorted(folder.iterdir()) if path.is_symlink()}


@pytest.mark.usefixtures("config")
def test_both_names_are_linked_and_taken_back(local: Path, call: Call) -> None:
    assert f"linked {local}/nvidia-cdi-hook\n" in ok(call("docker", None))
    assert targets(local) == dict.fromkeys(NAMES, "gpushim-hook")
    assert os.access(local / NAMES[0], os.X_OK)
    assert "nothing to change" in ok(call("docker", None))
    assert f"removed {local}/nvidia-cdi-hook\n" in ok(call("docker", None, "--remove"))
    assert list(local.iterdir()) == []
    assert "nothing to take back" in ok(call("docker", None, "--remove"))


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_somebody_has_is_not_linked(
    local: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(dockerd, "PATH", f"{local}:{executable(tmp_path / 'nvidias' / name).parent}")
    ok(call("docker", None))
    assert list(targets(local)) == [each for each in NAMES if each != name]


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_somebody_else_put_there_stays(local: Path, call: Call, kind: str) -> None:
    there = local / NAMES[0]
    there.write_text("") if kind == "file" else there.symlink_to("/nowhere/nvidia-ctk")
    output = ok(call("docker", None))
    assert f"note: nvidia-cdi-hook is not on the PATH of dockerd ({local}): link it to " in output
    ok(call("docker", None, "--remove"))
    assert [path.name for path in local.iterdir()] == [NAMES[0]]


@pytest.mark.usefixtures("config")
def test_the_directory_is_made_if_need_be(local: Path, call: Call) -> None:
    local.rmdir()
    ok(call("docker", None))
    assert local.stat().st_mode & 0o777 == 0o755
    assert list(targets(local)) == NAMES


@pytest.mark.usefixtures("config")
def test_a_link_of_ours_that_leads_nowhere_is_made_anew(local: Path, call: Call) -> None:
    (local / NAMES[0]).symlink_to("/gone/gpushim-hook")
    ok(call("docker", None))
    assert (local / NAMES[0]).exists()


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("option", ["--dry-run", "--verify"])
def test_nothing_is_linked_without_being_asked_for(
    local: Path, call: Call, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(dockerd, "SECONDS", 0.0)
    monkeypatch.setattr(dockerd, "info", lambda *_, **__: {})
    output = call("docker", None, option).output
    assert (f"/gpushim-hook {local}/nvidia-cdi-hook\n" in output) is (option == "--dry-run")
    assert list(local.iterdir()) == []


def test_a_file_that_somebody_named_is_all_that_changes(
    local: Path, call: Call, tmp_path: Path, config: Path
) -> None:
    ok(call("docker", tmp_path / "other.json"))
    assert list(local.iterdir()) == []
    ok(call("docker", None))
    assert f"note: {local}/{NAMES[0]} stays" in ok(call("docker", tmp_path / "other.json", "--remove"))
    assert targets(local)
    assert config.exists()


@pytest.mark.usefixtures("config")
def test_by_hand_they_are_removed_too(local: Path, call: Call) -> None:
    ok(call("docker", None))
    assert f"rm -f {local}/nvidia-cdi-hook\n" in ok(call("docker", None, "--remove", "--by-hand"))
    assert targets(local)


@pytest.mark.usefixtures("config")
def test_a_directory_where_others_may_write_gets_none(local: Path, call: Call) -> None:
    local.chmod(0o777)
    output = ok(call("docker", None))
    assert f"others may write {local}" in output
    assert "for docker run --gpus: ln -s /" in output
    assert "linked" not in output
    assert json.loads(call("docker", None, "--format=json").stdout)["links"] == []
    assert list(local.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "root"), [("/nowhere", ""), ("", ""), ("{local}", "/proc/self/root")], ids=["elsewhere", "none", "snap"]
)
def test_a_dockerd_that_would_not_find_them_is_told_of(
    local: Path, call: Call, config: Path, engines: list[Engine], path: str, root: str
) -> None:
    environ = {"PATH": path.format(local=local)}
    engines.append(Engine("dockerd", 12, config=str(config), argv=("dockerd",), environ=environ, root=root))
    assert "note: nvidia-cdi-hook is not on the PATH of dockerd" in ok(call("docker", None))
    assert list(local.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "names"),
    [("29.7.2", NAMES[:1]), ("28.5.2", NAMES[1:]), ("", NAMES)],
    ids=["today", "older", "unknown"],
)
def test_only_a_name_that_this_version_needs_is_missed(program: str, version: str, names: list[str]) -> None:
    _, notes = dockerd.missing_links(Engine("dockerd", 12, environ={"PATH": "/nowhere"}), program, version)
    assert [note.split()[0] for note in notes] == names


def test_an_ordinary_users_are_below_the_home_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    engine = Engine("dockerd", 12, uid=1000, environ={"PATH": f"/nowhere:{tmp_path}/bin"})
    links, notes = dockerd.missing_links(engine, program, "")
    assert ([link.path for link in links], notes) == ([f"{tmp_path}/bin/{name}" for name in NAMES], [])


@pytest.mark.usefixtures("config")
def test_json_reports_links(local: Path, call: Call) -> None:
    report = json.loads(call("docker", None, "--format=json").stdout)
    assert [(link["path"], link["done"]) for link in report["links"]] == [
        (f"{local}/{name}", "linked") for name in NAMES
    ]


def test_what_came_meanwhile_is_not_replaced(local: Path, program: str) -> None:
    executable(local / NAMES[0])
    done, notes = dockerd.apply_links([Link(f"{local}/{NAMES[0]}", program)])
    assert (done, "is somebody else's by now" in notes[0]) == ([], True)
    assert not (local / NAMES[0]).is_symlink()
