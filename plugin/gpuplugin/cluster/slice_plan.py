"""Which slices to write and delete, and in which order, so that a node's pool has the desired devices.

Kubernetes looks at the highest generation of a pool alone, and gives out nothing of it unless all its slices are
there. So a pool of one slice is changed in its place. One of several is written anew under other names before the old
slices go: if that does not come to its end, the new ones can be taken back, and the old generation counts again.
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
DEVICES, COUNTERS = "devices", "sharedCounters"  # of which a slice has one
OWN = {"driver", "nodeName", "pool", DEVICES, COUNTERS}  # members of a slice's spec
MANAGER = "gpushim"  # by which managedFields know who wrote


@dataclass(frozen=True)
class Slice:
    """A slice of this node and driver, as the API server has it.

    Attributes:
        version: its resourceVersion; 0 if that is no number.
        number: in its name; -1 if that is not one of ours.
        owned: whether it goes with the node.
        devices: or sets of counters.
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
    """Deletions and writes, in this order.

    Attributes:
        first: slices that are deleted before anything is written, as they stand in the way.
        writes: index of the desired slice, its name, and the one of that name that is there.
        after: slices that are deleted in the end.
        anew: whether the generation is new, and an older one is complete.
    """

    first: list[Slice]
    writes: list[tuple[int, str, Slice | None]]
    after: list[Slice]
    generation: int
    anew: bool = False

    @property
    def empty(self) -> bool:
        return not (self.first or self.writes or self.after)


def _name_prefix(node: str) -> str:
    """Return the beginning of the names of a node's slices; a long name of a node is cut, and its hash is added."""
    tail = f"-{OWN_DRIVER}-"
    room = MOST - len(tail) - DIGITS
    if len(node) > room:
        digest = hashlib.sha256(node.encode()).hexdigest()[:16]
        node = f"{node[: room - 17].rstrip('-.')}-{digest}"
    return node + tail


def name(node: str, number: int) -> str:
    return f"{_name_prefix(node)}{number:0{DIGITS}}"


def member_of(rows: list[Any]) -> str:
    """Return the member of a slice's spec that has these rows, devices or sets of counters."""
    return COUNTERS if rows and "counters" in rows[0] else DEVICES


def parse_slice(slice_: Any, node: str) -> Slice | None:
    """Parse a ResourceSlice object; return None if it is none of this node and driver."""
    metadata, spec = member(slice_, "metadata"), member(slice_, "spec")
    slice_name, pool, devices = (
        member(metadata, "name"),
        member(spec, "pool"),
        member(spec, COUNTERS) or member(spec, DEVICES),
    )
    if (member(spec, "driver"), member(spec, "nodeName")) != (OWN_DRIVER, node) or not isinstance(slice_name, str):
        return None
    number = slice_name[len(_name_prefix(node)) :] if slice_name.startswith(_name_prefix(node)) else ""
    is_own = re.fullmatch(f"[0-9]{{{DIGITS}}}", number) and member(pool, "name") == node
    return Slice(
        name=slice_name,
        uid=str(member(metadata, "uid")),
        version=_parse_version(metadata),
        number=int(number) if is_own else -1,
        pool=str(member(pool, "name")),
        generation=_parse_number(member(pool, "generation")),
        count=_parse_number(member(pool, "resourceSliceCount")),
        devices=devices if is_own and isinstance(devices, list) else [],
        owned=_is_owned(metadata, node),
        others=any(value for key, value in spec.items() if key not in OWN),
        deleting=bool(member(metadata, "deletionTimestamp")),
        by=_find_writer(metadata),
        metadata={key: member(metadata, key) for key in ("labels", "annotations") if member(metadata, key)},
    )


def _parse_version(metadata: Any) -> int:
    text = str(member(metadata, "resourceVersion"))
    return int(text) if re.fullmatch("[0-9]{1,19}", text) else 0


def plan(slices: Collection[Slice], node: str, count: int, same: Callable[[int, Slice], bool]) -> Plan:
    """Return the writes and deletions that are needed.

    Args:
        slices: all slices of this node and driver.
        node: its name, and the pool's.
        count: of desired slices.
        same: returns whether a slice that is there, and is one of ours, has what is desired at an index.
    """
    own = [slice_ for slice_ in slices if slice_.pool == node and 0 <= slice_.generation <= LIMIT]
    foreign = [slice_ for slice_ in slices if slice_ not in own]
    generations = _group_by_generation(own)
    newest = generations[0] if generations else []
    complete = next((group for group in generations if all(slice_.count == len(group) for slice_ in group)), [])
    begin, right = _find_begin(newest, count, same), {slice_.name for slice_ in newest}
    is_new = begin is None
    if begin is None:
        begin, right = _find_free(complete, count), set()
    names = [name(node, begin + index) for index in range(count)]
    return Plan(
        first=[slice_ for slice_ in foreign if not slice_.deleting or slice_.name in right.union(names)],
        writes=_list_writes(names, right, own),
        after=_list_outdated(generations, right.union(names)),
        generation=(newest[0].generation if newest else 0) + is_new,
        anew=is_new and bool(complete),
    )


def _group_by_generation(slices: list[Slice]) -> list[list[Slice]]:
    """Return slices by generation, the highest first, and by name."""
    ordered = sorted(slices, key=lambda slice_: (-slice_.generation, slice_.name))
    return [[*group] for _, group in groupby(ordered, lambda slice_: slice_.generation)]


def _list_writes(names: list[str], right: set[str], own: list[Slice]) -> list[tuple[int, str, Slice | None]]:
    """Return index, name and existing slice for each name whose slice is not right."""
    slices = {slice_.name: slice_ for slice_ in own}
    return [(index, text, slices.get(text)) for index, text in enumerate(names) if text not in right]


def _list_outdated(generations: list[list[Slice]], staying: set[str]) -> list[Slice]:
    """Return the slices whose names do not stay, and that nobody is deleting yet."""
    slices = [slice_ for group in generations for slice_ in group]
    return [slice_ for slice_ in slices if not (slice_.name in staying or slice_.deleting)]


def candidates(slices: Collection[Slice], count: int) -> Iterator[tuple[int, Slice]]:
    """Yield the slices that may be as they are desired but for what the server dropped, each with its index."""
    generation = max((slice_.generation for slice_ in slices), default=0)
    newest = sorted(
        (slice_ for slice_ in slices if slice_.generation == generation), key=lambda slice_: slice_.number
    )
    if newest and all(slice_.count == len(newest) == count and slice_.number >= 0 for slice_ in newest):
        yield from enumerate(newest)


def _find_begin(slices: list[Slice], count: int, same: Callable[[int, Slice], bool]) -> int | None:
    """Return the number of the first desired slice, if each of these is right as one of them; else None.

    They are of one generation, and some of the desired ones may be missing.
    """
    numbers = [slice_.number for slice_ in slices]
    if not slices or min(numbers) < 0 or max(numbers) - min(numbers) >= count:
        return None
    if any(slice_.count != count or slice_.others or not slice_.owned for slice_ in slices):
        return None
    for begin in range(max(0, max(numbers) - count + 1), min(numbers) + 1):
        if all(same(slice_.number - begin, slice_) for slice_ in slices):
            return begin
    return None


def _find_free(keep: list[Slice], count: int) -> int:
    """Return the first of so many numbers that no slice has that stays for now; a single slice keeps its number."""
    numbers = [slice_.number for slice_ in keep if slice_.number >= 0]
    if not numbers or min(numbers) >= count:
        return 0
    if count == len(keep) == 1:
        return numbers[0]
    return max(numbers) + 1


def _is_owned(metadata: Any, node: str) -> bool:
    owners = member(metadata, "ownerReferences")
    return isinstance(owners, list) and any(
        (member(owner, "kind"), member(owner, "name")) == ("Node", node) for owner in owners
    )


def _find_writer(metadata: Any) -> str:
    fields = member(metadata, "managedFields")
    if not isinstance(fields, list) or not fields:
        return ""
    newest = max(fields, key=lambda entry: str(member(entry, "time")))
    return "" if member(newest, "manager") == MANAGER else str(member(newest, "manager"))[:60]


def _parse_number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
