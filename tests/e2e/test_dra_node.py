"""The DRA driver on a node: what it wants published, and what it gives to claims, whatever happens to it.

The GPUs are simulated, and kubelet and the half at the API server are the test's: their timing is in its hand.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.dranode import DRIVER, OTHER, Driver, becomes, cdi, driver, env, folder, host, name, refresh
from fakehost import Host
from gpuplugin.kubelet import dra
from gpushim.ground import system

__all__ = ["env", "folder", "host"]


@pytest.fixture
def one(env: dict[str, str], folder: Path) -> Iterator[Driver]:
    """A driver that is registered and has published."""
    with driver(folder, env) as found:
        becomes(found, lambda: found.devices())
        yield found


def test_it_tells_kubelet_what_it_is(one: Driver) -> None:
    info = one.register()
    assert (info["type"], info["name"], info["versions"]) == ("DRAPlugin", DRIVER, [*dra.VERSIONS])
    assert Path(info["endpoint"]).parent == one.folder / "plugins" / DRIVER


def test_nothing_is_published_before_kubelet_has_it(env: dict[str, str], folder: Path) -> None:
    found = Driver(folder, env)
    found.start()
    assert found.pools == [None]
    found.register()
    becomes(found, lambda: found.devices())
    found.stop()


def test_all_that_there_is(one: Driver, host: Host) -> None:
    assert one.devices().keys() == {gpu.uuid for gpu in host.gpus[1:]} | {mig.uuid for mig in host.gpus[0].mig}


@pytest.mark.parametrize("version", [0, 1])
def test_a_claim_gets_the_names_of_its_devices(one: Driver, host: Host, version: int) -> None:
    gpu, mig = host.gpus[1], host.gpus[0].mig[0]
    one.allocate("a", name(gpu.uuid), name(mig.uuid))
    found = one.prepare("a", version=version)["a"]
    assert [(row["device_name"], row["cdi_device_ids"]) for row in found] == [
        (name(uuid), cdi(uuid)) for uuid in (gpu.uuid, mig.uuid)
    ]
    assert {(row["pool_name"], *row["request_names"]) for row in found} == {("node", "r")}


def test_one_of_several_claims_fails_alone(one: Driver, host: Host) -> None:
    one.allocate("a", name(host.gpus[1].uuid))
    one.allocate("b", OTHER)
    found = one.prepare("a", "b", "unknown")
    assert found["a"][0]["cdi_device_ids"] == cdi(host.gpus[1].uuid)
    assert found["b"] == f"this node no longer has {OTHER}, of claim d/c-b"
    assert found["unknown"] == "the API server no longer has the claim d/c-unknown of this pod"


@pytest.mark.parametrize("levels", [100, 976, 5000])
def test_a_claim_that_is_deep_fails_alone(one: Driver, host: Host, levels: int) -> None:
    one.allocate("b", name(host.gpus[1].uuid))
    one.claims["a"] = '{"metadata": {"uid": "a"}, "status": {"allocation": ' + "[" * levels + "]" * levels + "}}"
    found = one.prepare("a", "b")
    assert found["a"] == "what the other container says is not understood"
    assert found["b"][0]["cdi_device_ids"] == cdi(host.gpus[1].uuid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_claim_has_stays_its_own_over_a_restart(one: Driver, host: Host, number: int) -> None:
    one.allocate("a", name(host.gpus[1].uuid))
    one.allocate("b", name(host.gpus[1].uuid))
    before = one.prepare("a")
    one.stop(number)
    one.start()
    one.register()
    assert one.prepare("a") == before
    assert one.prepare("b")["b"].startswith(
        f"claim d/c-b cannot have {host.gpus[1].uuid} yet: claim d/c-a of gpu.nvidia.com has it"
    )
    assert one.unprepare("a", "a", "never") == {"a": "", "never": ""}
    assert one.prepare("b")["b"][0]["cdi_device_ids"] == cdi(host.gpus[1].uuid)


def test_an_administrators_claim_is_beside_others(one: Driver, host: Host) -> None:
    one.allocate("a", name(host.gpus[1].uuid))
    one.allocate("admin", name(host.gpus[1].uuid), adminAccess=True)
    for uid in ("a", "admin"):
        assert one.prepare(uid)[uid][0]["cdi_device_ids"] == cdi(host.gpus[1].uuid)


def test_an_xid_taints_its_gpu_until_it_is_over(one: Driver, host: Host, env: dict[str, str]) -> None:
    sick = host.gpus[1]

    def tainted() -> bool:
        return one.taints() == {sick.uuid: {"xid": "79"}}

    def strikes() -> bool:
        host.xid(sick.index, 79)  # again: an NVML that has just begun hears none of before
        return tainted()

    becomes(one, strikes)
    kept = Path(env["GPUSHIM_STATE"], "device-plugin/health.json")
    becomes(one, lambda: '"xid 79' in kept.read_text())
    one.stop(signal.SIGKILL)
    one.start()
    one.register()
    becomes(one, tainted)
    host.modify = not host.modify  # a module with other parameters is another one
    host.update()
    refresh(env)
    becomes(one, lambda: one.taints() == {})


def test_sockets_that_are_gone_are_made_again(one: Driver) -> None:
    os.rename(one.folder / "plugins", one.folder / "gone")  # at once: the driver would make some again meanwhile
    os.unlink(one.registration())
    becomes(one, lambda: one.pools[-1] is None, 5)
    becomes(one, lambda: one.registration() and Path(one.endpoint()).exists(), 5)
    one.register()
    becomes(one, lambda: one.devices())


def test_a_socket_of_a_killed_one_is_swept(one: Driver) -> None:
    before = one.registration()
    one.stop(signal.SIGKILL)
    assert Path(before).exists()
    one.start()
    becomes(one, lambda: not Path(before).exists())


def test_its_end_leaves_slices_and_takes_its_sockets(one: Driver) -> None:
    count = len(one.pools)
    one.stop()
    assert (one.registration(), len(one.pools)) == ("", count)


def test_a_gpu_that_comes_and_goes_is_followed(one: Driver, host: Host, env: dict[str, str]) -> None:
    """Without a restart; what a claim has is not forgotten."""
    mig = host.gpus[0].mig[1]
    one.allocate("a", name(mig.uuid))
    assert one.prepare("a")["a"][0]["cdi_device_ids"] == cdi(mig.uuid)
    kept = host.gpus[0].mig
    host.gpus[0].mig = kept[:1]
    host.update()
    try:
        refresh(env, "--force")
        becomes(one, lambda: mig.uuid not in one.devices(), 10)
        assert one.prepare("a")["a"].startswith("this node no longer has")
    finally:
        host.gpus[0].mig = kept
        host.update()
        refresh(env, "--force")
    becomes(one, lambda: mig.uuid in one.devices(), 10)
    one.allocate("b", name(mig.uuid))
    assert "claim d/c-a of gpu.nvidia.com has it" in one.prepare("b")["b"]


def test_a_gpu_that_is_lost_is_given_when_it_is_found(one: Driver, host: Host, env: dict[str, str]) -> None:
    """The scheduler may have chosen it before, or the claim tolerates its taint; no CDI spec has it meanwhile."""
    sick = host.gpus[1]
    one.allocate("a", name(sick.uuid))
    host.lose(sick.index)
    try:
        refresh(env, "--force", check=False)
        becomes(one, lambda: f"{name(sick.uuid)} of claim d/c-a cannot be used: GPU 1 " in str(one.prepare("a")["a"]))
    finally:
        host.find(sick.index)
        refresh(env, "--force")
    becomes(one, lambda: isinstance(one.prepare("a")["a"], list))
    assert one.prepare("a")["a"][0]["cdi_device_ids"] == cdi(sick.uuid)


@pytest.mark.parametrize("device", ["GPU", "MIG instance"])
def test_a_device_that_comes_after_a_boot_is_its_claims(
    one: Driver, host: Host, env: dict[str, str], device: str
) -> None:
    """As an instance that a unit makes at boot, later than this driver starts; and while somebody has the record.

    Until then nobody gets an instance that has been made in its place: both have the same device nodes.
    """
    gpus, parts, record = host.gpus, host.gpus[0].mig, Path(env["GPUSHIM_STATE"], "device-plugin/allocations.json")
    uuid = gpus[-1].uuid if device == "GPU" else parts[1].uuid
    other = replace(parts[1], uuid="MIG-00000000-0000-4000-8000-000000000000")
    one.allocate("a", name(uuid))
    before = one.prepare("a")
    assert before["a"][0]["cdi_device_ids"] == cdi(uuid)
    one.stop()
    record.write_text(record.read_text().replace(system.boot() or "", "another boot"))
    if device == "GPU":
        host.gpus = gpus[:-1]
    else:
        gpus[0].mig = [parts[0], other]
    host.update()
    try:
        refresh(env, "--force")
        with record.with_suffix(".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            one.start()
            one.register()
            becomes(one, lambda: "allocations.lock is held by" in one.log.read_text())
        becomes(one, lambda: one.devices())
        if device == "MIG instance":
            one.allocate("b", name(other.uuid))
            assert f"claim d/c-a of gpu.nvidia.com has {uuid}" in one.prepare("b")["b"]
        one.allocate("c", name(parts[0].uuid))
        assert one.prepare("c")["c"][0]["cdi_device_ids"] == cdi(parts[0].uuid)
    finally:
        host.gpus, gpus[0].mig = gpus, parts
        host.update()
        refresh(env, "--force")
    becomes(one, lambda: uuid in one.devices(), 10)
    one.allocate("d", name(uuid))
    assert "claim d/c-a of gpu.nvidia.com has it" in one.prepare("d")["d"]
    assert one.prepare("a") == before


def test_what_engines_would_not_find_is_not_published(one: Driver, host: Host, env: dict[str, str]) -> None:
    """Without the CDI spec no container of a claim could start."""
    before, spec = one.devices(), Path(env["GPUSHIM_STATE"], "cdi/nvidia.com-gpu.json")
    text = spec.read_text()
    gone = host.gpus[1].uuid
    spec.write_text(text.replace(f'"{gone}"', '"other"'))
    one.stop()
    one.start()
    one.register()
    becomes(one, lambda: one.devices() == {uuid: row for uuid, row in before.items() if uuid != gone})
    becomes(one, lambda: f"does not have, such as {gone}: under [cdi]" in one.log.read_text())
    spec.write_text(text)
    becomes(one, lambda: one.devices() == before)
