"""What the running containers of one pod have, who told them, and what kubelet has given them.

A container's pod is what its engine wrote into its config.json; states of users other than root are not looked into,
as theirs could say anything. Out of scope: what a container would get (explain.py), printing (cli/explain.py).
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
    from collections.abc import Iterator

    from gpushim.containers.kubelet import Claim
    from gpushim.containers.names import Pod
    from gpushim.ground.model import Snapshot

NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # of objects of Kubernetes (RFC 1123)


class PodName(NamedTuple):
    """Which containers are asked for; of all names if `container` is ""."""

    namespace: str
    pod: str
    container: str

    def has(self, pod: Pod) -> bool:
        """Say whether a container of a pod is one of them; a pod's sandbox is not."""
        same = (pod.namespace, pod.name) == (self.namespace, self.pod)
        return same and pod.container in ({self.container} if self.container else {pod.container} - {""})


def pod_name(text: str) -> PodName | None:
    """Read NAMESPACE/POD or NAMESPACE/POD/CONTAINER; None if it is neither."""
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(map(NAME.fullmatch, parts)):
        return None
    return PodName(*parts, *[""] * (3 - len(parts)))


def kubelet_dir() -> str:
    """Return kubelet's directory as the configuration has it, if that can be read."""
    try:
        return policy.load(system.config_path())["device-plugin"]["kubelet-dir"]
    except GpushimError:
        return policy.defaults()["device-plugin"]["kubelet-dir"]


def report(
    asked: PodName, inventory: Snapshot, kubelet_dir: str, states: list[str] | None = None, proc: str = "/proc"
) -> tuple[list[dict[str, Any]], list[str]]:
    """Explain the running containers of a pod.

    Args:
        asked: which.
        inventory: the snapshot.
        kubelet_dir: kubelet's directory.
        states: as holders.containers takes it.
        proc: where procfs is mounted.

    Returns:
        of each container {"namespace", "pod", "container", "uid", "id", "engine", "pid", "bundle", "devices", "how"
        (as `gpushim ps`), "claims" (of `claimed`), "told": what asked for them, "kubelet": [{"resource", "devices",
        "answer"}] or None if that is not known, "explain": of gpushim.explain}; and sentences about what could not be
        read, or has ended.

    Raises:
        GpushimError: no such container runs here.
    """
    notes: list[str] = []
    given, theirs = _given(kubelet_dir, notes), _claims(kubelet_dir, notes)
    found, ended, others = [], [], set()
    for container in holders.containers(notes, states, proc):
        spec = None if container.reader.user else container.spec()
        annotations = holders.annotated(spec)
        engine = container.engine(annotations)
        pod = names.pod(annotations, engine)
        if spec is not None and asked.has(pod) and container.process:
            found.append(_one(container, spec, pod, engine, inventory, given, theirs))
        elif asked.has(pod):
            ended.append(pod.container)
        elif container.process and asked._replace(container="").has(pod):
            others.add(pod.container)
    notes += [_ended(asked, name) for name in sorted({*ended} - {each["container"] for each in found})]
    if not found:
        raise _missing(asked, notes, sorted(others), bool(ended))
    notes += _several(sorted({each["uid"] for each in found}))
    return sorted(found, key=lambda each: (each["container"], each["id"])), notes


def _several(uids: list[str]) -> Iterator[str]:
    if len(uids) > 1:
        yield f"{len(uids)} pods have this name here, one after the other: {', '.join(map(quote, uids))}"


def _one(
    container: holders.Container,
    spec: dict[str, Any],
    pod: Pod,
    engine: str,
    inventory: Snapshot,
    given: list[Given] | None,
    theirs: list[Claim] | None,
) -> dict[str, Any]:
    has, how = holders.held(container, spec, inventory)
    by_claim = _claimed(pod.uid, has, theirs, inventory)
    bundle = str(container.state["bundle"] or "")
    story = explain.explain(spec, bundle)
    requests = [f"{row['what']}={row['value']}" for row in story["asked"] if row["effect"] == NAMES]
    requests += [f"{called(one)}, which kubelet has prepared" for one in by_claim or ()]
    if has and not requests:
        requests = [f"nothing that gpushim-runtime reads: {_behind(how)}"]
    known = given if pod.uid else None
    mine = [one for one in known or () if (one.uid, one.container) == (pod.uid, pod.container)]
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
        "how": how,
        "claims": by_claim,
        "told": requests,
        "kubelet": None
        if known is None
        else [{"resource": one.resource, "devices": one.devices, "answer": one.answer} for one in mine],
        "explain": story,
    }


def claimed(rows: list[dict[str, Any]], inventory: Snapshot, kubelet_dir: str) -> list[str]:
    """Add to each container that has a GPU the claims of Kubernetes' DRA by which it has it, as "claims".

    Args:
        rows: as holders.holders lists them; each gets [{"namespace", "name", "driver", "device"}], or None if that is
            not known.
        inventory: the snapshot.
        kubelet_dir: kubelet's directory.

    Returns:
        sentences about what could not be read.
    """
    notes: list[str] = []
    theirs = _claims(kubelet_dir, notes) if any(row["uid"] for row in rows) else []
    for row in rows:
        row["claims"] = _claimed(row["uid"], row["devices"], theirs, inventory)
    return notes


def called(claim: dict[str, Any]) -> str:
    """Write a claim of `claimed` for people."""
    return f"claim {quote(claim['namespace'])}/{quote(claim['name'])} of the DRA driver {quote(claim['driver'])}"


def _claimed(
    uid: str, devices: list[str], theirs: list[Claim] | None, inventory: Snapshot
) -> list[dict[str, Any]] | None:
    if theirs is None:
        return None
    parts = {mig["uuid"]: f"{mig['gpu']}:{mig['index']}" for mig in inventory["mig"]}
    parts.update({gpu["uuid"]: str(gpu["index"]) for gpu in inventory["gpus"]})
    found = []
    for one in theirs if uid and devices else ():
        gives = kubelet.which(one, inventory) if uid in one.uids else frozenset()
        texts = {parts[uuid] for uuid in gives or ()}
        if gives is None or any({device, device.partition(":")[0]} & texts for device in devices):
            found.append({"namespace": one.namespace, "name": one.name, "driver": one.driver, "device": one.device})
    return found


def _claims(folder: str, notes: list[str]) -> list[Claim] | None:
    try:
        return saved_claims(folder)
    except OSError as error:
        why = f"cannot be read: {error.strerror}; run this as root"
    except ValueError as error:
        why = f"is damaged: {error}"
    notes.append(f"{folder}/{CLAIMS} {why}; which claims pods have is not known")
    return None


def _behind(how: str) -> str:
    if how == "spec":
        return "the engine gave them, by CDI or as devices"
    return "a hook, or somebody behind the runtime, gave them"


def _given(folder: str, notes: list[str]) -> list[Given] | None:
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


def _ended(asked: PodName, container: str) -> str:
    shown = quote(container)
    return (
        f"container {shown} of pod {asked.namespace}/{asked.pod} has ended; "
        f"kubectl -n {asked.namespace} logs {asked.pod} -c {shown} --previous says why"
    )


def _missing(asked: PodName, notes: list[str], others: list[str], ended: bool) -> GpushimError:
    pod = f"{asked.namespace}/{asked.pod}"
    where = f"kubectl -n {asked.namespace} get pod {asked.pod} -o wide"
    if ended:
        return GpushimError(f"no such container of pod {pod} runs on this node any more: {notes[-1]}", FAILED)
    if others:
        has = ", ".join(map(quote, others[:16]))
        return GpushimError(
            f"pod {pod} has no running container {asked.container} on this node; it has {has}", FAILED
        )
    not_listed = [note for note in notes if "not listed" in note]
    more = f"; {not_listed[0]}" if not_listed else ""
    return GpushimError(f"pod {pod} has no running container on this node; {where} says where it is{more}", FAILED)
