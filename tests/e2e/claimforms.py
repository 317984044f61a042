"""Claims that the API server just takes, and those that it refuses.

Out of scope: what becomes of those that it takes (scheduled.py).
"""

from __future__ import annotations

from typing import Any

from e2e import claims

ANY = {"deviceClassName": "any"}
# As many of each as the API server takes.
MOST: list[tuple[list[Any], dict[str, Any]]] = [
    ([claims.request(tolerations=[{"key": "a/b", "value": "1", "effect": "None", "tolerationSeconds": 5}] * 17)], {}),
    ([claims.request(tolerations=[{"operator": "Exists"}, {"operator": "Equal"}, {}])], {}),
    ([claims.request(selectors=[{"cel": {"expression": "true"}}] * 32)], {}),
    ([claims.request()], {"config": [{"opaque": {"driver": "x.y", "parameters": {}}}] * 32}),
    ([claims.request()], {"constraints": [{"matchAttribute": "gpu.nvidia.com/uuid"}] * 32}),
    ([claims.request(f"r{number}") for number in range(32)], {}),
    ([{"name": "r", "firstAvailable": [{**ANY, "name": f"a{number}"} for number in range(8)]}], {}),
    (
        [claims.request()],
        {"constraints": [dict.fromkeys(("matchAttribute", "distinctAttribute"), f"{claims.DRIVER}/x")]},
    ),
    ([], {"requests": []}),
]
# Objects whose form is not a claim's, or a template's, beside those; each is what an object has in other places.
ODD: list[dict[str, Any]] = [
    {"metadata": {"name": "My_Claim"}},
    {"metadata": {"name": "a" * 254}},
    {"metadata": {"name": 5}},
    {"metadata": {"name": "a."}},
    {"metadata": {"generateName": "a_"}},
    {"metadata": {}},
    {"metadata": {"name": "a", "labels": {"a": 1}}},
    {"metadata": {"name": "a", "annotations": {"a": True}}},
    {"sepc": {}},
    {"spec": {"spec": claims.claim("a")["spec"]}},
    {"kind": "ResourceClaimTemplate"},
    {"kind": "ResourceClaimTemplate", "spec": {"metadata": {"name": "x"}, "spec": claims.claim("a")["spec"]}},
]
TAKEN: list[dict[str, Any]] = [
    {"metadata": {"name": "a.b-c"}},
    {"metadata": {"name": "a" * 253}},
    {"metadata": {"generateName": "a-"}},
    {"metadata": {"name": "l", "labels": {"a": "1", "b": ""}}},
    {
        "kind": "ResourceClaimTemplate",
        "spec": {"metadata": {"creationTimestamp": None, "labels": {"a": "b"}}, "spec": claims.claim("a")["spec"]},
    },
]
# Requests of claims, and more of their specification, that the API server refuses.
REFUSED: list[tuple[list[Any], dict[str, Any]]] = [
    ([{"name": "r", "deviceClassName": claims.DRIVER}], {}),
    ([{"name": "r"}], {}),
    ([{**claims.request(), "firstAvailable": [{"name": "a", "deviceClassName": "any"}]}], {}),
    ([claims.request(counts=2)], {}),
    ([claims.request(count="2")], {}),
    ([claims.request(count=-1)], {}),
    ([claims.request(count=2, allocationMode="All")], {}),
    ([claims.request(allocationMode="Any")], {}),
    ([claims.request(adminAccess="yes")], {}),
    ([claims.request(selectors=["true"])], {}),
    ([claims.request(selectors=[{"cel": {"expression": " "}}])], {}),
    ([claims.request(device_class="")], {}),
    ([claims.request("gpu")], {"config": [{"requests": ["gpus"], "opaque": {"driver": "x.y", "parameters": {}}}]}),
    ([claims.request("gpu")], {"constraints": [{"requests": ["gpus"], "matchAttribute": "gpu.nvidia.com/uuid"}]}),
    ([claims.request()], {"constraints": [{"matchAttribute": "pcieRoot"}]}),
    ([claims.request()], {"constraints": [{}]}),
    ([claims.request()], {"constraints": [{"requests": ["gpu", "gpu"], "matchAttribute": "gpu.nvidia.com/uuid"}]}),
    ([claims.request()], {"config": [{"requests": ["gpu", "gpu"], "opaque": {"driver": "x.y", "parameters": {}}}]}),
    ([{"name": "r", "firstAvailable": [{"name": "a", "exactly": ANY}]}], {}),
    ([claims.request()], {"config": [{"requests": ["gpu"]}]}),
    ([claims.request("GPU")], {}),
    ([claims.request(device_class="GPU.nvidia.com")], {}),
    ([claims.request(selectors=[{"cel": {"expression": f"{' ' * 10240}true"}}])], {}),
    ([claims.request()], {"config": [{"opaque": {"driver": "x.y", "parameters": "x"}}]}),
    ([claims.request(), claims.request()], {}),
    ([claims.request()], {"constraint": []}),
    *(
        ([claims.request(tolerations=[{"key": "a/b", **more}])], {})
        for more in (
            {"key": 5},
            {"key": "a b"},
            {"operator": "Exits"},
            {"operator": "Exists", "value": "79"},
            {"value": 79},
            {"value": "a b"},
            {"effect": "No"},
            {"tolerationSeconds": "5"},
        )
    ),
    ([claims.request(selectors=[{"cel": {"expression": "true"}}] * 33)], {}),
    ([claims.request()], {"config": [{"opaque": {"driver": "x.y", "parameters": {}}}] * 33}),
    ([claims.request()], {"constraints": [{"matchAttribute": "gpu.nvidia.com/uuid"}] * 33}),
    ([claims.request(f"r{number}") for number in range(33)], {}),
    ([{"name": "r", "firstAvailable": [{**ANY, "name": f"a{number}"} for number in range(9)]}], {}),
]
