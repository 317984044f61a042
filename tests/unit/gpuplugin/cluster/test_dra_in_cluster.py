"""What the half with the token passes on of a claim, which its author writes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuplugin.cluster.access import RelayedAccess
from gpuplugin.cluster.claims import Claims
from gpuplugin.cluster.cluster import ApiError, DeepError
from gpuplugin.cluster.dra_in_cluster import Link
from gpuplugin.dra import configs
from gpuplugin.dra.claim import allocated, reserved_for
from gpushim.ground.bounds import CLAIM_DEPTH, CLAIM_LINE

ASKED = {"namespace": "d", "name": "c", "uid": "u"}
OURS, OTHER = "gpu.nvidia.com", "other.example"
LEVELS = 7  # above a config's parameters in a line: the object, status, allocation, devices, config, row, opaque


def nested(levels: int) -> Any:
    found: Any = []
    for _ in range(levels - 1):
        found = [found]
    return found


def claim(*configs: Any, drivers: tuple[str, ...] = (OURS,)) -> dict[str, Any]:
    results = [{"request": "r", "driver": driver, "pool": "n", "device": "gpu-0"} for driver in drivers]
    return {
        "metadata": {"uid": "u", "managedFields": ["x"]},
        "spec": {"devices": {"config": [*configs]}},
        "status": {"allocation": {"devices": {"results": results, "config": [*configs]}}},
    }


def config(driver: str, parameters: Any) -> dict[str, Any]:
    return {"source": "FromClaim", "requests": ["r"], "opaque": {"driver": driver, "parameters": parameters}}


@pytest.fixture
def told(folder: Path) -> Callable[[Any], dict[str, Any]]:
    """Have the API server have a claim; return what the other half is answered that asks for it."""

    def answer(found: Any) -> dict[str, Any]:
        link = Link(f"{folder}/s", RelayedAccess(None))
        link.slices = SimpleNamespace(want=lambda _: None)  # type: ignore[assignment]
        link.claims = Claims(SimpleNamespace(ask=found if callable(found) else lambda *_: found))  # type: ignore[arg-type]
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{folder}/s")
            server.listen()
            works = (list, link.follow()), (next, link.claims.work())
            threads = [threading.Thread(target=do, args=(work,), daemon=True) for do, work in works]
            for each in threads:
                each.start()
            with server.accept()[0] as other:
                other.settimeout(20)
                other.sendall(json.dumps({"claim": 7, **ASKED}).encode() + b"\n")
                line = other.makefile("rb").readline()
            for each in threads:
                each.join()
        said: dict[str, Any] = json.loads(line)
        assert said.pop("claim") == 7
        return said

    return answer


def test_what_is_of_this_driver_is_passed_on(told: Any) -> None:
    ours = config(OURS, {"apiVersion": configs.API, "kind": "GpuConfig"})
    rows = [config(OTHER, {"x": nested(3000)}), ours, {"source": "FromClass"}]
    found = told(claim(*rows, drivers=(OTHER, OURS)))["object"]
    (result,) = allocated(ASKED, found, "n").results
    assert (result.request, result.device, result.config.position) == ("r", "gpu-0", 1)
    devices = found.pop("status")["allocation"]["devices"]
    assert found == {"metadata": {"uid": "u"}}
    assert [one["driver"] for one in devices["results"]] == [OURS]
    assert devices["config"] == [{"opaque": {"driver": OTHER}}, ours, {}]


def unnamed(row: dict[str, Any]) -> dict[str, Any]:
    """A config for all requests in an allocation, as kube-scheduler 1.37 writes it."""
    return {name: value for name, value in row.items() if name != "requests"}


@pytest.mark.parametrize(
    ("written", "row", "named"),
    [
        ([["q"], ["r"]], {}, ["r"]),
        ([["q", "r"]], {}, ["q", "r"]),
        ([["r/one"], ["r/two"]], {"request": "r/two"}, ["r/two"]),
        ([["r"]], {"request": "r/two"}, ["r"]),
        ([[]], {}, None),
        ([["q"]], {}, None),
        ([], {"source": "FromClass"}, ["r"]),
        ([["q"]], {"source": "FromClass", "request": "r/two"}, ["r/two"]),
    ],
)
def test_a_config_for_all_requests_names_them(
    told: Any, written: list[list[str]], row: dict[str, str], named: list[str] | None
) -> None:
    ours = config(OURS, {"apiVersion": configs.API, "kind": "MigDeviceConfig"})
    found = claim(unnamed(ours) | {"source": row.get("source", "FromClaim")})
    found["spec"]["devices"]["config"] = [ours | {"requests": names} for names in written]
    found["status"]["allocation"]["devices"]["results"][0]["request"] = row.get("request", "r")
    (passed,) = told(found)["object"]["status"]["allocation"]["devices"]["config"]
    assert passed.get("requests") == named


@pytest.mark.parametrize("found", [{"metadata": {"uid": "u"}}, claim() | {"status": {"allocation": None}}])
def test_a_claim_without_an_allocation(told: Any, found: Any) -> None:
    assert told(found) == {"object": {"metadata": {"uid": "u"}, "status": {"reservedFor": []}}}


@pytest.mark.parametrize("allocation", [None, claim()["status"]["allocation"]])
def test_the_pods_that_have_it_are_passed_on(told: Any, allocation: Any) -> None:
    """By their cgroups it is seen when it has ended."""
    rows = [{"resource": "pods", "name": "p", "uid": "0a-1"}, {"resource": "pods", "uid": "../x"}, {"resource": "x"}]
    found = told(claim() | {"status": {"allocation": allocation, "reservedFor": [*rows, {"resource": "pods"}]}})
    assert reserved_for(found["object"]) == ("0a-1",)


def test_another_claim_of_that_name(told: Any) -> None:
    assert told({"metadata": {"uid": "v"}}) == {"absent": True}


@pytest.mark.parametrize(("about", "said"), [(ASKED["name"], "absent"), ("", "error")])
def test_a_claim_that_is_gone(told: Any, about: str, said: str) -> None:
    """Not where the server has no claims at all."""

    def ask(*_: Any) -> Any:
        raise ApiError("the API server answers 404: not found", 404, about)

    assert [*told(ask)] == [said]


@pytest.mark.parametrize(("levels", "error"), [(24, ""), (25, "too deep"), (960, "too deep"), (3000, "too deep")])
def test_a_config_that_is_deep(told: Any, levels: int, error: str) -> None:
    said = told(claim(config(OURS, nested(levels))))
    assert (CLAIM_DEPTH, "object" in said) == (LEVELS + 25, not error)
    assert error in said.get("error", "")


@pytest.mark.parametrize(
    ("uid", "said"), [("u", {"error": "the API server's answer is nested too deep"}), ("v", {"absent": True})]
)
def test_a_claim_that_cannot_be_read_may_be_another(told: Any, uid: str, said: Any) -> None:
    """Whose author would keep what the one before it had."""

    def ask(*_: Any, accept: str = "") -> Any:
        if "as=PartialObjectMetadata;" not in accept:
            raise DeepError("the API server's answer is nested too deep")
        return {"metadata": {"uid": uid}}

    assert told(ask) == said


def test_a_claim_that_is_large(told: Any) -> None:
    said = told(claim(config(OURS, "x" * CLAIM_LINE)))
    assert said == {"error": "the claim has more than 4 MiB"}
