"""What this node knows of one claim: its devices, their health, their names in the CDI spec, and who has it.

Out of scope: what the API server has of it, and claims that have nothing yet.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.dra import node_state
from gpuplugin.dra.node_state import present
from gpuplugin.record import transitions
from gpushim.cdi.generate import output, publish
from gpushim.cli import show
from gpushim.containers import kubelet
from gpushim.ground import system
from gpushim.ground.errors import REQUEST, GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuplugin.dra.node_state import NodeState
    from gpuplugin.record import record_form
    from gpuplugin.settings.settings import Settings
    from gpushim.containers.kubelet import Claim

KNOWN = (
    "request",
    "device",
    "uuid",
    "admin",
    "gpu",
    "placement",
    "share",
)  # of a claim's device; the rest is shown
DEVICES = ("REQUEST", "DEVICE", "INDEX", "SINCE", "CDI NAME", "USE", "HEALTH")
# NAMESPACE/NAME of a claim (RFC 1123: a label, and a subdomain), without what a shell or terminal understands.
NAME = re.compile("[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-.a-z0-9]{0,252}")


def tell(name: str, settings: Settings, form: str) -> None:
    """Print it, as "table" or "json".

    Args:
        name: NAMESPACE/NAME of the claim.
        settings: in force.
        form: how to print it.

    Raises:
        GpushimError: this node knows of no such claim, or cannot serve GPUs.
    """
    if not NAME.fullmatch(name):
        raise GpushimError(f"{quote(name)} names no claim; write NAMESPACE/NAME", REQUEST)
    namespace, _, claim = name.partition("/")
    findings = report(namespace, claim, present(settings), str(settings.values["kubelet-dir"]))
    if form == "json":
        show.emit(form, findings)
        return
    for note in findings["notes"]:
        show.say(f"note: {note}")
    for claim_row in findings["claims"]:
        show.say(f"Claim {name}, uid {claim_row['uid']}, has here:")
        show.table(DEVICES, [[*row.values()] for row in claim_row["devices"]])
        show.say()
    if findings["kubelet"]:
        show.say("kubelet has for it:")
        show.table(
            ("POD", "CONTAINER", "DRIVER", "DEVICE", "CDI NAMES"), [[*row.values()] for row in findings["kubelet"]]
        )
        show.say()
    show.text(f"Its selectors and configs: {kubectl(namespace, claim)}")  # in one line, to be pasted


def report(namespace: str, name: str, node: NodeState, kubelet_dir: str) -> dict[str, Any]:
    """Find out what this node knows of a claim; its namespace and name are as NAME has them.

    Returns:
        "notes"    sentences
        "claims"   [{"uid", "devices"}], of claims of this name: of the devices {"request", "device", "index",
                   "since", "cdi", "use", "health"}
        "kubelet"  [{"pod", "container", "driver", "device", "cdi"}]: who has it, a pod by its uid if kubelet is away

    Raises:
        GpushimError: nothing is known of such a claim.
    """
    notes = [*node.notes]
    rows = {
        uid: row
        for uid, row in (node.record["claims"] if node.record else {}).items()
        if (row["namespace"], row["name"]) == (namespace, name) and transitions.is_own(uid, row)
    }
    listed = [*_listed(namespace, name, kubelet_dir, notes)]
    notes += filter(None, (node_state.describe_loss(node, uid, row) for uid, row in rows.items()))
    if refusal := node_state.refusal(node, namespace, name):
        notes.append(f"its driver refuses it: {refusal}")
    if not rows and not listed:
        fix = "says whether it is allocated, in which pool (a node's name), and for which pods"
        reason = f": its driver refuses it: {refusal}" if refusal else f"; {kubectl(namespace, name)} {fix}"
        raise GpushimError(f"claim {namespace}/{name} has nothing on this node{reason}", REQUEST)
    if not rows:
        notes.append("gpushim's driver has given it nothing: kubelet has it of another")
    claims = [{"uid": uid, "devices": [*_devices(row, node)]} for uid, row in rows.items()]
    return {"notes": notes, "claims": claims, "kubelet": [_row(entry) for entry in listed]}


def kubectl(namespace: str, name: str) -> str:
    """Return the command that shows a claim, whole; both names are as NAME has them."""
    return f"kubectl --namespace {namespace} get resourceclaim {name} -o yaml"


def _devices(row: record_form.Claim, node: NodeState) -> Iterator[dict[str, str]]:
    """Yield what is known of each device of a claim."""
    policy = node.snapshot["policy"]
    path = output.path_of(policy)
    spec_names = {device["name"] for device in (publish.saved(path) or {"devices": ()})["devices"]}
    offered_uuids = {device.uuid for device in node.offered}
    for device in row["devices"]:
        uuid = device["uuid"]
        missing = "" if uuid in spec_names else f" (not in {path})"
        well = "healthy" if node.watched else "not known"
        health = node.why.get(uuid, "") or (well if uuid in offered_uuids else "this node does not offer it now")
        yield {
            "request": device["request"],
            "device": device["device"],
            "index": node.indices.get(uuid, ""),
            "since": _describe_since(row),
            "cdi": f"{policy['cdi']['kind']}={uuid}{missing}",
            "use": ", ".join(_use(device)),
            "health": health,
        }


def _use(device: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a claim uses a device: what else the record has of it."""
    if device.get("admin"):
        yield "only looks"
    if share := device.get("share"):
        yield f"{share['memory']} of {share['of']} MiB"
        yield from [f"{share['threads']} % of the threads"] * bool(share["group"])
    yield from (f"{key}: {value}" for key, value in device.items() if key not in KNOWN)


def _describe_since(claim: record_form.Claim) -> str:
    """Return since when a claim has its devices, by the wall clock; "" if this boot does not know."""
    start = time.time() - system.clock()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(start + claim["since"])) if claim["since"] else ""


def _listed(namespace: str, name: str, kubelet_dir: str, notes: list[str]) -> Sequence[Claim]:
    """List what kubelet has for a claim: as it says, without grpcio to the driver; else as its file does."""
    sentence = "kubelet does not say which containers have it"
    try:
        from gpuplugin.kubelet import podresources
    except ImportError:
        claims = node_state.listed()
        sentence = "this Python has no grpcio, and the driver does not say which containers have it"
    else:
        listed = asyncio.run(podresources.listed(kubelet_dir))
        claims = listed.claims if listed else None
    if claims is None:
        claims = []
        notes.append(f"{sentence}: see gpushim ps; {kubelet_dir}/{kubelet.CLAIMS} has uids of pods")
        try:
            claims = kubelet.claims(kubelet_dir)
        except (OSError, ValueError) as error:
            notes.append(f"{kubelet_dir}/{kubelet.CLAIMS} cannot be used: {error}")
    return [claim for claim in claims if (claim.namespace, claim.name) == (namespace, name)]


def _row(claim: Claim) -> dict[str, str]:
    pod = f"{claim.namespace}/{claim.pod}" if claim.pod else f"uid {', '.join(sorted(claim.uids))}"
    return {
        "pod": pod,
        "container": claim.container,
        "driver": claim.driver,
        "device": claim.device,
        "cdi": ", ".join(claim.cdi),
    }
