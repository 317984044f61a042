"""A refresh as a process: what it writes, when it refuses, and two at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import posix
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpushim.ground import logs
from gpushim.ground.errors import CONFIG, DRIVER, INVENTORY, GpushimError
from gpushim.inventory import ensure, gpus, modules, procfs, save, survey
from gpushim.refresh import plugin_requests, refresh
from unit.gpuhook.sandbox import forked
from unit.gpushim.inventory.machine import Machine
from unit.gpushim.refresh import fake_plugin

pytestmark = pytest.mark.slow


def test_snapshot_is_complete_and_readable_by_all(machine: Machine) -> None:
    machine.build(1)
    snapshot = machine.refreshed()
    assert {"version", "gpushim", "written", "inputs", "stamp", "source", "notes", "driver", "error"} <= set(snapshot)
    assert {"gpus", "mig", "nodes", "features", "imex", "files", "policy", "runtime"} <= set(snapshot)
    assert stat.S_IMODE(os.stat(machine.state).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(f"{machine.state}/inventory.json").st_mode) == 0o644
    known = {"cdi", "config", "empty", "indices", "inventory.json", "lock", "params", "runtime", "specs", "triggers"}
    assert {*os.listdir(machine.state)} == known


def test_who_sees_a_snapshot_sees_its_spec(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the spec's hook needs."""
    machine.build(1)
    monkeypatch.setenv("GPUSHIM_CONFIG", machine.config)
    monkeypatch.setenv("GPUSHIM_STATE", machine.state)
    seen: list[str] = []
    monkeypatch.setattr(save, "save", lambda state, _: seen.extend(os.listdir(state) + os.listdir(f"{state}/cdi")))

    def work() -> list[str]:
        refresh.refresh()
        return seen

    assert {"empty", "params", "nvidia.com-gpu.json"} <= {*forked(work)}


def test_umask_of_the_engine_does_not_matter(machine: Machine) -> None:
    machine.build(1)
    old = os.umask(0o777)
    try:
        machine.refresh()
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(machine.state).st_mode) == 0o755
    assert stat.S_IMODE(os.stat(f"{machine.state}/inventory.json").st_mode) == 0o644


def test_a_configuration_that_comes_while_it_looks_makes_it_stale(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.build(1)
    monkeypatch.setattr(logs, "start", lambda *_: Path(machine.config).write_text(""))  # which follows the reading
    monkeypatch.setenv("GPUSHIM_CONFIG", machine.config)
    monkeypatch.setenv("GPUSHIM_STATE", machine.state)
    forked(refresh.refresh)
    assert ensure.read(machine.config, machine.state) is None


def test_second_refresh_changes_nothing_unless_forced(machine: Machine) -> None:
    machine.build(1)
    machine.refreshed()
    path = f"{machine.state}/inventory.json"
    first = os.stat(path).st_ino
    machine.refresh()
    assert os.stat(path).st_ino == first
    before = os.stat(path).st_mtime_ns
    machine.refresh("--force")
    assert os.stat(path).st_mtime_ns != before


def test_what_is_bound_anew_while_it_looks_makes_it_stale(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs swap their minor numbers each time that NVML has just answered, as often as a refresh looks."""
    host = machine.build(2)

    def read(root: str, proc: str, *_: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"source": "nvml", "version": "", "cuda": "", "mig": [], "missing": [], "absent": []}
        found["gpus"] = procfs.gpus(proc, [])
        one, other = host.gpus
        one.minor, other.minor = other.minor, one.minor
        host.update()
        return found

    monkeypatch.setattr(gpus, "read", read)
    monkeypatch.setenv("GPUSHIM_CONFIG", machine.config)
    monkeypatch.setenv("GPUSHIM_STATE", machine.state)
    refresh.refresh()
    assert ensure.read(machine.config, machine.state) is None


def test_gpus_that_are_let_go_while_it_waits_are_not_opened(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `gpushim device-plugin release` does, which waits for the lock alone: it is not held yet."""
    machine.build(1)
    released = Path(machine.state, plugin_requests.RELEASED)
    released.parent.mkdir(parents=True)
    os.chmod(machine.state, 0o755)
    monkeypatch.setattr(modules, "wait", lambda *_: released.touch())
    monkeypatch.setenv("GPUSHIM_CONFIG", machine.config)
    monkeypatch.setenv("GPUSHIM_STATE", machine.state)
    assert forked(lambda: refresh.unattended(True)) is None
    assert not ensure.own(f"{machine.state}/{ensure.SNAPSHOT}")
    released.unlink()
    monkeypatch.setattr(modules, "wait", lambda *_: None)
    assert forked(lambda: refresh.unattended(True))


def test_broken_config_leaves_the_snapshot_alone(machine: Machine) -> None:
    machine.build(1)
    before = machine.refreshed()
    machine.configure("[driver\n")
    code, said = machine.refresh()
    assert code == CONFIG
    assert said.count("\n") == 1
    assert machine.saved() == before


def test_no_low_level_runtime(machine: Machine) -> None:
    machine.build(1, '[runtime]\nlow-level = ["no-such-runtime"]\n')
    code, said = machine.refresh()
    assert code == 0
    assert "none of no-such-runtime" in said
    assert machine.saved()["runtime"] == ""
    assert len(machine.saved()["gpus"]) == 1
    assert machine.saved()["life"] == pytest.approx(survey.PASSING, abs=20)  # and what listing took


def test_no_driver(machine: Machine) -> None:
    machine.build(1)
    shutil.rmtree(machine.folder / "host/proc/driver/nvidia")
    (machine.folder / "host/proc/driver/nvidia").mkdir()
    code, said = machine.refresh()
    assert code == INVENTORY
    assert "no NVIDIA driver is loaded" in said
    snapshot = machine.saved()
    assert snapshot["error"]["code"] == INVENTORY
    assert (snapshot["gpus"], snapshot["files"]) == ([], {})


def test_without_a_driver_the_log_has_no_consequences_of_that(machine: Machine) -> None:
    """What is missing with the driver is no news beside the one sentence; the snapshot has it."""
    machine.build(1, '[log]\nformat = "text"\nlevel = "warning"\n')
    shutil.rmtree(machine.folder / "host/proc/driver/nvidia")
    _, said = machine.refresh()
    assert re.fullmatch(r"gpushim: no NVIDIA driver is loaded .*\n", said)
    assert machine.saved()["notes"]


def test_module_without_libraries(machine: Machine) -> None:
    host = machine.build(1)
    shutil.rmtree(host.lib_path)
    code, said = machine.refresh()
    assert code == INVENTORY
    assert "the NVIDIA kernel module 535.183.01 is loaded, but there is neither libcuda.so.535.183.01" in said


@pytest.mark.parametrize("module", ["550.54.14", "525.60.13", "535.183"])
def test_half_upgraded_driver(machine: Machine, module: str) -> None:
    machine.build(1).half_upgrade(module)
    code, said = machine.refresh()
    assert code == DRIVER
    sentence = f"the NVIDIA kernel module is {module} but its libraries are 535.183.01: reboot, or reload the module "
    assert said.splitlines()[-1] == f"gpushim: {sentence}(rmmod/modprobe), then run gpushim refresh"
    assert machine.saved()["error"]["code"] == DRIVER


def spec_of(machine: Machine) -> Path:
    return Path(machine.state, "cdi/nvidia.com-gpu.json")


def half_upgraded(host: fakehost.Host) -> None:
    host.half_upgrade("550.54.14")


def seen_by_nvml(host: fakehost.Host) -> None:
    host.behave(fail=18)


def without_libraries(host: fakehost.Host) -> None:
    shutil.rmtree(host.lib_path)


def without_a_module(host: fakehost.Host) -> None:
    os.rename(f"{host.root}/proc/driver/nvidia/version", f"{host.root}/version")


@pytest.mark.parametrize("spoil", [half_upgraded, seen_by_nvml, without_libraries, without_a_module])
def test_what_no_refresh_can_stand_behind_is_not_published_until_one_can(
    machine: Machine, spoil: Callable[[fakehost.Host], None]
) -> None:
    """What running containers have of us stays: the hook's files."""
    host = machine.build(1)
    machine.refreshed()
    before, kept = spec_of(machine).read_text(), {*os.listdir(machine.state)}
    spoil(host)
    for _ in range(2):
        code, _ = machine.refresh("--force")
        assert code in (DRIVER, INVENTORY)
        assert not spec_of(machine).exists()
    assert {*os.listdir(machine.state)} >= kept
    machine.build(1)
    machine.refreshed()
    inode = r'(?<="\d=)\d+(?=")'  # of a GPU's binding in sysfs, which is another now
    assert re.sub(inode, "", spec_of(machine).read_text()) == re.sub(inode, "", before)


def hanging(machine: Machine, host: fakehost.Host) -> None:
    machine.configure(Path(machine.config).read_text() + "[refresh]\ndeadline-seconds = 1\n")
    host.behave(hang=True)


def failing(_: Machine, host: fakehost.Host) -> None:
    host.behave(fail=999)


def misconfigured(machine: Machine, _: fakehost.Host) -> None:
    machine.configure("[driver\n")


def closed(machine: Machine, _: fakehost.Host) -> None:
    os.chmod(machine.state, 0o777)


@pytest.mark.parametrize("spoil", [hanging, failing, misconfigured, closed])
def test_a_refresh_that_learns_nothing_of_the_host_takes_no_spec_away(
    machine: Machine, spoil: Callable[[Machine, fakehost.Host], None]
) -> None:
    host = machine.build(1)
    machine.refreshed()
    spoil(machine, host)
    machine.refresh("--force")
    assert '"name":"0"' in spec_of(machine).read_text()


def test_one_that_is_killed_before_it_takes_the_spec_away_is_followed_by_one_that_does(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the snapshot is true then."""
    host = machine.build(1)
    machine.refreshed()
    before = spec_of(machine).read_bytes()
    host.half_upgrade("550.54.14")
    machine.refresh("--force")
    spec_of(machine).write_bytes(before)
    record = Path(machine.state, "specs")
    record.write_text(json.dumps({str(spec_of(machine)): [hashlib.sha256(before).hexdigest()]}))
    inode = os.stat(f"{machine.state}/inventory.json").st_ino
    machine.refresh()
    assert os.stat(f"{machine.state}/inventory.json").st_ino == inode
    assert not spec_of(machine).exists()


def test_the_device_plugin_is_told_before_the_spec_goes(machine: Machine) -> None:
    """It says at its third answer that its devices are unhealthy; the snapshot was there at the first."""
    machine.build(1)
    machine.refreshed()
    seen: list[tuple[bool, bool]] = []

    def answer(asked: int) -> bytes:
        seen.append((bool(machine.saved()["error"]), spec_of(machine).exists()))
        devices = [{"healthy": asked < 3}, {"healthy": False}]
        return json.dumps({"resources": [{"devices": devices}]}).encode() + b"\n"

    shutil.rmtree(f"{machine.root}/proc/driver/nvidia")
    with fake_plugin.plugin(Path(machine.state), answer):
        machine.refresh("--force")
    assert seen == [(True, True)] * 3
    assert not spec_of(machine).exists()


def test_half_upgraded_driver_without_nvml(machine: Machine) -> None:
    """The versions of libcuda tell it too."""
    host = machine.build(1)
    for name in os.listdir(host.lib_path):
        if name.startswith("libnvidia-ml"):
            os.unlink(f"{host.lib_path}/{name}")
    host.half_upgrade("550.54.14")
    code, said = machine.refresh()
    assert (code, "its libraries are 535.183.01" in said) == (DRIVER, True)


def test_mismatch_that_only_nvml_sees(machine: Machine) -> None:
    machine.build(1).behave(fail=18)
    code, said = machine.refresh()
    assert code == DRIVER
    assert "its libraries are of another version" in said


def test_old_libraries_beside_the_new_ones_do_not_matter(machine: Machine) -> None:
    machine.build(1, driver="525.60.13")
    machine.build(1, driver="535.183.01")
    snapshot = machine.refreshed()
    assert snapshot["source"] == "nvml"
    paths = [file["path"] for group in snapshot["files"].values() for file in group]
    assert not [path for path in paths if "525" in path]


def test_separate_dev_root(machine: Machine) -> None:
    dev_root = machine.folder / "devices"
    machine.build(2, f'dev-root = "{dev_root}"\n', dev_root=str(dev_root), node_mode=0o660, node_gid=44)
    snapshot = machine.refreshed()
    assert snapshot["driver"]["dev-root"] == str(dev_root)
    assert snapshot["nodes"]["/dev/nvidia0"] == [195, 0, 0o660, 0, 44]
    assert f"{dev_root}/dev/nvidia0" in snapshot["inputs"]["nodes"]


def test_hanging_nvml_ends_at_the_deadline(machine: Machine) -> None:
    machine.build(1, "[refresh]\ndeadline-seconds = 1\n").behave(hang=True)
    started = time.monotonic()
    code, said = machine.refresh()
    assert code == INVENTORY
    assert "waited 1 s for NVML to initialise and gave up" in said
    assert "persistence mode" in said
    assert time.monotonic() - started < 15
    assert not Path(machine.state, "inventory.json").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", "GPU 3 to answer NVML"),
        (
            "[requests]\nlist-devices-in-refusals = false\n",
            "the driver to answer (`gpushim list` on the host says for which GPU)",
        ),
    ],
)
def test_what_others_are_told_of_a_wait(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, more: str, words: str
) -> None:
    """It ends up in the refusal of a create, and so with whoever started the container."""
    told = []

    def survey(_config: str, _settings: Any, waiting: Callable[[str], None], *_: Any) -> None:
        waiting("GPU 3 to answer NVML")
        told.append(Path(machine.state, "lock").read_text())
        raise GpushimError("enough", INVENTORY)

    machine.build(1, more)
    monkeypatch.setattr("gpushim.inventory.survey.survey", survey)
    monkeypatch.setitem(posix.environ, b"GPUSHIM_CONFIG", machine.config.encode())
    monkeypatch.setitem(posix.environ, b"GPUSHIM_STATE", machine.state.encode())
    with pytest.raises(GpushimError, match="enough"):
        refresh.refresh(load=False)
    assert told == [words]


def test_lock_that_is_held_ends_at_the_deadline(machine: Machine) -> None:
    machine.build(1, "[refresh]\ndeadline-seconds = 1\n")
    os.mkdir(machine.state)
    with open(f"{machine.state}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, said = machine.refresh()
    assert code == INVENTORY
    assert f"for another refresh, which holds {machine.state}/lock" in said


def test_two_at_once_look_once(machine: Machine) -> None:
    machine.build(1).behave(delay_ms=700)
    both = [machine.start(), machine.start()]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("GPUs and" in text for text in said) == 1


def test_log_is_json_lines(machine: Machine) -> None:
    machine.build(1).behave(fail=999)
    _, said = machine.refresh()
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "info"]
    assert "MIG instances are not listed" in lines[0]["msg"]


def test_log_as_text(machine: Machine) -> None:
    machine.build(1, '[log]\nformat = "text"\n')
    _, said = machine.refresh()
    assert said == "gpushim: INFO: 1 GPUs and 0 MIG instances listed\n"


def test_system_python_reads_the_host_too(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.build(2)
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    machine.refresh()
    snapshot = machine.saved()
    assert [gpu["index"] for gpu in snapshot["gpus"]] == [0, 1]
    assert ensure.read(machine.config, machine.state) == snapshot
