"""What becomes of claims that end while nobody says so, and what kubelet's list is believed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.dra import offered, partitions, shared, upkeep
from gpuplugin.dra.claim import Claim, Result
from gpuplugin.dra.prepare import Claims
from gpuplugin.kubelet import cgroups, podresources
from gpuplugin.mps import mps
from gpuplugin.processes import moments
from gpuplugin.record.kubelet_watch import YOUNG
from gpuplugin.record.record_form import CONFIRMED, LOST
from gpuplugin.record.transitions import claims_by_uuid, find_lost_claims
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.mig.fit import Profile
from unit.gpuplugin.dra.claimed_node import KIND, NODE, Node
from unit.gpuplugin.dra.claimed_node import node as node
from unit.gpuplugin.record import rows
from unit.gpuplugin.snapshots import gpu, snapshot, uuid

if TYPE_CHECKING:
    from gpuplugin.kubelet.podresources import Listed
    from gpuplugin.record import record_form


ENDED: dict[str, tuple[str, ...] | None] = {"not allocated": None, "allocated otherwise": ("gpu-1",)}


@pytest.mark.parametrize("now", ENDED.values(), ids=ENDED)
def test_a_claim_that_has_nothing_here_any_more_keeps_nothing(node: Node, now: tuple[str, ...] | None) -> None:
    """It is the same claim all the while, as one with a name of its own is: kubelet has forgotten to give it back."""

    async def story() -> None:
        node.claims["a"] = ("gpu-0",)
        assert (await node.prepare("a"))[0]["device_name"] == "gpu-0"
        await node.later(120)
        assert node.recorded == ["a"]
        node.claims["a"] = now
        await node.later(60)
        assert not node.recorded

    asyncio.run(story())


@pytest.mark.parametrize("beside", [False, True])
def test_what_pods_have_is_followed_by_a_device_plugin_of_this_process(
    node: Node, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Both asking would cost twice as much; where there is none, the driver asks."""
    reconcile = AsyncMock()
    monkeypatch.setattr(node.watch, "reconcile", reconcile)
    node.watch.repeat = print if beside else None
    with node.file.locked():
        node.file.write(rows.record(allocations={"r i": rows.allocation()}, boot=system.boot()))
    asyncio.run(node.driver._upkeep.look())
    assert reconcile.await_count == (not beside)


def test_a_config_for_another_driver_is_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.claims["a"], node.configs = ("gpu-0",), [{"opaque": {"driver": "gpu.nvidia.co", "parameters": {}}}]
    with caplog.at_level("INFO"):
        assert isinstance(asyncio.run(node.prepare("a")), list)
    words = "claim d/a: a config is for the driver gpu.nvidia.co, which is not this one; is gpu.nvidia.com meant?"
    assert words in caplog.messages


def test_a_claim_that_is_gone_is_taken_back_but_not_while_containers_may_still_end(node: Node) -> None:
    async def story() -> None:
        node.claims["a"], node.listed = ("gpu-0",), [("a", "gpu-0")]
        await node.prepare("a")
        node.claims.clear()
        await node.later(120)
        assert node.recorded == ["a"]
        node.listed.clear()
        await node.later(upkeep.ENDED - moments.EACH)
        assert node.recorded == ["a"]
        await node.later(60 - upkeep.ENDED)
        assert not node.recorded

    asyncio.run(story())


@pytest.mark.parametrize("by", ["kubelet", "the API server"])
@pytest.mark.parametrize("pod", ["first", "joined"])
def test_a_claim_has_its_gpu_while_a_process_of_its_pods_is_left(node: Node, by: str, pod: str) -> None:
    """As of a pod that was deleted by force and hangs in the kernel: kubelet has it unprepared a minute later."""

    async def story() -> None:
        node.claims["a"], node.users, node.listed = ("gpu-0",), ["first"], [("a", "gpu-0")]
        await node.prepare("a")
        if pod == "joined":  # of whom kubelet tells nobody
            node.users.append("joined")
        await node.later(moments.EACH)
        node.running, node.users, node.listed = {pod}, [], []
        node.claims = {"b": ("gpu-0",)}
        if by == "kubelet":
            await node.unprepare("a")
        await node.later(120)
        assert node.recorded == ["a"]
        assert node.driver.is_unreleased("a")
        assert [*find_lost_claims(node.record)] == [uuid(0)]
        assert find_lost_claims(node.record, node.driver.warned | {"b": "no"}) == {uuid(0): node.driver.warned["a"]}
        assert "claim d/a of " in await node.prepare("b")
        node.running = set()
        await node.later(moments.EACH)
        assert not find_lost_claims(node.record)
        assert (await node.prepare("b"))[0]["device_name"] == "gpu-0"

    asyncio.run(story())


def test_a_pods_name_that_comes_again_between_two_looks_is_another_pod(node: Node) -> None:
    """As a StatefulSet makes one anew, while another pod keeps the claim, which is not prepared again."""

    async def story() -> None:
        node.claims["a"], node.users, node.listed = ("gpu-0",), ["u-web-0", "u-web-1"], [("a", "gpu-0")]
        node.names = ["web-0", "web-1"]
        await node.prepare("a")
        await node.later(60)
        asked = len(node.asked)
        node.users = ["u-again", "u-web-1"]
        await node.later(60)
        assert len(node.asked) <= asked + 2  # of the API server, who serves all nodes
        node.running, node.users, node.listed, node.claims = {"u-again"}, [], [], {"b": ("gpu-0",)}
        await node.unprepare("a")
        await node.later(120)
        assert [*find_lost_claims(node.record)] == [uuid(0)]
        assert "claim d/a of " in await node.prepare("b")

    asyncio.run(story())


def test_a_claim_that_is_prepared_again_forgets_no_pod_that_hangs(node: Node) -> None:
    async def story() -> None:
        node.claims["a"], node.users, node.listed = ("gpu-0",), ["hangs"], [("a", "gpu-0")]
        await node.prepare("a")
        node.running, node.users = {"hangs"}, ["second"]
        assert (await node.prepare("a"))[0]["device_name"] == "gpu-0"
        node.users, node.listed, node.claims = [], [], {"b": ("gpu-0",)}
        await node.unprepare("a")
        await node.later(120)
        assert [*find_lost_claims(node.record)] == [uuid(0)]
        assert "claim d/a of " in await node.prepare("b")

    asyncio.run(story())


def test_a_claim_gets_no_other_gpu_while_a_process_has_the_one_before(node: Node) -> None:
    """As one with a name of its own, which the scheduler has allocated anew."""

    async def story() -> None:
        node.claims["a"], node.users = ("gpu-0",), ["hangs"]
        await node.prepare("a")
        node.running, node.users, node.claims["a"] = {"hangs"}, ["second"], ("gpu-1",)
        assert isinstance(await node.prepare("a"), str)
        assert [*claims_by_uuid(node.record)] == [uuid(0)]
        node.running = set()
        assert (await node.prepare("a"))[0]["device_name"] == "gpu-1"

    asyncio.run(story())


def test_a_claim_that_is_prepared_while_it_is_taken_back_stays(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        node.claims["a"], node.users = ("gpu-0",), ["first"]
        await node.prepare("a")
        left, looked = cgroups.find_running, False

        async def prepared_meanwhile(uids: frozenset[str]) -> frozenset[str]:
            nonlocal looked
            if not looked:
                looked = True
                await node.prepare("a")
                return frozenset(uids)
            return await left(uids)

        monkeypatch.setattr(cgroups, "find_running", prepared_meanwhile)
        await node.unprepare("a")
        assert not find_lost_claims(node.record)
        assert node.recorded == ["a"]

    asyncio.run(story())


def test_a_claim_that_another_instance_prepares_while_it_is_taken_back_here_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two in a rolling update; its pod has no process yet."""
    there = node.driver
    other = Claims(node.watch, node, NODE, lambda: node.offer, there._sharing, there._on_demand)  # type: ignore[arg-type]

    async def prepare_there(_: object) -> None:
        node.now += 1
        await other.prepare([{"uid": "a", "namespace": "d", "name": "a"}])

    async def story() -> None:
        node.claims["a"] = ("gpu-0",)
        await node.prepare("a")
        node.now += 1
        with monkeypatch.context() as patch:
            patch.setattr(node.driver._sharing, "end", prepare_there)
            await node.unprepare("a")
        assert node.recorded == ["a"]
        node.now += 1
        await node.unprepare("a")
        assert not node.recorded

    asyncio.run(story())


def test_what_kubelet_lists_counts_when_the_record_was_removed_meanwhile(node: Node) -> None:
    async def story() -> None:
        node.claims, node.pods = {"a": ("gpu-0",), "b": ("gpu-0",)}, ["pod d/agent"]
        await node.prepare("a")
        node.listed = [("a", "gpu-0")]
        await node.later(YOUNG + 2 * moments.EACH)
        Path(node.file.path).unlink()
        assert "claim d/a of " in await node.prepare("b")

    asyncio.run(story())


def test_a_pod_of_the_device_plugin_has_its_gpu_while_a_process_of_it_is_left(node: Node) -> None:
    given(node)
    node.checkpoint({uuid(0): "u-1"})

    async def story() -> None:
        node.claims["a"], node.pods, node.running = ("gpu-0",), ["pod d/x"], {"u-1"}
        await node.later(YOUNG + 2 * moments.EACH)
        node.checkpoint({})
        await node.later(30)
        assert "has it" in await node.prepare("a")
        node.running = set()
        assert isinstance(await node.prepare("a"), list)

    asyncio.run(story())


def test_a_claim_of_the_same_name_does_not_keep_the_one_before(node: Node) -> None:
    async def story() -> None:
        node.claims["old"] = ("gpu-0",)
        await node.prepare("old", "same")
        node.claims = {"new": ("gpu-1",)}
        await node.prepare("new", "same")
        node.listed = [("same", "gpu-1")]
        await node.later(60)
        assert node.recorded == ["new"]

    asyncio.run(story())


def test_what_cannot_be_written_is_taken_back_later(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server has the claim still, and it may go on; but not if it is prepared again meanwhile."""

    def full(*_: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    async def story() -> None:
        for again in (False, True):
            node.claims["a"] = ("gpu-0",)
            await node.prepare("a")
            with monkeypatch.context() as patch:
                patch.setattr("gpuplugin.record.allocations_file.replace", full)
                await node.unprepare("a")
            assert node.recorded == ["a"]
            if again:
                await node.prepare("a")
            monkeypatch.setattr(moments, "until", lambda: 0.0)
            keeping = asyncio.ensure_future(node.driver.keep())
            for _ in range(100):
                await asyncio.sleep(0)
            keeping.cancel()
            assert node.recorded == (["a"] if again else [])

    asyncio.run(story())


def test_a_claim_that_is_gone_is_asked_for_and_logged_once_while_it_is_taken_back(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def story() -> None:
        node.claims["a"] = ("gpu-0",)
        await node.prepare("a")
        node.claims.clear()
        node.asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(node.driver, "_release", lambda: asyncio.sleep(0))
            await node.later(200)
        assert node.recorded == node.asked == ["a"]
        await node.later(moments.EACH)
        assert not node.recorded

    asyncio.run(story())
    assert caplog.messages.count("claim d/a is gone from this node: its GPUs are taken back") == 1


def test_a_spec_that_cannot_be_removed_holds_up_no_pod(node: Node) -> None:
    """It is taken back later, as what cannot be written."""
    uid = "12345678-1234-4234-8234-123456789012"
    group = MpsGroup(f"claim-{uid}-0", (MpsGpu(uuid(0), 0, 0),), None, 100, False)
    spec = Path(shared._path(uid))

    async def story() -> None:
        node.claims[uid] = ("gpu-0",)
        await node.prepare(uid)
        node.share(uid, group)
        (spec / "in the way").mkdir(parents=True)
        await node.unprepare(uid)
        assert node.driver.is_unreleased(uid)
        (spec / "in the way").rmdir()
        spec.rmdir()
        await node.unprepare(uid)
        assert not node.recorded

    asyncio.run(story())


XID = {"key": f"{OWN_DRIVER}/xid", "value": "79", "effect": "NoSchedule"}
TOLERATED: dict[str, tuple[dict[str, Any], dict[str, str], bool]] = {
    "no toleration": ({}, XID, False),
    "of another taint": ({"tolerations": [{"key": f"{OWN_DRIVER}/ecc", "operator": "Exists"}]}, XID, False),
    "of it": ({"tolerations": [{"key": f"{OWN_DRIVER}/xid", "operator": "Exists"}]}, XID, True),
    "something else": ({"tolerations": ["x", None]}, XID, False),
    "an administrator who looks": ({"adminAccess": True}, XID, True),
    "a taint that only tells": ({}, {**XID, "effect": "None"}, True),
}


@pytest.mark.parametrize(("more", "taint", "given"), TOLERATED.values(), ids=TOLERATED)
def test_what_became_sick_since_its_allocation_is_refused_as_the_device_plugin_refuses_it(
    node: Node, more: dict[str, Any], taint: dict[str, str], given: bool
) -> None:
    node.offer = node.offer._replace(sick={uuid(0): [taint]}, sentences={uuid(0): "XID 79"})
    node.more, node.claims["a"], node.claims["b"] = more, ("gpu-0",), ("gpu-1",)
    answer = asyncio.run(node.prepare("a"))
    assert isinstance(answer, list) if given else answer == "gpu-0 of claim d/a is unhealthy: XID 79"
    assert isinstance(asyncio.run(node.prepare("b")), list)


def test_what_has_to_be_cut_while_a_slow_kubelet_is_asked_is_nobodys(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent cuts what the record has as nobody's seconds after it waits."""
    listed = podresources.listed

    async def slow(folder: str) -> Listed | None:
        taint = {"key": f"{OWN_DRIVER}/layout", "effect": "NoSchedule"}
        node.offer = node.offer._replace(sick={uuid(0): [taint]}, sentences={uuid(0): "it waits"})
        return await listed(folder)

    monkeypatch.setattr(podresources, "listed", slow)
    node.claims["a"] = ("gpu-0",)
    assert asyncio.run(node.prepare("a")) == "gpu-0 of claim d/a is unhealthy: it waits"
    assert not node.recorded


def test_what_waits_to_be_cut_is_nobodys_whatever_it_tolerates_but_its_own(node: Node) -> None:
    node.claims["a"], node.claims["b"] = ("gpu-0",), ("gpu-1",)
    assert isinstance(asyncio.run(node.prepare("b")), list)
    taint = {"key": f"{OWN_DRIVER}/layout", "effect": "NoSchedule"}
    sick = {uuid(index): [taint] for index in (0, 1)}
    node.offer = node.offer._replace(sick=sick, sentences={uuid(0): "it waits"})
    node.more = {"tolerations": [{"operator": "Exists"}]}
    assert asyncio.run(node.prepare("a")) == "gpu-0 of claim d/a is unhealthy: it waits"
    node.more = {}
    assert isinstance(asyncio.run(node.prepare("b")), list)  # as after a boot


def test_a_claim_that_is_prepared_while_it_is_asked_for_stays(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        node.claims["a"] = ("gpu-0",)
        await node.prepare("a")
        node.now += 60
        await node.driver._upkeep.look()
        node.claims["a"] = None
        asked = node.claim

        async def slow(one: Mapping[str, str]) -> Any:
            found = await asked(one)
            node.claims["a"] = ("gpu-0",)
            monkeypatch.setattr(node, "claim", asked)
            await node.prepare("a")
            return found

        monkeypatch.setattr(node, "claim", slow)
        await node.later(60)
        assert node.recorded == ["a"]

    asyncio.run(story())


def test_a_claim_of_the_driver_before_has_its_gpu(node: Node) -> None:
    """NVIDIA's calls it by its minor: to the scheduler ours is another device, which nobody has."""

    async def story() -> None:
        node.claims["a"], node.listed = ("gpu-0",), [("theirs", "gpu-0")]
        assert "claim d/theirs of gpu.nvidia.com has it" in await node.prepare("a")
        node.listed.clear()
        node.pods = ["pod d/agent"]
        await node.later(YOUNG + 2 * moments.EACH)
        assert (await node.prepare("a"))[0]["device_name"] == "gpu-0"

    asyncio.run(story())


def given(node: Node, pod: str = "") -> None:
    """Have the device plugin have given a GPU a while ago."""
    allocation: record_form.Allocation = {
        "device": uuid(0), "placement": "", "sharing": ["", KIND], "pod": pod, "uid": "u-1", "state": CONFIRMED,
        "since": 0.0,
    }  # fmt: skip
    with node.file.locked() as record:
        gpus: dict[str, record_form.Gpu] = {
            uuid(0): {"divisions": {}, "allocations": {f"{KIND} {uuid(0)}": allocation}}
        }
        node.file.write({**node.file.current(record), "gpus": gpus})


@pytest.mark.parametrize(("promised", "free"), [({uuid(0): "u-1"}, False), ({}, True)])
def test_what_an_init_container_has_is_free_when_kubelets_checkpoint_lacks_it(
    node: Node, promised: dict[str, str], free: bool
) -> None:
    given(node)
    node.checkpoint({uuid(0): "u-1"})

    async def story() -> None:
        node.claims["a"], node.pods = ("gpu-0",), ["pod d/x"]
        await node.later(YOUNG + 2 * moments.EACH)
        node.checkpoint(promised)
        node.running = {"u-1"} if promised else set()
        await node.later(moments.EACH)
        assert isinstance(await node.prepare("a"), list) == free

    asyncio.run(story())


def test_what_a_kubelet_that_starts_has_forgotten_is_its_pods(node: Node) -> None:
    """As with a checkpoint that was lost, where there is no device plugin any more that sees it start."""
    given(node, "pod d/p")
    node.checkpoint({uuid(0): "u-1"})

    async def story() -> None:
        node.claims["a"], node.pods, node.running = ("gpu-0",), ["pod d/p"], {"u-1"}
        node.held = [{"namespace": "d", "pod": "p", "resource": "nvidia.com/gpu", "devices": [uuid(0)]}]
        await node.later(YOUNG + 2 * moments.EACH)
        node.checkpoint({})
        node.held = []
        with node.kubelet():
            await node.later(YOUNG + 2 * moments.EACH)
            assert "pod d/p has it" in await node.prepare("a")
            node.running = set()
            await node.later(YOUNG + 2 * moments.EACH)
            assert isinstance(await node.prepare("a"), list)

    asyncio.run(story())


def test_a_kubelet_that_does_not_answer_holds_up_nothing_that_is_known(node: Node) -> None:
    async def story() -> None:
        node.answers, node.claims["a"] = False, ("gpu-0",)
        assert (await node.prepare("a"))[0]["device_name"] == "gpu-0"
        await node.later(60)
        assert node.asked == ["a"]
        assert await node.prepare("b") == "the API server no longer has the claim d/b of this pod"

    asyncio.run(story())


def test_a_gpu_that_does_not_answer_is_no_claims_until_it_does(node: Node) -> None:
    async def story() -> None:
        well, node.claims["a"] = node.offer, ("gpu-0",)
        node.offer = well._replace(snapshot=snapshot([gpu(0, problem="GPU 0 is lost"), gpu(1)]))
        assert await node.prepare("a") == "gpu-0 of claim d/a cannot be used: GPU 0 is lost"
        assert not node.recorded
        node.offer = well
        assert (await node.prepare("a"))[0]["device_name"] == "gpu-0"

    asyncio.run(story())


@pytest.mark.parametrize("by", ["kubelet", "the API server"])
def test_a_gpu_is_free_when_it_is_what_it_was_before(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """It is not held for ever by a supervisor that never comes."""
    uid = "12345678-1234-4234-8234-123456789012"
    group = MpsGroup(f"claim-{uid}-0", (MpsGpu(uuid(0), 0, 0),), None, 100, False)
    place = tmp_path / "mps" / group.name
    asked: list[str] = []
    monkeypatch.setattr(mps.Units, "need", lambda _, names: asked.extend(names))

    async def story() -> None:
        for comes in (True, False):
            node.claims[uid] = ("gpu-0",)
            assert isinstance(await node.prepare(uid), list)
            node.share(uid, group)
            place.mkdir(parents=True, exist_ok=True)
            monkeypatch.setattr(shared, "END", 30.0 if comes else 0.0)
            node.claims.clear()
            ends = asyncio.ensure_future(node.unprepare(uid) if by == "kubelet" else node.later(60))
            if comes:
                while group.name not in asked:
                    await asyncio.sleep(0.01)
                assert [claim["sharing"] for claim in node.record["claims"].values()] == [[]]
                place.rmdir()
            await ends
            assert not node.recorded

    asyncio.run(story())


def test_a_claim_whose_partition_is_being_removed_waits_for_that(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot has the instance until then, as if it could be given."""
    events: list[str] = []

    async def remove(claims: Mapping[str, object]) -> dict[str, str]:
        if claims:
            events.append("removes")
            await asyncio.sleep(0.3)
            events.append("has removed")
        return {}

    monkeypatch.setattr(node.driver._on_demand, "remove", remove)

    def find_unmade(_: object) -> dict[str, str]:
        events.append("looks")
        return {}

    monkeypatch.setattr(node.driver._on_demand, "find_unmade", find_unmade)

    async def story() -> None:
        node.claims["a"] = ("gpu-0",)
        await node.prepare("a")
        node.now += 1
        ending = asyncio.ensure_future(node.unprepare("a"))
        while "removes" not in events:
            await asyncio.sleep(0)
        node.now += 1
        await asyncio.gather(ending, node.prepare("a"))

    asyncio.run(story())
    assert [event for event in events if event != "looks"] == ["removes", "has removed"]
    assert events[-1] == "looks"
    assert "looks" not in events[events.index("removes") : events.index("has removed")]
    assert node.recorded == ["a"]


def test_what_could_not_be_removed_is_told_once_and_stays_recorded(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def remove(claims: Mapping[str, object]) -> dict[str, str]:
        return dict.fromkeys(claims, "NVML refuses")

    monkeypatch.setattr(node.driver._on_demand, "remove", remove)

    async def story() -> None:
        node.claims["a"] = ("gpu-0",)
        await node.prepare("a")
        node.now += 1
        await node.unprepare("a")
        await node.driver._release()

    asyncio.run(story())
    assert (node.recorded, caplog.text.count("NVML refuses")) == (["a"], 1)


def test_a_claim_that_is_allocated_anew_loses_what_was_made_for_it_first(node: Node) -> None:
    """Nobody would remove it else: the record has a claim's devices once."""
    made: Any = {
        **rows.claim_device(uuid(7), uuid(0)),
        "device": f"mig-{uuid(0).lower().removeprefix('gpu-')}-1g-5gb-3",
    }
    with node.file.locked():
        node.file.write(rows.record(claims={"a": rows.claim(made)}, boot=system.boot()))
    node.claims["a"] = ("gpu-1",)
    assert "had other MIG instances, which are removed first" in asyncio.run(node.prepare("a"))
    assert node.record["claims"]["a"]["state"] == LOST


def test_nothing_is_made_on_a_gpu_that_has_become_sick(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = offered.devices(snapshot([gpu(0)]), [])[0]
    profile = Profile(9, "1g.5gb", 1, 7, ((3, 1),), 4864, {})
    (partition,), _ = partitions.divide(whole, [profile])
    sick, sentences = {uuid(0): [XID]}, {uuid(0): "XID 79"}
    node.offer = node.offer._replace(devices={partition.name: partition}, sick=sick, sentences=sentences)
    on_demand, made = node.driver._on_demand, AsyncMock()
    monkeypatch.setattr(on_demand, "check", AsyncMock())
    monkeypatch.setattr(on_demand, "make", made)
    node.claims["a"] = (partition.name,)
    assert asyncio.run(node.prepare("a")) == f"{partition.name} of claim d/a is unhealthy: XID 79"
    assert (made.await_count, node.recorded) == (0, [])


def test_an_administrators_look_beside_a_partition_that_is_to_be_made(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """adminAccess to what is there excludes no request of the same claim for what is not."""
    results = (Result("r", "gpu-0", False), Result("look", "gpu-1", True))
    claim = Claim("a", "d", "c", results, ())
    on_demand, made = node.driver._on_demand, AsyncMock()
    monkeypatch.setattr(on_demand, "check", AsyncMock())
    monkeypatch.setattr(on_demand, "make", made)
    monkeypatch.setattr(on_demand, "find_unmade", lambda _: {"gpu-0": uuid(0)})
    asyncio.run(node.driver._make_partitions(claim, node.now + 5))
    monkeypatch.setattr(on_demand, "find_unmade", lambda _: {"gpu-1": uuid(1)})
    with pytest.raises(GpushimError, match="adminAccess to what nobody has"):
        asyncio.run(node.driver._make_partitions(claim, node.now + 5))
    assert made.await_count == 1
