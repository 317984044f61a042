"""How slices wait, and what stays of those written before one is refused.

What is written is in test_slice_plan, and in e2e/test_dra_slices with a real API server.
"""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import Any

import pytest

from gpuplugin.cluster import slice_plan, slices
from gpuplugin.cluster.cluster import ApiError
from gpuplugin.cluster.slices import Slices

NODE = "node-1"


class Server:
    """An API server's slices of a node, of which it refuses those with a device of a certain name."""

    def __init__(self, *there: Any) -> None:
        self.slices = {one["metadata"]["name"]: one for one in there}

    def ask(self, method: str, path: str, query: Any, body: Any = None, **_: Any) -> Any:
        name = path.rpartition("/")[2]
        if method == "GET":
            return {"items": [*self.slices.values()]} if path == slices.PATH else {"metadata": {"uid": "u"}}
        if method == "DELETE":
            return self.slices.pop(name)
        if {"name": "refused"} in body["spec"]["devices"]:
            raise ApiError("no", 422)
        if "dryRun" not in query:
            self.slices[body["metadata"]["name"]] = body
        return body

    def devices(self) -> list[str]:
        return [device["name"] for one in self.slices.values() for device in one["spec"]["devices"]]


def slice_of(number: int, count: int, device: str) -> Any:
    """A slice of generation 7 as the server has it."""
    pool = {"name": NODE, "generation": 7, "resourceSliceCount": count}
    owner = {"kind": "Node", "name": NODE}
    return {
        "metadata": {"name": slice_plan.name(NODE, number), "uid": f"u{number}", "ownerReferences": [owner]},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": [{"name": device}]},
    }


@pytest.mark.parametrize(
    ("there", "left"),
    [
        ([slice_of(0, 3, "a")], ["a", "b"]),
        ([], ["a", "b"]),
        ([slice_of(0, 2, "x"), slice_of(1, 2, "y")], ["x", "y"]),
    ],
    ids=["a part of these was there", "none was there", "a complete generation was there"],
)
def test_what_was_written_goes_after_a_refusal_only_for_an_older_generation(
    there: list[Any], left: list[str]
) -> None:
    """Which counts again then; where there is none, what was written need not be written again."""
    server, told = Server(*there), list[Any]()
    one = Slices(server, NODE, told.append)  # type: ignore[arg-type]
    one.want([[{"name": "a"}], [{"name": "b"}], [{"name": "refused"}]])
    one._read()
    [*islice(one.write(), 1)]
    assert server.devices() == left
    assert told[-1]["published"]["problem"]


@pytest.mark.parametrize("desired", [None, [[]]], ids=["nothing is desired", "nothing has been listed"])
def test_who_can_write_nothing_sleeps(monkeypatch: pytest.MonkeyPatch, desired: Any) -> None:
    monkeypatch.setattr(slices, "TICK", 0.05)
    one = Slices(None, "node-1", lambda _: None)  # type: ignore[arg-type]
    one.want(desired)
    began = time.monotonic()
    assert len([*islice(one.write(), 4)]) == 4
    assert time.monotonic() - began >= 4 * 0.05


def test_what_is_to_settle_is_put_right_as_soon_as_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it came while the writer waited for nothing in particular."""
    monkeypatch.setattr(slices, "TICK", 20.0)
    one, done = Slices(None, "node-1", lambda _: None), threading.Semaphore(0)  # type: ignore[arg-type]
    monkeypatch.setattr(one, "_repair", lambda *_: done.release())
    one._listed = True
    threading.Thread(target=lambda: [*islice(one.write(), 10)], daemon=True).start()
    one.want([[]])
    assert done.acquire(timeout=10)
    time.sleep(0.1)  # it waits
    with one._changed:
        one._due = True
        one._state.settle(0.2)
        one._changed.notify_all()
    assert done.acquire(timeout=10)
