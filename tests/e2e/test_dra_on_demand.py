"""MIG instances that are made for claims: on a node whose NVML is simulated, and whatever ends the process.

kubelet and the half at the API server are the test's.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from e2e.boots import OTHER
from e2e.dranode import PROGRAM, Driver, becomes
from e2e.on_demand_node import Node, on_demand
from e2e.plugins import environment


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with on_demand(tmp_path_factory.mktemp("on-demand") / "root", 2) as found:
        becomes(found.driver, found.names)
        yield found


@pytest.fixture(autouse=True)
def _nothing_is_left(node: Node) -> Iterator[None]:
    """Have each test begin and end with nothing that was made."""
    yield
    uids = [*node.driver.claims]
    node.driver.claims.clear()
    node.driver.unprepare(*uids)
    becomes(node.driver, lambda: not node.instances())


def test_an_instance_is_made_for_a_claim_and_removed_with_it(node: Node) -> None:
    """What is published is the same all the while."""
    published, name = node.names(), node.name(1, "2g.10gb", 4)
    assert published.index(node.name(0, "1g.5gb", 6)) < published.index(node.name(0, "7g.40gb", 0))
    assert node.host.gpus[2].uuid.lower() in published
    assert node.prepare("a", name) == node.uuids(1)
    assert node.instances() == [(1, "2g.10gb", "4:2")]
    assert node.prepare("a", name) == node.uuids(1)
    assert node.driver.unprepare("a") == {"a": ""}
    assert (node.instances(), node.names()) == ([], published)


def test_check_lists_what_is_published(node: Node) -> None:
    """A line for each profile of a GPU, with the claims that have one."""
    name = node.name(0, "1g.5gb", 6)
    node.prepare("a", name)
    words = [str(PROGRAM), "--check", node.flag, f"--kubelet-dir={node.driver.folder}"]
    done = subprocess.run(
        words, env=environment(node.driver.env), capture_output=True, text=True, check=False, timeout=60
    )
    count = len(node.names())
    assert f"gpu.nvidia.com: {count} of {count} can be given out" in done.stdout, done
    (row,) = (line for line in done.stdout.splitlines() if line.startswith(f"{name.rpartition('-')[0]}-*"))
    assert "-*, placements: 7 " in row
    assert "claim d/c-a (at 6)" in row


def test_many_are_asked_for_at_once(node: Node) -> None:
    wanted = {f"{index}-{start}": node.name(index, "1g.5gb", start) for index in (0, 1) for start in range(7)}
    for uid, name in wanted.items():
        node.driver.allocate(uid, name)
    answers = node.driver.prepare(*wanted)
    given = [row["cdi_device_ids"][0] for rows in answers.values() for row in rows]
    assert sorted(given) == sorted(node.uuids(0) + node.uuids(1))
    assert len(given) == len(wanted)
    node.driver.unprepare(*wanted)
    assert node.instances() == []


@pytest.mark.parametrize(
    "function", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]
)
def test_nothing_is_left_of_what_nvml_refuses(node: Node, function: str) -> None:
    node.host.lack(function, code=23)
    name = node.name(0, "3g.20gb", 4)
    assert f"{name}: NVML refuses" in node.prepare("a", name)
    assert node.instances() == []
    node.host.lack()
    assert node.prepare("b", name) == node.uuids()


def _try(driver: Driver, uid: str) -> None:
    """Have a claim prepared by a driver that may end meanwhile."""
    with contextlib.suppress(grpc.RpcError):
        driver.prepare(uid)


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_was_made_is_known_after_a_kill(node: Node, goes_on: bool) -> None:
    """Whether kubelet asks for the claim again or gives it back."""
    name = node.name(0, "2g.10gb", 2)
    node.driver.allocate("a", name)
    node.refresh.send_signal(signal.SIGSTOP)
    thread = threading.Thread(target=_try, args=(node.driver, "a"))
    thread.start()
    becomes(node.driver, node.instances)
    node.driver.stop(signal.SIGKILL)
    thread.join()
    node.refresh.send_signal(signal.SIGCONT)
    node.driver.start(node.flag)
    node.driver.register()
    becomes(node.driver, lambda: name in node.names())
    if goes_on:
        assert node.prepare("a", name) == node.uuids()
        assert node.instances() == [(0, "2g.10gb", "2:2")]
    node.driver.unprepare("a")
    becomes(node.driver, lambda: node.instances() == [])
    assert name in node.names()


def test_what_is_given_stays_over_a_restart(node: Node) -> None:
    published, name = node.names(), node.name(0, "1g.5gb", 6)
    before = node.prepare("a", name)
    node.restart()
    assert node.names() == published
    assert node.prepare("a", name) == before
    node.driver.unprepare("a")
    assert node.instances() == []


@pytest.mark.parametrize("is_taken", [False, True])
def test_after_a_boot_it_is_made_anew_and_nobody_elses_is_taken_for_it(node: Node, is_taken: bool) -> None:
    name = node.name(0, "3g.20gb", 4)
    assert node.prepare("a", name) == node.uuids()
    node.driver.stop(signal.SIGKILL)
    record = Path(node.driver.env["GPUSHIM_STATE"], "device-plugin/allocations.json")
    record.write_text(re.sub('"boot":"[^"]*"', f'"boot":"{OTHER}"', record.read_text()))
    node.host.set_mig(0, ["3g.20gb"] * (2 * is_taken))
    others = node.uuids()
    node.driver.start(node.flag)
    node.driver.register()
    if is_taken:
        becomes(node.driver, lambda: {cdi.rpartition("=")[2].lower() for cdi in others} <= {*node.names()})
        assert f"this node no longer has {name}" in node.prepare("a", name)
    else:
        becomes(node.driver, lambda: name in node.names())
        assert node.prepare("a", name) == node.uuids()
    node.driver.unprepare("a")
    assert node.uuids() == others
    node.host.set_mig(0, [])
    becomes(node.driver, lambda: name in node.names())


def test_an_instance_in_use_is_removed_when_its_process_has_ended(node: Node) -> None:
    """Until then nobody else gets it."""
    name = node.name(0, "1g.5gb", 6)
    cdi = node.prepare("a", name)[0]
    process = subprocess.Popen(["/bin/sleep", "inf"])
    try:
        node.host.use(cdi.rpartition("=")[2], process.pid)
        assert node.driver.unprepare("a") == {"a": ""}
        becomes(node.driver, lambda: node.taints() == {name: "problem"})
        assert "claim d/c-a has it" in node.prepare("b", name)
    finally:
        process.kill()
        process.wait()
    becomes(node.driver, lambda: node.instances() == [])
    becomes(node.driver, lambda: node.taints() == {})
    assert node.prepare("b", name) == node.uuids()


def test_what_somebody_else_made_is_published_as_it_is_and_stays(node: Node) -> None:
    published = node.names()
    node.host.set_mig(0, ["3g.20gb"])
    (mig,) = node.host.gpus[0].mig
    becomes(node.driver, lambda: mig.uuid.lower() in node.names())
    lost = {name for name in published if name not in node.names()}
    assert node.name(0, "7g.40gb", 0) in lost
    assert not any(name.startswith(f"mig-{node.host.gpus[1].uuid[4:]}") for name in lost)
    assert node.prepare("a", mig.uuid.lower()) == [f"nvidia.com/gpu={mig.uuid}"]
    node.driver.unprepare("a")
    node.restart()
    assert mig.uuid.lower() in node.names()
    assert node.uuids() == [f"nvidia.com/gpu={mig.uuid}"]
    node.host.set_mig(0, [])
    becomes(node.driver, lambda: node.names() == published)


def test_what_somebody_else_has_just_made_is_not_taken(node: Node) -> None:
    """Though it is what a claim is to get, and the driver has not seen it yet."""
    name = node.name(0, "3g.20gb", 0)
    node.refresh.send_signal(signal.SIGSTOP)
    try:
        node.host.set_mig(0, ["3g.20gb"])
        assert f"{name}: somebody else has made it" in node.prepare("a", name)
        node.driver.unprepare("a")
        assert len(node.uuids()) == 1
    finally:
        node.refresh.send_signal(signal.SIGCONT)
        node.host.set_mig(0, [])
    becomes(node.driver, lambda: name in node.names())
