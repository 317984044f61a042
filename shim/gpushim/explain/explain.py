"""What a container would get and why, or why it is refused, without doing it.

The decision is the create's own (decide.py); its edits are applied to a copy.
Out of scope: printing (cli/explain.py), what is not given (not_given.py), asking engines (engines/docker/inspect.py).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from gpushim.cdi import specs
from gpushim.config import policy
from gpushim.decision import plan
from gpushim.decision.decide import Decision, gone, of_bundle
from gpushim.explain import not_given
from gpushim.ground import system
from gpushim.ground.errors import BUNDLE, GpushimError, quote
from gpushim.inventory import present
from gpushim.oci import authorization, bundle, propagation, request, require, selection
from gpushim.oci.edits import Edit, apply
from gpushim.oci.hookargs import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpushim.ground.model import Policy
    from gpushim.oci.request import Request

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
ROOTFS = "/rootfs"  # of a container that is not there yet
REFUSED = "the request is refused"
SHOWN = 200  # characters of a name or a value


def explain(
    spec: Any,
    directory: str = "",
    origins: Mapping[str, str] | None = None,
    rootfs: str | None = None,
    by_hook: bool = False,
) -> dict[str, Any]:
    """Say what a container would get.

    Args:
        spec: config.json as parsed; it is not changed.
        directory: of its bundle, absolute or relative; "" is the working directory.
        origins: who set a variable (also by NAME=VALUE), a mount or an annotation, by its name; config.json says so
            for the others.
        rootfs: absolute path of the rootfs where config.json does not name it; "" if it is not known.
        by_hook: the engine calls the hook and a runtime of its own, so that gpushim's low-level runtime is not used.

    Returns:
        "asked"         [{"what", "value", "from", "effect"}]: all that was looked at
        "source"        what names the devices, such as "env NVIDIA_VISIBLE_DEVICES"; null without a request
        "nothing"       null, or a sentence: why there is no request
        "devices"       [{"item", "means", "uuids"}]
        "requirements"  [{"variable", "expression"}], which hold if there is no refusal
        "ignored"       sentences about what was asked for and left out
        "not_given"     [{"what", "why"}]: what this host has, or the image could have, and was not asked for
        "cdi"           [{"name", "file"}]
        "edits"         [{"kind", "value", "why", "there"}]; there: it changes nothing in this config.json
        "refusal"       null, or {"sentence", "exit_code"}
        "notes"         sentences about the host
    """
    report: dict[str, Any] = {"asked": [], "source": None, "nothing": None, "devices": [], "requirements": []}
    report.update({"ignored": [], "not_given": [], "cdi": [], "edits": [], "refusal": None, "notes": []})
    try:
        if not isinstance(spec, dict):
            raise GpushimError("config.json is not a JSON object", BUNDLE)
        _tell(report, spec, directory, origins or {}, rootfs, by_hook)
    except GpushimError as error:
        report["refusal"] = {"sentence": str(error), "exit_code": error.exit_code}
    return report


def described(
    env: list[str], privileged: bool, annotations: dict[str, str], mounts: list[tuple[str, str]], rootfs: str = ROOTFS
) -> dict[str, Any]:
    """Return as much of a config.json as a request needs.

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


def _tell(
    report: dict[str, Any],
    spec: dict[str, Any],
    directory: str,
    origins: Mapping[str, str],
    rootfs: str | None,
    by_hook: bool,
) -> None:
    decision = Decision()
    try:
        asked = decision.ask(spec, present.snapshot)
    except GpushimError:
        report["asked"] = [*_looked_at(spec, _settings(), None, origins, refused=True)]
        raise
    finally:
        report["ignored"] = decision.ignored
    settings = decision.inventory["policy"] if decision.inventory else policy.defaults()
    report["asked"] = [*_looked_at(spec, settings, asked, origins)]
    if asked is None:
        report["nothing"] = _nothing(report)
        return
    report["source"], report["notes"] = asked.source, decision.inventory["notes"]
    if not by_hook and bundle.missing(low := decision.low_level()):
        raise gone(low)
    own, foreign = plan.parts(asked)
    conditions = () if own is None else asked.requirements
    report["requirements"] = [{"variable": name, "expression": text} for name, text in conditions]
    facts = of_bundle(spec, directory)
    decision.plan(facts)
    report["not_given"] += not_given.capabilities(asked, decision.inventory)
    report["not_given"] += not_given.programs(
        decision.edits, decision.inventory, facts["rootfs"] if rootfs is None else rootfs
    )
    for item, found in decision.devices.items():
        means, uuids = ", ".join(map(selection.called, found)), [device["uuid"] for device in found]
        report["devices"].append({"item": item, "means": means, "uuids": uuids})
    places = specs.find(foreign, settings["cdi"]["spec-dirs"])
    report["cdi"] = [{"name": name, "file": place[0]} for name, place in zip(foreign, places)]
    report["edits"] = [*_edits(decision.edits, spec, facts["rootfs"])]


def _edits(edits: list[Edit], spec: dict[str, Any], rootfs: str) -> Iterator[dict[str, Any]]:
    """List edits, of which equal ones have their reasons in common, as they land in a copy of config.json."""
    reasons: dict[str, dict[str, None]] = {}
    for edit in edits:
        reasons.setdefault(repr(edit), {}).update(dict.fromkeys(edit.why))
    whole, planned = copy.deepcopy((spec, edits))
    apply(planned, whole)
    propagation.arrange(planned, whole, rootfs)
    after = copy.deepcopy(spec)
    for edit in copy.deepcopy(edits):
        there, why = not apply([copy.deepcopy(edit)], after), "; ".join(reasons[repr(edit)])
        if edit.kind == "hook":
            args = edit.value["args"]
            work = [f"{args.count(word)} {what}" for word, (_, what) in OPTIONS.items() if what and word in args]
            why += f": {', '.join(work) or 'nothing to link or cover'}"
        yield {"kind": edit.kind, "value": edit.value, "why": why, "there": there}


def _settings() -> Policy:
    settings: Policy
    try:
        settings = policy.load(system.config_path())
    except GpushimError:
        settings = policy.defaults()
    return settings


def _nothing(report: dict[str, Any]) -> str:
    """Say why there is no request, from what was looked at."""
    if report["ignored"]:
        return "; ".join(report["ignored"])
    values = [row["value"] for row in report["asked"] if row["what"] == request.DEVICES]
    if not values:
        close = [row["what"] for row in report["asked"] if not_given.meant(row["what"]) == request.DEVICES]
        instead = f" (but {close[0]} is)" if close else ""
        return f"{request.DEVICES} is not set{instead}, and no mount or annotation names a device"
    if not values[-1].strip(" ,"):
        return f"{request.DEVICES} is empty"
    return f"{request.DEVICES} says void: whoever set it so has given the container what it gets"


def _looked_at(
    spec: dict[str, Any],
    settings: Policy,
    asked: Request | None,
    origins: Mapping[str, str],
    refused: bool = False,
) -> Iterator[dict[str, str]]:
    """List what a request may consist of, with what it did; with nothing of a wrong type, which is refused anyway."""
    swarm = settings["requests"]["swarm-variables"]
    env = [entry.partition("=") for entry in _env(spec) if "=" in entry]
    last = {name: place for place, (name, _, _) in enumerate(env)}
    devices = env[last[request.DEVICES]][2] if request.DEVICES in last else ""
    void = "void" in [word.strip() for word in devices.split(",")]
    otherwise = REFUSED if refused else f"{request.DEVICES} says void" if void else ""
    effects = _Effects(asked, settings, otherwise, any("/imex/" in path for _, path in _mounts(spec)))
    final = {entry: place for place, entry in enumerate(env)}
    for key, value in sorted(_texts(spec.get("annotations"))):
        if key.startswith(tuple(settings["cdi"]["annotation-prefixes"])):
            yield _row(f"annotation {key}", value, origins, effects.names("annotation", value, "annotations"))
    for source, path in _mounts(spec):
        if path.startswith(request.DEVICE_LIST + "/"):
            effect = effects.channel() if "/imex/" in path else effects.names("mount", path, "mounts")
            effect = effect if request.is_null(source) else "names no device: its source is not /dev/null"
            yield _row(f"mount {path}", source, origins, effect)
    for place, (name, _, value) in enumerate(env):
        if final[name, "=", value] != place:
            continue  # said again below
        meant = not_given.meant(name, swarm)
        if name.startswith("NVIDIA_") or name in ("CUDA_VERSION", request.MPS_PIPES, *swarm) or meant:
            effect = f"means nothing to gpushim; is {meant} meant?" if meant else effects.effect(name, value)
            who = {name: origins[entry]} if (entry := f"{name}={value}") in origins else origins
            yield _row(name, value, who, effect if last[name] == place else "set again below, which counts")
    if asked and CAPABILITIES not in last:
        words = "all" if asked.legacy else ",".join(asked.capabilities)
        named = settings["requests"]["default-capabilities"] != policy.defaults()["requests"]["default-capabilities"]
        origin = "[requests] default-capabilities" if named and not asked.legacy else "default"
        yield {"what": CAPABILITIES, "value": words, "from": origin, "effect": effects.effect(CAPABILITIES, words)}
    if asked:
        value, effect = ("yes", "counts as privileged") if asked.privileged else ("no", "counts as unprivileged")
        yield {"what": "CAP_SYS_ADMIN", "value": value, "from": "process.capabilities", "effect": effect}


def _row(what: str, value: str, origins: Mapping[str, str], effect: str) -> dict[str, str]:
    by = origins.get(what.partition(" ")[2]) or origins.get(what, "config.json")
    return {"what": _cut(what), "value": _cut(value), "from": by, "effect": effect}


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


class _Effects:
    """What each thing that a container says does to its request.

    Args:
        asked: the request, or None.
        settings: the policy.
        otherwise: why there is none, if nothing that it consists of is to blame.
        channels: mounts name IMEX channels.
    """

    def __init__(self, asked: Request | None, settings: Policy, otherwise: str, channels: bool) -> None:
        self._asked, self._settings, self._otherwise, self._channels = asked, settings, otherwise, channels

    def names(self, source: str, value: str, way: str) -> str:
        """Say what something that names devices does; its source is as authorization has it, its way as Request."""
        asked = self._asked
        if asked is None and self._otherwise == REFUSED:
            return f"does not count: {REFUSED}"
        if asked is None and (self._otherwise or not value.strip(" ,")):
            return f"names no device: {self._otherwise or 'it is empty'}"
        if asked is None:
            return self._forbidden("gpu", source) or "names no device"
        if asked.source == way:
            return "names the devices"
        verb = "name" if asked.source in ("mounts", "annotations") or "," in asked.source else "names"
        return f"does not count: {asked.source} {verb} the devices"

    def channel(self) -> str:
        """Say what a mount that names an IMEX channel does."""
        if self._asked is None:
            return self._without()
        return self._forbidden("imex", "mount") or "names an IMEX channel"

    def effect(self, name: str, value: str) -> str:
        """Say what a variable does, the last of its name."""
        asked, swarm = self._asked, self._settings["requests"]["swarm-variables"]
        if name == request.DEVICES or name in swarm:
            named = asked is not None and name in asked.source[len("env ") :].split(", ")
            return self.names("variable", value, asked.source if asked and named else "")
        if asked is None:
            return self._without()
        if name == "CUDA_VERSION":
            asks = " asks for all GPUs" if asked.source == "env CUDA_VERSION" else ""
            return f"an image from before NVIDIA_REQUIRE_CUDA{asks}" if asked.legacy else "does nothing"
        if name != request.DEVICES and plan.parts(asked)[0] is None:
            return "does nothing: no GPU of this host is asked for"
        if name == CAPABILITIES:
            return "gives " + ", ".join(asked.capabilities)
        if name == request.MPS_PIPES:
            return "does nothing: [mps] enabled decides"
        if name.startswith(require.PREFIX):
            return self._condition(name, value, asked)
        if name == "NVIDIA_IMEX_CHANNELS":
            return self._imex(value, asked)
        for feature in authorization.FEATURES:
            if name == f"NVIDIA_{feature.upper()}":
                return self._feature(feature, value, asked)
        if name in ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"):
            return "MIG may be configured or monitored" if value.strip() else "does nothing: it is empty"
        if name == "NVIDIA_DISABLE_REQUIRE":
            return "no condition counts" if request.is_true(value) else f"does nothing: {quote(value)} is not true"
        grant = authorization.VARIABLES.get(name)
        if grant is None:
            return "means nothing to gpushim"
        return self._forbidden(grant, "variable") or f"asks for {authorization.BESIDE[grant]}"

    def _without(self) -> str:
        return f"does nothing: {self._otherwise or 'there is no request'}"

    def _forbidden(self, grant: str, source: str) -> str:
        """Say which setting forbids something, if one does."""
        asked = self._asked
        condition = authorization.missing(grant, source, lambda: bool(asked and asked.privileged), self._settings)
        return f"does not count {authorization.because(condition)}" if condition else ""

    def _condition(self, name: str, value: str, asked: Request) -> str:
        if any(variable == name for variable, _ in asked.requirements):
            return "a condition"
        if name.startswith(require.FOREIGN_PREFIX):
            return "does not count: it is about Jetson's releases"
        if not value.strip():
            return "does nothing: it is empty"
        always = self._settings["requests"]["disable-require"]
        return f"does not count: {'[requests] disable-require' if always else 'NVIDIA_DISABLE_REQUIRE'} is true"

    def _imex(self, value: str, asked: Request) -> str:
        words = [word.strip() for word in value.split(",") if word.strip()]
        if self._channels and not self._forbidden("imex", "mount"):
            return "does not count: mounts name the IMEX channels"
        if not {"all", "none", "void"}.isdisjoint(words) or not words:
            return f"no IMEX channel: {'it is empty' if not words else 'all, none and void name none'}"
        named = f"IMEX channels {', '.join(map(str, asked.imex))}"
        return self._forbidden("imex", "variable") or named

    def _feature(self, feature: str, value: str, asked: Request) -> str:
        if value != "enabled":
            return 'does nothing: only "enabled" counts'
        if feature not in asked.features:
            return self._forbidden(feature, "variable")
        return f"feature {feature}" if plan.parts(asked)[0] else "does nothing without a GPU"


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
