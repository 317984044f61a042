"""What containers of a claim share: time slices and MPS, over kills and boots of all that takes part.

The GPUs and MPS's daemon are simulated; kubelet, the half at the API server and the node's units are the test's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from e2e.dranode import DRIVER, Driver, becomes, cdi, driver, folder, host, name, refresh
from e2e.nodeunits import Units
from e2e.witness import settings
from fakehost import Host
from fakehost.gpus import Gpu

__all__ = ["folder", "host"]
DEFAULT, PROHIBITED, EXCLUSIVE = 0, 2, 3
SHORT, LONG = 1, 3
ONE, TWO = (str(uuid.UUID(int=number, version=4)) for number in (1, 2))


@pytest.fixture
def env(host: Host, folder: Path) -> dict[str, str]:
    """Settings for that host, whose GPUs are listed, and are as after a boot."""
    for what in ("compute-mode", "time-slice"):
        for gpu in host.gpus:
            kept(host, what, gpu).unlink(missing_ok=True)
    found = settings(folder, host.root)
    refresh(found)
    return found


@pytest.fixture
def units(env: dict[str, str], folder: Path) -> Iterator[Units]:
    """The node, which starts units."""
    with Units(env, folder / "units.log") as found:
        yield found


@pytest.fixture
def one(env: dict[str, str], folder: Path, units: Units) -> Iterator[Driver]:
    """A driver that is registered and has published."""
    with driver(folder, env) as found:
        becomes(found, lambda: found.devices())
        yield found


def kept(host: Host, what: str, gpu: Gpu) -> Path:
    """Return the file in which the simulated driver keeps something of a GPU."""
    return Path(f"{host.root}/usr/lib/fakehost/{what}-{gpu.uuid}")


def mode(host: Host, index: int) -> int:
    """Return a GPU's compute mode."""
    path = kept(host, "compute-mode", host.gpus[index])
    return int(path.read_text()) if path.exists() else DEFAULT


def time_slice(host: Host, index: int) -> int:
    """Return a GPU's time slice."""
    path = kept(host, "time-slice", host.gpus[index])
    return int(path.read_text()) if path.exists() else DEFAULT


def sharing(one: Driver, uid: str, strategy: str, *devices: str, kind: str = "GpuConfig", **more: Any) -> None:
    """Have the API server have a claim that shares its devices in a way."""
    admin = {"adminAccess": True} if more.pop("admin", False) else {}
    one.allocate(uid, *devices, **admin)
    key = {"MPS": "mpsConfig", "TimeSlicing": "timeSlicingConfig"}[strategy]
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": kind,
        "sharing": {"strategy": strategy, **({key: more} if more else {})},
    }
    rows = [{"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": parameters}}]
    one.claims[uid]["status"]["allocation"]["devices"]["config"] = rows


def group(uid: str, number: int = 0) -> str:
    """Return the name of a claim's group."""
    return f"claim-{uid}-{number}"


def spec(env: dict[str, str], uid: str) -> Path:
    """Return where a claim's CDI spec is."""
    return Path(env["GPUSHIM_STATE"], f"cdi/gpushim-claim-{uid}.json")


def ids(found: Any) -> list[list[str]]:
    """Return the CDI names of a claim's devices; of a refusal, that."""
    assert isinstance(found, list), found
    return [row["cdi_device_ids"] for row in found]


def test_a_time_slice_is_set_and_put_back(one: Driver, host: Host, units: Units, env: dict[str, str]) -> None:
    kept(host, "time-slice", host.gpus[1]).write_text(f"{SHORT}\n")
    sharing(one, ONE, "TimeSlicing", *(name(gpu.uuid) for gpu in host.gpus[1:]), interval="Long")
    first = one.prepare(ONE)
    assert ids(first[ONE]) == [
        [*cdi(host.gpus[1].uuid), f"gpushim/claim={group(ONE)}"],
        cdi(host.gpus[2].uuid),
    ]
    assert [time_slice(host, index) for index in (1, 2)] == [LONG, LONG]
    assert one.prepare(ONE) == first
    assert one.unprepare(ONE) == {ONE: ""}
    assert [time_slice(host, index) for index in (1, 2)] == [SHORT, DEFAULT]
    assert (units.groups(), spec(env, ONE).exists()) == ([], False)


def test_two_claims_have_a_daemon_each_with_their_limits(
    one: Driver, host: Host, units: Units, env: dict[str, str]
) -> None:
    kept(host, "compute-mode", host.gpus[1]).write_text(f"{PROHIBITED}\n")
    limits = {"0": "4Gi"}
    sharing(one, ONE, "MPS", name(host.gpus[1].uuid), defaultActiveThreadPercentage=50,
            defaultPinnedDeviceMemoryLimit="10Gi")  # fmt: skip
    sharing(one, TWO, "MPS", name(host.gpus[2].uuid), defaultPerDevicePinnedMemoryLimit=limits)
    found = one.prepare(ONE, TWO)
    for uid, index in ((ONE, 1), (TWO, 2)):
        assert ids(found[uid]) == [[*cdi(host.gpus[index].uuid), f"gpushim/claim={group(uid)}"]]
        assert mode(host, index) == EXCLUSIVE
    assert units.told(group(ONE)) == [
        "set_default_active_thread_percentage 50",
        "set_default_device_pinned_mem_limit 0 10240M",
    ]
    assert units.told(group(TWO))[1:] == ["set_default_device_pinned_mem_limit 0 4096M"]
    (device,) = json.loads(spec(env, ONE).read_text())["devices"]
    pipes = f"/run/gpushim/mps/{group(ONE)}/pipe"
    assert device["containerEdits"]["env"] == [f"CUDA_MPS_PIPE_DIRECTORY={pipes}"]
    place = units.place(group(ONE))
    assert [(row["hostPath"], row["containerPath"]) for row in device["containerEdits"]["mounts"]] == [
        (place.pipe, pipes),
        (place.shm, "/dev/shm"),
    ]
    one.unprepare(ONE)
    assert (mode(host, 1), mode(host, 2), units.groups()) == (PROHIBITED, EXCLUSIVE, [group(TWO)])
    one.unprepare(TWO)
    assert (mode(host, 2), units.groups()) == (DEFAULT, [])


def test_mig_instances_have_daemons_of_their_own(one: Driver, host: Host, units: Units) -> None:
    large, small = host.gpus[0].mig
    sharing(one, ONE, "MPS", name(small.uuid), kind="MigDeviceConfig", defaultActiveThreadPercentage=25)
    assert ids(one.prepare(ONE)[ONE]) == [[*cdi(small.uuid), f"gpushim/claim={group(ONE)}"]]
    assert (units.told(group(ONE)), mode(host, 0)) == (["set_default_active_thread_percentage 25"], DEFAULT)
    one.unprepare(ONE)
    sharing(one, ONE, "MPS", name(small.uuid), name(large.uuid), kind="MigDeviceConfig")
    assert 'has several MPS daemons in the request "r", and a process can use one' in one.prepare(ONE)[ONE]
    assert units.groups() == []


def test_an_administrators_claim_changes_nothing(one: Driver, host: Host, units: Units, env: dict[str, str]) -> None:
    gpu = host.gpus[1]
    sharing(one, ONE, "TimeSlicing", name(gpu.uuid), interval="Long")
    sharing(one, TWO, "MPS", name(gpu.uuid), admin=True)
    one.prepare(ONE)
    assert ids(one.prepare(TWO)[TWO]) == [cdi(gpu.uuid)]
    assert (mode(host, 1), time_slice(host, 1), units.groups()) == (DEFAULT, LONG, [group(ONE)])
    one.unprepare(TWO)
    assert (time_slice(host, 1), spec(env, TWO).exists()) == (LONG, False)


def test_a_kill_while_it_waits_leaves_nothing_half(
    one: Driver, host: Host, units: Units, env: dict[str, str]
) -> None:
    """kubelet asks again for what it has no answer to; or takes it back, where the pod is gone."""
    units.held.set()
    sharing(one, ONE, "MPS", name(host.gpus[1].uuid))
    sharing(one, TWO, "MPS", name(host.gpus[2].uuid))

    def ask() -> None:
        with contextlib.suppress(grpc.RpcError):
            one.prepare(ONE, TWO)

    threading.Thread(target=ask, daemon=True).start()
    record = Path(env["GPUSHIM_STATE"], "device-plugin/allocations.json")
    becomes(one, lambda: record.exists() and group(ONE) in (text := record.read_text()) and group(TWO) in text)
    one.stop(signal.SIGKILL)
    assert not spec(env, ONE).exists()
    one.start()
    one.register()
    units.held.clear()
    assert ids(one.prepare(ONE)[ONE]) == [[*cdi(host.gpus[1].uuid), f"gpushim/claim={group(ONE)}"]]
    assert one.unprepare(TWO) == {TWO: ""}
    assert (mode(host, 1), mode(host, 2), units.groups()) == (EXCLUSIVE, DEFAULT, [group(ONE)])


def test_a_driver_that_is_away_takes_nothing_from_those_who_run(one: Driver, host: Host, units: Units) -> None:
    sharing(one, ONE, "MPS", name(host.gpus[1].uuid))
    before = one.prepare(ONE)
    daemon = units.daemon(group(ONE))
    one.stop(signal.SIGKILL)
    one.start()
    one.register()
    assert one.prepare(ONE) == before
    assert units.daemon(group(ONE)) == daemon
    assert one.unprepare(ONE) == {ONE: ""}
    assert (mode(host, 1), units.groups()) == (DEFAULT, [])


def test_two_instances_have_one_daemon_for_a_claim(
    one: Driver, host: Host, units: Units, env: dict[str, str], folder: Path
) -> None:
    """As in a rolling update: the one that stays takes back what the other has given."""
    sharing(one, ONE, "MPS", name(host.gpus[1].uuid))
    before = one.prepare(ONE)
    daemon = units.daemon(group(ONE))
    (folder / "2").mkdir()
    with driver(folder / "2", env) as second:
        becomes(second, lambda: second.devices())
        second.claims = one.claims
        assert second.prepare(ONE) == one.prepare(ONE) == before
        one.stop()
        assert (units.daemon(group(ONE)), spec(env, ONE).exists()) == (daemon, True)
        assert second.unprepare(ONE) == {ONE: ""}
    assert (mode(host, 1), units.groups(), spec(env, ONE).exists()) == (DEFAULT, [], False)


def test_a_driver_that_is_loaded_again_gets_its_time_slices(
    one: Driver, host: Host, units: Units, env: dict[str, str]
) -> None:
    sharing(one, ONE, "TimeSlicing", name(host.gpus[1].uuid), interval="Long")
    one.prepare(ONE)
    kept(host, "time-slice", host.gpus[1]).unlink()
    host.modify = not host.modify  # a module with other parameters is another one
    host.update()
    refresh(env)
    becomes(one, lambda: time_slice(host, 1) == LONG)
    one.unprepare(ONE)
    assert time_slice(host, 1) == DEFAULT


def test_what_is_left_of_claims_that_are_no_more_goes(
    one: Driver, host: Host, units: Units, env: dict[str, str]
) -> None:
    """As where another version, which knows nothing of it, took the claim back; and all was killed."""
    sharing(one, ONE, "MPS", name(host.gpus[1].uuid))
    one.prepare(ONE)
    one.stop(signal.SIGKILL)
    units.running[group(ONE)].kill()
    units.running[group(ONE)].wait()
    record = Path(env["GPUSHIM_STATE"], "device-plugin/allocations.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "claims": {}}) + "\n")
    assert (mode(host, 1), spec(env, ONE).exists()) == (EXCLUSIVE, True)
    one.start()
    becomes(one, lambda: not spec(env, ONE).exists() and units.groups() == [])
    assert mode(host, 1) == DEFAULT


def test_all_of_it_is_there_again_after_a_boot(one: Driver, host: Host, units: Units, env: dict[str, str]) -> None:
    """Without a question of kubelet's; and no container can start before, for its CDI spec comes last."""
    sharing(one, ONE, "MPS", name(host.gpus[1].uuid), defaultActiveThreadPercentage=50)
    sharing(one, TWO, "TimeSlicing", name(host.gpus[2].uuid), interval="Long")
    one.prepare(ONE, TWO)
    written = spec(env, ONE).read_text()
    one.stop(signal.SIGKILL)
    units.held.set()
    units.crash()
    for each in (ONE, TWO):
        spec(env, each).unlink()
    for gpu in host.gpus:
        for what in ("compute-mode", "time-slice"):
            kept(host, what, gpu).unlink(missing_ok=True)
    one.start()
    one.register()
    becomes(one, lambda: group(ONE) in Path(env["GPUSHIM_STATE"], "device-plugin/wanted").read_text())
    assert not spec(env, ONE).exists()
    units.held.clear()
    becomes(one, lambda: spec(env, ONE).exists() and spec(env, TWO).exists())
    assert (mode(host, 1), time_slice(host, 2), spec(env, ONE).read_text()) == (EXCLUSIVE, LONG, written)
    assert units.told(group(ONE)) == ["set_default_active_thread_percentage 50"]
    one.unprepare(ONE, TWO)
    assert (mode(host, 1), time_slice(host, 2)) == (DEFAULT, DEFAULT)


def test_a_spec_that_vanishes_comes_back(one: Driver, host: Host, units: Units, env: dict[str, str]) -> None:
    sharing(one, ONE, "MPS", name(host.gpus[1].uuid))
    one.prepare(ONE)
    spec(env, ONE).unlink()
    becomes(one, lambda: spec(env, ONE).exists())


def test_no_container_starts_beside_a_daemon_that_has_died(
    one: Driver, host: Host, units: Units, env: dict[str, str]
) -> None:
    sharing(one, ONE, "MPS", name(host.gpus[1].uuid))
    one.prepare(ONE)
    first = units.daemon(group(ONE))
    units.held.set()
    os.killpg(first, signal.SIGKILL)
    becomes(one, lambda: not spec(env, ONE).exists())
    units.held.clear()
    becomes(one, lambda: spec(env, ONE).exists())
    assert (units.daemon(group(ONE)) != first, mode(host, 1)) == (True, EXCLUSIVE)


def test_what_the_node_cannot_do_is_said(one: Driver, host: Host, units: Units) -> None:
    (none := Path(f"{host.root}/usr/lib/fakehost/no-time-slices")).touch()
    try:
        sharing(one, ONE, "TimeSlicing", name(host.gpus[1].uuid), interval="Short")
        said = one.prepare(ONE)[ONE]
        assert said.startswith(f"claim d/c-{ONE} waits for what its containers share: the unit of {group(ONE)} has")
        assert f"nvidia-smi does not set the time slice of {host.gpus[1].uuid}: " in said
    finally:
        none.unlink()
    assert one.unprepare(ONE) == {ONE: ""}
    assert units.groups() == []


def test_without_its_program_no_claim_gets_mps(one: Driver, host: Host, units: Units, env: dict[str, str]) -> None:
    program = Path(f"{host.root}/usr/bin/nvidia-cuda-mps-control")
    program.rename(aside := program.with_suffix(".aside"))
    try:
        refresh(env, "--force")
        sharing(one, ONE, "MPS", name(host.gpus[1].uuid))
        becomes(one, lambda: "there is no nvidia-cuda-mps-control below" in str(one.prepare(ONE)[ONE]))
        assert one.unprepare(ONE) == {ONE: ""}
    finally:
        aside.rename(program)
        refresh(env, "--force")
