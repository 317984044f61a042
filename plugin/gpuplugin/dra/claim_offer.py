"""What this node has for claims at one moment.

Out of scope: how it is published (offered.py, cutting.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpuplugin.dra.claim import describe_devices
from gpuplugin.dra.partitions import get_parent, is_unmade
from gpuplugin.settings import resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.dra.claim import Claim
    from gpuplugin.dra.offered import Offered
    from gpuplugin.record.record_form import ClaimDevice
    from gpushim.ground.model import Snapshot


class Offer(NamedTuple):
    """Its devices, and what is wrong with them.

    Attributes:
        devices: by name.
        kind: of the CDI spec.
        problem: why nothing can be given now, or "".
        snapshot: of which all that is; None at first.
        sick: taints of what is unhealthy, by UUID.
        sentences: why, by UUID.
    """

    devices: Mapping[str, Offered]
    kind: str
    problem: str = ""
    snapshot: Snapshot | None = None
    sick: Mapping[str, Sequence[Mapping[str, str]]] = {}
    sentences: Mapping[str, str] = {}

    @property
    def usable(self) -> Snapshot | None:
        """The snapshot; None while nothing can be given."""
        return None if self.problem else self.snapshot

    def describe(self, claim: Claim) -> list[ClaimDevice]:
        """Return the devices of a claim as the record has them; raise as `claim.describe_devices`.

        A partition that is not there has its GPU's place.
        """
        units = resources.units(self.snapshot) if self.snapshot else {}
        for device in filter(is_unmade, self.devices.values()):
            units[device.uuid] = replace(units[get_parent(device)], id=device.uuid, uuid=device.uuid)
        return describe_devices(claim, self.devices, units)
