"""What kubelet's checkpoints promise, and in which way it was given out."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.book import checkpoints
from gpuplugin.book.by_device import CLAIM
from gpuplugin.book.checkpoints import A_POD
from gpuplugin.book.claimed import Known
from gpuplugin.devices.changes import UNTOLD
from gpuplugin.kubelet.v1beta1 import writer
from gpuplugin.settings import resources
from gpuplugin.settings.sharing import MPS, TIME_SLICING
from gpushim.containers import kubelet
from gpushim.containers.kubelet import Claim
from gpushim.ground import system
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

GPU, DEV = "nvidia.com/gpu", "nvidia.com/gpu.dev"
HOST = snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)])
UNITS = resources.units(HOST)
ONE, TWO, PART = uuid(0), uuid(1), uuid(16, "MIG")
SLICED = {"NVIDIA_VISIBLE_DEVICES": ONE}
BY_MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/run/gpushim/mps/gpu-2/pipe"}
Rows = dict[str, list[str]]


def write(folder: Path, given: Rows, registered: Rows, answer: dict[str, str] | None) -> str:
    """Write a checkpoint; return kubelet's directory."""
    data = writer("ContainerAllocateResponse")({"envs": answer}) if answer else b""
    entry = {"PodUID": "u", "ContainerName": "c", "AllocResp": base64.b64encode(data).decode()}
    entries = [{**entry, "ResourceName": name, "DeviceIDs": {"-1": ids}} for name, ids in given.items()]
    path = folder / kubelet.PLUGINS / kubelet.CHECKPOINT
    path.parent.mkdir()
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}}))
    return str(folder)


def ways(found: checkpoints.Promised) -> dict[str, dict[str, tuple[str, str] | None]]:
    """By resource and id, by what a device is shared."""
    return {
        name: {key: (one.share.kind, one.share.group) if one.share else None for key, one in row.items()}
        for name, row in found.served.items()
    }


@pytest.mark.parametrize(
    ("given", "answer", "share"),
    [
        ({GPU: [ONE]}, SLICED, (UNTOLD, "")),  # whole, or one replica: the id does not say
        ({GPU: [f"{ONE}::1"]}, SLICED, (TIME_SLICING, "")),
        ({GPU: [f"{ONE}::1"]}, BY_MPS, (MPS, "gpu-2")),
        ({GPU: [f"{ONE}::1"]}, None, (UNTOLD, "")),
        ({"nvidia.com/mig-1g.5gb": [PART]}, None, (UNTOLD, "")),
    ],
)
def test_what_a_pod_was_given_says_in_which_way(
    tmp_path: Path, given: Rows, answer: dict[str, str] | None, share: tuple[str, str]
) -> None:
    found = checkpoints.read(write(tmp_path, given, {}, answer), HOST, UNITS)
    ((resource, (name,)),) = given.items()
    assert ways(found) == {resource: {name: share}}
    assert found.held == {resource: {name: A_POD}}
    assert (found.there, found.damaged) == (True, "")


@pytest.mark.parametrize(
    ("given", "registered", "served"),
    [
        ({}, {GPU: [ONE]}, {GPU: {ONE: (UNTOLD, "")}}),
        ({}, {GPU: [f"{ONE}::0"], DEV: [f"{ONE}::1"]}, {}),  # under two names: one of them is stale
        ({GPU: [f"{ONE}::0"]}, {GPU: [f"{ONE}::0", f"{ONE}::1"]}, {GPU: dict.fromkeys((0, 1), (TIME_SLICING, ""))}),
        ({GPU: [f"{ONE}::0"]}, {GPU: [ONE]}, {GPU: {0: (TIME_SLICING, "")}}),  # in another way since
        ({GPU: [f"{ONE}::0"]}, {DEV: [f"{ONE}::0"]}, {GPU: {0: (TIME_SLICING, "")}}),
        # what is given under another name says nothing of it under this one
        (
            {GPU: [f"{ONE}::0"], DEV: [TWO]},
            {GPU: [f"{TWO}::0"]},
            {GPU: {0: (TIME_SLICING, "")}, DEV: {TWO: (UNTOLD, "")}},
        ),
        ({GPU: [uuid(7)]}, {GPU: [uuid(7)], "vendor.com/nic": ["nic-0"]}, {}),  # of another host, or another kind
    ],
)
def test_what_was_registered_counts_where_no_pod_says_another_thing(
    tmp_path: Path, given: Rows, registered: Rows, served: dict[str, dict[Any, Any]]
) -> None:
    found = checkpoints.read(write(tmp_path, given, registered, SLICED), HOST, UNITS)
    desired = {
        name: {f"{ONE}::{key}" if isinstance(key, int) else key: way for key, way in row.items()}
        for name, row in served.items()
    }
    assert ways(found) == desired


def test_without_files_nothing_is_promised(tmp_path: Path) -> None:
    assert checkpoints.read(str(tmp_path), HOST, UNITS) == checkpoints.Promised()
    assert checkpoints.remembered(str(tmp_path)) is None


@pytest.mark.parametrize("name", [f"{kubelet.PLUGINS}/{kubelet.CHECKPOINT}", kubelet.CLAIMS])
def test_a_file_that_is_damaged_says_that_it_is_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{")
    found = checkpoints.read(str(tmp_path), HOST, UNITS)
    assert found.there
    assert found.damaged.startswith(f"{path} cannot be used: ")
    assert checkpoints.remembered(str(tmp_path)) is None


def test_what_kubelet_remembers_is_what_it_gave(tmp_path: Path) -> None:
    before = system.clock()
    folder = write(tmp_path, {GPU: [f"{ONE}::0", f"{ONE}::1"], DEV: [TWO]}, {GPU: [f"{ONE}::2"]}, None)
    found = checkpoints.remembered(folder)
    assert found is not None
    assert found.uids == dict.fromkeys((f"{GPU} {ONE}::0", f"{GPU} {ONE}::1", f"{DEV} {TWO}"), "u")
    assert {*found.resources} == {GPU}
    assert before <= found.written <= system.clock() + checkpoints.TICK


@pytest.mark.parametrize(
    ("device", "has"),
    [("gpu-0", [ONE]), (f"{ONE}".lower(), [ONE]), (f"{PART}".lower(), [PART]), ("another", [ONE, TWO, PART])],
)
def test_what_a_claim_may_have_it_has(device: str, has: list[str]) -> None:
    claim = Claim("default", "c", "gpu.nvidia.com", "node", device, ())
    listed = "claim default/c of gpu.nvidia.com"
    assert sorted(checkpoints.claimed([claim], HOST, UNITS)) == sorted((listed, one) for one in has)


def test_claims_that_kubelet_has_kept_are_promised(tmp_path: Path) -> None:
    device = {"PoolName": "node", "DeviceName": "gpu-0", "CDIDeviceIDs": []}
    entry = {"Namespace": "default", "ClaimName": "c", "PodUIDs": ["u"]}
    entry["DriverState"] = {"gpu.nvidia.com": {"Devices": [device]}}  # type: ignore[assignment]
    (tmp_path / kubelet.CLAIMS).write_text(json.dumps({"Data": json.dumps({"ClaimInfoStateList": [entry]})}))
    found = checkpoints.read(str(tmp_path), HOST, UNITS)
    assert found.held == {CLAIM: {ONE: "claim default/c of gpu.nvidia.com"}}
    assert (found.there, found.damaged) == (True, "")


KNOWN = {
    "what it has": ("gpu-x", {("d", "c", "gpu-x"): TWO}, [TWO]),
    "what it looks at": ("gpu-0", {("d", "c", "gpu-0"): ""}, []),
    "a device that the host has no more": ("gpu-x", {("d", "c", "gpu-x"): uuid(9)}, []),
    "another claim's": ("gpu-x", {("d", "other", "gpu-x"): TWO}, [ONE, PART, TWO]),  # which nobody knows
}


@pytest.mark.parametrize(("uid", "has"), [("", [ONE]), ("old", [ONE]), ("new", [])])
def test_of_claims_of_one_name_the_uid_tells(uid: str, has: list[str]) -> None:
    known = Known({("d", "c", "gpu-0"): ONE}, {("old", "gpu-0"): ONE, ("new", "gpu-0"): ""})
    one = Claim("d", "c", kubelet.DRIVERS[0], "n", "gpu-0", (), uid=uid)
    assert [uuid for _, uuid in checkpoints.claimed([one], HOST, UNITS, known)] == has


@pytest.mark.parametrize(("device", "known", "has"), KNOWN.values(), ids=KNOWN)
def test_of_gpushims_own_claims_its_file_tells(device: str, known: Any, has: list[str]) -> None:
    """kubelet's list does not say that an administrator's claim only looks."""
    one = Claim("d", "c", kubelet.DRIVERS[0], "n", device, (f"nvidia.com/gpu={uuid(9)}",))
    name = "claim d/c of gpu.nvidia.com"
    assert sorted(checkpoints.claimed([one], HOST, UNITS, Known(known))) == sorted((name, each) for each in has)
