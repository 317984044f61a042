"""What the containers of a claim share, by its configs: which daemons and time slices, and how engines are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.dra import shared
from gpuplugin.dra.claim import Claim, Result, groups
from gpuplugin.dra.configs import MPS, TIME_SLICING, Config
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.record import rows

UID = "12345678-1234-4234-8234-123456789012"
UUIDS = {"a": "GPU-a", "b": "GPU-b", "m": "MIG-m", "n": "MIG-n"}
NAME = f"claim-{UID}-"


def result(device: str, config: Config, request: str = "r", admin: bool = False) -> Result:
    return Result(request, device, admin, config)


def mps(position: int = 0, **more: Any) -> Config:
    return Config(MPS, position=position, **more)


def slices(interval: str, position: int = 0) -> Config:
    return Config(TIME_SLICING, interval, position=position)


def claim(*results: Result, uid: str = UID) -> Claim:
    return Claim(uid, "d", "c", results)


def recorded(one: Claim) -> list[Any]:
    """Return its devices as the record has them."""
    return [
        {**rows.claim_device(UUIDS[each.device], admin=each.admin), "request": each.request} for each in one.results
    ]


def group(number: int, *uuids: str, threads: int = 100, each: Any = (), interval: int = 0) -> MpsGroup:
    gpus = tuple(MpsGpu(uuid, place, 0) for place, uuid in enumerate(uuids))
    return MpsGroup(f"{NAME}{number}", gpus, None, threads, False, each, interval)


LIMITS = (("0", "1Gi"),)
FOUND: dict[str, tuple[list[Result], list[MpsGroup]]] = {
    "nothing said": ([result("a", Config())], []),
    "the default interval": ([result("a", slices("Default"))], []),
    "time slices of a MIG instance, which has none": ([result("m", Config(TIME_SLICING))], []),
    "an interval": ([result("a", slices("Medium"))], [group(0, "GPU-a", interval=2)]),
    "a daemon": ([result("a", mps(threads=50))], [group(0, "GPU-a", threads=50)]),
    "for all users": ([result("a", mps(multi_user=True))], [replace(group(0, "GPU-a"), multi_user=True)]),
    "of two GPUs": ([result("a", mps()), result("b", mps())], [group(0, "GPU-a", "GPU-b")]),
    "with limits": (
        [result("a", mps(memory="2Gi", per_device=LIMITS)), result("b", mps(memory="2Gi", per_device=LIMITS))],
        [group(0, "GPU-a", "GPU-b", each=(1024, 2048))],
    ),
    "one of two has a limit": (
        [result("a", mps(per_device=LIMITS)), result("b", mps(per_device=LIMITS))],
        [group(0, "GPU-a", "GPU-b", each=(1024, None))],
    ),
    "alike, but two configs": (
        [result("a", mps(per_device=LIMITS)), result("b", mps(1, per_device=LIMITS), "s")],
        [group(0, "GPU-a", each=(1024,)), group(1, "GPU-b", each=(1024,))],
    ),
    "instances one by one": (
        [result("m", mps(per_device=(("1", "1Gi"),))), result("n", mps(per_device=(("1", "1Gi"),)), "s")],
        [group(0, "MIG-m"), group(1, "MIG-n", each=(1024,))],
    ),
    "an administrator": ([result("a", mps(), admin=True), result("b", slices("Long"), admin=True)], []),
    "an administrator beside": ([result("a", mps(), admin=True), result("b", mps(), "s")], [group(0, "GPU-b")]),
}


@pytest.mark.parametrize(("results", "wanted"), FOUND.values(), ids=FOUND)
def test_groups(results: list[Result], wanted: list[MpsGroup]) -> None:
    assert groups(claim(*results), UUIDS) == wanted


REFUSED = {
    "two instances of a request": ([result("m", mps()), result("n", mps())], UID, "has several MPS daemons in the"),
    "two configs of a request": ([result("a", mps()), result("m", mps(1))], UID, "has several MPS daemons in the"),
    "no index": ([result("a", mps(per_device=(("1", "1Gi"),)))], UID, "an index below 1"),
    "a uid that is a path": ([result("a", mps())], "../x", "is malformed"),
}


@pytest.mark.parametrize(("results", "uid", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refused(results: list[Result], uid: str, sentence: str) -> None:
    with pytest.raises(GpushimError, match=sentence):
        groups(claim(*results, uid=uid), UUIDS)


def test_each_request_names_its_group_once() -> None:
    one = claim(*(result(*row) for row in (("a", mps()), ("b", mps()), ("m", mps(1), "s"), ("n", Config(), "s"))))
    assert shared.names(recorded(one), groups(one, UUIDS)) == [
        [f"gpushim/claim={NAME}0"],
        [],
        [f"gpushim/claim={NAME}1"],
        [],
    ]


def test_an_administrators_result_names_none() -> None:
    one = claim(result("a", mps()), result("a", mps(), "s", admin=True))
    assert shared.names(recorded(one), groups(one, UUIDS)) == [[f"gpushim/claim={NAME}0"], []]


def test_a_spec_has_a_device_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSHIM_STATE", raising=False)
    found = shared.spec([group(0, "GPU-a"), group(1, "GPU-b", interval=3)])
    assert (found["cdiVersion"], found["kind"]) == ("0.3.0", "gpushim/claim")
    daemon, sliced = found["devices"]
    top = f"/run/gpushim/mps/{NAME}0"
    assert (daemon["name"], daemon["containerEdits"]["env"]) == (f"{NAME}0", [f"CUDA_MPS_PIPE_DIRECTORY={top}/pipe"])
    mounts = [
        (row["hostPath"], row["containerPath"], row["options"][0]) for row in daemon["containerEdits"]["mounts"]
    ]
    assert mounts == [(f"{top}/pipe", f"{top}/pipe", "ro"), (f"{top}/private/shm", "/dev/shm", "rw")]
    assert sliced == {"name": f"{NAME}1", "containerEdits": {"env": ["GPUSHIM_TIME_SLICE=long"]}}
