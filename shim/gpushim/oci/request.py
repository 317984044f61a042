"""What a container asks for, read from its config.json.

Out of scope: what the host has (selection, plan), whether the conditions hold (require), and who may be granted what
(authorization).
Hot path: imports nothing but these and gpushim's errors; reading an ordinary config.json takes 0.05 ms without a
request and about 0.1 ms with one, and time grows only with its size.
"""

from __future__ import annotations

import posix

from gpushim.ground import bounds
from gpushim.ground.errors import BUNDLE, REQUEST, GpushimError, quote
from gpushim.oci import authorization
from gpushim.oci.authorization import FEATURES, Gate
from gpushim.oci.require import PREFIX, gather
from gpushim.oci.selection import CHANNEL, FEATURE, is_qualified, number, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Sequence, TypeVar

    from gpushim.ground.model import Policy
    from gpushim.oci.selection import Item

    Asked = tuple[str, str, list[str]]  # source, value as given, names
    T = TypeVar("T")

DEVICES = "NVIDIA_VISIBLE_DEVICES"
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
DEVICE_LIST = "/var/run/nvidia-container-devices"
AUTOMATIC_KIND = "runtime.nvidia.com/gpu"  # how NVIDIA's toolkit names devices it describes while it runs
LAST_CHANNEL = 2**20 - 1
NAMES = "names the devices"  # what it does, of whatever does; see read
_VOID = "says void: whoever set it so has given the container what it gets"
_NAMES_CHANNEL = "names an IMEX channel"
_TRUE = ("1", "t", "T", "TRUE", "true", "True")  # Go's strconv.ParseBool
CUDAS_PIPES = "/tmp/nvidia-mps"  # where MPS has its pipes if nobody names another directory
_ORIGINS = {"mounts": ("mount", "a mount"), "annotations": ("annotation", "an annotation")}
_MOUNT_RULE = "[requests] accept-volume-mounts is false"


class Request:
    """What a container asks for, independent of any host.

    Args:
        source: where the devices are named, for people: "env NAME", "mounts" or "annotations".
        text: the list as given.
        devices: selection's items in order without duplicates; [] asks for the driver without a GPU. Of these, `own`
            are those that mean this host's own GPUs, None if it is about none of them at all, and `foreign` the names
            that only CDI specs can resolve.
        capabilities: out of CAPABILITIES, in that order.
        requirements: (variable, expression) for require.check.
        mps: CUDA_MPS_PIPE_DIRECTORY as the container has it, or ""; it brings nothing.
        imex: channel numbers in order without duplicates; those among the devices are added.
        features: out of authorization.FEATURES, in that order; those among the devices are added.
        mig_config: MIG may be configured from the container.
        mig_monitor: MIG may be monitored from the container.
        privileged: CAP_SYS_ADMIN is in the bounding set, and not of a user namespace of the container's own.
        ignored: a sentence for each thing that was asked for and that the policy forbids to honour.
    """

    __slots__ = (
        "capabilities", "devices", "features", "foreign", "ignored", "imex", "mig_config", "mig_monitor", "mps",
        "own", "privileged", "requirements", "source", "text",
    )  # fmt: skip

    def __init__(
        self,
        source: str,
        text: str,
        devices: list[Item],
        *,
        capabilities: Sequence[str] = (),
        requirements: Sequence[tuple[str, str]] = (),
        imex: Sequence[int] = (),
        features: Sequence[str] = (),
        mps: str = "",
        mig_config: bool = False,
        mig_monitor: bool = False,
        privileged: bool = False,
        ignored: Optional[list[str]] = None,
    ) -> None:
        self.source, self.text, self.devices = source, text, devices
        self.foreign = [text for kind, _, text in devices if kind == "cdi"]
        self.own: Optional[list[Item]] = [item for item in devices if item[0] not in ("cdi", "none")]
        if self.foreign and len(self.foreign) == len(devices):
            self.own = None
        self.capabilities, self.requirements = capabilities, requirements
        self.imex: Sequence[int] = [*imex, *[each for each in named(devices, CHANNEL) if each not in imex]]
        by_name = named(devices, FEATURE)
        self.features = [name for name in FEATURES if name in features or name in by_name]
        self.mps, self.mig_config, self.mig_monitor = mps, mig_config, mig_monitor
        self.privileged, self.ignored = privileged, [] if ignored is None else ignored


def read(
    spec: Mapping[str, object],
    policy: Policy,
    ignored: Optional[list[str]] = None,
    effects: Optional[dict[str, str]] = None,
) -> Optional[Request]:
    """Read a container's request.

    Args:
        spec: config.json as parsed.
        policy: the validated configuration with all keys present.
        ignored: if given, receives the sentences of Request.ignored, also when there is no request.
        effects: if given, receives what each thing that was looked at does, as the end of a sentence: by the name of
            a variable, "mount PATH" or "annotation KEY".

    Returns:
        The request, or None when the container asks for nothing that may be honoured.

    Raises:
        GpushimError: REQUEST, for a malformed or forbidden request; BUNDLE, for a config.json of wrong types.
    """
    ignored, effects = [] if ignored is None else ignored, {} if effects is None else effects
    process, swarm = _member(spec, "process", dict), policy["requests"]["swarm-variables"]
    env = _environment(process, swarm)
    # Whoever injected already says void, so neither mounts nor annotations may bring the devices again.
    if "void" in _split(DEVICES, env.get(DEVICES, "")):
        effects[DEVICES] = _VOID
        return None
    gate = Gate(lambda: _privileged(spec, process), policy, ignored, effects)
    asked = _annotated(spec, gate)
    mounted = _mounted(spec, gate, _beaten(asked[0]) if asked else NAMES)
    named = [_mount_name(name) for name in mounted if not name.startswith("imex/")]
    if asked is None and named:
        asked = ("mounts", ",".join(named), named)
    if asked:
        effects.update(dict.fromkeys([name for name in (DEVICES, *swarm) if name in env], _beaten(asked[0])))
    else:
        asked = _listed(env, gate)
    if asked is None:
        return None
    devices = parse(asked[2], (policy["cdi"]["kind"], AUTOMATIC_KIND))
    if devices is None:
        effects.update({what: _VOID for what, effect in effects.items() if effect == NAMES})
        return None
    devices = [item for item in devices if _lets(item, asked[0], gate)]
    return _completed(asked[0], asked[1], devices, env, mounted, gate)


def _beaten(source: str) -> str:
    return f"does not count: the devices are named by {source}"


def named(devices: Sequence[Item], form: str) -> list[Any]:
    """List what items of one kind name."""
    return [value for kind, value, _ in devices if kind == form]


def _lets(item: Item, source: str, gate: Gate) -> bool:
    """Say whether what a CDI name asks for beside GPUs may be had; refuse one of a kind that may not be named."""
    form, value, text = item
    origin, who = _ORIGINS.get(source, ("variable", source[4:]))
    if form in (CHANNEL, FEATURE):
        grant = "imex" if form == CHANNEL else str(value)
        return gate.lets(grant, origin, f"the CDI device {text} adds nothing")
    kind = text.partition("=")[0]
    own = kind in (gate.policy["cdi"]["kind"], AUTOMATIC_KIND)
    if form == "cdi" and gate.missing("own-cdi" if own else "foreign-cdi", origin, kind):
        raise GpushimError(
            f'{who} names the CDI device "{quote(text)}", but [cdi] foreign-kinds does not have {quote(kind)}; '
            f"add it there, or let the engine do CDI",
            REQUEST,
        )
    return True


def _completed(
    source: str, text: str, devices: list[Item], env: Mapping[str, str], mounted: list[str], gate: Gate
) -> Request:
    """Read what else a request has, which names the devices."""
    legacy, mps, effects = _legacy(env), env.get(MPS_PIPES, ""), gate.effects
    naming = [*effects]
    if env.get("CUDA_VERSION"):
        effects.setdefault("CUDA_VERSION", "an image from before NVIDIA_REQUIRE_CUDA" if legacy else "does nothing")
    capabilities = _capabilities(env, legacy, gate)
    requirements = _requirements(env, legacy, gate)
    imex = _imex(env, mounted, gate)
    features = _features(env, gate)
    if mps:
        effects[MPS_PIPES] = "does nothing: [mps] enabled decides"
    if mps.rstrip("/") in (gate.policy["mps"]["pipe-directory"], CUDAS_PIPES):
        gate.lets("mps", "policy", f"{MPS_PIPES} does not let the container take part in the host's MPS")
    found = Request(
        source,
        text,
        devices,
        capabilities=capabilities,
        requirements=requirements,
        imex=imex,
        features=features,
        mps=mps,
        mig_config=_mig(env, "NVIDIA_MIG_CONFIG_DEVICES", gate),
        mig_monitor=_mig(env, "NVIDIA_MIG_MONITOR_DEVICES", gate),
        privileged=gate.privileged,
        ignored=gate.ignored,
    )
    if found.own is None:  # then plan goes by nothing but the names
        beside = [what for what in effects if what not in naming]
        effects.update(dict.fromkeys(beside, "does nothing: no GPU of this host is asked for"))
    elif not found.own:
        effects.update({"NVIDIA_" + name.upper(): "does nothing without a GPU" for name in features})
    return found


def _member(parent: Mapping[str, object], key: str, kind: type[T]) -> T:
    value = parent.get(key)
    if value is None:  # Go reads null as absent
        return kind()
    if not isinstance(value, kind):
        form = {"dict": "an object", "list": "a list", "str": "a string"}[kind.__name__]
        raise GpushimError(f'config.json: "{quote(key)}" is not {form}; the engine must write it again', BUNDLE)
    return value


def _environment(process: Mapping[str, object], swarm: Sequence[str]) -> dict[str, str]:
    """Return the variables that matter here; of duplicates the last wins, as it does in runc."""
    known = authorization.VARIABLES
    first = ("NVIDIA_", "CUDA_", *swarm)  # most of an environment begins otherwise, and is done with here
    found = {}
    for entry in _member(process, "env", list):
        if not isinstance(entry, str):
            raise GpushimError("config.json: process.env has an entry that is not a string", BUNDLE)
        if entry.startswith(first):
            name, equals, value = entry.partition("=")
            if equals and (name in known or name in swarm or name.startswith(PREFIX)):
                found[name] = value
    return found


def _split(name: str, value: str) -> list[str]:
    if not value:
        return []
    texts = [text.strip() for text in value[: bounds.VALUE + 1].split(",")]
    if len(value) > bounds.VALUE or len(texts) > bounds.DEVICES:
        limit = f"{bounds.VALUE} characters or {bounds.DEVICES} items"
        raise GpushimError(f"{quote(name)} has more than {limit}; shorten it", REQUEST)
    return [text for text in texts if text]


def _annotated(spec: Mapping[str, object], gate: Gate) -> Optional[Asked]:
    annotations = _member(spec, "annotations", dict)
    names: list[str] = []
    keys = sorted(key for key in annotations if key.startswith(tuple(gate.policy["cdi"]["annotation-prefixes"])))
    looked = [f"annotation {key}" for key in keys]
    if keys and gate.missing("gpu", "annotation"):
        if any(annotations[key] for key in keys):
            gate.lets("gpu", "annotation", f"annotations ({quote(keys[0])}) name no device", looked)
        return None
    for key, what in zip(keys, looked):
        texts = _split(what, _member(annotations, key, str))
        gate.effects[what] = NAMES if texts else "is empty"
        for name in texts:
            if not is_qualified(name):
                raise GpushimError(
                    f'annotation {quote(key)} names "{quote(name)}", which is not a CDI device such as '
                    f"nvidia.com/gpu=0; write vendor/class=device",
                    REQUEST,
                )
            names.append(name)
        if len(names) > bounds.DEVICES:  # of all together: each may have so many
            raise GpushimError(f"the annotations name more than {bounds.DEVICES} devices; name fewer", REQUEST)
    return ("annotations", ",".join(names), names) if names else None


def _mounted(spec: Mapping[str, object], gate: Gate, effect: str) -> list[str]:
    """Return what follows DEVICE_LIST in the mounts of /dev/null by which Kubernetes names devices.

    Args:
        spec: config.json as parsed.
        gate: of the container; its effects get `effect` for mounts that name GPUs or CDI devices.
        effect: what those do.
    """
    names: list[str] = []
    looked: dict[str, str] = {}
    accepted = not gate.missing("gpu", "mount")
    for mount in _member(spec, "mounts", list):
        if not isinstance(mount, dict):
            raise GpushimError("config.json: mounts has an entry that is not an object", BUNDLE)
        parts = _member(mount, "destination", str).split("/")
        if "nvidia-container-devices" not in parts:
            continue
        what = "mount " + "/".join(parts)
        if not _is_null(_member(mount, "source", str)):
            gate.effects[what] = "names no device: its source is not /dev/null"
            continue
        if ".." in parts and accepted:
            shown = quote("/".join(parts))
            raise GpushimError(f'the mount "{shown}" names a device with ".."; write it without', REQUEST)
        path = "/" + "/".join(part for part in parts if part not in ("", "."))
        if parts[0] == "" and path.startswith(DEVICE_LIST + "/"):
            name = path[len(DEVICE_LIST) + 1 :].strip()
            names.append(name)
            looked[what] = _NAMES_CHANNEL if name.startswith("imex/") else effect if name else "is empty"
    if names and not gate.lets("gpu", "mount", f"mounts below {DEVICE_LIST} name no device", looked):
        return []
    gate.effects.update(looked)
    if len(names) > bounds.DEVICES:
        raise GpushimError(f"more than {bounds.DEVICES} mounts name devices; name fewer", REQUEST)
    return [name for name in names if name]


def _is_null(source: str) -> bool:
    """Say whether the source of a mount is /dev/null, which makes it name something rather than bring it."""
    parts: list[str] = []
    for part in source.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return source.startswith("/") and parts == ["dev", "null"]


def _mount_name(name: str) -> str:
    if not name.startswith("cdi/"):
        return name
    qualified = name[4:]
    if "=" not in qualified:
        qualified = "=".join(qualified.rsplit("/", 1))
    if not is_qualified(qualified):
        shown = f"{DEVICE_LIST}/{quote(name)}"
        raise GpushimError(f'the mount "{shown}" names no CDI device; write cdi/vendor/class/device', REQUEST)
    return qualified


def _listed(env: Mapping[str, str], gate: Gate) -> Optional[Asked]:
    """Return the list that variables give, if they may."""
    rules, effects = gate.policy["requests"], gate.effects
    names = [name for name in rules["swarm-variables"] if name in env]
    if not names and DEVICES not in env:
        if not _legacy(env):
            return None
        names, texts, value = ["CUDA_VERSION"], ["all"], "all"
    else:
        names = names or [DEVICES]
        value = ",".join(env[name] for name in names)
        texts = _split(names[0], value)
    source = "env " + ", ".join(names)
    if DEVICES in env:
        effects[DEVICES] = _beaten(source)
    if not texts:
        effects.update(dict.fromkeys(names, "is empty"))
        return None
    if names == [DEVICES] and value.strip().rstrip("/") == DEVICE_LIST:
        reason, fix = _MOUNT_RULE, "let the device plugin pass them as variables, or set accept-volume-mounts = true"
        if rules["accept-volume-mounts"]:
            reason, fix = "no mount below it names one", "the device plugin's strategy must have volume-mounts"
        raise GpushimError(
            f"{DEVICES} says that mounts below {DEVICE_LIST} name the devices, but {reason}; {fix}", REQUEST
        )
    if not gate.lets("gpu", "variable", f"{names[0]} names no device", names):
        return None
    effects.update(dict.fromkeys(names, NAMES))
    return (source, value, texts)


def _legacy(env: Mapping[str, str]) -> bool:
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")


def _privileged(spec: Mapping[str, object], process: Mapping[str, object]) -> bool:
    """Say whether a container has power over the host anyway: CAP_SYS_ADMIN, in the engine's own user namespace."""
    capabilities = process.get("capabilities")
    if not isinstance(capabilities, list):  # one is of OCI runtime spec 1.0.0-rc1 to rc4
        capabilities = _member(_member(process, "capabilities", dict), "bounding", list)
    return "CAP_SYS_ADMIN" in capabilities and not _in_a_user_namespace(_member(spec, "linux", dict))


def _in_a_user_namespace(linux: Mapping[str, object]) -> bool:
    for space in _member(linux, "namespaces", list):
        if isinstance(space, dict) and space.get("type") == "user":
            path = _member(space, "path", str)
            try:
                here, there = posix.stat("/proc/self/ns/user"), posix.stat(path)
            except (OSError, ValueError):  # none to join, or none that can be looked at
                return True
            return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)
    return bool(linux.get("uidMappings"))


def _capabilities(env: Mapping[str, str], legacy: bool, gate: Gate) -> list[str]:
    name = "NVIDIA_DRIVER_CAPABILITIES"
    words = _split(name, env.get(name, "all" if legacy else "")) or gate.policy["requests"]["default-capabilities"]
    for word in words:
        if word not in CAPABILITIES and word != "all":
            known = ", ".join(CAPABILITIES)
            raise GpushimError(f'{name} has "{quote(word)}"; it may have {known} and all', REQUEST)
    found = [word for word in CAPABILITIES if word in words or "all" in words]
    gate.effects[name] = "gives " + ", ".join(found)
    return found


def _requirements(env: Mapping[str, str], legacy: bool, gate: Gate) -> list[tuple[str, str]]:
    name, value = "NVIDIA_DISABLE_REQUIRE", env.get("NVIDIA_DISABLE_REQUIRE", "")
    if value:
        is_off = value in _TRUE
        gate.effects[name] = "no condition counts" if is_off else f"does nothing: {quote(value)} is not true"
    if gate.policy["requests"]["disable-require"]:
        name = "[requests] disable-require"
    elif value not in _TRUE:
        return gather(env, legacy, gate.ignored, gate.effects)
    conditions = [each for each in env if each.startswith(PREFIX)]
    gate.effects.update(dict.fromkeys(conditions, f"does not count: {name} is true"))
    return []


def _features(env: Mapping[str, str], gate: Gate) -> list[str]:
    found = []
    for feature in FEATURES:
        name = "NVIDIA_" + feature.upper()
        if env.get(name, "enabled") != "enabled":
            gate.effects[name] = 'does nothing: only "enabled" counts'
        elif name in env and gate.lets(feature, "variable", f"{name} adds nothing", [name]):
            gate.effects[name] = f"feature {feature}"
            found.append(feature)
    return found


def _imex(env: Mapping[str, str], mounted: list[str], gate: Gate) -> list[int]:
    name, effects = "NVIDIA_IMEX_CHANNELS", gate.effects
    texts = [text[5:] for text in mounted if text.startswith("imex/")]
    source, otherwise = "mount", f"mounts below {DEVICE_LIST} add no IMEX channel"
    looked, effect = [what for what, effect in effects.items() if effect == _NAMES_CHANNEL], _NAMES_CHANNEL
    if texts and name in env:
        effects[name] = "does not count: mounts name the IMEX channels"
    elif name in env:
        source, otherwise, looked, effect = "variable", f"{name} adds no IMEX channel", [name], "names IMEX channels"
        texts = _split(name, env[name])
        if "all" in texts or "none" in texts or "void" in texts:
            effects[name] = "names no IMEX channel: all, none and void mean none"
            return []  # "all" has always meant nothing here
    if not texts or not gate.lets("imex", source, otherwise, looked):
        return []
    channels: list[int] = []
    for text in texts:
        if not 0 <= number(text) <= LAST_CHANNEL:
            raise GpushimError(f'"{quote(text)}" is no IMEX channel; name channels from 0 to {LAST_CHANNEL}', REQUEST)
        if number(text) not in channels:
            channels.append(number(text))
    effects.update(dict.fromkeys(looked, effect))
    return channels


def _mig(env: Mapping[str, str], name: str, gate: Gate) -> bool:
    value = env.get(name, "").strip()
    if not value:
        return False
    if gate.missing(authorization.VARIABLES[name], "variable"):
        raise GpushimError(
            f"{name} needs a container with CAP_SYS_ADMIN on the host; remove it, or add --privileged", REQUEST
        )
    if value != "all":
        raise GpushimError(f'{name} is "{quote(value)}"; the only value it may have is all', REQUEST)
    gate.effects[name] = "MIG may be configured or monitored"
    return True
