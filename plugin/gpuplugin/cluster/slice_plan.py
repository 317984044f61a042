"""What is to be written so that a node's pool has what was desired, and in which order.

Kubernetes looks at the highest generation of a pool alone, and gives out nothing of it unless all its slices are
there. So a pool of one slice is changed in its place. One of several is written anew under other names before the old
slices go: if that does not come to its end, the new ones can be taken back, and the old generation counts again.
Out of scope: the API server (slices.py).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from gpuplugin.cluster.cluster import member
from gpushim.containers.kubelet import OWN_DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

DIGITS = 4  # of a slice's number; the devices of one slice come before those of the next by the names' order
MOST = 253  # characters of a name
LIMIT = 1 << 53  # of generations; a greater one would come to an end
OWN = {"driver", "nodeName", "pool", "devices"}  # members of a slice's spec
MANAGER = "gpushim"  # by which managedFields know who wrote


@dataclass(frozen=True)
class Seen:
    """A slice of this node and driver, as the API server has it.

    Attributes:
        version: its resourceVersion; 0 if that is no number.
        number: in its name; -1 if that is not one of ours.
        owned: whether it goes with the node.
        others: whether its spec says more than ours do.
        deleting: whether it is being deleted, and waits for somebody.
        by: who wrote it last, as Kubernetes has it; "" if that was us.
        metadata: labels and annotations, which stay.
    """

    name: str
    uid: str
    version: int
    number: int
    pool: str
    generation: int
    count: int
    devices: list[Any]
    owned: bool
    others: bool
    deleting: bool
    by: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is to be done, in this order.

    Attributes:
        first: slices that are deleted before anything is written, as they stand in the way.
        writes: index of the desired slice, its name, and the one of that name that is there.
        after: slices that are deleted in the end.
        generation: of the pool.
        anew: whether the generation is new, and an older one is complete.
    """

    first: list[Seen]
    writes: list[tuple[int, str, Seen | None]]
    after: list[Seen]
    generation: int
    anew: bool = False

    @property
    def empty(self) -> bool:
        """Whether all is as it should be."""
        return not (self.first or self.writes or self.after)


def _stem(node: str) -> str:
    """Return what the names of a node's slices begin with; a long name of a node is cut, and its hash is added."""
    tail = f"-{OWN_DRIVER}-"
    room = MOST - len(tail) - DIGITS
    if len(node) > room:
        digest = hashlib.sha256(node.encode()).hexdigest()[:16]
        node = f"{node[: room - 17].rstrip('-.')}-{digest}"
    return node + tail


def name(node: str, number: int) -> str:
    """Return the name of a node's slice."""
    return f"{_stem(node)}{number:0{DIGITS}}"


def seen(found: Any, node: str) -> Seen | None:
    """Return what is to be known of a ResourceSlice object; None if it is none of this node and driver."""
    metadata, spec = member(found, "metadata"), member(found, "spec")
    called, pool, devices = member(metadata, "name"), member(spec, "pool"), member(spec, "devices")
    if (member(spec, "driver"), member(spec, "nodeName")) != (OWN_DRIVER, node) or not isinstance(called, str):
        return None
    number = called[len(_stem(node)) :] if called.startswith(_stem(node)) else ""
    ours = re.fullmatch(f"[0-9]{{{DIGITS}}}", number) and member(pool, "name") == node
    return Seen(
        name=called,
        uid=str(member(metadata, "uid")),
        version=_version(metadata),
        number=int(number) if ours else -1,
        pool=str(member(pool, "name")),
        generation=_number(member(pool, "generation")),
        count=_number(member(pool, "resourceSliceCount")),
        devices=devices if ours and isinstance(devices, list) else [],
        owned=_owned(metadata, node),
        others=any(value for key, value in spec.items() if key not in OWN),
        deleting=bool(member(metadata, "deletionTimestamp")),
        by=_by(metadata),
        metadata={key: member(metadata, key) for key in ("labels", "annotations") if member(metadata, key)},
    )


def _version(metadata: Any) -> int:
    """Return an object's resourceVersion; 0 if that is no number."""
    found = str(member(metadata, "resourceVersion"))
    return int(found) if re.fullmatch("[0-9]{1,19}", found) else 0


def plan(there: Collection[Seen], node: str, count: int, same: Callable[[int, Seen], bool]) -> Plan:
    """Work out what is to be done.

    Args:
        there: all slices of this node and driver.
        node: its name, and the pool's.
        count: of desired slices.
        same: says whether a slice that is there, and is one of ours, has what is desired at an index.
    """
    wild = [one for one in there if one.pool != node or not 0 <= one.generation <= LIMIT]
    rest = sorted((one for one in there if one not in wild), key=lambda one: (-one.generation, one.name))
    pools = [[*group] for _, group in groupby(rest, lambda one: one.generation)]  # by generation, the highest first
    newest = pools[0] if pools else []
    generation = newest[0].generation if newest else 0
    begin = _begins(newest, count, same)
    complete = next((each for each in pools if all(one.count == len(each) for one in each)), [])
    if begin is not None:
        keep = {one.name for one in newest}
    else:
        generation, keep = generation + 1, set()
        begin = _free(complete, count)
    by_name = {one.name: one for one in there}
    names = [(index, name(node, begin + index)) for index in range(count)]
    writes = [(index, each, by_name.get(each)) for index, each in names if each not in keep]
    writes = [(index, each, None if one in wild else one) for index, each, one in writes]
    stay = {*keep, *(each for _, each, _ in writes)}
    first = [one for one in wild if not one.deleting or one.name in stay]
    after = [one for one in rest if not (one.name in stay or one.deleting)]
    return Plan(first, writes, after, generation, anew=not keep and bool(complete))


def candidates(there: Collection[Seen], count: int) -> Iterator[tuple[int, Seen]]:
    """Yield the slices that may be as they are desired but for what the server dropped, each with its index."""
    top = max((one.generation for one in there), default=0)
    newest = sorted((one for one in there if one.generation == top), key=lambda one: one.number)
    if newest and all(one.count == len(newest) == count and one.number >= 0 for one in newest):
        yield from enumerate(newest)


def _begins(slices: list[Seen], count: int, same: Callable[[int, Seen], bool]) -> int | None:
    """Return the number of the first desired slice, if each of these is right as one of them; else None.

    They are of one generation, and some of the desired ones may be missing.
    """
    numbers = [one.number for one in slices]
    if not slices or min(numbers) < 0 or max(numbers) - min(numbers) >= count:
        return None
    if any(one.count != count or one.others or not one.owned for one in slices):
        return None
    for begin in range(max(0, max(numbers) - count + 1), min(numbers) + 1):
        if all(same(one.number - begin, one) for one in slices):
            return begin
    return None


def _free(keep: list[Seen], count: int) -> int:
    """Return the first of so many numbers that no slice has that stays for now; one takes one's place."""
    numbers = [one.number for one in keep if one.number >= 0]
    if not numbers or min(numbers) >= count:
        return 0
    if count == len(keep) == 1:
        return numbers[0]
    return max(numbers) + 1


def _owned(metadata: Any, node: str) -> bool:
    owners = member(metadata, "ownerReferences")
    return isinstance(owners, list) and any(
        (member(one, "kind"), member(one, "name")) == ("Node", node) for one in owners
    )


def _by(metadata: Any) -> str:
    fields = member(metadata, "managedFields")
    if not isinstance(fields, list) or not fields:
        return ""
    last = max(fields, key=lambda one: str(member(one, "time")))
    return "" if member(last, "manager") == MANAGER else str(member(last, "manager"))[:60]


def _number(found: Any) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) else -1
