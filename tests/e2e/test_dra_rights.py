"""What the DRA driver's token may write, on a real API server: the slices of its own node, under their own names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import charts
from e2e.apiserver import Api, api
from e2e.leftovers import until
from gpuplugin.cluster import slice_plan

DRIVER, ACCOUNT = "gpu.nvidia.com", "gpushim-dra-driver"
MINE, OTHERS = "mine", "others"
LONG = ".".join(["n" * 60] * 4)  # of which slices' names have a part
NAME, OTHERS_NAME = slice_plan.name(MINE, 0), slice_plan.name(OTHERS, 0)
RIGHTS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRole", "ClusterRoleBinding")
OWN_NODE, OWN_POOL = "of its own node only", "of its own node's pool only"
IMMUTABLE = "field is immutable"  # which the API server says by itself
ANYWHERE = [{"name": "gpu-0", "allNodes": True}]
OWN_NAME, OWN_DRIVER = "of its own names only", f"of {DRIVER} only"


def one(name: str = NAME, node: str = MINE, pool: str = "", **more: Any) -> dict[str, Any]:
    """Return a slice; without a name, of one that the server makes."""
    metadata = {"name": name} if name else {"generateName": f"{NAME}-"}
    place = {"nodeName": node} if node else {}
    pools = {"name": pool or MINE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pools, "devices": [{"name": "gpu-0"}], **place, **more}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    """An API server with the chart's rights and policy, which holds already."""
    with api() as found:
        rendered = charts.objects({"dra": {"enabled": True}})
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushim"}}
        rights = [rendered[f"{kind} gpushim-{ACCOUNT}"] for kind in RIGHTS]
        there = [one(), one(OTHERS_NAME, OTHERS, OTHERS), one("left", pool="old")]
        done = found.kubectl("create", "--filename=-", objects=[namespace, *rights, *there])
        assert not done.returncode, done.stderr
        assert until(lambda: OWN_NODE in said(found, "delete", "resourceslice", OTHERS_NAME), 20)
        yield found


def said(server: Api, *words: str, objects: list[dict[str, Any]] | None = None, node: str = MINE) -> str:
    """Do something as the driver's account on a node, which changes nothing; return what the server says."""
    who = [f"--as=system:serviceaccount:gpushim:{ACCOUNT}"]
    who += [f"--as-user-extra=authentication.kubernetes.io/node-name={node}"] if node else []
    read = ("--filename=-",) if objects else ()
    done = server.kubectl(*words, *read, *who, "--dry-run=server", objects=objects)
    return done.stderr if done.returncode else ""


CREATES = {
    "its own": (one(slice_plan.name(MINE, 12)), ""),
    "of another node": (one(slice_plan.name(OTHERS, 7), OTHERS, OTHERS), OWN_NODE),
    "of another node's pool": (one(slice_plan.name(MINE, 12), pool=OTHERS), OWN_POOL),
    "of another node's name": (one(slice_plan.name(OTHERS, 7)), OWN_NAME),
    "of a name before another's": (one(f"{MINE}-{DRIVER}-x-{DRIVER}-0000"), OWN_NAME),
    "of a name by the server": (one(""), OWN_NAME),
    "of all nodes": (one(slice_plan.name(MINE, 12), "", allNodes=True), OWN_NODE),
    "of nodes by device": (
        one(slice_plan.name(MINE, 12), "", perDeviceNodeSelection=True, devices=ANYWHERE),
        OWN_NODE,
    ),
    "of another driver": (one(slice_plan.name(MINE, 12), driver="other.org"), OWN_DRIVER),
}


@pytest.mark.parametrize(("written", "why"), CREATES.values(), ids=CREATES)
def test_which_slices_it_may_make(server: Api, written: dict[str, Any], why: str) -> None:
    answer = said(server, "create", objects=[written])
    assert re.search(why, answer) if why else not answer, answer


def test_a_node_with_a_long_name_has_slices(server: Api) -> None:
    assert not said(server, "create", objects=[one(slice_plan.name(LONG, 3), LONG, LONG)], node=LONG)


MOVES = {
    "devices": (one(devices=[]), ""),
    "to another pool": (one(pool=OTHERS), IMMUTABLE),
    "to another node": (one(node=OTHERS), IMMUTABLE),
    "to another driver": (one(driver="other.org"), IMMUTABLE),
}


@pytest.mark.parametrize(("written", "why"), MOVES.values(), ids=MOVES)
def test_how_it_may_change_one(server: Api, written: dict[str, Any], why: str) -> None:
    answer = said(server, "replace", objects=[written])
    assert re.search(why, answer) if why else not answer, answer


def test_another_nodes_does_not_become_its_own(server: Api) -> None:
    answer = said(server, "replace", objects=[one(OTHERS_NAME)])
    assert IMMUTABLE in answer


def test_which_it_may_delete(server: Api) -> None:
    """Those of an earlier driver on its node, too."""
    assert not said(server, "delete", "resourceslice", NAME, "left")
    assert OWN_NODE in said(server, "delete", "resourceslice", OTHERS_NAME)
    assert OWN_NODE in said(server, "delete", "resourceslice", NAME, node="")
    allowed = server.kubectl(
        "auth", "can-i", "deletecollection", "resourceslices", f"--as=system:serviceaccount:gpushim:{ACCOUNT}"
    )
    assert allowed.stdout.strip() == "no"
