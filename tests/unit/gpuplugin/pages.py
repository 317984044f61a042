"""Pages of the book, as other modules' tests need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.book import by_device, page
from gpuplugin.book.by_device import ALLOCATED, LISTED, PLUGIN
from unit.gpuplugin.snapshots import uuid

if TYPE_CHECKING:
    from gpuplugin.book.page import Page

GPU, PROFILE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
ONE, TWO, PART = uuid(0), uuid(1), uuid(16, "MIG")
WHOLE, SLICED = ("", GPU), ("time-slicing", GPU)


def division(count: int = 1, resource: str = GPU, owner: int = 1, place: str = "") -> Any:
    """Return how a GPU is given out: whole, or in so many slices of time."""
    share = {"kind": "time-slicing"} if count > 1 else None
    return {
        "parts": {resource: {"count": count, "numbered": count > 1, "share": share}},
        "owner": owner,
        "place": place,
    }


def entry(uuid: str = ONE, way: tuple[str, str] = WHOLE, source: str = ALLOCATED, **more: Any) -> Any:
    found = by_device.noted_entry(PLUGIN, "pod default/a" if source == LISTED else "", uuid, way, source, 5.0)
    return {**found, **more}


def book(divisions: dict[str, Any] | None = None, entries: dict[str, Any] | None = None, **more: Any) -> Page:
    """Return a page of GPU 0; other GPUs in `gpus`."""
    found: Any = page.fresh("boot", "")
    found["gpus"] = {ONE: {"divisions": divisions or {ONE: division()}, "entries": entries or {}}}
    found.update(more)
    result: Page = found
    return result
