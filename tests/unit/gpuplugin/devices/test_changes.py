"""What pods have is kept as it was, and never given out in two ways at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuplugin.devices import changes
from gpuplugin.settings.resources import GONE, Device, Share

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
NAMES = [(f"GPU-{gpu}", gpu) for gpu in range(3)] + [(f"MIG-{gpu}{n}", gpu) for gpu in range(3) for n in "ab"]
WHERE = {name: Device(name, name, "", gpu) for name, gpu in NAMES}


def whole(gpu: int, resource: str = GPU) -> dict[str, list[Device]]:
    return {resource: [Device(f"GPU-{gpu}", f"GPU-{gpu}", str(gpu), gpu)]}


def shared(
    gpu: int, replicas: int = 2, resource: str = GPU, kind: str = "time-slicing", group: str = ""
) -> dict[str, list[Device]]:
    name, share = f"GPU-{gpu}", Share(kind, group=group)
    return {resource: [Device(f"{name}::{n}", name, str(gpu), gpu, share=share) for n in range(replicas)]}


def slices(gpu: int) -> dict[str, list[Device]]:
    return {**shared(gpu, 1, f"{GPU}.20gb", "mps", "gpu"), **shared(gpu, 2, f"{GPU}.10gb", "mps", "gpu")}


def divided(gpu: int, resource: str = MIG) -> dict[str, list[Device]]:
    return {resource: [Device(f"MIG-{gpu}{n}", f"MIG-{gpu}{n}", f"{gpu}:{n}", gpu) for n in "ab"]}


def joined(*parts: dict[str, list[Device]]) -> dict[str, list[Device]]:
    found: dict[str, list[Device]] = {}
    for part in parts:
        for name, devices in part.items():
            found.setdefault(name, []).extend(devices)
    return found


def served(desired: dict[str, list[Device]]) -> dict[str, dict[str, Device]]:
    return {name: {one.id: one for one in devices} for name, devices in desired.items()}


def well(found: dict[str, list[Device]]) -> dict[str, set[str]]:
    return {name: {one.id for one in devices if not one.problem} for name, devices in found.items()}


def test_one_waits_and_is_said_and_the_others_change() -> None:
    old, new = joined(whole(0), whole(1)), joined(shared(0), shared(1))
    found = changes.settled(served(old), new, {GPU: {"GPU-0": "pod default/a"}}, WHERE).listed
    assert well(found) == {GPU: {"GPU-0", "GPU-1::0", "GPU-1::1"}}
    assert {one.problem for one in found[GPU] if one.id.startswith("GPU-0::")} == {
        "the settings give it out in another way now, which waits for the end of pod default/a"
    }
    assert changes.settled(served(found), new, {}, WHERE).listed == new


@pytest.mark.parametrize(
    ("old", "held", "new", "given"),
    [
        (whole(0), {GPU: {"GPU-0": "a"}}, shared(0, resource=SHARED), {GPU: {"GPU-0"}, SHARED: set()}),
        (shared(0, 4), {GPU: {"GPU-0::3": "a"}}, shared(0, 2), {GPU: {"GPU-0::0", "GPU-0::1", "GPU-0::3"}}),
        (shared(0), {GPU: {"GPU-0::1": "a"}}, shared(0, 2, kind="mps", group="gpu"), {GPU: {"GPU-0::1"}}),
        (shared(0), {GPU: {"GPU-0::1": "a"}}, whole(0), {GPU: {"GPU-0::1"}}),
        (slices(0), {f"{GPU}.20gb": {"GPU-0::0": "a"}}, slices(0), well(slices(0))),
        (whole(0), {GPU: {"GPU-0": "a"}}, divided(0), {GPU: {"GPU-0"}, MIG: set()}),
        (divided(0), {MIG: {"MIG-0a": "a"}}, divided(0, GPU), {MIG: {"MIG-0a"}, GPU: {"MIG-0b"}}),
        (divided(0), {MIG: {"MIG-0a": "a"}}, whole(0), {MIG: {"MIG-0a"}, GPU: set()}),
        ({}, {GPU: {"GPU-0": "a"}}, shared(0), {GPU: set()}),  # given out by a process before this one
        ({}, {GPU: {"GPU-0::7": "a"}}, shared(0), {GPU: {"GPU-0::0", "GPU-0::1"}}),
        ({}, {"vendor.com/nic": {"nic-0": "a"}}, whole(0), {GPU: {"GPU-0"}}),
        (joined(whole(0), whole(1)), {GPU: {"GPU-0": "a"}}, whole(1), {GPU: {"GPU-1"}}),  # excluded: it is gone
    ],
)
def test_what_is_given_out(
    old: dict[str, list[Device]],
    held: dict[str, dict[str, str]],
    new: dict[str, list[Device]],
    given: dict[str, set[str]],
) -> None:
    assert well(changes.settled(served(old), new, held, WHERE).listed) == given


def test_what_the_host_has_lost_is_waited_for_and_not_told_anew() -> None:
    """Its end on kubelet's list is offer.py's, which goes by what is not told."""
    gone = Device("MIG-0a", "MIG-0a", "", 0, problem=GONE, placement="1/0")
    new = Device("MIG-0c", "MIG-0c", "0:0", 0, placement="1/0")
    held, units = {MIG: {"MIG-0a": "a"}}, {**WHERE, "MIG-0a": gone, "MIG-0c": new}
    found = changes.settled({MIG: {"MIG-0a": gone}}, {MIG: [new]}, held, units)
    assert [one.id for one in found.listed[MIG]] == ["MIG-0c"]
    assert found.listed[MIG][0].problem.endswith("the end of a")


def test_what_is_kept_is_as_sick_as_its_gpu() -> None:
    old, there = {GPU: [replace(whole(0)[GPU][0], problem="old")]}, {"GPU-0": replace(WHERE["GPU-0"], problem="now")}
    found = changes.settled(served(old), shared(0), {GPU: {"GPU-0": "a"}}, there).listed
    assert [one.problem for one in found[GPU] if one.id == "GPU-0"] == ["now"]


def test_many_pods_are_named_so_far() -> None:
    pods = {f"GPU-0::{number}": f"pod {number}" for number in range(5)}
    found = changes.settled(served(shared(0, 5)), whole(0), {GPU: pods}, WHERE).listed
    assert found[GPU][0].problem.endswith(" the end of pod 0, pod 1, pod 2 and 2 more")


@pytest.mark.parametrize(
    ("who", "of", "says"),
    [
        ({changes.CLAIM: {"GPU-0": "claim d/c"}}, whole(0), "claim d/c has it"),
        (
            {changes.CLAIM: {"MIG-0a": "claim d/c", "MIG-0b": "claim d/b"}},
            whole(0),
            "claim d/b has MIG-0b, claim d/c has MIG-0a",
        ),
        ({changes.CLAIM: {"GPU-0": "claim d/c"}}, divided(0), "claim d/c has GPU-0"),
    ],
)
def test_of_a_claim_is_said_what_it_has(
    who: dict[str, dict[str, str]], of: dict[str, list[Device]], says: str
) -> None:
    found = changes.settled(served(of), of, who, WHERE).listed
    assert {one.problem for row in found.values() for one in row} == {says}


def test_kubelet_need_not_be_asked_where_nothing_is_reshaped() -> None:
    old = joined(whole(0), shared(1))
    sick = {GPU: [replace(one, problem="x") for one in old[GPU]]}
    assert not changes.changing(served(old), sick, WHERE)
    assert changes.changing(served(old), joined(old, whole(2)), WHERE)  # of which nobody knows
    assert changes.changing(served(old), joined(whole(0), whole(1)), WHERE)


FORMS = [
    lambda gpu: whole(gpu),
    lambda gpu: whole(gpu, SHARED),
    lambda gpu: shared(gpu, 1),
    lambda gpu: shared(gpu, 3),
    lambda gpu: shared(gpu, 2, SHARED),
    lambda gpu: shared(gpu, 2, GPU, "mps", "gpu"),
    slices,
    divided,
    lambda gpu: divided(gpu, GPU),
]


class Node(RuleBasedStateMachine):
    """Settings change at random, while kubelet gives devices to pods that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.desired = joined(whole(0), whole(1))
        self.served = served(self.desired)
        self.held: dict[str, dict[str, str]] = {}
        self.given: dict[tuple[str, str], Device] = {}  # as it was when it was given out

    @rule(forms=st.tuples(st.sampled_from(FORMS), st.sampled_from(FORMS)))
    def change(self, forms: tuple[object, ...]) -> None:
        self.desired = joined(*(form(gpu) for gpu, form in enumerate(forms)))  # type: ignore[operator]
        self.look()

    @rule()
    def look(self) -> None:
        found = changes.settled(self.served, self.desired, self.held, WHERE).listed
        assert found == self.desired or changes.changing(self.served, self.desired, WHERE)
        self.served = served(found)

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        free = [
            (name, one)
            for name, row in self.served.items()
            for one in row.values()
            if not one.problem and one.id not in self.held.get(name, {})
        ]
        if free:
            name, one = data.draw(st.sampled_from(free))
            self.held.setdefault(name, {})[one.id] = "pod"
            self.given[name, one.id] = one

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name, key = data.draw(st.sampled_from(sorted(self.given)))
        del self.held[name][key], self.given[name, key]

    @invariant()
    def a_gpu_is_given_out_in_one_way(self) -> None:
        for (name, _), one in self.given.items():
            for (other_name, _), other in self.given.items():
                if one.gpu == other.gpu and one.uuid == other.uuid:
                    assert changes.way(name, one) == changes.way(other_name, other)
                elif one.gpu == other.gpu:
                    assert one.uuid[:4] == other.uuid[:4] == "MIG-"

    @invariant()
    def what_pods_have_is_listed(self) -> None:
        for (name, key), one in self.given.items():
            assert replace(self.served[name][key], problem="") == one

    def teardown(self) -> None:
        self.held, self.given = {}, {}
        self.look()
        assert self.served == served(self.desired)


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
