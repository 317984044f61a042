from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.matching.manifests import ALL, CLAIM, EXACT, TEMPLATE, ClaimSpec, read

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
        (None, "it has no request"),
        ("x", "spec.devices is no object"),
        ({"requests": "x"}, "requests is no list"),
        ({"requests": [R], "reqests": []}, "spec.devices.reqests is not known here"),
        ({"requests": ["x"]}, "requests is no object"),
        ({"requests": [{"name": "r"}]}, "r.deviceClassName is no text"),
        ({"requests": [{"name": "r", "exactly": {**X, "selector": []}}]}, "r.selector is not known"),
        ({"requests": [{"name": "r", "exactly": {**X, "capacity": {}}}]}, "r.capacity is not known"),
        ({"requests": [{"name": "r", "exactly": {**X, "count": "2"}}]}, "r: its allocationMode, count"),
        ({"requests": [{"name": "r", "exactly": {**X, "selectors": [{}]}}]}, "r.selectors.cel.expres"),
        ({"requests": [{**R, "firstAvailable": []}]}, "r has both exactly and firstAvailable"),
        ({"requests": [R], "constraints": [{}]}, "a constraint has neither"),
        ({"requests": [R], "constraints": [{"matchAttribute": "a/b", "requests": ["x"]}]}, ".requests has x"),
        ({"requests": [R], "config": [{"requests": ["r/x"], "opaque": {}}]}, "config.requests has r/x"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_said(devices: Any, words: str) -> None:
    assert any(words in each for each in one(devices).unsure)


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
