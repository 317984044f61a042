"""What a container gets of the devices that kubelet has chosen: names, by the ways that the node's engine takes.

What a name brings is decided when the container is made (decide.py), or was when the CDI spec was written.
In memory only: kubelet has no deadline for the call, and the whole node waits for it. Budget: 1 ms for ten devices of
560. Out of scope: which devices there are (resources.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuplugin.mps import mps
from gpushim.ground import bounds, system
from gpushim.ground.errors import REQUEST, GpushimError, quote
from gpushim.inventory.ensure import IMEX_CHANNEL
from gpushim.oci.device_list import DEVICE_LIST, DEVICES
from gpushim.oci.device_names import CHANNEL as CDI_CHANNEL
from gpushim.oci.device_names import cdi_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplugin.settings.resources import Device, Share
    from gpushim.ground.model import RequestsPolicy

ENVVAR, MOUNTS, ANNOTATIONS, CRI = "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"
STRATEGIES = (ENVVAR, MOUNTS, ANNOTATIONS, CRI)
BY_CDI = {ANNOTATIONS, CRI}
MPS_PIPES = "/run/gpushim/mps"  # in containers
NOTHING = (
    "which brings nothing to unprivileged containers while accept-env-when-unprivileged under [requests] of "
    "config.toml is false"
)
# One for each resource, since kubelet keeps the first of equal keys; 63 characters at most (resources.LONGEST_NAME).
ANNOTATION = "gpushim-device-plugin_"


@dataclass(frozen=True)
class Delivery:
    """How containers are told their devices.

    Attributes:
        strategies: some of STRATEGIES.
        by_index: devices are named by index, not by UUID.
        kind: CDI kind of this host's devices.
        annotation_prefix: of the annotation's key.
        features: out of authorization.FEATURES, which every container gets.
        imex: numbers of the IMEX channels that every container gets.
        control: nodes that every container gets besides its devices'; None if nodes are not passed. CDI passes its
            own.
        dev_root: absolute path of the directory that the host's nodes lie below.
        limits: the driver keeps limits of GPU memory.
    """

    strategies: Sequence[str] = (ENVVAR,)
    by_index: bool = False
    kind: str = "nvidia.com/gpu"
    annotation_prefix: str = "cdi.k8s.io/"
    features: Sequence[str] = ()
    imex: Sequence[int] = ()
    control: Sequence[str] | None = None
    dev_root: str = "/"
    limits: bool = False


def check(ids: Sequence[str], resource: str, devices: Mapping[str, Device]) -> list[Device]:
    """Return the devices of a request; two replicas of one are one.

    Args:
        ids: as kubelet sent them.
        devices: all of them, by id.

    Raises:
        GpushimError: one is unknown, cannot be used, or comes twice.
    """
    chosen: dict[str, Device] = {}
    for name, times in Counter(ids).items():
        device = devices.get(name)
        if device is None:
            raise GpushimError(f"{resource} has no device {quote(name)}; it has {_name_some(devices)}", REQUEST)
        if times > 1:
            raise GpushimError(
                f"kubelet asks for {quote(name)} of {resource} {times} times; ask for it once", REQUEST
            )
        if device.problem:
            has_others = any(not other.problem for other in devices.values())
            fix = "a pod that is made anew gets another" if has_others else "no other can be used now"
            raise GpushimError(f"{quote(name)} of {resource} cannot be used: {device.problem}; {fix}", REQUEST)
        chosen.setdefault(device.uuid, device)
    _check_shares([devices[name] for name in ids], resource)
    return list(chosen.values())


def _check_shares(chosen: Sequence[Device], resource: str) -> None:
    number = len(chosen)
    if number > 1 and any(device.share and device.share.single for device in chosen):
        raise GpushimError(
            f"a container asks for {number} of {resource}, which is shared, and failRequestsGreaterThanOne is "
            "true: more of it is not more of a GPU; ask for 1",
            REQUEST,
        )
    times = Counter(device.uuid for device in chosen if device.share and device.share.distinct)
    twice = next((uuid for uuid in times if times[uuid] > 1), "")
    if twice:
        raise GpushimError(
            f"a container asks for {number} of {resource}, each on another GPU or MIG instance (distinct is true), "
            f"and {times[twice]} of those that kubelet has chosen are on {twice}: fewer than {number} have one left; "
            "ask for less, or wait until others end",
            REQUEST,
        )
    daemons = {device.share.group if device.share else "" for device in chosen}
    if len(daemons) > 1:
        raise GpushimError(
            f"a container asks for {number} of {resource}, and those that kubelet has chosen are not all of one MPS "
            "daemon, of which a process can have one; ask for 1, or let each group have a name of its own (rename)",
            REQUEST,
        )


def answer(devices: Sequence[Device], resource: str, delivery: Delivery) -> dict[str, Any]:
    """Return what a container gets, a ContainerAllocateResponse; the devices are as `check` returned them."""
    names = [device.index if delivery.by_index else device.uuid for device in devices]
    response: dict[str, Any] = {"envs": {f"NVIDIA_{name.upper()}": "enabled" for name in delivery.features}}
    mounts = []
    plain = [strategy for strategy in delivery.strategies if strategy not in BY_CDI]
    if MOUNTS in plain:
        channels = [f"imex/{channel}" for channel in delivery.imex]
        response["envs"][DEVICES] = DEVICE_LIST
        mounts += [
            {"container_path": f"{DEVICE_LIST}/{name}", "host_path": "/dev/null"} for name in [*names, *channels]
        ]
    elif plain:
        response["envs"][DEVICES] = ",".join(names)
        if delivery.imex:
            response["envs"]["NVIDIA_IMEX_CHANNELS"] = ",".join(map(str, delivery.imex))
    shares = [device.share for device in devices if device.share and device.share.group]
    if shares:
        mounts += _mount_mps(devices, shares[0], response["envs"])
    if mounts:
        response["mounts"] = mounts
    if plain and delivery.control is not None:
        response["devices"] = _list_nodes(devices, delivery, delivery.control)
    if names:  # without one, an annotation would be an error
        response.update(_name_by_cdi(devices, resource, delivery))
    return response


def _name_by_cdi(devices: Sequence[Device], resource: str, delivery: Delivery) -> dict[str, Any]:
    """Return the members of an answer by which an engine finds the devices in the CDI spec."""
    names = cdi_names(devices, delivery)
    members: dict[str, Any] = {}
    if CRI in delivery.strategies:
        members["cdi_devices"] = [{"name": name} for name in names]
    if ANNOTATIONS in delivery.strategies:
        key = delivery.annotation_prefix + ANNOTATION + resource.partition("/")[2]
        members["annotations"] = {key: ",".join(names)}
    return members


def _mount_mps(devices: Sequence[Device], share: Share, envs: dict[str, str]) -> list[dict[str, Any]]:
    """Name the daemon of MPS in the variables; return the mounts by which it is reached.

    Pipes can be opened on a read-only mount, but none made or removed. Limits go by UUID: an index is the
    container's, and one entry of a GPU that the process does not see drops all of them.
    """
    pipes, folders = f"{MPS_PIPES}/{share.group}/pipe", mps.Folders(system.state_dir(), share.group)
    envs["CUDA_MPS_PIPE_DIRECTORY"] = pipes
    if share.sliced:
        if share.memory:
            limits = (f"{device.uuid}={device.share.memory}M" for device in devices if device.share)
            envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
        if share.threads:
            envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(share.threads)
    return [
        {"container_path": pipes, "host_path": folders.pipe, "read_only": True},
        {"container_path": "/dev/shm", "host_path": folders.shm},
    ]


def cdi_names(devices: Sequence[Device], delivery: Delivery) -> list[str]:
    """Return the qualified CDI names of what a container with these devices gets."""
    names = [cdi_name(device.index if delivery.by_index else device.uuid) for device in devices]
    channels = [f"{CDI_CHANNEL}-{channel}" for channel in delivery.imex]
    return [f"{delivery.kind}={name}" for name in (*names, *channels, *delivery.features)]


def _list_nodes(devices: Sequence[Device], delivery: Delivery, control: Sequence[str]) -> list[dict[str, str]]:
    device_paths = [path for device in devices for path in device.nodes]
    paths = dict.fromkeys([*device_paths, *(f"{IMEX_CHANNEL}{channel}" for channel in delivery.imex), *control])
    root = delivery.dev_root.rstrip("/")
    return [{"container_path": path, "host_path": root + path, "permissions": "rw"} for path in paths]


def clash(delivery: Delivery, resources: Mapping[str, Sequence[Device]]) -> list[str]:
    """Return what a container does not get that asks for two of these resources, in sentences."""
    mps_names = [
        name for name, devices in resources.items() if any(device.share and device.share.group for device in devices)
    ]
    if len(resources) < 2:
        return []
    notes = [
        f"a container that asks for {name} and for another resource can use the devices of one alone: a process has "
        "one MPS daemon"
        for name in mps_names
    ]
    if {*delivery.strategies} - {ENVVAR}:
        return notes
    return [
        *notes,
        f"a container that asks for two of {', '.join(resources)} gets the devices of one: device-list-strategy is "
        f"{ENVVAR}, kubelet passes a variable once, and both use {DEVICES}; choose {MOUNTS} or {CRI}",
    ]


def unheard(delivery: Delivery, requests: RequestsPolicy) -> list[str]:
    """Return where gpushim-runtime's policy forbids the way in which containers are told, in sentences."""
    is_closed = not requests["accept-env-when-unprivileged"]
    if MOUNTS in delivery.strategies:
        if requests["accept-volume-mounts"]:
            by_variable = is_closed and delivery.features and BY_CDI.isdisjoint(delivery.strategies)
            return [f"{', '.join(delivery.features)} is passed in a variable, {NOTHING}; choose cdi-cri"] * bool(
                by_variable
            )
        return [
            f"device-list-strategy has {MOUNTS}, and gpushim-runtime refuses such containers while "
            "accept-volume-mounts under [requests] of config.toml is false; make it true"
        ]
    if ENVVAR not in delivery.strategies or not is_closed:
        return []
    return [f"device-list-strategy has {ENVVAR}, {NOTHING}; choose volume-mounts"]


def _name_some(devices: Mapping[str, Device]) -> str:
    names = list(devices)
    excess = len(names) - bounds.LISTED
    return (", ".join(names[: bounds.LISTED]) + (f" and {excess} more" if excess > 0 else "")) or "none"
