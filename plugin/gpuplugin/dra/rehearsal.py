"""What the driver would say of a claim if it got these devices: its own checks, before there is an allocation.

Out of scope: which devices it would get (claim_answer.py), what the driver has to wait for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpuplugin.dra import claim, configs, offered, shared
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground import system
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.dra.node_state import NodeState
    from gpuplugin.matching.fitting import Way
    from gpuplugin.matching.manifests import ClaimSpec, Class

REFUSES = "the driver refuses it: "
UID = "00000000-0000-4000-8000-000000000000"  # of a claim that has none yet
STARTER = (
    "systemd, which starts its gpushim-mps@claim-UID-NUMBER.service, is not seen here, as from a pod; where the node "
    "has none, its init must run what that runs, or the claim waits in vain"
)


class Rehearsal:
    """A claim that may get one thing or another. Its configs, and those of its classes, are read once.

    Args:
        spec: the claim.
        classes: by the name of a request or alternative.
        node: where it gets devices.
    """

    def __init__(self, spec: ClaimSpec, classes: Mapping[str, Class], node: NodeState) -> None:
        self._spec, self._node = spec, node
        self._uuids = {one.name: one.uuid for one in node.offered}
        self._admin = {one.name for choice in spec.requests for one in choice if one.admin}
        rows = {name: [_of_class(name, row) for row in found.configs] for name, found in classes.items()}
        self._rows = {**rows, "": [{**row, "source": "FromClaim"} for row in spec.configs]}  # by request, then all
        self._read: dict[tuple[str, int], list[configs.Row] | GpushimError] = {}

    def of_configs(self) -> str:
        """Say why the driver refuses the claim's configs, whatever it gets, or ""."""
        return _sentence(
            lambda: self._configs((), {choice[0].name.partition("/")[0] for choice in self._spec.requests})
        )

    def of_device(self, request: str, device: str) -> str:
        """Say why the driver refuses a device of this type for a request, or ""."""
        types = {device: offered.type_of(device)}
        return _sentence(lambda: configs.best(request, device, self._configs([request]), types))

    def of_way(self, way: Way) -> str:
        """Say why the driver refuses the claim if it gets this, or "".

        Args:
            way: names of requests and devices.
        """
        return _sentence(lambda: shared.need_programs(self._groups(way), self._node.snapshot))

    def notes(self, way: Way) -> list[str]:
        """Say what is to be known of a way that is not refused: limits that limit nothing, and what starts units."""
        has = {one.uuid: str(one.body["capacity"]["memory"]["value"]) for one in self._node.offered}
        groups = self._groups(way)
        found = [STARTER] if groups and not os.path.isdir(system.SYSTEMD) else []
        found += [
            f"its MPS limit of {limit}Mi limits nothing, for {gpu.uuid} has {has[gpu.uuid]}"
            for group in groups
            for gpu, limit in zip(group.gpus, group.limits)
            if limit and limit > (configs.mebibytes(has[gpu.uuid]) or limit)
        ]
        return [f"claim {self._spec.name}: {sentence}" for sentence in found]

    def _groups(self, way: Way) -> Sequence[MpsGroup]:
        """Do as the driver does with a claim that has an allocation."""
        rows = self._configs([*dict(way)])
        types = {device: offered.type_of(device) for _, device in way}
        results = [
            claim.Result(
                request.partition("/")[0], device, request in self._admin, configs.best(request, device, rows, types)
            )
            for request, device in way
        ]
        found = claim.Claim(UID, self._spec.namespace or "default", self._spec.name, (*results,))
        return claim.groups(found, self._uuids)

    def _configs(self, requests: Collection[str], always: Collection[str] = ()) -> list[configs.Row]:
        """Return what counts for these requests: first configs of their classes, then the claim's.

        The scheduler leaves out the claim's for alternatives alone that it has not chosen.

        Args:
            requests: names of requests, or of alternatives.
            always: of requests that get some alternative.
        """
        names = {*requests, *(name.partition("/")[0] for name in requests), *always}
        places = [(name, at) for name in requests for at in range(len(self._rows[name]))]
        places += [("", at) for at, row in enumerate(self._rows[""]) if _counts(row, names)]
        configs.rows_of({"config": [self._rows[name][at] for name, at in places]}, "config")
        return [row for place in places for row in self._of(*place)]

    def _of(self, name: str, at: int) -> list[configs.Row]:
        if (name, at) not in self._read:
            place = [*self._rows].index(name) * configs.ROWS + at
            try:
                self._read[name, at] = configs.read([self._rows[name][at]], OWN_DRIVER, place)
            except GpushimError as error:
                self._read[name, at] = error
        found = self._read[name, at]
        if isinstance(found, GpushimError):
            raise found.with_traceback(None)
        return found


def _counts(row: Mapping[str, Any], names: Collection[str]) -> bool:
    """Say whether a claim's config is for one of these requests, or for all."""
    named = row.get("requests")
    return not (named and isinstance(named, list)) or not {*names}.isdisjoint(map(str, named))


def _of_class(request: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "source": "FromClass", "requests": [request]}


def _sentence(prepare: Callable[[], object]) -> str:
    try:
        prepare()
    except GpushimError as error:
        return f"{REFUSES}{error}"
    return ""
