"""What the driver would say of a claim if it got these devices: its own checks, before there is an allocation.

Out of scope: which devices it would get (claim_answer.py), what the driver has to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.dra import claim, shared
from gpuplugin.dra.configs import chosen, mebibytes
from gpuplugin.mps import mps
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.dra.node_state import NodeState
    from gpuplugin.matching.fitting import Way
    from gpuplugin.matching.manifests import ClaimSpec, Class, Request

REFUSES = "the driver refuses it: "
POOL, UID = "here", "00000000-0000-4000-8000-000000000000"  # of an allocation that is none


def of_configs(spec: ClaimSpec) -> str:
    """Say why the driver refuses a claim's configs, whatever it gets."""
    return _sentence(lambda: chosen({"devices": {"config": _of_claim(spec)}}, OWN_DRIVER, {}))


def of_device(spec: ClaimSpec, request: Request, found: Class, device: str) -> str:
    """Say why the driver refuses a device of this type."""
    results = [{"request": request.name, "driver": OWN_DRIVER, "device": device}]
    devices = {"config": [*_of_class(request.name, found), *_of_claim(spec)], "results": results}
    return _sentence(lambda: chosen({"devices": devices}, OWN_DRIVER, {device: device.partition("-")[0]}))


def of_way(spec: ClaimSpec, classes: Mapping[str, Class], way: Way, node: NodeState) -> str:
    """Say why the driver refuses a claim that gets these devices.

    Args:
        spec: the claim.
        classes: by the request's name.
        way: names of requests and devices.
        node: where it gets them.
    """
    try:
        groups = _groups(spec, classes, way, node)
        shared.need_programs(groups, node.snapshot)
    except GpushimError as error:
        return f"{REFUSES}{error}"
    starter = mps.no_starter() if groups else ""
    return f"the driver waits in vain: {starter}" if starter else ""


def notes(spec: ClaimSpec, classes: Mapping[str, Class], way: Way, node: NodeState) -> list[str]:
    """Say which limits of memory limit nothing; arguments as of `of_way`, which has nothing to say."""
    has = {one.uuid: str(one.body["capacity"]["memory"]["value"]) for one in node.offered}
    return [
        f"claim {spec.name}: its MPS limit of {limit}Mi limits nothing, for {gpu.uuid} has {has[gpu.uuid]}"
        for group in _groups(spec, classes, way, node)
        for gpu, limit in zip(group.gpus, group.limits)
        if limit and limit > (mebibytes(has[gpu.uuid]) or limit)
    ]


def _groups(spec: ClaimSpec, classes: Mapping[str, Class], way: Way, node: NodeState) -> Sequence[MpsGroup]:
    """Do as the driver does with a claim that has an allocation."""
    admin = {one.name for choice in spec.requests for one in choice if one.admin}
    results = [
        {"request": request, "driver": OWN_DRIVER, "pool": POOL, "device": device, "adminAccess": request in admin}
        for request, device in way
    ]
    of_classes = [row for request in dict(way) for row in _of_class(request, classes[request])]
    devices = {"results": results, "config": [*of_classes, *_of_claim(spec)]}
    found = {"metadata": {"uid": UID}, "status": {"allocation": {"devices": devices}}}
    asked = {"namespace": spec.namespace or "default", "name": spec.name, "uid": UID}
    return claim.groups(claim.allocated(asked, found, POOL), {one.name: one.uuid for one in node.offered})


def _of_class(request: str, found: Class) -> list[dict[str, Any]]:
    return [{**row, "source": "FromClass", "requests": [request]} for row in found.configs]


def _of_claim(spec: ClaimSpec) -> list[dict[str, Any]]:
    return [{**row, "source": "FromClaim"} for row in spec.configs]


def _sentence(prepare: Callable[[], object]) -> str:
    try:
        prepare()
    except GpushimError as error:
        return f"{REFUSES}{error}"
    return ""
