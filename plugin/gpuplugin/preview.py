"""Explain what a container that requests resources would get: kubelet's choice, the answers, and the container.

The answers are the daemon's own (offer.py), and their effect is what a create decides (gpushim.explain). Changes
nothing except a snapshot that is out of date. Out of scope: the rest of a pod's spec.
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


def build_report(requests: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Return what a container that requests resources would get.

    Args:
        requests: RESOURCE=NUMBER, or RESOURCE=ID,ID, as the container's limits have them or kubelet would.

    Returns:
        "notes"      sentences about settings and host
        "answers"    [{"resource", "devices", "shared", "answer"}]: ids as kubelet would choose them on an idle node,
                     a sentence for each sharing of them, and the ContainerAllocateResponse
        "merged"     all answers as kubelet merges them: the first of one name or path counts
        "cdi"        [{"name", "file"}]: the CDI specs of "cdi_devices"
        "container"  report of gpushim.explain for "merged"; None if gpushim-runtime has nothing to do

    Raises:
        GpushimError: the host or the request allows no answer.
    """
    snapshot, notes = node_snapshot.current(), [*settings.notes, *_note_claims()]
    offers, delivery = offered(snapshot, settings, notes)
    weights = preferred.nearness({gpu["index"]: gpu["peers"] for gpu in snapshot["gpus"]})
    answers: list[dict[str, Any]] = []
    for text in requests:
        name = _find_resource(text.partition("=")[0], offers)
        resource = Resource(name, settings, delivery)
        resource.have(offers[name], weights)
        ids = _choose_devices(resource, text.partition("=")[2])
        answer = resource.allocate({"devices_ids": ids})
        chosen = {resource.devices[device_id].uuid for device_id in ids}
        shared = sharing.describe([device for device in offers[name] if device.uuid in chosen])
        answers.append({"resource": name, "devices": ids, "shared": shared, "answer": answer})
    merged = _merge_answers([device_id["answer"] for device_id in answers])
    cdi = _find_specs(merged, snapshot["policy"]["cdi"]["spec-dirs"])
    return {"notes": notes, "answers": answers, "merged": merged, "cdi": cdi, "container": _explain_container(merged)}


def _note_claims() -> Iterator[str]:
    """Yield a note where claims alone give out GPUs, as far as this user may ask."""
    if plugin_socket.status(system.state_dir(), SECONDS).get("fronts") == ["dra"]:
        yield BY_CLAIMS


def _find_resource(name: str, offers: Mapping[str, Any]) -> str:
    name = name if "/" in name else PREFIX + name
    if name not in offers:
        raise GpushimError(
            f"this node has no {quote(name)}; it has {', '.join(offers) or 'no resource'}; write RESOURCE=NUMBER or "
            "RESOURCE=ID,ID",
            REQUEST,
        )
    return name


def _find_specs(merged: dict[str, Any], folders: Sequence[str]) -> list[dict[str, str]]:
    names = [device["name"] for device in merged["cdi_devices"]]
    return [{"name": name, "file": location[0]} for name, location in zip(names, specs.find(names, folders))]


def print_report(requests: Sequence[str], settings: Settings, form: str) -> None:
    """Print the report, as "table" or "json".

    Raises:
        GpushimError: there is no answer, or the container would be refused.
    """
    report = build_report(requests, settings)
    if form == "json":
        show.emit(form, report)
    else:
        _print_tables(report)
    refusal = report["container"] and report["container"]["refusal"]
    if refusal:
        raise GpushimError(refusal["sentence"], refusal["exit_code"])


def _choose_devices(resource: Resource, text: str) -> list[str]:
    if text and not (text.isascii() and text.isdecimal()):
        return [word for word in text.split(",") if word]
    free = [device.id for device in resource.devices.values() if not device.problem]
    size = int(text[:9] or "0")
    if not 1 <= size <= len(free):
        raise GpushimError(
            f"a container asks for {size} of {resource.name}, of which {len(free)} can be given out; "
            "gpushim-device-plugin --check lists them, and why the others cannot",
            REQUEST,
        )
    request = {"available_deviceIDs": free, "must_include_deviceIDs": [], "allocation_size": size}
    device_ids: list[str] = resource.prefer(request)["deviceIDs"]
    return device_ids


def _merge_answers(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge answers as kubelet does (pkg/kubelet/cm/devicemanager, deviceRunContainerOptions)."""
    merged: dict[str, Any] = {"envs": {}, "mounts": [], "devices": [], "annotations": {}, "cdi_devices": []}
    for answer in answers:
        for name in ("envs", "annotations"):
            merged[name] = {**answer.get(name, {}), **merged[name]}
        for name in ("mounts", "devices"):
            paths = {entry["container_path"] for entry in merged[name]}
            merged[name] += [entry for entry in answer.get(name, ()) if entry["container_path"] not in paths]
        merged["cdi_devices"] += [
            entry for entry in answer.get("cdi_devices", ()) if entry not in merged["cdi_devices"]
        ]
    return merged


def _explain_container(merged: dict[str, Any]) -> dict[str, Any] | None:
    mounts = [(mount["host_path"], mount["container_path"]) for mount in merged["mounts"]]
    if not (merged["annotations"] or any(name.startswith("NVIDIA_") for name in merged["envs"])):
        return None  # only MPS's edits, which the engine applies
    env = [f"{name}={value}" for name, value in merged["envs"].items()]
    origins = dict.fromkeys([*merged["envs"], *merged["annotations"], *(path for _, path in mounts)], "device plugin")
    return story.explain(story.build_spec(env, False, merged["annotations"], mounts), "", origins)


def _print_tables(report: dict[str, Any]) -> None:
    for note in report["notes"]:
        show.say(f"note: {note}")
    show.say("If all devices are free, kubelet chooses:")
    show.table(
        ("RESOURCE", "DEVICES"), [[answer["resource"], ", ".join(answer["devices"])] for answer in report["answers"]]
    )
    for answer in report["answers"]:
        for line in answer["shared"]:
            show.say(f"shared: {line}")
    show.say()
    show.say("The container's configuration gets:")
    show.table(("KIND", "WHAT"), _list_rows(report["merged"]))
    show.say()
    if report["cdi"]:
        show.say("The engine gives it, by CDI:")
        show.table(("NAME", "SPEC"), [[*answer.values()] for answer in report["cdi"]])
        show.say()
    if report["container"]:
        show.say("gpushim-runtime turns variables, mounts and annotations into this; other runtimes ignore them:")
        show.say()
        printing.print_report(report["container"])


def _list_rows(merged: dict[str, Any]) -> list[list[str]]:
    return [
        *(["variable", f"{name}={value}"] for name, value in merged["envs"].items()),
        *(["mount", f"{entry['container_path']} from {entry['host_path']}"] for entry in merged["mounts"]),
        *(["device node", f"{entry['container_path']} {entry['permissions']}"] for entry in merged["devices"]),
        *(["annotation", f"{key}: {value}"] for key, value in merged["annotations"].items()),
        *(["CDI device", entry["name"]] for entry in merged["cdi_devices"]),
    ]
