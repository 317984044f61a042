"""The form of the book: what its file has, checked when it is read, and as it begins and goes over a boot.

Out of scope: what it means (by_device.py), its file and lock (book.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from gpuplugin.settings.resources import Share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypedDict

    class Part(TypedDict):
        """What a resource has of a GPU or MIG instance: so many devices, with a number in their ids or without."""

        count: int
        numbered: bool
        share: Optional[dict[str, Any]]  # of its Share's attributes; None if it is whole

    class Division(TypedDict):
        """How a GPU or MIG instance was given out last: in which resources, by which instance of the plugin."""

        parts: dict[str, Part]
        owner: int
        place: str  # of a MIG instance: gi and ci on its GPU

    class Known(TypedDict, total=False):
        """What may be known of it beside."""

        uid: str  # of the pod, by kubelet's checkpoint: names come again
        place: str  # as that of a Division, of a MIG instance that a claim has
        pods: list[str]  # uids of those that have the claim

    class Entry(Known):
        """That somebody got something: by which front, as what, when in seconds since boot."""

        giver: str
        to: str  # a pod once kubelet has listed it, before that "" or as its checkpoint names it; or a claim
        uuid: str
        division: list[str]
        source: str
        time: float

    class Gpu(TypedDict):
        """Of a GPU: divisions by UUID, its own or its MIG instances'; entries by resource and id."""

        divisions: dict[str, Division]
        entries: dict[str, Entry]

    class Page(TypedDict):
        """All of it."""

        form: int
        boot: str
        turn: int  # number of changes of a division
        unknown: str  # why it does not have all that was given out, or ""
        kubelet: Optional[list[Any]]  # identity of its socket, and seconds since boot at its first sight; None: no
        gpus: dict[str, Gpu]

    Gifts = Mapping[str, Mapping[str, Entry]]  # entries by GPU, and resource and id


FORM = 1
MOST = 1 << 17  # devices of a resource
LARGEST = 1 << 48  # number of an instance, or seconds, or changes: far more than there are


def fresh(boot: str, unknown: str) -> Page:
    """Return a book without entries.

    Args:
        boot: this boot's id.
        unknown: why nobody knows what was in it, "" if nothing was.
    """
    return {"form": FORM, "boot": boot, "turn": 0, "unknown": unknown, "kubelet": ["", 0.0], "gpus": {}}


def booted(page: Page, boot: str) -> Page:
    """Return the book as it is in this boot: after another one, the divisions stand, and nobody has anything."""
    if page["boot"] == boot:
        return page
    gpus: dict[str, Gpu] = {gpu: {**one, "entries": {}} for gpu, one in page["gpus"].items()}
    return {**page, "boot": boot, "unknown": "", "kubelet": None, "gpus": gpus}


def grown(found: Any, given: Sequence[Any]) -> Any:
    """Return what a file has, with what was given since its first line was written.

    Args:
        found: its first line.
        given: the other lines: as Gifts.

    Raises:
        TypeError, KeyError, AttributeError: they are nothing of the kind.
    """
    for line in given:
        for gpu, entries in line.items():
            found["gpus"][gpu]["entries"].update(entries)
    return found


def checked(found: Any) -> Page:
    """Return what a file has, if it is a book.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is none.
    """
    texts, whole, numbers = [found["boot"], found["unknown"]], [found["form"], found["turn"]], []
    if found["kubelet"] is not None:
        identity, since = found["kubelet"]
        texts.append(identity)
        numbers.append(since)
    for gpu in found["gpus"].values():
        for uuid, one in gpu["divisions"].items():
            texts += [uuid, one["place"], *one["parts"]]
            whole.append(one["owner"])
            for part in one["parts"].values():
                _check_part(part)
        for key, entry in gpu["entries"].items():
            kind, name = entry["division"]
            texts += [key, entry["giver"], entry["to"], entry["uuid"], entry["source"], kind, name]
            texts += [entry.get("uid", ""), entry.get("place", ""), *entry.get("pods", ())]
            numbers.append(entry["time"])
    if not all(isinstance(one, str) for one in texts) or not all(type(one) is int for one in whole):
        raise TypeError
    if not all(0 <= one < LARGEST for one in (*whole, *numbers)):  # no NaN is
        raise ValueError
    result: Page = found
    return result


def _check_part(part: Part) -> None:
    by = share(part)
    texts = [by.kind, by.policy, by.group] if by else []
    limits = [one for one in (by.memory, by.threads) if one is not None] if by else []
    if type(part["numbered"]) is not bool or not all(isinstance(one, str) for one in texts):
        raise TypeError
    if not all(type(one) is int and 0 < one < LARGEST for one in limits) or type(part["count"]) is not int:
        raise TypeError
    if not 0 < part["count"] < MOST:
        raise ValueError


def share(part: Part) -> Share | None:
    """Return by what a part is shared; None if it is whole."""
    return Share(**part["share"]) if part["share"] is not None else None
