"""A container's request, read from its config.json.

Hot path: imports nothing but this package and gpushim's errors. An ordinary config.json takes 0.05 ms without
a request and about 0.1 ms with one, and time grows only with its size.
"""

from __future__ import annotations

from gpushim.ground.errors import BUNDLE, REQUEST, GpushimError, quote
from gpushim.ground.system import state_dir
from gpushim.oci import authorization, device_list
from gpushim.oci.authorization import FEATURES, LIMITS, MEMORY_ANNOTATION, MEMORY_VARIABLE, Gate, privileged
from gpushim.oci.bundle import member
from gpushim.oci.device_list import AUTOMATIC_KIND, DEVICE_LIST, NAMES, NAMES_CHANNEL, NO_GPU, VOID, split
from gpushim.oci.device_names import CHANNEL, FEATURE, NOT_GPU_KINDS, number, parse
from gpushim.oci.require import PREFIX, TRUE, gather

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Sequence

    from gpushim.ground.model import Policy
    from gpushim.oci.device_names import Item

MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
LAST_CHANNEL = 2**20 - 1
CUDAS_PIPES = "/tmp/nvidia-mps"  # where MPS has its pipes if nobody names another directory
_ORIGINS = {"mounts": ("mount", "a mount"), "annotations": ("annotation", "an annotation")}


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
        cuda_compat: a newer libcuda of the image's may be used.
        mig_config: MIG may be configured from the container.
        mig_monitor: MIG may be monitored from the container.
        memory: limits of GPU memory: where each was asked for, and its text (decision/memory.py).
        privileged: CAP_SYS_ADMIN is in the bounding set, and not of a user namespace of the container's own.
        ignored: a sentence for each part of the request that the policy forbids.
    """

    __slots__ = (
        "capabilities", "cuda_compat", "devices", "features", "foreign", "ignored", "imex", "memory",
        "mig_config", "mig_monitor", "mps", "own", "privileged", "requirements", "source", "text",
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
        cuda_compat: bool = True,
        mig_config: bool = False,
        mig_monitor: bool = False,
        memory: Sequence[tuple[str, str]] = (),
        privileged: bool = False,
        ignored: Optional[list[str]] = None,
    ) -> None:
        self.source, self.text, self.devices = source, text, devices
        self.foreign = [text for kind, _, text in devices if kind == "cdi"]
        self.own: Optional[list[Item]] = [item for item in devices if item[0] not in ("cdi", "none")]
        if self.foreign and len(self.foreign) == len(devices):
            self.own = None
        self.capabilities, self.requirements = capabilities, requirements
        channels = [value for kind, value, _ in devices if kind == CHANNEL and value not in imex]
        self.imex: Sequence[Any] = [*imex, *channels]
        by_name = [value for kind, value, _ in devices if kind == FEATURE]
        self.features = [name for name in FEATURES if name in features or name in by_name]
        self.cuda_compat = cuda_compat
        self.mps, self.mig_config, self.mig_monitor, self.memory = mps, mig_config, mig_monitor, memory
        self.privileged, self.ignored = privileged, [] if ignored is None else ignored


def read(
    spec: Mapping[str, object],
    policy: Policy,
    ignored: Optional[list[str]] = None,
    effects: Optional[dict[str, str]] = None,
) -> Optional[Request]:
    """Read a container's request.

    Args:
        policy: the validated configuration with all keys present.
        ignored: if given, receives the sentences of Request.ignored, also when there is no request.
        effects: if given, receives the effect of each source that was read, as the end of a sentence: by the name of
            a variable, "mount PATH" or "annotation KEY".

    Returns:
        the request, or None when the container asks for nothing that may be granted.

    Raises:
        GpushimError: REQUEST, for a malformed or forbidden request; BUNDLE, for a config.json of wrong types.
    """
    ignored, effects = [] if ignored is None else ignored, {} if effects is None else effects
    process = member(spec, "process", dict)
    env = _environment(process, policy["requests"]["swarm-variables"])
    gate = Gate(lambda: privileged(spec, process), policy, ignored, effects)
    named, channels = device_list.find(spec, env, gate)
    if named is None:
        return None
    source, text, names = named
    devices = parse(names, (policy["cdi"]["kind"], AUTOMATIC_KIND))
    if devices is None:
        gate.relabel(NAMES, VOID)
        return None
    if not devices:
        gate.relabel(NAMES, NO_GPU)
    devices = [item for item in devices if _is_granted(item, source, gate)]
    request = _complete(source, text, devices, env, channels, gate)
    if request.own and _names_limit(spec, env):
        from gpushim.oci import limit_request  # most containers have none

        request.memory = limit_request.read(spec, env, gate, state_dir())
    return request


def limits_of(
    spec: Mapping[str, object],
    policy: Policy,
    state: str,
    ignored: list[str],
    effects: Optional[dict[str, str]] = None,
) -> list[tuple[str, str]]:
    """List the limits of GPU memory of any container, as one that got its GPUs by CDI; `state` is the directory."""
    from gpushim.oci import limit_request

    process = member(spec, "process", dict)
    gate = Gate(lambda: privileged(spec, process), policy, ignored, {} if effects is None else effects)
    return limit_request.read(spec, _environment(process, ()), gate, state)


def _names_limit(spec: Mapping[str, object], env: Mapping[str, str]) -> bool:
    """Return whether a config.json names a limit of GPU memory, be it granted or not."""
    if MEMORY_VARIABLE in env or MEMORY_ANNOTATION in member(spec, "annotations", dict):
        return True
    for mount in member(spec, "mounts", list):
        source = mount.get("source") if type(mount) is dict else None
        if type(source) is str and LIMITS in source:
            return True
    return False


def _is_granted(item: Item, source: str, gate: Gate) -> bool:
    """Return whether an item other than a GPU may be granted; raise for a CDI kind that may not be named."""
    form, value, text = item
    if form not in NOT_GPU_KINDS:
        return True
    origin, subject = _ORIGINS.get(source, ("variable", source[4:]))
    if form != "cdi":
        grant = "imex" if form == CHANNEL else str(value)
        return gate.lets(grant, origin, f"the CDI device {text} adds nothing")
    kind = text.partition("=")[0]
    is_own = kind in (gate.policy["cdi"]["kind"], AUTOMATIC_KIND)
    if gate.unmet_condition("own-cdi" if is_own else "foreign-cdi", origin, kind):
        raise GpushimError(
            f'{subject} names the CDI device "{quote(text)}", but [cdi] foreign-kinds does not have {quote(kind)}; '
            f"add it there, or let the engine do CDI",
            REQUEST,
        )
    return True


def _complete(
    source: str, text: str, devices: list[Item], env: Mapping[str, str], channels: list[str], gate: Gate
) -> Request:
    legacy, mps, effects = device_list.legacy(env), env.get(MPS_PIPES, ""), gate.effects
    naming = {**effects}
    if env.get("CUDA_VERSION"):
        effects.setdefault("CUDA_VERSION", "an image from before NVIDIA_REQUIRE_CUDA" if legacy else "does nothing")
    capabilities = _capabilities(env, legacy, gate)
    requirements = gather(env, legacy, gate)
    imex = _imex(env, channels, gate)
    features = _features(env, gate)
    if mps:
        effects[MPS_PIPES] = "does nothing: [mps] enabled decides"
    if mps.rstrip("/") in (gate.policy["mps"]["pipe-directory"], CUDAS_PIPES):
        gate.lets("mps", "policy", f"{MPS_PIPES} does not let the container take part in the host's MPS")
    request = Request(
        source,
        text,
        devices,
        capabilities=capabilities,
        requirements=requirements,
        imex=imex,
        features=features,
        mps=mps,
        cuda_compat=_cuda_compat(env, gate),
        mig_config=_mig(env, "NVIDIA_MIG_CONFIG_DEVICES", gate),
        mig_monitor=_mig(env, "NVIDIA_MIG_MONITOR_DEVICES", gate),
        privileged=gate.privileged,
        ignored=gate.ignored,
    )
    if request.own is None:  # then plan goes by nothing but the names
        sources = [key for key in effects if key not in naming]
        effects.update(dict.fromkeys(sources, "does nothing: no GPU of this host is asked for"))
    elif not request.own:
        effects.update({"NVIDIA_" + name.upper(): "does nothing without a GPU" for name in features})
    return request


def _environment(process: Mapping[str, object], swarm: Sequence[str]) -> dict[str, str]:
    """Return the variables that count; of duplicates the last wins, as it does in runc."""
    variables = authorization.VARIABLES
    first = ("NVIDIA_", "CUDA_", "GPUSHIM_", *swarm)  # most of an environment begins otherwise, and is done with here
    env = {}
    for entry in member(process, "env", list):
        if not isinstance(entry, str):
            raise GpushimError("config.json: process.env has an entry that is not a string", BUNDLE)
        if entry.startswith(first):
            name, equals, value = entry.partition("=")
            if equals and (name in variables or name in swarm or name.startswith(PREFIX)):
                env[name] = value
    return env


def _capabilities(env: Mapping[str, str], legacy: bool, gate: Gate) -> list[str]:
    name = "NVIDIA_DRIVER_CAPABILITIES"
    words = split(name, env.get(name, "all" if legacy else "")) or gate.policy["requests"]["default-capabilities"]
    for word in words:
        if word not in CAPABILITIES and word != "all":
            names = ", ".join(CAPABILITIES)
            raise GpushimError(f'{name} has "{quote(word)}"; it may have {names} and all', REQUEST)
    capabilities = [word for word in CAPABILITIES if word in words or "all" in words]
    gate.effects[name] = "gives " + ", ".join(capabilities)
    return capabilities


def _features(env: Mapping[str, str], gate: Gate) -> list[str]:
    features = []
    for feature in FEATURES:
        name = "NVIDIA_" + feature.upper()
        if env.get(name, "enabled") != "enabled":
            gate.effects[name] = 'does nothing: only "enabled" counts'
        elif name in env and gate.lets(feature, "variable", f"{name} adds nothing", [name]):
            gate.effects[name] = f"feature {feature}"
            features.append(feature)
    return features


def _imex(env: Mapping[str, str], texts: list[str], gate: Gate) -> list[int]:
    """Return the IMEX channels that mounts name (`texts`), or a variable does."""
    name, effects = "NVIDIA_IMEX_CHANNELS", gate.effects
    source, otherwise = "mount", f"mounts below {DEVICE_LIST} add no IMEX channel"
    looked, effect = [key for key, effect in effects.items() if effect == NAMES_CHANNEL], NAMES_CHANNEL
    if texts and name in env:
        effects[name] = "is ignored: mounts name the IMEX channels"
    elif name in env:
        source, otherwise, looked, effect = "variable", f"{name} adds no IMEX channel", [name], "names IMEX channels"
        texts = split(name, env[name])
        if "all" in texts or "none" in texts or "void" in texts:
            effects[name] = "names no IMEX channel: all, none and void mean none"
            return []  # "all" has always meant nothing here
    if not texts or not gate.lets("imex", source, otherwise, looked):
        return []
    channels: list[int] = []
    for text in texts:
        if not 0 <= number(text) <= LAST_CHANNEL:
            raise GpushimError(
                f'"{quote(text)}" is not an IMEX channel; name channels from 0 to {LAST_CHANNEL}', REQUEST
            )
        if number(text) not in channels:
            channels.append(number(text))
    effects.update(dict.fromkeys(looked, effect))
    return channels


def _cuda_compat(env: Mapping[str, str], gate: Gate) -> bool:
    name = "NVIDIA_DISABLE_CUDA_COMPAT"
    value = env.get(name, "")
    if value:
        off = value in TRUE
        gate.effects[name] = "the driver's own libcuda counts" if off else f"does nothing: {quote(value)} is not true"
        return not off
    return True


def _mig(env: Mapping[str, str], name: str, gate: Gate) -> bool:
    value = env.get(name, "").strip()
    if not value:
        return False
    if gate.unmet_condition(authorization.VARIABLES[name], "variable"):
        raise GpushimError(
            f"{name} needs a container with CAP_SYS_ADMIN on the host; remove it, or add --privileged", REQUEST
        )
    if value != "all":
        raise GpushimError(f'{name} is "{quote(value)}"; the only value it may have is all', REQUEST)
    gate.effects[name] = "MIG may be configured or monitored"
    return True
