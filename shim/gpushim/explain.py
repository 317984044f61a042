"""What a container would get and why, or why it is refused: the story of a create, told and not done.

The steps are create.py's own: the request, the inventory, the plan, and how its edits land, here in a copy.
Out of scope: printing (cli/explain.py), reasons of single edits (reasons.py), asking engines (engines/inspect.py).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from gpushim import create, plan, policy, request, require, stamp
from gpushim.cdi import specs
from gpushim.edits import apply
from gpushim.errors import BUNDLE, GpushimError, quote
from gpushim.inventory import present
from gpushim.reasons import Reasons

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushim.request import Request

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
ROOTFS = "/rootfs"  # of a container that is not there yet
SHOWN = 200  # characters of a value


def explain(spec: Any, bundle: str = "", origins: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Say what a container would get.

    Args:
        spec: config.json as parsed; it is not changed.
        bundle: its directory, absolute or relative; "" is the working directory.
        origins: who set a variable, a mount or an annotation, by its name; config.json says so for the others.

    Returns:
        "asked"         [{"what", "value", "from", "effect"}]: all that was looked at
        "source"        what names the devices, such as "env NVIDIA_VISIBLE_DEVICES"; null without a request
        "nothing"       null, or a sentence: why there is no request
        "devices"       [{"item", "means", "uuids"}]
        "requirements"  [{"variable", "expression"}], which hold if there is no refusal
        "ignored"       sentences about what was asked for and left out
        "cdi"           [{"name", "file"}]
        "edits"         [{"kind", "value", "why", "there"}]; there: it changes nothing in this config.json
        "refusal"       null, or {"sentence", "exit_code"}
        "notes"         sentences about the host
    """
    report: dict[str, Any] = {"asked": [], "source": None, "nothing": None, "devices": [], "requirements": []}
    report.update({"ignored": [], "cdi": [], "edits": [], "refusal": None, "notes": []})
    try:
        if not isinstance(spec, dict):
            raise GpushimError("config.json is not a JSON object", BUNDLE)
        _tell(report, spec, bundle, origins or {})
    except GpushimError as error:
        report["refusal"] = {"sentence": str(error), "exit_code": error.exit_code}
    return report


def described(
    env: list[str], privileged: bool, annotations: dict[str, str], mounts: list[tuple[str, str]], rootfs: str = ROOTFS
) -> dict[str, Any]:
    """Write as much of a config.json as a request has need of.

    Args:
        env: NAME=VALUE.
        privileged: whether the container has CAP_SYS_ADMIN.
        annotations: by key.
        mounts: (source, destination).
        rootfs: absolute path.
    """
    capabilities = {"bounding": ["CAP_SYS_ADMIN"] if privileged else []}
    return {
        "root": {"path": rootfs},
        "process": {"env": list(env), "capabilities": capabilities},
        "annotations": dict(annotations),
        "mounts": [{"source": source, "destination": path, "type": "bind"} for source, path in mounts],
    }


def _tell(report: dict[str, Any], spec: dict[str, Any], bundle: str, origins: Mapping[str, str]) -> None:
    try:
        wanted, inventory = create.find_request(spec, report["ignored"], present.snapshot)
    except GpushimError:
        report["asked"] = [*_looked_at(spec, _settings(), None, origins)]
        raise
    settings = inventory.get("policy") or policy.defaults()
    report["asked"] = [*_looked_at(spec, settings, wanted, origins)]
    if wanted is None:
        report["nothing"] = _nothing(report)
        return
    report["source"], report["notes"] = wanted.source, inventory["notes"]
    report["requirements"] = [{"variable": name, "expression": text} for name, text in wanted.requirements]
    facts = create.facts(spec, bundle)
    edits, _ = plan.plan(wanted, inventory, facts)
    reasons = Reasons(wanted, inventory, facts, edits)
    for item, means, found in reasons.devices:
        report["devices"].append({"item": item, "means": means, "uuids": [device["uuid"] for device in found]})
    named = plan.parts(wanted)[1]
    report["cdi"] = [
        {"name": name, "file": found[0]}
        for name, found in zip(named, specs.find(named, settings["cdi"]["spec-dirs"]))
    ]
    after = copy.deepcopy(spec)
    for kind, value in copy.deepcopy(edits):
        why = reasons.of(kind, value)
        there = not apply([(kind, copy.deepcopy(value))], after)
        report["edits"].append({"kind": kind, "value": value, "why": why, "there": there})


def _settings() -> dict[str, Any]:
    try:
        return policy.load(stamp.config_path())
    except GpushimError:
        return policy.defaults()


def _nothing(report: dict[str, Any]) -> str:
    """Say why there is no request, from what was looked at."""
    if report["ignored"]:
        return "what names devices does not count: " + "; ".join(report["ignored"])
    values = [row["value"] for row in report["asked"] if row["what"] == request.DEVICES]
    if not values:
        return f"{request.DEVICES} is not set, and no mount or annotation names a device"
    if not values[-1].strip(" ,"):
        return f"{request.DEVICES} is empty"
    return f"{request.DEVICES} says void: whoever set it so has given the container what it gets"


def _looked_at(
    spec: dict[str, Any], settings: dict[str, Any], wanted: Request | None, origins: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """List what a request may consist of, with what it did; with nothing of a wrong type, which is refused anyway."""
    swarm = settings["requests"]["swarm-variables"]
    for key, value in sorted(_texts(spec.get("annotations"))):
        if key.startswith(tuple(settings["cdi"]["annotation-prefixes"])):
            yield _row(f"annotation {key}", value, origins, _names(wanted, "annotations"))
    for source, path in _mounts(spec):
        if path.startswith(request.DEVICE_LIST + "/"):
            what = "names an IMEX channel" if "/imex/" in path else _names(wanted, "mounts")
            yield _row(f"mount {path}", source, origins, what)
    env = [entry.partition("=") for entry in _env(spec) if "=" in entry]
    last = {name: place for place, (name, _, _) in enumerate(env)}
    for place, (name, _, value) in enumerate(env):
        if name.startswith("NVIDIA_") or name in ("CUDA_VERSION", request.MPS_PIPES, *swarm):
            effect = _effect(name, value, wanted, swarm) if last[name] == place else "set again below, which counts"
            yield _row(name, value, origins, effect)
    if wanted and CAPABILITIES not in last:
        words = "all" if wanted.legacy else ",".join(wanted.capabilities)
        origin = "default" if wanted.legacy else "[requests] default-capabilities"
        yield {"what": CAPABILITIES, "value": words, "from": origin, "effect": _given(wanted)}
    if wanted:
        value, effect = ("yes", "counts as privileged") if wanted.privileged else ("no", "counts as unprivileged")
        yield {"what": "CAP_SYS_ADMIN", "value": value, "from": "process.capabilities", "effect": effect}


def _row(what: str, value: str, origins: Mapping[str, str], effect: str) -> dict[str, str]:
    shown = value if len(value) <= SHOWN else value[:SHOWN] + "..."
    name = what.partition(" ")[2] or what
    return {"what": what, "value": shown, "from": origins.get(name, "config.json"), "effect": effect}


def _names(wanted: Request | None, way: str) -> str:
    if wanted is None:
        return "names no device"
    return "names the devices" if wanted.source == way else f"does not count: {wanted.source} names the devices"


def _given(wanted: Request) -> str:
    return "gives " + ", ".join(wanted.capabilities)


def _effect(name: str, value: str, wanted: Request | None, swarm: list[str]) -> str:
    """Say what a variable does to a request."""
    if name == request.DEVICES or name in swarm:
        named = wanted is not None and name in wanted.source[len("env ") :].split(", ")
        return _names(wanted, wanted.source if wanted and named else "")
    if wanted is None:
        return "does nothing without a request"
    if name == CAPABILITIES:
        return _given(wanted)
    if name == "CUDA_VERSION":
        asks = " asks for all GPUs" if wanted.source == "env CUDA_VERSION" else ""
        return f"an image from before NVIDIA_REQUIRE_CUDA{asks}" if wanted.legacy else "does nothing"
    if name == request.MPS_PIPES:
        return "does nothing: [mps] enabled decides"
    if name.startswith(require.PREFIX):
        asked = any(variable == name for variable, _ in wanted.requirements)
        return "a condition" if asked else "counts for nothing"
    if name == "NVIDIA_IMEX_CHANNELS":
        return f"IMEX channels {', '.join(map(str, wanted.imex))}" if wanted.imex else "no IMEX channel"
    for feature in request.FEATURES:
        if name == f"NVIDIA_{feature.upper()}":
            if feature in wanted.features:
                return f"feature {feature}"
            return "does not count" if value == "enabled" else 'does nothing: only "enabled" counts'
    if name in ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"):
        return "MIG may be configured or monitored" if value.strip() else "does nothing"
    if name == "NVIDIA_DISABLE_REQUIRE":
        return "no condition counts" if not wanted.requirements else f"does nothing: {quote(value)} is not true"
    return "means nothing to gpushim"


def _texts(members: Any) -> list[tuple[str, str]]:
    found = members.items() if isinstance(members, dict) else ()
    return [(key, value) for key, value in found if isinstance(value, str)]


def _mounts(spec: dict[str, Any]) -> list[tuple[str, str]]:
    mounts = spec.get("mounts")
    entries = [entry for entry in (mounts if isinstance(mounts, list) else ()) if isinstance(entry, dict)]
    return [(str(entry.get("source", "")), str(entry.get("destination", ""))) for entry in entries]


def _env(spec: dict[str, Any]) -> list[str]:
    process = spec.get("process")
    env = process.get("env") if isinstance(process, dict) else None
    return [entry for entry in (env if isinstance(env, list) else ()) if isinstance(entry, str)]
