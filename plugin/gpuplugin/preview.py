"""What a container gets that asks for these resources, and why: kubelet's part, the answers, and the container.

The answers are the daemon's own (offer.py); what they bring is what a create decides (gpushim.explain). Changes
nothing but a snapshot that is out of date. Out of scope: what else a pod's spec says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplugin.allocation.offer import Resource, offered
from gpuplugin.devices import preferred
from gpuplugin.settings import sharing
from gpuplugin.settings.resources import PREFIX
from gpuplugin.snapshot import node_snapshot
from gpushim.cdi import specs
from gpushim.cli import explain as printing
from gpushim.cli import show
from gpushim.explain import explain as story
from gpushim.ground import system
from gpushim.ground.errors import REQUEST, GpushimError, quote
from gpushim.refresh import plugin_socket

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuplugin.settings.settings import Settings

SECONDS = 2.0  # for the answer of the plugin that runs
BY_CLAIMS = (
    "no gpushim-device-plugin runs on this node, whose GPUs gpushim-dra-driver gives out: a pod that asks for this "
    "gets a claim, if a DeviceClass has it as its extendedResourceName; the rest is what the plugin would answer"
)


def report(requests: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Find out what a container gets that asks for resources.

    Args:
        requests: RESOURCE=NUMBER, or RESOURCE=ID,ID, as the container's limits have them or kubelet would.
        settings: in force.

    Returns:
        "notes"      sentences about settings and host
        "answers"    [{"resource", "devices", "shared", "answer"}]: ids as kubelet would choose them on an idle node,
                     a sentence for each way in which they are shared, and the ContainerAllocateResponse
        "merged"     what kubelet makes of all answers: of one name or path, the first counts
        "cdi"        [{"name", "file"}]: where engines find what "cdi_devices" names
        "container"  of gpushim.explain, for what "merged" tells gpushim-runtime; None if only the engine is told

    Raises:
        GpushimError: the host or the request is such that there is no answer.
    """
    snapshot, notes = node_snapshot.current(), [*settings.notes, *_by_claims()]
    found, ways = offered(snapshot, settings, notes)
    weights = preferred.nearness({gpu["index"]: gpu["peers"] for gpu in snapshot["gpus"]})
    answers: list[dict[str, Any]] = []
    for text in requests:
        name = _named(text.partition("=")[0], found)
        resource = Resource(name, settings, ways)
        resource.have(found[name], weights)
        ids = _chosen(resource, text.partition("=")[2])
        answer = resource.allocate({"devices_ids": ids})
        chosen = {resource.devices[each].uuid for each in ids}
        shared = sharing.describe([one for one in found[name] if one.uuid in chosen])
        answers.append({"resource": name, "devices": ids, "shared": shared, "answer": answer})
    merged = _merged([each["answer"] for each in answers])
    cdi = _places(merged, snapshot["policy"]["cdi"]["spec-dirs"])
    return {"notes": notes, "answers": answers, "merged": merged, "cdi": cdi, "container": _container(merged)}


def _by_claims() -> Iterator[str]:
    """Say so where claims alone give out GPUs, as far as this user may ask."""
    if plugin_socket.status(system.state_dir(), SECONDS).get("fronts") == ["dra"]:
        yield BY_CLAIMS


def _named(name: str, found: Mapping[str, Any]) -> str:
    name = name if "/" in name else PREFIX + name
    if name not in found:
        raise GpushimError(
            f"this node has no {quote(name)}; it has {', '.join(found) or 'no resource'}; say RESOURCE=NUMBER or "
            "RESOURCE=ID,ID",
            REQUEST,
        )
    return name


def _places(merged: dict[str, Any], folders: Sequence[str]) -> list[dict[str, str]]:
    names = [device["name"] for device in merged["cdi_devices"]]
    return [{"name": name, "file": place[0]} for name, place in zip(names, specs.find(names, folders))]


def tell(requests: Sequence[str], settings: Settings, form: str) -> None:
    """Print it, as "table" or "json".

    Raises:
        GpushimError: there is no answer, or the container would be refused.
    """
    found = report(requests, settings)
    if form == "json":
        show.emit(form, found)
    else:
        _print(found)
    refusal = found["container"] and found["container"]["refusal"]
    if refusal:
        raise GpushimError(refusal["sentence"], refusal["exit_code"])


def _chosen(resource: Resource, text: str) -> list[str]:
    """Choose devices as kubelet does where all of them are free."""
    if text and not (text.isascii() and text.isdecimal()):
        return [word for word in text.split(",") if word]
    free = [device.id for device in resource.devices.values() if not device.problem]
    size = int(text[:9] or "0")
    if not 1 <= size <= len(free):
        raise GpushimError(
            f"a container asks for {size} of {resource.name}, of which {len(free)} can be given out; "
            "gpushim-device-plugin --check says which, and why not the others",
            REQUEST,
        )
    request = {"available_deviceIDs": free, "must_include_deviceIDs": [], "allocation_size": size}
    found: list[str] = resource.prefer(request)["deviceIDs"]
    return found


def _merged(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put answers together as kubelet does (pkg/kubelet/cm/devicemanager, deviceRunContainerOptions)."""
    merged: dict[str, Any] = {"envs": {}, "mounts": [], "devices": [], "annotations": {}, "cdi_devices": []}
    for answer in answers:
        for name in ("envs", "annotations"):
            merged[name] = {**answer.get(name, {}), **merged[name]}
        for name in ("mounts", "devices"):
            there = {one["container_path"] for one in merged[name]}
            merged[name] += [one for one in answer.get(name, ()) if one["container_path"] not in there]
        merged["cdi_devices"] += [one for one in answer.get("cdi_devices", ()) if one not in merged["cdi_devices"]]
    return merged


def _container(merged: dict[str, Any]) -> dict[str, Any] | None:
    mounts = [(one["host_path"], one["container_path"]) for one in merged["mounts"]]
    if not (merged["annotations"] or any(name.startswith("NVIDIA_") for name in merged["envs"])):
        return None  # what MPS adds is the engine's
    env = [f"{name}={value}" for name, value in merged["envs"].items()]
    origins = dict.fromkeys([*merged["envs"], *merged["annotations"], *(path for _, path in mounts)], "device plugin")
    return story.explain(story.described(env, False, merged["annotations"], mounts), "", origins)


def _print(found: dict[str, Any]) -> None:
    for note in found["notes"]:
        show.say(f"note: {note}")
    show.say("kubelet chooses, where all devices are free:")
    show.table(("RESOURCE", "DEVICES"), [[each["resource"], ", ".join(each["devices"])] for each in found["answers"]])
    for each in found["answers"]:
        for line in each["shared"]:
            show.say(f"shared: {line}")
    show.say()
    show.say("The container's configuration gets:")
    show.table(("KIND", "WHAT"), _rows(found["merged"]))
    show.say()
    if found["cdi"]:
        show.say("The engine gives it, by CDI:")
        show.table(("NAME", "SPEC"), [[*each.values()] for each in found["cdi"]])
        show.say()
    if found["container"]:
        show.say("Of variables, mounts and annotations, gpushim-runtime makes this; other runtimes make nothing:")
        show.say()
        printing.tell(found["container"])


def _rows(merged: dict[str, Any]) -> list[list[str]]:
    return [
        *(["variable", f"{name}={value}"] for name, value in merged["envs"].items()),
        *(["mount", f"{one['container_path']} from {one['host_path']}"] for one in merged["mounts"]),
        *(["device node", f"{one['container_path']} {one['permissions']}"] for one in merged["devices"]),
        *(["annotation", f"{key}: {value}"] for key, value in merged["annotations"].items()),
        *(["CDI device", one["name"]] for one in merged["cdi_devices"]),
    ]
