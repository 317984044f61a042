from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.matching import pod_claims
from gpuplugin.matching.manifests import ALL, EXACT, ClaimSpec, read
from gpuplugin.matching.pod_claims import CLAIM, TEMPLATE
from gpushim.ground.bounds import LISTED

V1 = "resource.k8s.io/v1"
CEL = {"cel": {"expression": "true"}}


def one(devices: Any, **more: Any) -> ClaimSpec:
    claim = {"apiVersion": V1, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": devices}}
    (found,) = read([{**claim, **more}]).claims
    return found


def test_what_a_request_has() -> None:
    exactly = {"deviceClassName": "x", "selectors": [CEL], "allocationMode": "All", "adminAccess": True}
    toleration = {"key": "k", "operator": "Exists"}
    found = one({"requests": [{"name": "r", "exactly": {**exactly, "tolerations": [toleration]}}]})
    assert found.requests == ((("r", "x", ("true",), ALL, 1, True, (toleration,)),),)
    assert (found.kind, found.namespace, found.name, found.unsure) == (CLAIM, "", "c", ())


def test_alternatives_have_the_names_of_both() -> None:
    ways = [{"name": "a", "deviceClassName": "x", "count": 2}, {"name": "b", "deviceClassName": "y"}]
    (found,) = one({"requests": [{"name": "r", "firstAvailable": ways}]}).requests
    assert [(each.name, each.mode, each.number) for each in found] == [("r/a", EXACT, 2), ("r/b", EXACT, 1)]


def test_templates_lists_and_the_form_of_v1beta1() -> None:
    exactly = {"requests": [{"name": "r", "deviceClassName": "x"}]}
    template = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": TEMPLATE,
        "metadata": {"name": "t", "namespace": "d"},
        "spec": {"spec": {"devices": exactly}},
    }
    (found,) = read([None, {"apiVersion": "v1", "kind": "List", "items": [template]}]).claims
    assert (found.kind, found.namespace, found.name, found.unsure) == (TEMPLATE, "d", "t", ())
    assert found.requests[0][0].device_class == "x"


X = {"deviceClassName": "x"}
R = {"name": "r", "exactly": X}


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"requests": [R], "sets": []}, "spec.devices.sets is not known here"),
        ({"requests": [{"name": "r", "exactly": {**X, "capacity": {}}}]}, "r.capacity is not known here"),
        ({"requests": [{"name": "r", "exactly": {**X, "count": 2.0}}]}, "r.count is 2.0, with a point"),
    ],
)
def test_what_is_not_known_is_said(devices: Any, words: str) -> None:
    found = one(devices)
    assert (found.unsure, found.wrong) == ((words,), ())


def exactly(**more: Any) -> dict[str, Any]:
    return {"requests": [{"name": "r", "exactly": {**X, **more}}]}


def tolerates(**more: Any) -> dict[str, Any]:
    return exactly(tolerations=[{"key": "a/b", **more}])


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("x", 'spec.devices is "x"; write an object'),
        ({"requests": "x"}, 'requests is "x"; write a list'),
        ({"requests": [R], "reqests": []}, "spec.devices has no field reqests; is requests meant?"),
        ({"requests": ["x"]}, 'requests is "x"; write an object'),
        ({"requests": [{"name": "r"}]}, 'request "r" asks for nothing; write exactly'),
        ({"requests": [{"name": "r", "exactly": {"count": 1}}]}, "r.deviceClassName is missing; write a text"),
        ({"requests": [{**R, "name": "R"}]}, 'requests.name is "R"; write small letters'),
        ({"requests": [R, R]}, "two requests have the name r"),
        ({"requests": [R], "config": [{"requests": ["r"]}]}, "a config has no opaque"),
        ({"requests": [{"name": "r", "deviceClassName": "x"}]}, "has a request's deviceClassName inside"),
        (exactly(selector=[]), "r has no field selector; is selectors meant?"),
        (exactly(counts=2), "r has no field counts; is count meant?"),
        (exactly(count="2"), 'r.count is "2"; write a number from 1, without quotes'),
        (exactly(count=-1), "r.count is -1; write a number"),
        (exactly(count=2, allocationMode="All"), "r.count is 2; write it only without allocationMode All"),
        (exactly(allocationMode="Any"), 'r.allocationMode is "Any"; write ExactCount or All'),
        (exactly(adminAccess="yes"), 'r.adminAccess is "yes"; write true or false'),
        (exactly(deviceClassName="GPU.x"), 'r.deviceClassName is "GPU.x"; write small letters'),
        (exactly(selectors=[{"cel": {"expression": "x" * 10241}}]), "has 10241 bytes; write 10240 at most"),
        ({"requests": [R], "config": [{"opaque": {"parameters": "x"}}]}, 'parameters is "x"; write an object'),
        (exactly(selectors=["true"]), "r.selectors has a text; write it as the expression of [{cel: {expression"),
        (exactly(selectors=[{}]), "r.selectors.cel.expression is missing; write a text"),
        (exactly(selectors=[{"cel": {"expression": " "}}]), 'r.selectors.cel.expression is " "; write a text'),
        (tolerates(key=5), 'r.tolerations.key is 5; write a taint'),
        (tolerates(key="a b"), 'r.tolerations.key is "a b"; write a taint'),
        (tolerates(operator="Exits"), 'r.tolerations.operator is "Exits"; write Equal or Exists'),
        (tolerates(value=79), "r.tolerations.value is 79; write a taint"),
        (tolerates(operator="Exists", value="79"), 'r.tolerations.value is "79"; write a taint'),
        (tolerates(effect="No"), 'r.tolerations.effect is "No"; write NoSchedule or NoExecute'),
        (tolerates(tolerationSeconds="5"), 'r.tolerations.tolerationSeconds is "5"; write a number'),
        (exactly(selectors=[CEL] * 33), "r.selectors has 33; write 32 at most"),
        ({"requests": [R], "config": [{"opaque": {}}] * 33}, "config has 33; write 32 at most"),
        ({"requests": [R], "constraints": [{"matchAttribute": "a/b"}] * 33}, "constraints has 33; write 32"),
        ({"requests": [R] * 33}, "requests has 33; write 32 at most"),
        ({"requests": [{"name": "r", "firstAvailable": [X] * 9}]}, "r.firstAvailable has 9; write 8"),
        ({"requests": [{**R, "firstAvailable": []}]}, "request r has both exactly and firstAvailable"),
        ({"requests": [R], "constraints": [{}]}, "a constraint has neither"),
        ({"requests": [R], "constraints": [{"matchAttribute": "a/b", "requests": ["r", "r"]}]}, "has r twice"),
        ({"requests": [{"name": "r", "firstAvailable": [{"name": "a", "exactly": X}]}]}, "has no `exactly:`; write"),
        ({"requests": [R], "constraints": [{"matchAttribute": "a/b", "requests": ["x"]}]}, "requests has x,"),
        ({"requests": [R], "constraints": [{"matchAttribute": "pcieRoot"}]}, "matchAttribute is pcieRoot, w"),
        ({"requests": [R], "config": [{"requests": ["r/x"], "opaque": {}}]}, "config.requests has r/x, which is no"),
        ({"requests": [{**R, "name": "gpu"}], "config": [{"requests": ["gpus"], "opaque": {}}]}, "; is gpu meant?"),
    ],
)  # fmt: skip
def test_what_the_api_server_refuses(devices: Any, words: str) -> None:
    assert words in one(devices).wrong[0]
    assert one(devices, apiVersion="resource.k8s.io/v9").wrong == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"metadata": {"name": "My_Claim"}}, 'metadata.name is "My_Claim"; write small letters, digits, - and .'),
        ({"metadata": {"generateName": "a_"}}, 'metadata.generateName is "a_"; write small'),
        ({"metadata": None}, "metadata.name is missing"),
        ({"metadata": {"name": "a", "labels": {"a": 1}}}, "metadata.labels.a is 1; write a text, in quotes"),
        ({"sepc": {}}, "a ResourceClaim has no field sepc"),
        ({"spec": {"spec": {"devices": {"requests": [R]}}}}, "below one `spec:`, not two"),
        (
            {"kind": TEMPLATE, "spec": {"metadata": {"name": "x"}, "spec": {"devices": {"requests": [R]}}}},
            "spec.metadata has name; omit it",
        ),
        ({"kind": TEMPLATE}, "below two `spec:`, its own and its claims'"),
    ],
)
def test_what_is_wrong_around_a_specification(more: dict[str, Any], words: str) -> None:
    found = one({"requests": [R]}, **more)
    assert words in found.wrong[0]
    assert (len(found.wrong), len(found.requests)) == (1, 1)


def test_of_a_constraint_that_is_both_the_scheduler_knows_one() -> None:
    (found,) = one(
        {"requests": [R], "constraints": [{"matchAttribute": "a/b", "distinctAttribute": "a/c"}]}
    ).constraints
    assert (found.attribute, found.distinct) == ("a/b", False)


@pytest.mark.parametrize("more", [{"value": "79", "effect": "None"}, {"operator": "Exists", "tolerationSeconds": 5}])
def test_tolerations_that_it_takes(more: dict[str, Any]) -> None:
    assert one(tolerates(**more)).wrong == ()


def test_an_unknown_version_is_not_judged_by_the_form_of_another() -> None:
    assert one(exactly(), apiVersion="resource.k8s.io/v9").unsure == (
        "the form of resource.k8s.io/v9 is not known here",
    )


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        ("v1", []),
        ("v1beta2", ["switched on; write resource.k8s.io/v1"]),
        ("v1beta1", ["write resource.k8s.io/v1, with `exactly:` around what a request asks for"]),
    ],
)
def test_versions_that_are_not_served_by_default(version: str, notes: list[str]) -> None:
    made = {"kind": CLAIM, "metadata": {"name": "c"}, "spec": {"devices": {"requests": []}}}
    found = read([{**made, "apiVersion": f"resource.k8s.io/{version}"}]).notes
    assert [words[-len(end) :] for words, end in zip(found, notes)] == notes
    assert len(found) == len(notes)


def test_claims_of_one_pod_are_not_added_up() -> None:
    made = [{"apiVersion": V1, "kind": CLAIM, "metadata": {"name": name}} for name in ("c", "d")]
    rows = [{"name": name, "resourceClaimName": name} for name in ("c", "d")]
    (note,) = read([*made, {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"resourceClaims": rows}}]).notes
    assert note.startswith("pod p has 2 claims of the file, which are judged one by one")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "c"}]},
            "the file, where c is a ResourceClaim",
        ),
        (
            {"resourceClaims": [{"name": "a", "resourceClaimName": "d"}]},
            "pod p has the ResourceClaim d, which is not in",
        ),
        (
            {"containers": [{"name": "m", "resources": {"claims": [{"name": "x"}]}}]},
            "pod p: the API server refuses it: container m names x, which is not in resourceClaims",
        ),
        (
            {"initContainers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}}}]},
            "pod p: container m asks for nvidia.com/gpu=1: see gpushim explain --kubernetes nvidia.com/gpu=1",
        ),
    ],
)
def test_what_is_said_of_a_pod(spec: dict[str, Any], words: str) -> None:
    made = {"apiVersion": V1, "kind": CLAIM, "metadata": {"name": "c"}}
    (note,) = read([made, {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}]).notes
    assert words in note


class Unwalked(dict[str, list[str]]):
    """A dictionary that is looked into, and never walked through."""

    __iter__ = keys = values = items = None  # type: ignore[assignment]


def test_claims_of_a_pod_are_looked_up() -> None:
    """A file may have ten thousand claims, and a pod that names as many."""
    rows = [{"name": "a", "resourceClaimName": name} for name in ("c", "t", "x")]
    first, last = pod_claims.notes({"spec": {"resourceClaims": rows}}, Unwalked({"c": [CLAIM], "t": [TEMPLATE]}))
    assert first.endswith("has the ResourceClaim t, which is not in the file, where t is a ResourceClaimTemplate")
    assert last.endswith("has the ResourceClaim x, which is not in the file")


@pytest.mark.parametrize(("number", "more"), [(LISTED, []), (LISTED + 2, ["pod p: 2 more such notes"])])
def test_a_pod_has_a_few_notes(number: int, more: list[str]) -> None:
    rows = [{"name": "a", "resourceClaimName": f"c{one}"} for one in range(number)]
    notes = read([{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"resourceClaims": rows}}]).notes
    assert ([*notes[LISTED:]], "the ResourceClaim c15," in notes[LISTED - 1]) == (more, True)


@pytest.mark.parametrize("spec", [5, {"containers": 5}, {"containers": [5]}, {"resourceClaims": [{"name": {}}]}])
def test_what_is_no_pod_is_no_harm(spec: object) -> None:
    read([{"kind": "Pod", "metadata": 5, "spec": spec}])


def test_what_else_a_file_has() -> None:
    spec = {"selectors": [CEL], "config": [{"opaque": {}}], "suitableNodes": {}}
    named = {"metadata": {"name": "n"}}
    pod = {"kind": "Pod", **named, "spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "c"}]}}
    found = read([{"apiVersion": V1, "kind": "DeviceClass", **named, "spec": spec}, pod, {"kind": "Job", **named}])
    assert found.classes["n"] == (("true",), ({"opaque": {}},), ("spec.suitableNodes is not known here",))
    assert found.notes == (
        "Job n of None is not looked at",
        "pod n has the ResourceClaim c, which is not in the file",
    )
