"""What a refresh saves beside the snapshot, and where it refuses to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, save
from unit.gpushim import labels
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow


def test_runtime_for_the_launcher(machine: Machine) -> None:
    runtime = machine.folder / "my runc"
    runtime.write_text("#!/bin/sh\n")
    runtime.chmod(0o755)
    machine.build(1, f'[runtime]\nlow-level = ["{runtime}"]\n')
    assert machine.refreshed()["runtime"] == str(runtime)
    path = Path(machine.state, "runtime")
    assert path.read_text() == f"{runtime}\n"
    assert path.stat().st_mtime_ns == os.stat(machine.config).st_mtime_ns
    assert os.readlink(f"{machine.state}/config") == machine.config


@pytest.mark.parametrize("struck", ["triggers", "config", "runtime"])
def test_runtime_never_vouches_for_what_it_was_not_made_with(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, struck: str
) -> None:
    """A kill between two of the launcher's files, and then the old configuration back with its old time."""
    machine.build(1)
    snapshot = machine.refreshed()
    snapshot["policy"]["requests"]["swarm-variables"] = ["A_GPU"]
    rename, link = os.rename, os.symlink

    def killed(call: Callable[..., None], *paths: str, **folders: int) -> None:
        if os.path.basename(paths[1]) == struck:
            raise KeyboardInterrupt
        call(*paths, **folders)

    monkeypatch.setattr(os, "rename", lambda *paths, **folders: killed(rename, *paths, **folders))
    monkeypatch.setattr(os, "symlink", lambda *paths: killed(link, *paths))
    with pytest.raises(KeyboardInterrupt):
        save.save(machine.state, snapshot)
    assert not Path(machine.state, "runtime").exists()


def test_runtime_does_not_vouch_for_a_configuration_that_came_while_it_looked(machine: Machine) -> None:
    """Two configurations with one time, as images and package stores have them."""
    machine.build(1)
    old, new = Path(machine.folder, "old.toml"), Path(machine.folder, "new.toml")
    os.rename(machine.config, old)
    os.symlink(old, machine.config)
    new.write_text(old.read_text() + '[requests]\nswarm-variables = ["A_GPU"]\n')
    for path in (old, new):
        os.utime(path, (1, 1))
    snapshot = machine.refreshed()
    os.unlink(machine.config)
    os.symlink(new, machine.config)
    save.save(machine.state, snapshot)
    assert not os.path.lexists(f"{machine.state}/config")
    assert os.stat(f"{machine.state}/runtime").st_mtime != 1


@pytest.mark.parametrize("name", ["runtime", "triggers", "config", "params", "empty"])
def test_what_launcher_and_hook_read_comes_back(machine: Machine, name: str) -> None:
    machine.build(1)
    machine.refreshed()
    path = Path(machine.state, name)
    (path.rmdir if path.is_dir() else path.unlink)()
    assert ensure.read(machine.config, machine.state) is None
    machine.refreshed()
    assert path.exists()
    assert ensure.read(machine.config, machine.state) is not None


def test_triggers_come_and_go_with_the_policy(machine: Machine) -> None:
    triggers = Path(machine.state, "triggers")
    extra = '[requests]\nswarm-variables = ["A_GPU"]\n[cdi]\nannotation-prefixes = ["cdi.k8s.io/", "my.org/"]\n'
    machine.build(1, extra)
    machine.refreshed()
    assert triggers.read_text() == "A_GPU\nmy.org/\n"
    machine.build(1)
    machine.refreshed()
    assert triggers.read_text() == ""


def test_state_directory_that_cannot_be_made(machine: Machine) -> None:
    machine.build(1)
    Path(machine.state).write_text("")
    code, said = machine.refresh()
    assert code == INVENTORY
    assert said.startswith("gpushim: ")


def test_the_launcher_keeps_the_runtime_that_was_there(machine: Machine) -> None:
    runtime = machine.folder / "crun"
    runtime.write_text("#!/bin/sh\n")
    runtime.chmod(0o755)
    machine.build(1, f'[runtime]\nlow-level = ["{runtime}"]\n')
    machine.refreshed()
    machine.configure(Path(machine.config).read_text().replace(str(runtime), "no-such-runtime"))
    assert machine.refreshed()["runtime"] == ""
    path = Path(machine.state, "runtime")
    assert path.read_text() == f"{runtime}\n"
    assert path.stat().st_mtime_ns == os.stat(machine.config).st_mtime_ns


@pytest.mark.parametrize("value", ["1", "0"])
def test_parameters_for_containers(machine: Machine, value: str) -> None:
    machine.build(1)
    params = Path(machine.root, "proc/driver/nvidia/params")
    text = params.read_text().replace("ModifyDeviceFiles: 1", f"ModifyDeviceFiles: {value}")
    params.write_text(text)
    snapshot = machine.refreshed()
    assert snapshot["driver"]["params"] == (f"{machine.state}/params" if value == "1" else "")
    if value == "1":
        copy = Path(machine.state, "params")
        assert copy.read_text() == text.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")
        assert copy.stat().st_mode & 0o777 == 0o644


def test_a_refresh_that_fails_leaves_nothing_beside(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build(1)
    machine.refreshed()
    before = sorted(os.listdir(machine.state))

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="No space left"):
        save._replace(f"{machine.state}/runtime", "x\n")
    assert sorted(os.listdir(machine.state)) == before


def test_a_user_before_roots_first_refresh(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(GpushimError, match="cannot be made: Permission denied; run gpushim refresh as root"):
        save.prepare(f"{machine.folder}/none")


def test_a_user_after_roots_refresh(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is out of date then; once something is, it is said."""
    host = machine.build(1)
    machine.refreshed()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(
        GpushimError, match="which is not out of date; to list the GPUs again, run gpushim refresh as"
    ):
        save.prepare(machine.state, machine.config)
    host.half_upgrade("550.54.14")
    with pytest.raises(GpushimError, match="is out of date, and this user may not renew it"):
        save.prepare(machine.state, machine.config)


@pytest.mark.parametrize("maker", ["var_run_t", "container_var_run_t"])  # of a unit, and of an engine's child
def test_containers_may_read_what_they_get_whoever_has_made_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, maker: str
) -> None:
    machine.build(1)
    snapshot = machine.refreshed()
    labels.new_files(monkeypatch, maker)
    save.prepare(machine.state)
    save.for_hook(snapshot)
    assert labels.of(machine.state) == "system_u:object_r:container_var_run_t:s0"
    assert {labels.of(f"{machine.state}/{name}") for name in ("params", "empty")} == {
        "system_u:object_r:container_ro_file_t:s0"
    }
