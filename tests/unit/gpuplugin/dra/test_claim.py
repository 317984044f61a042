from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.dra.claim import MOST, Result, allocated, is_here, reserved_for
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.errors import GpushimError

ASKED = {"namespace": "d", "name": "c", "uid": "u1"}


def row(**more: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": OWN_DRIVER, "pool": "n", "device": "gpu-1", **more}


def claim(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    status = {"allocation": {"devices": {"results": [*rows]}}}
    return {"metadata": {"uid": "u1"}, "status": status, **more}


def test_results_of_this_driver_count() -> None:
    found = allocated(ASKED, claim(row(), row(driver="other"), row(request="g/two", adminAccess=True)), "n")
    assert found.results == (Result("gpu", "gpu-1", False), Result("g", "gpu-1", True))
    assert (found.uid, str(found)) == ("u1", "d/c")


def test_no_more_than_the_api_allows() -> None:
    assert len(allocated(ASKED, claim(*[row()] * 50), "n").results) == MOST


def test_a_config_that_is_wrong_is_told_with_the_devices_that_the_claim_has() -> None:
    found = claim(row(), row(device="gpu-2"))
    wrong = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "x"}}
    found["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClaim", "requests": ["gpu"], "opaque": {"driver": OWN_DRIVER, "parameters": wrong}}
    ]
    with pytest.raises(GpushimError, match=r'sharing\.strategy is "x"; write .*; the claim has gpu-1, gpu-2$'):
        allocated(ASKED, found, "n")


REFUSED: dict[str, tuple[Any, str]] = {
    "another claim of the name": (claim(row(), metadata={"uid": "u2"}), "is not the one that this pod was made for"),
    "not allocated": (claim(status={}), "is not allocated"),
    "no status": (claim(status=None), "is not allocated"),
    "another driver's": (claim(row(driver="other")), f"has no device of {OWN_DRIVER} on node n"),
    "another node's": (claim(row(pool="m")), "has a device on m, but its pod is on n"),
    "no metadata": ({}, "is malformed"),
    "no list": (claim(status={"allocation": {"devices": {"results": 3}}}), "is malformed"),
    "text": (claim(status={"allocation": "x"}), "is malformed"),
    "a request's name that would fill the record": (claim(row(request="x" * (1 << 20))), "is malformed"),
    "a request's name that is none": (claim(row(request="a\nb")), "is malformed"),
    "a row without a device": (claim({"driver": OWN_DRIVER, "pool": "n"}), "is malformed"),
}


@pytest.mark.parametrize(("found", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(found: Any, sentence: str) -> None:
    with pytest.raises(GpushimError, match=f"^claim d/c {sentence}"):
        allocated(ASKED, found, "n")


def test_a_text_that_is_nested_too_deeply() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(GpushimError, match="is malformed"):
        allocated(ASKED, claim(row(pool=deep)), "n")


HERE = {
    "as it was": (claim(row()), True),
    "another device": (claim(row(device="gpu-2")), False),
    "another node": (claim(row(pool="m")), False),
    "another driver": (claim(row(driver="other")), False),
    "not allocated": (claim(status={}), False),
    "no status": (claim(status=None), False),
    "not understood": (claim(status={"allocation": {"devices": {"results": 3}}}), True),
}


@pytest.mark.parametrize(("found", "here"), HERE.values(), ids=HERE)
def test_whether_a_claim_has_something_here(found: Any, here: bool) -> None:
    assert is_here({"devices": [{"device": "gpu-1"}]}, found, "n") == here


@pytest.mark.parametrize("status", ["x", {"reservedFor": {"a": 1}}, {"reservedFor": ["x", {"resource": "pods"}]}])
def test_a_malformed_answer_is_reserved_for_nobody(status: Any) -> None:
    """Of the half with the token, whose answer ends nothing here."""
    assert reserved_for({"metadata": {}, "status": status}) == ()
    assert reserved_for("x") == ()  # type: ignore[arg-type]
