"""Explain what a container would get, or why it would be refused, without any change.

The decision is the create's own (decide.py), with its notes on each variable, mount and annotation; its edits are
applied to a copy.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from gpushim.cdi import specs
from gpushim.config import policy
from gpushim.decision import memory
from gpushim.decision.decide import Decision, gone, of_bundle
from gpushim.explain import not_given
from gpushim.ground import system
from gpushim.ground.errors import BUNDLE, GpushimError, quote
from gpushim.inventory import present
from gpushim.oci import authorization, bundle, propagation, require, selection
from gpushim.oci.device_list import DEVICE_LIST, DEVICES, VOID, legacy
from gpushim.oci.edits import Edit, apply
from gpushim.oci.hookargs import OPTIONS
from gpushim.oci.request import limits_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushim.ground.model import Policy

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
ROOTFS = "/rootfs"  # of a container that does not exist yet
LONGEST = 200  # characters of a name or a value


def explain(
    spec: Any,
    directory: str = "",
    origins: Mapping[str, str] | None = None,
    rootfs: str | None = None,
    by_hook: bool = False,
) -> dict[str, Any]:
    """Return what a container would get.

    Args:
        spec: config.json as parsed; it is not changed.
        directory: of its bundle, absolute or relative; "" is the working directory.
        origins: by the name of a variable (or NAME=VALUE), mount or annotation; "config.json" for all others.
        rootfs: absolute path of the rootfs if config.json does not name it; "" if it is unknown.
        by_hook: whether the engine calls the hook and its own runtime, not gpushim's low-level runtime.

    Returns:
        "asked"         [{"what", "value", "from", "effect"}]: all sources that were considered
        "source"        of the devices, such as "env NVIDIA_VISIBLE_DEVICES"; null without a request
        "nothing"       null, or a sentence: why there is no request
        "devices"       [{"item", "means", "uuids"}]
        "requirements"  [{"variable", "expression"}], which hold if there is no refusal
        "limits"        [{"device", "limit", "by", "also": [{"limit", "by"}]}]: of GPU memory, in bytes; others, which
                        are larger, do not count
        "ignored"       sentences about requests that are left out
        "not_given"     [{"what", "why"}]: parts of the host, or of possible images, that were not requested
        "cdi"           [{"name", "file"}]
        "edits"         [{"kind", "value", "why", "there"}]; there: the edit changes nothing in this config.json
        "refusal"       null, or {"sentence", "exit_code"}
        "notes"         sentences about the host
    """
    report: dict[str, Any] = {"asked": [], "source": None, "nothing": None, "devices": [], "requirements": []}
    report.update({name: [] for name in ("limits", "ignored", "not_given", "cdi", "edits", "notes")}, refusal=None)
    try:
        if not isinstance(spec, dict):
            raise GpushimError("config.json is not a JSON object", BUNDLE)
        _fill_report(report, spec, directory, origins or {}, rootfs, by_hook)
    except GpushimError as error:
        report["refusal"] = {"sentence": str(error), "exit_code": error.exit_code}
    return report


def build_spec(
    env: list[str], privileged: bool, annotations: dict[str, str], mounts: list[tuple[str, str]], rootfs: str = ROOTFS
) -> dict[str, Any]:
    """Return the parts of a config.json that a request needs.

    `privileged` stands for CAP_SYS_ADMIN; mounts are (source, destination); the rootfs is an absolute path.
    """
    capabilities = {"bounding": ["CAP_SYS_ADMIN"] if privileged else []}
    return {
        "root": {"path": rootfs},
        "process": {"env": list(env), "capabilities": capabilities},
        "annotations": dict(annotations),
        "mounts": [{"source": source, "destination": path, "type": "bind"} for source, path in mounts],
    }


def _fill_report(
    report: dict[str, Any],
    spec: dict[str, Any],
    directory: str,
    origins: Mapping[str, str],
    rootfs: str | None,
    by_hook: bool,
) -> None:
    decision, otherwise = Decision(), "the request is refused"
    try:
        request = decision.ask(spec, present.snapshot)
        otherwise = "there is no request" if request is None else "it is empty"
    finally:
        report["ignored"] = decision.ignored
        settings = decision.inventory["policy"] if decision.inventory else policy.defaults()
        report["asked"] = [*_list_sources(spec, settings, decision, origins, f"does nothing: {otherwise}")]
    if request is None:
        report["nothing"] = _explain_no_request(decision, report["asked"])
        return
    report["source"], report["notes"] = request.source, decision.inventory["notes"]
    if not by_hook and bundle.is_absent(low := decision.low_level()):
        raise gone(low)
    conditions = () if request.own is None else request.requirements
    report["requirements"] = [{"variable": name, "expression": text} for name, text in conditions]
    facts = of_bundle(spec, directory)
    decision.plan(facts)
    report["limits"] = [*_limits(decision)]
    report["not_given"] += not_given.capabilities(decision, facts)
    report["not_given"] += not_given.programs(
        decision.edits, decision.inventory, facts["rootfs"] if rootfs is None else rootfs
    )
    for item, matches in decision.devices.items():
        means, uuids = ", ".join(map(selection.called, matches)), [device["uuid"] for device in matches]
        report["devices"].append({"item": item, "means": means, "uuids": uuids})
    locations = specs.find(request.foreign, settings["cdi"]["spec-dirs"])
    report["cdi"] = [{"name": name, "file": location[0]} for name, location in zip(request.foreign, locations)]
    report["edits"] = [*_list_edits(decision.edits, spec, facts["rootfs"])]


def _limits(decision: Decision) -> Iterator[dict[str, Any]]:
    """List the limits of GPU memory; raise where the hook would, as far as the container's cgroup does not matter."""
    missing = memory.missing_here(decision.inventory) if decision.limits else ""
    if missing:
        memory.refuse(decision.limits[0], missing, decision.inventory["policy"]["requests"], decision.ignored)
    for limit in () if missing else decision.limits:
        larger = [{"limit": size, "by": source} for size, source in limit.larger]
        yield {"device": str(limit.gpu), "limit": limit.size, "by": limit.source, "also": larger}


def _list_edits(edits: list[Edit], spec: dict[str, Any], rootfs: str) -> Iterator[dict[str, Any]]:
    """List edits as they land in a copy of config.json; equal edits share their reasons."""
    reasons: dict[str, dict[str, None]] = {}
    for edit in edits:
        reasons.setdefault(repr(edit), {}).update(dict.fromkeys(edit.why))
    edited, planned = copy.deepcopy((spec, edits))
    apply(planned, edited)
    propagation.arrange(planned, edited, rootfs)
    after = copy.deepcopy(spec)
    for edit in copy.deepcopy(edits):
        is_present, reason = not apply([copy.deepcopy(edit)], after), "; ".join(reasons[repr(edit)])
        if edit.kind == "hook":
            args = edit.value["args"]
            work = [f"{args.count(word)} {label}" for word, (_, label) in OPTIONS.items() if label and word in args]
            reason += f": {', '.join(work) or 'nothing to link or cover'}"
        yield {"kind": edit.kind, "value": edit.value, "why": reason, "there": is_present}


def _explain_no_request(decision: Decision, rows: list[dict[str, str]]) -> str:
    if decision.ignored:
        return "; ".join(decision.ignored)
    if decision.effects:
        return _shorten("; ".join(f"{quote(source)} {effect}" for source, effect in decision.effects.items()))
    close = [row["what"] for row in rows if not_given.meant(row["what"]) == DEVICES]
    instead = f" (but {close[0]} is)" if close else ""
    return f"{DEVICES} is not set{instead}, and no mount or annotation names a device"


def _list_sources(
    spec: dict[str, Any], settings: Policy, decision: Decision, origins: Mapping[str, str], otherwise: str
) -> Iterator[dict[str, str]]:
    """List the sources of a request, with the effect that the decision has noted, or `otherwise`.

    Values of a wrong type are left out: they are refused anyway.
    """
    prefixes, swarm = tuple(settings["cdi"]["annotation-prefixes"]), settings["requests"]["swarm-variables"]
    keys, mounts = sorted(_read_annotations(spec)), _read_mounts(spec)
    sources = [(f"annotation {key}", value, "") for key, value in keys if key.startswith(prefixes)]
    sources += [(f"annotation {key}", value, "") for key, value in keys if key == authorization.MEMORY_ANNOTATION]
    sources += [(f"mount {path}", source, "") for source, path in mounts if path.startswith(DEVICE_LIST + "/")]
    limits = system.state_dir() + authorization.LIMITS
    sources += [(f"mount {path}", source, "") for source, path in mounts if source.startswith(limits)]
    sources += _list_variables(_read_variables(spec), swarm)
    effects = {**decision.effects}
    if VOID in effects.values():  # gpushim's CDI spec may have given the GPUs, and its hook reads the limits
        limits_of(spec, settings, system.state_dir(), [], effects)
    for name, value, effect in sources:
        origin = origins.get(f"{name}={value}") or origins.get(name.partition(" ")[2] or name, "config.json")
        effect = effect or effects.get(name, otherwise)
        yield {"what": _shorten(name), "value": _shorten(value), "from": origin, "effect": effect}
    request = decision.request
    if request and CAPABILITIES not in [name for name, _, _ in sources]:
        configured, default = settings["requests"], policy.defaults()["requests"]
        is_configured = configured["default-capabilities"] != default["default-capabilities"]
        origin = (
            "[requests] default-capabilities"
            if is_configured and not legacy(dict(_read_variables(spec)))
            else "default"
        )
        value, effect = ",".join(request.capabilities), decision.effects[CAPABILITIES]
        yield {"what": CAPABILITIES, "value": value, "from": origin, "effect": effect}
    if request:
        value, effect = ("yes", "counts as privileged") if request.privileged else ("no", "counts as unprivileged")
        yield {"what": "CAP_SYS_ADMIN", "value": value, "from": "process.capabilities", "effect": effect}


def _list_variables(env: list[tuple[str, str]], swarm: list[str]) -> Iterator[tuple[str, str, str]]:
    """List variables, the last of equal ones, with their values and the effects that no decision has noted."""
    final = {entry: position for position, entry in enumerate(env)}
    last = {name: position for position, (name, _) in enumerate(env)}
    for (name, value), position in sorted(final.items(), key=lambda pair: pair[1]):
        suggestion = not_given.meant(name, swarm)
        if name in authorization.VARIABLES or name in swarm or name.startswith(require.PREFIX):
            yield name, value, "" if last[name] == position else "overridden below"
        elif suggestion or name.startswith("NVIDIA_"):
            yield name, value, "is unknown to gpushim" + (f"; is {suggestion} meant?" if suggestion else "")


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _read_mounts(spec: dict[str, Any]) -> list[tuple[str, str]]:
    mounts = spec.get("mounts")
    entries = [entry for entry in (mounts if isinstance(mounts, list) else ()) if isinstance(entry, dict)]
    return [(str(entry.get("source", "")), str(entry.get("destination", ""))) for entry in entries]


def _read_variables(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the variables of a config.json, of which other parts may be malformed, with their values."""
    process = spec.get("process")
    env = process.get("env") if isinstance(process, dict) else None
    listed = env if isinstance(env, list) else ()
    pairs = [entry.partition("=") for entry in listed if isinstance(entry, str) and "=" in entry]
    return [(name, value) for name, _, value in pairs]


def _read_annotations(spec: dict[str, Any]) -> list[tuple[str, str]]:
    annotations = spec.get("annotations")
    listed = annotations.items() if isinstance(annotations, dict) else ()
    return [(key, value) for key, value in listed if isinstance(value, str)]
