"""`gpushim ps`: the running containers that have a GPU."""

from __future__ import annotations

from typing import Any

import click

from gpushim.cli import show
from gpushim.containers import holders, memory_use
from gpushim.containers import pods as kubernetes
from gpushim.ground.errors import GpushimError
from gpushim.inventory import present

NONE = "no running container has a GPU"
PODS = ("NAMESPACE", "POD")  # in a table where it has a pod; always in CSV, as scripts count columns
CLAIM, MEMORY = ("CLAIM",), ("MEMORY",)  # likewise, of a claim or a limit
COLUMNS = ("NAME", "ENGINE", "PID", "DEVICES", "HOW")


@click.command()
@click.option(
    "--state",
    multiple=True,
    metavar="DIRECTORY",
    help="Where runc or crun keep their state (their --root), instead of the usual places.",
)
@click.option("--no-trunc", is_flag=True, help="Show whole ids, not the 12 digits by which engines know them too.")
@show.format_option("table", "json", "csv")
def ps(state: tuple[str, ...], no_trunc: bool, form: str) -> None:
    """List the running containers that have a GPU.

    Read from the state that runc and crun keep and from each container's config.json, whoever put the GPU there:
    HOW says spec for that, and hook for nodes that a hook has bound into the container later, as `docker run --gpus`
    does before Docker 29.2; mount, where neither config.json nor the runtime's state tells which. The host's whole
    /dev, mounted into a container, is not seen here. What an ordinary user may not look at is said; root sees all.
    Containers of pods have their namespace and pod, as containerd and CRI-O tell them; NAME is the pod's for them.
    CLAIM is the claim of Kubernetes' DRA that gave the GPU, and its driver, as kubelet has kept it. MEMORY is what a
    container with a limit of GPU memory uses of each GPU, and may use, by its cgroup.
    """
    problem: list[str] = []
    inventory = present.anyhow(problem)
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])
    containers, notes = holders.holders(inventory, list(state) or None)
    notes += kubernetes.claimed(containers, inventory, kubernetes.kubelet_dir())
    notes += memory_use.add(containers, inventory)
    for note in [*problem, *notes]:
        show.say(f"note: {note}", error=True)
    if not containers and form == "table":
        # What could not be read may have any number of them.
        show.say("none of the containers that could be looked at has a GPU" if notes else NONE)
        return
    pods = PODS if form == "csv" or any(container["pod"] for container in containers) else ()
    claim = CLAIM if form == "csv" or any(container["claims"] for container in containers) else ()
    memory = MEMORY if form == "csv" or any(map(_memory, containers)) else ()
    rows = [
        [
            container["id"] if no_trunc or form == "csv" else _short(container["id"]),
            *(container[head.lower()] for head in (*pods, "NAME", "ENGINE", "PID")),
            ",".join(container["devices"]),
            container["how"],
            *(_claims(container) for _ in claim),
            *(_memory(container) for _ in memory),
        ]
        for container in containers
    ]
    show.emit(form, containers, ("CONTAINER", *pods, *COLUMNS, *claim, *memory), rows)


def _claims(container: dict[str, Any]) -> str:
    return ", ".join(
        f"{claim['namespace']}/{claim['name']} of {claim['driver']}" for claim in container["claims"] or ()
    )


def _memory(container: dict[str, Any]) -> str:
    return ", ".join(
        f"{use['device']}: {use['used'] >> 20} of {use['limit'] >> 20} MiB"
        for use in container["memory"]
        if use["limit"] is not None
    )


def _short(identity: str) -> str:
    """Shorten an id of 64 hexadecimal digits, which an engine has made; others are names, and stay whole."""
    return identity[:12] if len(identity) == 64 and set(identity) <= set("0123456789abcdef") else identity
