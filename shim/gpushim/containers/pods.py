"""The devices of one pod's running containers, by the runtime's state, kubelet's checkpoint and claims.

A container's pod is what its engine wrote into its config.json; states of users other than root are not looked into,
as theirs could say anything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushim.config import policy
from gpushim.containers import holders, kubelet, names
from gpushim.containers.kubelet import CLAIMS, Given, checkpoint, plugins
from gpushim.containers.kubelet import claims as saved_claims
from gpushim.explain import explain
from gpushim.ground import system
from gpushim.ground.errors import FAILED, GpushimError, quote
from gpushim.oci.device_list import NAMES

if TYPE_CHECKING:
    from gpushim.containers.kubelet import Claim
    from gpushim.containers.names import Pod
    from gpushim.ground.model import Snapshot

NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # of objects of Kubernetes (RFC 1123)


class PodName(NamedTuple):
    """A pod and, unless "", one of its containers."""

    namespace: str
    pod: str
    container: str

    def has(self, pod: Pod) -> bool:
        """Return whether a container of a pod is one of them; a pod's sandbox is not."""
        is_pod = (pod.namespace, pod.name) == (self.namespace, self.pod)
        return is_pod and pod.container in ({self.container} if self.container else {pod.container} - {""})


def pod_name(text: str) -> PodName | None:
    """Parse NAMESPACE/POD or NAMESPACE/POD/CONTAINER; None if it is neither."""
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(map(NAME.fullmatch, parts)):
        return None
    return PodName(*parts, *[""] * (3 - len(parts)))


def kubelet_dir() -> str:
    try:
        return policy.load(system.config_path())["device-plugin"]["kubelet-dir"]
    except GpushimError:
        return policy.defaults()["device-plugin"]["kubelet-dir"]


def report(
    query: PodName, inventory: Snapshot, kubelet_dir: str, states: list[str] | None = None, proc: str = "/proc"
) -> tuple[list[dict[str, Any]], list[str]]:
    """Explain the running containers of a pod.

    Returns:
        of each container {"namespace", "pod", "container", "uid", "id", "engine", "pid", "bundle", "devices", "how"
        (as `gpushim ps`), "claims" (of `claimed`), "told": the requests, "kubelet": [{"resource", "devices",
        "answer"}] or None if that is not known, "explain": of gpushim.explain}; and sentences about unreadable paths
        and containers that have ended.

    Raises:
        GpushimError: no such container runs here.
    """
    notes: list[str] = []
    grants, prepared = _read_grants(kubelet_dir, notes), _read_claims(kubelet_dir, notes)
    rows, ended, siblings = [], [], set()
    for container in holders.containers(notes, states, proc):
        spec = None if container.reader.user else container.spec()
        annotations = holders.annotated(spec)
        engine = container.engine(annotations)
        pod = names.pod(annotations, engine)
        if spec is not None and query.has(pod) and container.process:
            rows.append(_row(container, spec, pod, engine, inventory, grants, prepared))
        elif query.has(pod):
            ended.append(pod.container)
        elif container.process and query._replace(container="").has(pod):
            siblings.add(pod.container)
    notes += [_ended_note(query, name) for name in sorted({*ended} - {row["container"] for row in rows})]
    if not rows:
        raise _missing(query, notes, sorted(siblings), bool(ended))
    uids = sorted({row["uid"] for row in rows})
    if len(uids) > 1:
        notes.append(f"{len(uids)} pods have this name here, one after the other: {', '.join(map(quote, uids))}")
    return sorted(rows, key=lambda row: (row["container"], row["id"])), notes


def _row(
    container: holders.Container,
    spec: dict[str, Any],
    pod: Pod,
    engine: str,
    inventory: Snapshot,
    grants: list[Given] | None,
    prepared: list[Claim] | None,
) -> dict[str, Any]:
    has, source = holders.held(container, spec, inventory)
    by_claim = _claims_of(pod.uid, has, prepared, inventory)
    bundle = str(container.state["bundle"] or "")
    story = explain.explain(spec, bundle)
    requests = [f"{row['what']}={row['value']}" for row in story["asked"] if row["effect"] == NAMES]
    requests += [f"{called(grant)}, which kubelet has prepared" for grant in by_claim or ()]
    if has and not requests:
        requests = [f"nothing that gpushim-runtime reads: {_source_text(source)}"]
    pod_grants = grants if pod.uid else None
    own_grants = [grant for grant in pod_grants or () if (grant.uid, grant.container) == (pod.uid, pod.container)]
    return {
        "namespace": pod.namespace,
        "pod": pod.name,
        "container": pod.container,
        "uid": pod.uid,
        "id": container.id,
        "engine": engine,
        "pid": container.state["pid"],
        "bundle": bundle,
        "devices": has,
        "how": source,
        "claims": by_claim,
        "told": requests,
        "kubelet": None
        if pod_grants is None
        else [{"resource": grant.resource, "devices": grant.devices, "answer": grant.answer} for grant in own_grants],
        "explain": story,
    }


def claimed(rows: list[dict[str, Any]], inventory: Snapshot, kubelet_dir: str) -> list[str]:
    """Add to each row of holders.holders the claims of Kubernetes' DRA that gave its GPU, as "claims".

    Each gets [{"namespace", "name", "driver", "device"}], or None if that is not known.

    Returns:
        sentences about unreadable files.
    """
    notes: list[str] = []
    prepared = _read_claims(kubelet_dir, notes) if any(row["uid"] for row in rows) else []
    for row in rows:
        row["claims"] = _claims_of(row["uid"], row["devices"], prepared, inventory)
    return notes


def called(claim: dict[str, Any]) -> str:
    return f"claim {quote(claim['namespace'])}/{quote(claim['name'])} of the DRA driver {quote(claim['driver'])}"


def _claims_of(
    uid: str, devices: list[str], prepared: list[Claim] | None, inventory: Snapshot
) -> list[dict[str, Any]] | None:
    if prepared is None:
        return None
    parts = {mig["uuid"]: f"{mig['gpu']}:{mig['index']}" for mig in inventory["mig"]}
    parts.update({gpu["uuid"]: str(gpu["index"]) for gpu in inventory["gpus"]})
    rows = []
    for claim in prepared if uid and devices else ():
        gives = kubelet.which(claim, inventory) if uid in claim.uids else frozenset()
        texts = {parts[uuid] for uuid in gives or ()}
        if gives is None or any({device, device.partition(":")[0]} & texts for device in devices):
            rows.append(
                {"namespace": claim.namespace, "name": claim.name, "driver": claim.driver, "device": claim.device}
            )
    return rows


def _read_claims(folder: str, notes: list[str]) -> list[Claim] | None:
    try:
        return saved_claims(folder)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}; run this as root"
    except ValueError as error:
        problem = f"is damaged: {error}"
    notes.append(f"{folder}/{CLAIMS} {problem}; which claims pods have is not known")
    return None


def _source_text(source: str) -> str:
    if source == "spec":
        return "the engine gave them, by CDI or as devices"
    return "a hook, or somebody behind the runtime, gave them"


def _read_grants(folder: str, notes: list[str]) -> list[Given] | None:
    path = f"kubelet's checkpoint in {plugins(folder)}"
    try:
        return checkpoint(folder).given
    except FileNotFoundError:
        notes.append(f"{path} is not there, so what kubelet gave is not known; kubelet-dir under [device-plugin]?")
    except OSError as error:
        notes.append(f"{path} cannot be read: {error.strerror}; run this as root")
    except ValueError as error:
        notes.append(f"{path} is damaged: {error}; kubelet writes it again with the next pod that gets a device")
    return None


def _ended_note(query: PodName, container: str) -> str:
    label = quote(container)
    return (
        f"container {label} of pod {query.namespace}/{query.pod} has ended; "
        f"kubectl -n {query.namespace} logs {query.pod} -c {label} --previous says why"
    )


def _missing(query: PodName, notes: list[str], siblings: list[str], ended: bool) -> GpushimError:
    pod = f"{query.namespace}/{query.pod}"
    command = f"kubectl -n {query.namespace} get pod {query.pod} -o wide"
    if ended:
        return GpushimError(f"no such container of pod {pod} runs on this node any more: {notes[-1]}", FAILED)
    if siblings:
        has = ", ".join(map(quote, siblings[:16]))
        return GpushimError(
            f"pod {pod} has no running container {query.container} on this node; it has {has}", FAILED
        )
    not_listed = [note for note in notes if "not listed" in note]
    hint = f"; {not_listed[0]}" if not_listed else ""
    return GpushimError(f"pod {pod} has no running container on this node; {command} says where it is{hint}", FAILED)
