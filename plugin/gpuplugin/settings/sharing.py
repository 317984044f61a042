"""Which devices are given out several times: the section sharing of NVIDIA's file, and what it has here beyond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from gpuplugin.settings import forms
from gpuplugin.settings.resources import PREFIX, WHOLE, Device, Share
from gpushim.ground import bounds
from gpushim.ground.errors import CONFIG, GpushimError, quote

TIME_SLICING, MPS = "time-slicing", "mps"
_KINDS = {"timeSlicing": TIME_SLICING, "mps": MPS}  # by key of the file
_SINGLE = "failRequestsGreaterThanOne"
_OWN = ("replicas", "devices", "rename", "distinct", "policy", _SINGLE)
_OF_MPS = ("multiUser", "memory", "threads", "slices")
NAMED = 3  # keys that a refusal names


@dataclass(frozen=True)
class Slice:
    """A slice of each GPU of an MPS group, that is a resource of its own.

    Attributes:
        memory: MiB that a client process may have of a GPU; None is the daemon's limit.
        threads: percent of a GPU's threads that a client process may use; None is the daemon's limit.
        count: how many there are of each GPU.
    """

    name: str
    memory: Optional[int]
    threads: Optional[int]
    count: int


@dataclass(frozen=True)
class Mps:
    """The settings of an MPS group alone.

    Attributes:
        memory: MiB that a client process may have of a GPU; None is an equal part.
        threads: percent of a GPU's threads that a client process may use; None is an equal part.
        multi_user: one server for clients of all users.
        slices: of each GPU, where they are not all alike.
    """

    memory: Optional[int]
    threads: Optional[int]
    multi_user: bool
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True)
class Group:
    """Devices that are shared in one way.

    Attributes:
        resource: whose devices they are, such as nvidia.com/gpu.
        devices: which of them: the first so many; or what selection.parse reads, patterns of models and profiles of
            MIG instances; None is all.
        name: of the resource that they become.
        replicas: how often each is given out.
        distinct: a container gets one replica of each GPU or MIG instance.
        policy: "packed" or "distributed"; "" as the settings have it for all.
        single: a container gets one replica.
        mps: of MPS; None is time-slicing.
        memory: of time-slicing: MiB that a container may have for each replica, where the kernel enforces that.
    """

    resource: str
    devices: Union[int, tuple[str, ...], None]
    name: str
    replicas: int
    distinct: bool = False
    policy: str = ""
    single: bool = False
    mps: Optional[Mps] = None
    memory: Optional[int] = None

    @property
    def names(self) -> list[str]:
        """Return the resources that come of it."""
        return [slice_.name for slice_ in self.mps.slices] if self.mps and self.mps.slices else [self.name]


def read(section: Any, path: str, notes: list[str]) -> tuple[Group, ...]:
    """Read the groups of NVIDIA's section sharing.

    Args:
        section: as parsed; None says nothing.
        path: the file's name in messages.
        notes: gets a sentence for each thing that does nothing, or something else than in NVIDIA's plugin.

    Raises:
        GpushimError: something has a wrong form, or two entries are for the same devices or name.
    """
    section = forms.table(section, path, "sharing")
    notes += [f"{path}: sharing.{note}" for note in forms.list_unknown(section, _KINDS)]
    sliced, mps = (_groups(section.get(key), path, key, notes) for key in _KINDS)
    mps_resources = {group.resource for group in mps if group.devices is None}
    duplicates = [group for group in sliced if group.devices is None and group.resource in mps_resources]
    notes += [
        f"{path}: sharing.mps takes all of {group.resource}, and sharing.timeSlicing none of it"
        for group in duplicates
    ]
    groups = [*(group for group in sliced if group not in duplicates), *mps]
    if len(groups) > len(mps) > 0:
        notes.append(f"{path}: timeSlicing and mps both apply here; NVIDIA's plugin uses mps alone")
    _check_apart(groups, path)
    return tuple(groups)


def describe(devices: Sequence[Device]) -> list[str]:
    """Return how devices of a resource are shared, in a line for each way."""
    shares: dict[Share, Counter[str]] = {}
    for device in devices:
        if device.share:
            shares.setdefault(device.share, Counter())[device.index] += 1
    lines = []
    for share, times in shares.items():
        rules = "; a container gets one (failRequestsGreaterThanOne)" * share.single
        rules += "; a container gets one of each at most (distinct)" * share.distinct
        rules += f"; {share.policy}" * bool(share.policy)
        for number in dict.fromkeys(times.values()):  # two entries may have one name, and replicas of their own
            indices = ", ".join(index for index in times if times[index] == number)
            lines.append(f"{indices} by {_kind_of(share)}, {number} of each{rules}")
    return lines


def _kind_of(share: Share) -> str:
    if share.kind != MPS:
        return share.kind + (f", {share.memory} MiB for each where the kernel enforces it" if share.memory else "")
    limits = [f"{share.memory} MiB"] if share.memory else []
    limits += [f"{share.threads} % of the threads"] if share.threads else []
    default = ", which the container is told and may override" * share.sliced
    return f"MPS (gpushim-mps@{share.group}.service), {' and '.join(limits)} for a process{default}"


def _groups(section: Any, path: str, key: str, notes: list[str]) -> list[Group]:
    source = f"sharing.{key}"
    section = forms.table(section, path, source)
    notes += [f"{path}: {source}.{note}" for note in forms.list_unknown(section, ("resources", *forms.SWITCHES))]
    for name in forms.SWITCHES:
        forms.value(section, name, f"{path}: {source}")
    rows = forms.value(section, "resources", f"{path}: {source}")
    return [_group(row, section, path, key, notes) for row in rows or ()]


def _group(row: Any, section: Mapping[str, Any], path: str, key: str, notes: list[str]) -> Group:
    kind = f"sharing.{key}"
    row = forms.table(row, path, f"an entry of {kind}.resources")
    name = row.get("name")
    if not isinstance(name, str) or not name:
        raise GpushimError(f"{path}: an entry of {kind}.resources has no name", CONFIG)
    resource = name if "/" in name else PREFIX + name
    source = f"{path}: {kind}, {quote(name)}"
    values = {name: forms.value(row, name, source) for name in (*_OWN, *_OF_MPS)}
    renamed = forms.full_name(values["rename"]) or resource + ".shared" * (section.get("renameByDefault") is True)
    valid = ("name", *_OWN, *(_OF_MPS if key == "mps" else ("memory",)))
    ignored = _list_ignored(row, valid)
    notes += [f"{source}: {note}" for note in ignored]
    notes += [note for note in _list_changes(source, resource, renamed, values) if note not in notes]
    mps = _mps(values, resource, source, notes) if key == "mps" else None
    memory = forms.mib(values["memory"]) if mps is None else None
    if memory and resource != WHOLE:
        raise GpushimError(f"{source} has memory, which is for whole GPUs (gpu) alone; leave that out", CONFIG)
    notes += [f"{source}: memory is limited only where the kernel enforces it"] * bool(memory)
    replicas = sum(slice_.count for slice_ in mps.slices) if mps and mps.slices else values["replicas"]
    if replicas is None:
        hint = f" ({', '.join(ignored[:NAMED])})" if ignored else ""
        raise GpushimError(f"{source} has no replicas; set how often each device is given out{hint}", CONFIG)
    devices = values["devices"]
    if isinstance(devices, list):
        devices = tuple(map(str, devices))
    single = section.get(_SINGLE) if values[_SINGLE] is None else values[_SINGLE]
    return Group(
        resource=resource,
        devices=None if devices == "all" else devices,
        name=renamed,
        replicas=replicas,
        distinct=values["distinct"] is True,
        policy=values["policy"] or "",
        single=key == "mps" if single is None else single,
        mps=mps,
        memory=memory,
    )


def _list_ignored(row: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    notes = [f"{key} is valid below sharing.mps alone" for key in row if key in _OF_MPS and key not in known]
    return notes + forms.list_unknown({key: None for key in row if key not in _OF_MPS}, known)


def _mps(values: Mapping[str, Any], resource: str, source: str, notes: list[str]) -> Mps:
    if resource != WHOLE:
        raise GpushimError(
            f"{source}: MPS shares whole GPUs, no MIG instances; the name that it takes is gpu", CONFIG
        )
    slices = [_slice(row, source, notes) for row in values["slices"] or ()]
    conflicting = [key for key in ("replicas", "rename", "memory", "threads") if slices and values[key] is not None]
    if conflicting:
        raise GpushimError(
            f"{source} has slices and {conflicting[0]}; each slice has its own, so leave that out", CONFIG
        )
    if len({slice_.name for slice_ in slices}) < len(slices):
        raise GpushimError(f"{source}: two slices have one name; add up their count, or name one otherwise", CONFIG)
    return Mps(forms.mib(values["memory"]), values["threads"], values["multiUser"] is True, tuple(slices))


def _slice(row: Any, source: str, notes: list[str]) -> Slice:
    if not isinstance(row, dict) or not forms.is_name(row.get("name")):
        raise GpushimError(f"{source}: a slice has no name; write {forms.A_NAME}", CONFIG)
    name = forms.full_name(row["name"])
    source = f"{source}, slice {name}"
    memory, threads, count = (forms.value(row, key, source) for key in ("memory", "threads", "count"))
    valid = ("name", "memory", "threads", "count")
    notes += [f"{source}: {note}" for note in forms.list_unknown(row, valid)]
    if memory is None and threads is None:
        raise GpushimError(f"{source} has no limit; set memory, threads, or both", CONFIG)
    return Slice(name, forms.mib(memory), threads, 1 if count is None else count)


def _list_changes(source: str, resource: str, renamed: str, values: Mapping[str, Any]) -> list[str]:
    """Return notes on what this file does here and not in NVIDIA's plugin, which drops two of the keys."""
    notes = []
    if values["rename"]:
        notes.append(
            f"{source}: its devices are {renamed} here, and pods ask for that; NVIDIA's plugin drops rename, and "
            f"calls them {resource} or {resource}.shared"
        )
    if values["devices"] not in (None, "all"):
        notes.append(
            f"{source}: what devices does not name stays whole, and {resource}; NVIDIA's plugin drops devices, and "
            "shares all"
        )
    return notes


def _check_apart(groups: list[Group], path: str) -> None:
    """Refuse entries that are for the same devices, different rules for one resource, and too many devices."""
    number = sum(len(group.devices) for group in groups if isinstance(group.devices, tuple))
    if number > bounds.PLUGIN_DEVICES:
        raise GpushimError(
            f"{path}: devices below sharing has {number} entries; write {bounds.PLUGIN_DEVICES} at most, or patterns",
            CONFIG,
        )
    for position, group in enumerate(groups):
        for earlier in groups[:position]:
            if group.resource == earlier.resource and None in (group.devices, earlier.devices):
                raise GpushimError(
                    f"{path}: sharing has {quote(group.resource)} in two entries, of which one takes all its "
                    "devices; merge them, or name the devices of each",
                    CONFIG,
                )
            common = [name for name in group.names if name in earlier.names]
            rules = [(item.distinct, item.policy, item.single, item.mps is None) for item in (group, earlier)]
            if common and rules[0] != rules[1]:
                raise GpushimError(
                    f"{path}: sharing has two entries that become {quote(common[0])}, and differ in distinct, "
                    "policy, failRequestsGreaterThanOne, or in being of MPS; rename one",
                    CONFIG,
                )
