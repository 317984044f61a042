"""`gpushim explain --pod`: print the devices of a pod's containers, and why they have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpushim.cli import show
from gpushim.containers import pods
from gpushim.ground.errors import GpushimError
from gpushim.inventory import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def explain(text: str, states: list[str] | None, form: str, print_report: Callable[[dict[str, Any]], None]) -> None:
    """Print a pod's containers as "table" or "json".

    Args:
        text: NAMESPACE/POD or NAMESPACE/POD/CONTAINER.
        states: state directories to look into, instead of the usual ones.
        form: "table" or "json".
        print_report: prints a report of gpushim.explain.explain as a table.

    Raises:
        GpushimError: no such container runs here, or it would be refused now.
    """
    name = pods.pod_name(text)
    if name is None:
        raise click.UsageError(f"--pod is {text!a}; write NAMESPACE/POD, or NAMESPACE/POD/CONTAINER")
    notes: list[str] = []
    inventory = present.anyhow(notes)
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])
    rows, pod_notes = pods.report(name, inventory, pods.kubelet_dir(), states)
    for note in [*notes, *pod_notes]:
        show.say(f"note: {note}", error=True)
    if form == "json":
        show.emit(form, rows)
    else:
        for row in rows:
            _print(row)
            print_report(row["explain"])
    for row in rows:
        if refusal := row["explain"]["refusal"]:
            raise GpushimError(refusal["sentence"], refusal["exit_code"])


def _print(row: dict[str, Any]) -> None:
    show.table(("CONTAINER", "IS"), [*_rows(row)])
    show.say()
    if row["kubelet"]:
        show.say("Kubelet gave it, and the device plugin answered:")
        show.table(("RESOURCE", "DEVICES", "ANSWER"), [*_grant_rows(row["kubelet"])])
        show.say()


def _rows(row: dict[str, Any]) -> Iterator[list[str]]:
    yield ["name", "/".join((row["namespace"], row["pod"], row["container"]))]
    yield ["id", row["id"]]
    yield ["engine", f"{row['engine']}, process {row['pid']}"]
    yield ["has", f"GPUs {','.join(row['devices'])}, by {row['how']}" if row["devices"] else "no GPU"]
    for request in row["told"]:
        yield ["told by", request]
    for claim in row["claims"] or ():
        yield ["claim", f"{pods.called(claim)}, device {claim['device']}"]
    if row["kubelet"] is None:
        yield ["kubelet", "what it gave is not known"]
    elif not row["kubelet"]:
        yield ["kubelet", "gave it no device of a device plugin" if row["claims"] else "gave it no device"]


def _grant_rows(kubelet: list[dict[str, Any]]) -> Iterator[list[str]]:
    for grant in kubelet:
        head = [grant["resource"], ",".join(grant["devices"])]
        for answer in grant["answer"] or [""]:
            yield [*head, answer]
            head = ["", ""]
