"""A container's list of devices, from annotations, else from mounts, else from variables.

On the create path: imports nothing but the bundle, bounds and errors, and who may be granted what.
"""

from __future__ import annotations

from gpushim.ground import bounds
from gpushim.ground.errors import BUNDLE, REQUEST, GpushimError, quote
from gpushim.oci.bundle import member
from gpushim.oci.device_names import is_qualified

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Optional

    from gpushim.ground.model import Policy
    from gpushim.oci.authorization import Gate

    DeviceList = tuple[str, str, list[str]]  # source, value as given, names

DEVICES = "NVIDIA_VISIBLE_DEVICES"
DEVICE_LIST = "/var/run/nvidia-container-devices"
NAMES = "names the devices"  # the effect of their source
NO_GPU = "says none: the driver's files and control nodes, and no GPU"
VOID = "says void: whoever set it so has given the container what it gets"
NAMES_CHANNEL = "names an IMEX channel"
AUTOMATIC_KIND = "runtime.nvidia.com/gpu"  # how NVIDIA's toolkit names devices it describes while it runs
# Where nodes of a plan are: of GPUs, for drawing, of features, and of WSL and Tegra.
NODES = (
    *("/dev/nvidia", "/dev/dri/", "/dev/gdrdrv", "/dev/infiniband/", "/dev/dxg", "/dev/nvhost", "/dev/nvmap"),
    *("/dev/nvgpu/", "/dev/nvsciipc", "/dev/host1x-fence", "/dev/tegra", "/dev/v4l2-nv"),
)


def find(spec: Mapping[str, object], env: Mapping[str, str], gate: Gate) -> tuple[Optional[DeviceList], list[str]]:
    """Return a container's list of devices, if it has one, and the IMEX channels that mounts name.

    Returns:
        its source ("env NAME", "mounts" or "annotations"), its text and its names, or None; and the channels, if the
        list is not void.

    Raises:
        GpushimError: REQUEST, for a list that is malformed or too long; BUNDLE, for a config.json of wrong types.
    """
    # An engine that has injected the devices sets void, so neither mounts nor annotations may bring them again.
    has_more = not gate.unmet_condition("gpu", "annotation") and is_annotation_unserved(spec, gate.policy)
    if "void" in split(DEVICES, env.get(DEVICES, "")) and not has_more:
        gate.effects[DEVICES] = VOID
        return None, []
    device_list = _read_annotations(spec, gate)
    mounted = _read_mounts(spec, gate, _ignored_for(device_list[0]) if device_list else NAMES)
    names = [_mount_name(name) for name in mounted if not name.startswith("imex/")]
    if device_list is None and names:
        device_list = ("mounts", ",".join(names), names)
    if device_list:
        variables = [name for name in (DEVICES, *gate.policy["requests"]["swarm-variables"]) if name in env]
        gate.effects.update(dict.fromkeys(variables, _ignored_for(device_list[0])))
    return device_list or _read_variables(env, gate), [name[5:] for name in mounted if name.startswith("imex/")]


def is_annotation_unserved(spec: Mapping[str, object], policy: Policy) -> bool:
    """Return whether an annotation names devices of this host, and the spec has no node or mount of theirs yet."""
    prefixes, kinds = tuple(policy["cdi"]["annotation-prefixes"]), (policy["cdi"]["kind"] + "=", AUTOMATIC_KIND + "=")
    texts = [text for key, text in member(spec, "annotations", dict).items() if key.startswith(prefixes)]
    if not any(name.strip().startswith(kinds) for text in texts if isinstance(text, str) for name in text.split(",")):
        return False
    nodes = member(member(spec, "linux", dict), "devices", list)
    fields = [(entry, "path") for entry in nodes] + [(entry, "destination") for entry in member(spec, "mounts", list)]
    return not any(isinstance(entry, dict) and str(entry.get(key)).startswith(NODES) for entry, key in fields)


def split(name: str, value: str) -> list[str]:
    if not value:
        return []
    texts = [text.strip() for text in value[: bounds.VALUE + 1].split(",")]
    if len(value) > bounds.VALUE or len(texts) > bounds.DEVICES:
        limit = f"{bounds.VALUE} characters or {bounds.DEVICES} items"
        raise GpushimError(f"{quote(name)} has more than {limit}; shorten it", REQUEST)
    return [text for text in texts if text]


def _ignored_for(source: str) -> str:
    return f"is ignored: the devices are named by {source}"


def _read_annotations(spec: Mapping[str, object], gate: Gate) -> Optional[DeviceList]:
    annotations = member(spec, "annotations", dict)
    names: list[str] = []
    keys = sorted(key for key in annotations if key.startswith(tuple(gate.policy["cdi"]["annotation-prefixes"])))
    looked = [f"annotation {key}" for key in keys]
    if keys and gate.unmet_condition("gpu", "annotation"):
        if any(annotations[key] for key in keys):
            gate.lets("gpu", "annotation", f"annotations ({quote(keys[0])}) name no device", looked)
        return None
    for key, source in zip(keys, looked):
        texts = split(source, member(annotations, key, str))
        gate.effects[source] = NAMES if texts else "is empty"
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


def _read_mounts(spec: Mapping[str, object], gate: Gate, effect: str) -> list[str]:
    """Return the names below DEVICE_LIST of mounts of /dev/null, by which Kubernetes names devices.

    `effect` is that of mounts that do not name IMEX channels.
    """
    names: list[str] = []
    looked: dict[str, str] = {}
    accepted = not gate.unmet_condition("gpu", "mount")
    for mount in member(spec, "mounts", list):
        if not isinstance(mount, dict):
            raise GpushimError("config.json: mounts has an entry that is not an object", BUNDLE)
        parts = member(mount, "destination", str).split("/")
        if "nvidia-container-devices" not in parts:
            continue
        source = "mount " + "/".join(parts)
        if not _is_null(member(mount, "source", str)):
            gate.effects[source] = "names no device: its source is not /dev/null"
            continue
        if ".." in parts and accepted:
            text = quote("/".join(parts))
            raise GpushimError(f'the mount "{text}" names a device with ".."; write it without', REQUEST)
        path = "/" + "/".join(part for part in parts if part not in ("", "."))
        if parts[0] == "" and path.startswith(DEVICE_LIST + "/"):
            name = path[len(DEVICE_LIST) + 1 :].strip()
            names.append(name)
            looked[source] = NAMES_CHANNEL if name.startswith("imex/") else effect if name else "is empty"
    if names and not gate.lets("gpu", "mount", f"mounts below {DEVICE_LIST} name no device", looked):
        return []
    gate.effects.update(looked)
    if len(names) > bounds.DEVICES:
        raise GpushimError(f"more than {bounds.DEVICES} mounts name devices; name fewer", REQUEST)
    return [name for name in names if name]


def _is_null(source: str) -> bool:
    """Return whether a mount's source is /dev/null: then it names something rather than brings it."""
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
        mount = f"{DEVICE_LIST}/{quote(name)}"
        raise GpushimError(f'the mount "{mount}" names no CDI device; write cdi/vendor/class/device', REQUEST)
    return qualified


def _read_variables(env: Mapping[str, str], gate: Gate) -> Optional[DeviceList]:
    rules, effects = gate.policy["requests"], gate.effects
    names = [name for name in rules["swarm-variables"] if name in env]
    if not names and DEVICES not in env:
        if not legacy(env):
            return None
        names, texts, value = ["CUDA_VERSION"], ["all"], "all"
    else:
        names = names or [DEVICES]
        value = ",".join(env[name] for name in names)
        texts = split(names[0], value)
    source = "env " + ", ".join(names)
    if DEVICES in env and DEVICES not in names:
        effects[DEVICES] = _ignored_for(source)
    if not texts:
        effects.update(dict.fromkeys(names, "is empty"))
        return None
    if names == [DEVICES] and value.strip().rstrip("/") == DEVICE_LIST:
        reason = "[requests] accept-volume-mounts is false"
        fix = "let the device plugin pass them as variables, or set accept-volume-mounts = true"
        if rules["accept-volume-mounts"]:
            reason, fix = "no mount below it names one", "the device plugin's strategy must have volume-mounts"
        raise GpushimError(
            f"{DEVICES} says that mounts below {DEVICE_LIST} name the devices, but {reason}; {fix}", REQUEST
        )
    if not gate.lets("gpu", "variable", f"{names[0]} names no device", names):
        return None
    effects.update(dict.fromkeys(names, NAMES))
    return (source, value, texts)


def legacy(env: Mapping[str, str]) -> bool:
    """Return whether the image is one of CUDA from before NVIDIA_REQUIRE_CUDA."""
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")
