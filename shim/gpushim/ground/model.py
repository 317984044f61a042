"""The types of the snapshot of the host, of its policy, and of an OCI spec's entries.

For mypy alone: imported under TYPE_CHECKING, so it costs nothing at run time. The meaning of the members is in
gpushim.inventory (the snapshot) and config.schema.json (the policy); a test holds all three against each other.
"""

from __future__ import annotations

from typing import Optional, TypedDict, Union, final

Node = list[int]  # of the host: major, minor, mode bits, uid, gid
Identity = list[int]  # of a file, as trust.identity returns it
NodeFacts = list[int]  # as ensure.node returns them
Mig = dict[str, dict[str, dict[str, Optional[list[int]]]]]  # GPU, GPU instance, compute instance
LauncherFacts = dict[str, Optional[list[Union[int, bool]]]]  # as ensure.launcher_facts returns it

DriverPolicy = TypedDict(
    "DriverPolicy",
    {"root": str, "dev-root": str, "load-kernel-modules": bool, "csv-directory": str},
)
RuntimePolicy = TypedDict("RuntimePolicy", {"low-level": list[str]})
RequestsPolicy = TypedDict(
    "RequestsPolicy",
    {
        "profile": str,
        "accept-env-when-unprivileged": bool,
        "accept-annotations-when-unprivileged": bool,
        "accept-volume-mounts": bool,
        "swarm-variables": list[str],
        "default-capabilities": list[str],
        "ignore-imex-channel-requests": bool,
        "disable-require": bool,
        "cuda-compat": bool,
        "memory-limits": str,
        "memory-limit-default": str,
        "memory-limit-most": str,
        "list-devices-in-refusals": bool,
    },
)
CdiPolicy = TypedDict(
    "CdiPolicy",
    {
        "annotation-prefixes": list[str],
        "kind": str,
        "foreign-kinds": list[str],
        "spec-dirs": list[str],
        "write-spec": bool,
        "output-directory": str,
        "device-names": list[str],
    },
)
MpsPolicy = TypedDict("MpsPolicy", {"enabled": bool, "pipe-directory": str})
HookPolicy = TypedDict("HookPolicy", {"device-rules": bool})
RefreshPolicy = TypedDict("RefreshPolicy", {"deadline-seconds": int})


class LogPolicy(TypedDict):
    file: str
    format: str
    level: str


class Policy(TypedDict):
    """config.toml with all defaults, without [device-plugin], as a create, a refresh and a snapshot have it."""

    driver: DriverPolicy
    runtime: RuntimePolicy
    requests: RequestsPolicy
    cdi: CdiPolicy
    mps: MpsPolicy
    hook: HookPolicy
    refresh: RefreshPolicy
    log: LogPolicy


DevicePluginPolicy = TypedDict(
    "DevicePluginPolicy",
    {
        "mig-strategy": str,
        "fail-on-init-error": bool,
        "device-list-strategy": list[str],
        "device-id-strategy": str,
        "pass-device-specs": bool,
        "gds": bool,
        "mofed": bool,
        "gdrcopy": bool,
        "imex-channels": list[int],
        "imex-required": bool,
        "allocation-policy": str,
        "cdi-annotation-prefix": str,
        "exclude": list[str],
        "on-demand": list[str],
        "fronts": list[str],
        "other-givers": str,
        "kubelet-dir": str,
        "config-file": str,
        "profile-file": str,
        "mig-layout-file": str,
        "metrics": str,
        "metrics-token-file": str,
        "labels-file": str,
        "labels-interval": int,
        "labels-no-timestamp": bool,
        "disable-healthchecks": str,
        "enable-healthchecks": str,
        "taint-effect": str,
        "kubeconfig": str,
    },
)
_DevicePlugin = TypedDict("_DevicePlugin", {"device-plugin": DevicePluginPolicy})


class Config(Policy, _DevicePlugin):
    """config.toml with all defaults."""


class Driver(DriverPolicy):
    """[driver], its versions, and the files that replace parts of it in containers."""

    version: str
    cuda: str
    params: str
    empty: str


@final
class Gpu(TypedDict):
    index: int
    nvml: int
    uuid: str
    minor: int
    pci: str
    model: str
    brand: str
    arch: str
    memory: int
    mig: bool
    mig_capable: bool
    vgpu: bool
    pci_class: str
    fabric: str
    fabric_problem: str
    addressing: str
    numa: int
    peers: list[list[int]]
    node: str
    drm: list[str]
    links: list[str]
    problem: Optional[str]


@final
class MigInstance(TypedDict):
    """A MIG instance; "gpu" is the index of the GPU that it is part of."""

    uuid: str
    legacy: str
    gpu: int
    index: int
    gi: int
    ci: int
    placement: list[int]
    profile: str
    memory: int
    attributes: dict[str, int]
    nodes: list[str]


Device = Union[Gpu, MigInstance]


class Known(TypedDict):
    index: int
    uuid: str
    pci: str


class _FileOptions(TypedDict, total=False):
    soname: str
    links: list[str]


class File(_FileOptions):
    path: str
    kind: str


class Platform(TypedDict):
    """The nodes and files of WSL2 or Tegra; a change of a "watched" path of the host makes the snapshot stale."""

    platform: str
    nodes: dict[str, Node]
    files: dict[str, list[File]]
    watched: list[str]


class Listed(TypedDict):
    """The GPUs of a host, and where they come from."""

    source: str
    version: str
    cuda: str
    gpus: list[Gpu]
    mig: list[MigInstance]
    missing: list[str]
    absent: list[Known]


class Failure(TypedDict):
    """Why this host cannot serve GPUs, with an exit code."""

    sentence: str
    code: int


class Inputs(TypedDict):
    config: str
    root: str
    sys: str
    times: bool
    nodes: list[str]


class DriverFacts(TypedDict):
    module: Optional[str]
    majors: list[str]
    gpus: dict[str, Optional[int]]
    mig: Mig


class Stamp(DriverFacts):
    boot: Optional[str]
    config: Optional[Identity]
    libraries: Optional[Identity]
    nodes: list[Optional[NodeFacts]]


class Belongs(TypedDict):
    """The state of the host that a failed refresh is about."""

    inputs: Inputs
    stamp: Stamp


class _Late(TypedDict, total=False):
    """Members that a snapshot gets last; "told" when it is saved."""

    inputs: Inputs
    stamp: Stamp
    looked: float
    life: int
    told: LauncherFacts


class Snapshot(_Late):
    """The inventory of the host: inventory.json."""

    version: int
    form: int
    gpushim: str
    written: str
    source: str
    notes: list[str]
    missing: list[str]
    absent: list[Known]
    platform: str
    driver: Driver
    error: Optional[Failure]
    gpus: list[Gpu]
    mig: list[MigInstance]
    nodes: dict[str, Node]
    mps: str
    features: dict[str, list[str]]
    imex: list[int]
    files: dict[str, list[File]]
    policy: Policy
    runtime: str


class _DeviceNodeOptions(TypedDict, total=False):
    type: str
    major: int
    minor: int
    fileMode: int
    uid: int
    gid: int


class DeviceNode(_DeviceNodeOptions):
    path: str


class _MountOptions(TypedDict, total=False):
    type: str
    options: list[str]


class Mount(_MountOptions):
    destination: str
    source: str


class _HookOptions(TypedDict, total=False):
    args: list[str]
    env: list[str]
    timeout: int


class Hook(_HookOptions):
    path: str
