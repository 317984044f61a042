"""What the DRA driver tells of itself: its own metrics, and whether it does its part.

Status of GPUs are told here where no device plugin on the node serves metrics, which have them already.
Out of scope: names and units (gpuplugin.metrics.metrics), figures of GPUs, HTTP (gpuplugin.metrics).
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuplugin.dra.offered import CLASSES, of_class
from gpuplugin.dra.partitions import get_parent
from gpuplugin.dra.spec import RIVAL
from gpuplugin.health import reason
from gpuplugin.metrics.exposition import FrontState
from gpuplugin.metrics.metrics import DRIVER
from gpuplugin.processes import counts, instances
from gpuplugin.record.transitions import find_admin_claims, list_held
from gpuplugin.settings.resources import Device
from gpuplugin.snapshot import release
from gpushim.containers.kubelet import OWN_DRIVER
from gpushim.ground.bounds import LISTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpuplugin.dra.link import Link
    from gpuplugin.dra.newest import Newest
    from gpuplugin.dra.offered import Offered
    from gpuplugin.dra.prepare import Claims
    from gpuplugin.health.reason import Reason
    from gpuplugin.kubelet.dra import Driver
    from gpuplugin.record.allocations_file import AllocationsFile
    from gpuplugin.record.record_form import Claim

    Asked = Sequence[Mapping[str, str]]  # claims
    Sample = tuple[str, dict[str, str], float]  # the name's end, labels, value

RECENT = 60.0  # seconds for which a refusal is told; kubelet asks sooner again, as long as a pod has the claim


class Now(NamedTuple):
    """The driver at one moment.

    Attributes:
        node: name of the node.
        rival: path of the socket of another giver's driver of this name, or "".
        offered: devices.
        why: sentences by UUID of those that are not well.
        reasons: why their health is not well, by UUID.
        problem: why none is given out, or "".
        lacks: which devices the CDI spec does not have, a sentence, or "".
        slices: that are to be published; None: not by this instance.
        taints: returns them by UUID.
    """

    node: str
    rival: str
    offered: Sequence[Offered]
    why: Mapping[str, str]
    reasons: Mapping[str, Sequence[Reason]]
    problem: str
    lacks: str
    slices: Sequence[object] | None
    taints: Callable[[], Mapping[str, Sequence[Mapping[str, str]]]]


class Status:
    """The driver as metrics and probes see it (gpuplugin.daemon.Front).

    Args:
        now: returns what the driver is like.
        claims: prepares them.
        file: the record, which has them.
        link: to the half that publishes.
        newest: says whether this instance does.

    Attributes:
        driver: as kubelet has it.
    """

    driver: Driver

    def __init__(
        self,
        now: Callable[[], Now],
        claims: Claims,
        file: AllocationsFile,
        link: Link,
        newest: Newest,
    ) -> None:
        self._now, self._claims, self._file, self._link, self._newest = now, claims, file, link, newest
        # Since when, and why, by namespace and name: one that is made again under a name is another claim.
        self._refused: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}

    async def prepare(self, claims: Asked) -> Mapping[str, list[dict[str, Any]] | str]:
        """Prepare claims, as `Claims.prepare`, and count them."""
        began = time.perf_counter()
        answers = await self._claims.prepare(claims)
        for claim in claims:
            self._note(claim, answers.get(claim["uid"]))
        for answer in answers.values():
            seconds = time.perf_counter() - began
            counts.took(counts.PREPARES, seconds, "error" if isinstance(answer, str) else "ok")
        return answers

    async def unprepare(self, claims: Asked) -> None:
        """Take claims back, as `Claims.unprepare`, and count them; an error is one that is taken back later."""
        began = time.perf_counter()
        await self._claims.unprepare(claims)
        for claim in claims:
            seconds = time.perf_counter() - began
            counts.took(counts.UNPREPARES, seconds, "error" if self._claims.is_unreleased(claim["uid"]) else "ok")

    def _note(self, claim: Mapping[str, str], answer: object) -> None:
        """Keep for a while why a claim was refused, the last ones; kubelet asks again and again."""
        clock, name = time.monotonic(), (claim["namespace"], claim["name"])
        rows = {key: row for key, row in self._refused.items() if key != name and clock - row[0] < RECENT}
        if isinstance(answer, str):
            rows[name] = clock, {"namespace": name[0], "name": name[1], "why": answer}
        self._refused = dict([*rows.items()][-LISTED:])

    def gpus(self) -> bool:
        """Return whether figures of GPUs are to be told here."""
        return not instances.anyone(release.folder(), instances.METRICS)

    def state(self) -> FrontState:
        """Return what its metrics tell."""
        moment, record = self._now(), self._file.read_known()
        claims = [claim for claim in record["claims"].values() if claim["driver"] == OWN_DRIVER] if record else []
        samples = [*self._published(moment), *_claimed(claims), *_tainted(moment)]
        devices = _devices(moment)
        return FrontState(DRIVER, devices, moment.reasons, samples, find_admin_claims(record), moment.node)

    def _published(self, moment: Now) -> Iterator[Sample]:
        published, host = self._link.published, {"Hostname": moment.node}
        generation = published.get("generation", 0)
        is_published = moment.slices is not None and bool(generation) and not published.get("problem")
        yield "registered", host, self.driver.registered
        yield "published", host, is_published
        yield "slices", {}, len(moment.slices or ())
        yield "pool_generation", {}, generation

    def asked(self) -> dict[str, Any]:
        """Return what root is told who asks (gpushim doctor)."""
        moment, published = self._now(), self._link.published
        return {
            "registered": self.driver.registered,
            "refused": self.driver.refused,
            "rival": moment.rival,
            "released": moment.problem == release.PROBLEM,
            "problem": moment.problem,
            "lacks": moment.lacks,
            "devices": len(moment.offered),
            "unhealthy": [*_unhealthy(moment)],
            "refusals": [row for since, row in self._refused.values() if time.monotonic() - since < RECENT],
            "lost": self._claims.warned,
            "publishes": moment.slices is not None,
            "published": published,
        }

    def unready(self) -> str:
        """Return why the driver cannot do its part, or ""."""
        rival, refused, published = self._now().rival, self.driver.refused, self._link.published
        if rival:
            return RIVAL.format(rival)
        if not self.driver.registered:
            return f"kubelet has not registered the driver{refused and ': '}{refused}"
        if not published.get("generation") and self._newest.is_it():  # what fails later is the API server's
            problem = published.get("problem") or "the container beside this one has not said that they are"
            return f"its ResourceSlices are not published: {problem}"
        return ""


def _unhealthy(moment: Now) -> Iterator[dict[str, Any]]:
    """List devices that are not well by their health, each with its cure, the gravest first."""
    rows = [
        (device, reasons, reason.cure(reasons))
        for device in moment.offered
        if (reasons := moment.reasons.get(device.uuid))
    ]
    for device, reasons, cure in sorted(rows, key=lambda row: reason.CURES.index(row[2])):
        until = reasons[-1].until if cure == "wait" else ""
        yield {
            "uuid": device.uuid,
            "gpu": get_parent(device),
            "why": moment.why.get(device.uuid, ""),
            "cure": cure,
            "until": until,
        }


def _devices(moment: Now) -> list[tuple[str, None, list[Device]]]:
    """List devices by their DeviceClass, as metrics have those of the device plugin by resource."""
    by_class: dict[str, list[Device]] = {name: [] for name in CLASSES.values()}
    for device in moment.offered:
        problem = moment.problem or moment.why.get(device.uuid, "")
        by_class[of_class(device.name)].append(Device(device.name, device.uuid, "", 0, problem=problem))
    return [(name, None, row) for name, row in by_class.items()]


def _claimed(claims: Sequence[Claim]) -> Iterator[Sample]:
    counter = Counter(dict.fromkeys(CLASSES.values(), 0))
    held = {device["uuid"]: of_class(device["device"]) for claim in claims for device in list_held(claim)}
    counter.update(held.values())
    yield "claims", {}, len(claims)
    for name, number in counter.items():
        yield "claimed_devices", {"resource": name}, number


def _tainted(moment: Now) -> Iterator[Sample]:
    rows = (taint for row in moment.taints().values() for taint in row)
    counter = Counter((taint["key"].rpartition("/")[2], taint["effect"]) for taint in rows)
    for (key, effect), number in counter.items():
        yield "tainted_devices", {"reason": key, "effect": effect}, number
