from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.book.by_device import PLUGIN, noted_entry
from gpuplugin.book.page import fresh
from gpuplugin.dra import claim_answer, explain_file, node_state
from gpuplugin.dra.claim_answer import CLASSES
from gpuplugin.dra.explain_file import documents, report
from gpuplugin.matching import manifests
from gpuplugin.settings import settings
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.dra.claimfiles import GPU, HOST, TAINT, answers, claim, exactly, found, held, node, opaque
from unit.gpuplugin.snapshots import uuid

TOP = Path(__file__).parents[4]


def test_classes_are_those_of_the_chart() -> None:
    text = (TOP / "packaging/kubernetes/chart/templates/dra.yaml").read_text()
    (expression,) = re.findall(r"expression: (device\.driver == .*)", text)
    for type_ in ("gpu", "mig"):
        made = expression.replace("{{ $driver }}", "gpu.nvidia.com").replace("{{ $type }}", type_)
        assert CLASSES[f"{type_}.nvidia.com"].selectors == (made,)


def test_a_line_for_each_device_and_request() -> None:
    one = found(claim())
    assert (one["kind"], one["name"], one["answer"]) == ("ResourceClaim", "d/c", "yes")
    assert answers(one) == ["yes", "yes", "no"]
    assert "its type is mig" in one["requests"][0]["devices"][2]["why"]


@pytest.mark.parametrize(
    ("more", "answer", "lines"),
    [
        ({"claims": {"u": held("x", uuid(0))}}, "yes", ["not now", "yes", "no"]),
        ({"claims": {"u": held("x", uuid(0), uuid(1))}}, "not now", ["not now", "not now", "no"]),
        ({"claims": {"u": held("x", uuid(0), uuid(1), admin=True)}}, "yes", ["yes", "yes", "no"]),
        ({"claims": {"u": held("c", uuid(0), uuid(1))}}, "yes", ["yes", "yes", "no"]),
        ({"taints": {uuid(0): [TAINT], uuid(1): [TAINT]}}, "not now", ["not now", "not now", "no"]),
        ({"problem": "nobody listens"}, "not now", ["yes", "yes", "no"]),
        ({"doubt": "the book is damaged"}, "cannot tell", ["cannot tell", "cannot tell", "no"]),
    ],
)
def test_what_others_have(more: dict[str, Any], answer: str, lines: list[str]) -> None:
    one = found(claim(), **more)
    assert (one["answer"], answers(one)) == (answer, lines)


def test_who_has_it_and_which_taint() -> None:
    more: dict[str, Any] = {
        "claims": {"u": held("x", uuid(0))},
        "taints": {uuid(1): [TAINT]},
        "why": {uuid(1): "XID 79"},
    }
    rows = {row["device"]: row["why"] for row in found(claim(), **more)["requests"][0]["devices"]}
    assert rows[uuid(0).lower()] == "claim d/x has it"
    assert rows[uuid(1).lower()] == "it has the taint gpu.nvidia.com/xid=79:NoSchedule: XID 79"
    lost = found(claim(), **{**more, "why": {uuid(0): "lost"}})
    assert lost["requests"][0]["devices"][0]["why"] == "claim d/x has it, and it is unhealthy: lost"
    both = found(claim(), **more, pods={uuid(0): "pod d/p has it", uuid(1): "pod d/q has it"})
    rows = {row["device"]: row["why"] for row in both["requests"][0]["devices"]}
    assert rows[uuid(0).lower()] == "claim d/x has it"
    assert rows[uuid(1).lower()].endswith(":NoSchedule: XID 79; pod d/q has it")


def test_a_pod_that_has_a_device_is_no_lack_of_health(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of what a claim has, too, as the book may have both."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    page = fresh("b", "")
    entry = noted_entry(PLUGIN, "pod d/p", uuid(0), ("nvidia.com/gpu", ""), "allocate", 1.0)
    page["gpus"] = {uuid(0): {"divisions": {}, "entries": {f"nvidia.com/gpu {uuid(0)}": entry}}}
    taints, why = node_state.tainted(settings.resolve({}, {}, {}), HOST, {}, page)
    one = found(claim(), claims={"u": held("x", uuid(0))}, taints=taints, why=why, pods=node_state.pods(page))
    assert one["requests"][0]["devices"][0]["why"] == "claim d/x has it"
    one = found(claim(), taints=taints, why=why, pods=node_state.pods(page))
    assert one["requests"][0]["devices"][0]["why"].endswith("allocated:NoSchedule: pod d/p has it")


def test_admin_access_is_beside_others_and_needs_a_label() -> None:
    one = found(claim(exactly(adminAccess=True)), claims={"u": held("x", uuid(0), uuid(1))})
    assert (one["answer"], one["why"]) == ("yes", claim_answer.ADMIN)


@pytest.mark.parametrize(
    ("requests", "more", "answer", "why"),
    [
        ([exactly(count=3)], {}, "no", "the request r asks for 3, and this node has 2 that match"),
        ([exactly(deviceClassName="x")], {}, "cannot tell", "the class x is not known here"),
        ([exactly(deviceClassName="gpu.nvidia.co")], {}, "cannot tell", "the class gpu.nvidia.co is not known here;"),
        ([exactly(selectors=[{"cel": {"expression": "f()"}}])], {}, "cannot tell", "gpushim does not know f() in"),
        ([exactly(capacity={})], {}, "cannot tell", "r.capacity is not known here"),
        ([exactly(count="3")], {}, "no", 'the API server refuses it: r.count is "3"; write a number'),
        (
            [exactly(selectors=[{"cel": {"expression": "device.attributes['x'].y"}}])],
            {},
            "no",
            "the scheduler gives up the claim: no such key: y (no device here has the domain x), in",
        ),
        ([], {"config": [opaque("GpuConfig", x=1)]}, "no", "the driver refuses it: the claim's GpuConfig"),
        ([], {"config": [opaque("MigDeviceConfig", "r")]}, "no", "the driver refuses it: the claim's Mig"),
        ([], {"config": [opaque("MigDeviceConfig")]}, "yes", "this node can serve it now"),
        (
            [exactly(count=2)],
            {"constraints": [{"matchAttribute": "gpu.nvidia.com/uuid"}]},
            "no",
            "the constraint matchAttribute gpu.nvidia.com/uuid does not hold: its devices differ in it",
        ),
        (
            [exactly(count=2)],
            {"constraints": [{"distinctAttribute": "gpu.nvidia.com/type"}]},
            "no",
            "the constraint distinctAttribute gpu.nvidia.com/type does not hold: too few of its devices differ in it",
        ),
        (
            [],
            {"constraints": [{"matchAttribute": f"gpu.nvidia.com/{name}"} for name in ("type", "pcieRoot")]},
            "no",
            "the constraint matchAttribute gpu.nvidia.com/pcieRoot does not hold: no device here has this attribute; "
            "is resource.kubernetes.io/pcieRoot meant?",
        ),
        (
            [{**GPU, "name": "s"}, exactly(count=2)],
            {"constraints": [{"matchAttribute": "gpu.nvidia.com/type"}]},
            "no",
            claim_answer.TOO_FEW,
        ),
    ],
)  # fmt: skip
def test_the_claim_as_a_whole(requests: Any, more: dict[str, Any], answer: str, why: str) -> None:
    one = found(claim(*requests, **more))
    assert one["answer"] == answer
    assert one["why"].startswith(why)


@pytest.mark.parametrize(
    ("request_", "more", "lines"),
    [
        (exactly(capacity={}), {}, [("cannot tell", "r.capacity is not known here")] * 2),
        (exactly(), {"doubt": "it is dark"}, [("cannot tell", "it matches, but it is dark")] * 2),
        (exactly(counts=2), {}, []),
    ],
)
def test_no_device_is_surer_than_its_claim(request_: Any, more: dict[str, Any], lines: list[tuple[str, str]]) -> None:
    one = found(claim(request_), **more)
    rows = [(row["answer"], row["why"]) for request in one["requests"] for row in request["devices"]]
    assert rows[:2] == lines


def test_a_class_of_the_file_counts_with_its_config() -> None:
    config = {"opaque": opaque("GpuConfig", x=1)["opaque"]}
    spec = {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}], "config": [config]}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}}
    one = found(claim(), {**made, "spec": spec})
    assert one["answer"] == "no"
    assert "the device class's GpuConfig" in one["why"]


def test_some_devices_may_be_refused() -> None:
    both = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
    one = found(claim(exactly(deviceClassName="any"), config=[opaque("GpuConfig", "r")]), both)
    assert (one["answer"], answers(one)) == ("cannot tell", ["cannot tell", "cannot tell", "no"])
    assert one["requests"][0]["devices"][0]["why"] == "it matches, but what the claim gets is not known here"


def test_a_capacity_is_no_attribute() -> None:
    one = found(claim(exactly(count=2), constraints=[{"matchAttribute": "gpu.nvidia.com/memory"}]))
    assert one["why"].endswith("does not hold: memory is a capacity, and constraints are of attributes")


def test_a_claim_without_a_request_gets_nothing() -> None:
    one = found({**claim(), "spec": {}})
    assert (one["answer"], one["why"]) == ("no", "it has no request, so it gets no device")


def test_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("a: 1\n---\n# nothing\n--- {b: 2}\n---\ntext: |\n  ---\n")
    assert documents(str(path)) == [{"a": 1}, None, {"b": 2}, {"text": "---\n"}]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"c": 3}')))
    assert documents("-") == [{"c": 3}]


def test_json_needs_no_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "f"
    path.write_text(json.dumps(claim(exactly()), indent=1))
    assert documents(str(path)) == [claim(exactly())]
    path.write_text("a: 1")
    with pytest.raises(GpushimError, match=r"is YAML, and PyYAML is not installed.*ask in the DRA driver's pod"):
        documents(str(path))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "is not UTF-8"),
        (b"a: [", "is not YAML: "),
        (b"a" * (1 << 20) + b"a", "has more than 1024 KiB"),
        (b"kind: Pod", "has no ResourceClaim"),
        (
            b"{kind: ResourceClaims, apiVersion: v1, metadata: {name: c}}",
            "; ResourceClaims c of v1 is not looked at; write kind: ResourceClaim and apiVersion: resource",
        ),
        (
            b"{kind: DaemonSet, apiVersion: apps/v1, metadata: {name: d}}",
            "; DaemonSet d of apps/v1 is not looked at$",
        ),
    ],
)
def test_files_that_cannot_be_explained(data: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(GpushimError, match=words):
        report(manifests.read(documents(str(path))), node(), str(path))


def _doubled(first: str, next_: str, levels: int) -> bytes:
    """Write a list whose members each have the one before three times."""
    rows = [f"- &a0 {first}", *(f"- &a{one} {next_.format(one - 1)}" for one in range(1, levels + 1))]
    return "\n".join(["apiVersion: v1", "kind: List", "items:", *rows, ""]).encode()


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_doubled("{kind: Pod}", "{{kind: List, items: [*a{0}, *a{0}, *a{0}]}}", 21), "more than 100000 values"),
        (_doubled("x", "[*a{0}, *a{0}, *a{0}]", 21), "more than 100000 values"),
        (_doubled("x", "{{a: {{b: {{c: *a{0}}}}}}}", 40), "nested too deeply"),
    ],
)
def test_aliases_count_as_what_they_stand_for(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(GpushimError, match=words) as refused:
        documents(str(tmp_path / "f"))
    assert refused.value.exit_code == 10


@pytest.mark.parametrize(("bound", "number"), [("SECONDS", 0.0), ("ANSWERS", 5)])
def test_a_file_of_too_much_is_not_guessed(monkeypatch: pytest.MonkeyPatch, bound: str, number: float) -> None:
    monkeypatch.setattr(explain_file, bound, number)
    first, last = report(manifests.read([claim(), claim()]), node())["claims"]
    assert [first["answer"], last["answer"]] == ["yes" if bound == "ANSWERS" else "cannot tell", "cannot tell"]
    assert (last["why"], last["requests"]) == (claim_answer.SLOW, [])


def test_past_its_time_no_device_is_held_against_others() -> None:
    """Each is against each claim of this node, of which there may be thousands."""
    (spec,) = manifests.read([claim()]).claims
    here = node(claims={"u": held("x", uuid(0))})
    for late, busy in ((float("inf"), ["claim d/x has it", "", ""]), (0.0, ["", "", ""])):
        assert [row.busy for row in claim_answer.judged(spec, {}, here, late).rows["r"]] == busy
