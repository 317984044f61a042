"""`gpushim explain --pod`: print what the containers of a pod have, and why.

Out of scope: finding that out (gpushim.containers.pods).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpushim.cli import show
from gpushim.containers import pods
from gpushim.ground.errors import GpushimError
from gpushim.inventory import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def explain(text: str, states: list[str] | None, form: str, tell: Callable[[dict[str, Any]], None]) -> None:
    """Print it as "table" or "json".

    Args:
        text: NAMESPACE/POD or NAMESPACE/POD/CONTAINER.
        states: state directories to look into, instead of the usual ones.
        form: how to print it.
        tell: prints what gpushim.explain.explain has found out, as a table.

    Raises:
        GpushimError: no such container runs here, or it would be refused now.
    """
    asked = pods.pod_name(text)
    if asked is None:
        raise click.UsageError(f"--pod is {text!a}; write NAMESPACE/POD, or NAMESPACE/POD/CONTAINER")
    notes: list[str] = []
    inventory = present.anyhow(notes)
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])
    found, more = pods.report(asked, inventory, pods.kubelet_dir(), states)
    for note in [*notes, *more]:
        show.say(f"note: {note}", error=True)
    if form == "json":
        show.emit(form, found)
    else:
        for one in found:
            _tell(one)
            tell(one["explain"])
    for one in found:
        if refusal := one["explain"]["refusal"]:
            raise GpushimError(refusal["sentence"], refusal["exit_code"])


def _tell(one: dict[str, Any]) -> None:
    show.table(("CONTAINER", "IS"), [*_rows(one)])
    show.say()
    if one["kubelet"]:
        show.say("Kubelet gave it, and the device plugin answered:")
        show.table(("RESOURCE", "DEVICES", "ANSWER"), [*_given(one["kubelet"])])
        show.say()


def _rows(one: dict[str, Any]) -> Iterator[list[str]]:
    yield ["name", "/".join((one["namespace"], one["pod"], one["container"]))]
    yield ["id", one["id"]]
    yield ["engine", f"{one['engine']}, process {one['pid']}"]
    yield ["has", f"GPUs {','.join(one['devices'])}, by {one['how']}" if one["devices"] else "no GPU"]
    for request in one["told"]:
        yield ["told by", request]
    for claim in one["claims"] or ():
        yield ["claim", f"{pods.called(claim)}, device {claim['device']}"]
    if one["kubelet"] is None:
        yield ["kubelet", "what it gave is not known"]
    elif not one["kubelet"]:
        yield ["kubelet", "gave it no device of a device plugin" if one["claims"] else "gave it no device"]


def _given(kubelet: list[dict[str, Any]]) -> Iterator[list[str]]:
    for each in kubelet:
        head = [each["resource"], ",".join(each["devices"])]
        for answer in each["answer"] or [""]:
            yield [*head, answer]
            head = ["", ""]
