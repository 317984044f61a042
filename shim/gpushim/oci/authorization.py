"""Who may be granted what: one table of sources and grants, and the policy's switches in it.

A source is a part of a container's config.json, or a command line, that can ask for something; a grant is what it may
get. Nothing outside the table is granted: request.py sees no variable that is not in VARIABLES, and a grant or a
source without a cell raises KeyError, which ends the create. On the create path.
"""

from __future__ import annotations

import posix

from gpushim.oci.bundle import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, Mapping, Optional

    from gpushim.ground.model import Policy

    Cell = tuple[str, ...]  # what must all hold

# What a cell may ask for. A switch is (section, key, value that allows, whether it binds privileged containers too).
NEVER, PRIVILEGED, KIND = "never", "privileged", "kind"
ENV, ANNOTATIONS, MOUNTS, IMEX, MPS = "env", "annotations", "mounts", "imex", "mps"
SWITCHES = {
    ENV: ("requests", "accept-env-when-unprivileged", True, False),
    ANNOTATIONS: ("requests", "accept-annotations-when-unprivileged", True, False),
    MOUNTS: ("requests", "accept-volume-mounts", True, True),
    IMEX: ("requests", "ignore-imex-channel-requests", False, True),
    MPS: ("mps", "enabled", True, True),
}
YES: Cell = ()
NO: Cell = (NEVER,)

# Where a request comes from: process.env, mounts and annotations of config.json; options of nvidia-container-cli,
# which only root can call to any effect; and the policy itself, for what no container can ask for.
SOURCES = ("variable", "mount", "annotation", "option", "policy")
# Features that a variable switches on, NVIDIA_GDS=enabled and its like: their names for people.
FEATURES = {"gds": "GDS", "mofed": "MOFED", "gdrcopy": "GDRCopy", "nvswitch": "NVSwitch"}
_ROWS: dict[str, tuple[Cell, Cell, Cell, Cell, Cell]] = {
    # grant:       variable         mount            annotation           option  policy
    "gpu":         ((ENV,),         (MOUNTS,),       (ANNOTATIONS,),      YES,    NO),
    "own-cdi":     ((ENV,),         (MOUNTS,),       (ANNOTATIONS,),      NO,     NO),
    "foreign-cdi": ((ENV, KIND),    (MOUNTS, KIND),  (ANNOTATIONS, KIND), NO,     NO),
    "mig-config":  ((PRIVILEGED,),  NO,              NO,                  YES,    NO),
    "mig-monitor": ((PRIVILEGED,),  NO,              NO,                  YES,    NO),
    "imex":        ((IMEX, ENV),    (IMEX, MOUNTS),  (IMEX, ANNOTATIONS), (IMEX,), NO),
    **dict.fromkeys(FEATURES, ((ENV,), (MOUNTS,),    (ANNOTATIONS,),      NO,     NO)),
    "mps":         (NO,             NO,              NO,                  NO,     (MPS,)),
    # Read-only files of the driver and the nodes for drawing of the GPUs that something else has granted.
    "capabilities": (YES,           NO,              NO,                  YES,    NO),
    # The image's own conditions are the image's to drop.
    "no-conditions": (YES,          NO,              NO,                  NO,     NO),
    # Of what it has, a container may ask to have less.
    "memory-limit": ((ENV,),        NO,              (ANNOTATIONS,),      NO,     NO),
    # As is what it does with a libcuda of its own.
    "no-compat":   (YES,            NO,              NO,                  NO,     NO),
}  # fmt: skip
TABLE = {grant: dict(zip(SOURCES, row)) for grant, row in _ROWS.items()}

# Files of root's below the state directory, in a folder of this name, UUID=BYTES: a mount of one limits a container.
LIMITS = "/limits/"
MEMORY_VARIABLE, MEMORY_ANNOTATION = "GPUSHIM_MEMORY_LIMIT", "gpushim/memory-limit"

# Every variable that counts, by what it may bring; swarm variables count as the first does, and NVIDIA_REQUIRE_*
# brings nothing: it only refuses.
VARIABLES = {
    "NVIDIA_VISIBLE_DEVICES": "gpu",
    "CUDA_VERSION": "gpu",
    "NVIDIA_DRIVER_CAPABILITIES": "capabilities",
    "NVIDIA_DISABLE_REQUIRE": "no-conditions",
    "NVIDIA_DISABLE_CUDA_COMPAT": "no-compat",
    "NVIDIA_IMEX_CHANNELS": "imex",
    **{"NVIDIA_" + name.upper(): name for name in FEATURES},
    "NVIDIA_MIG_CONFIG_DEVICES": "mig-config",
    "NVIDIA_MIG_MONITOR_DEVICES": "mig-monitor",
    "CUDA_MPS_PIPE_DIRECTORY": "mps",
    MEMORY_VARIABLE: "memory-limit",
}
# What an image can ask for besides a GPU, in words for people.
EXTRA_GRANTS = {
    "capabilities": "the choice of the driver's files that come with a GPU",
    "no-conditions": "its own NVIDIA_REQUIRE_* ignored",
    "no-compat": "its own newer libcuda unused",
    "mig-config": "configuring MIG",
    "mig-monitor": "monitoring MIG",
    "imex": "IMEX channels",
    **FEATURES,
    "mps": "MPS",
    "memory-limit": "a limit of its GPU memory",
}
# What an image itself, not its user, can have in config.json: see docs/requests.md.
OF_AN_IMAGE = ("variable", "annotation")


def unmet_condition(
    grant: str, source: str, privileged: Callable[[], bool], policy: Mapping[str, Any], kind: str = ""
) -> str:
    """Return the first condition of a grant that does not hold; "" if it may be granted.

    Args:
        grant: a key of TABLE.
        source: one of SOURCES.
        privileged: returns whether the container counts as privileged; called only if that decides.
        policy: the configuration with all keys present.
        kind: of the CDI device, for "foreign-cdi".

    Raises:
        KeyError: the table has no such grant or source.
    """
    for condition in TABLE[grant][source]:
        if condition in SWITCHES:
            section, key, allows, binds_all = SWITCHES[condition]
            holds = policy[section][key] is allows or (not binds_all and privileged())
        elif condition == KIND:
            allowed = policy["cdi"]["foreign-kinds"]
            holds = "*" in allowed or kind in allowed or privileged()
        else:
            holds = condition == PRIVILEGED and privileged()
        if not holds:
            return condition
    return ""


def because(condition: str) -> str:
    """Return the end of a sentence: the setting under which a condition does not hold."""
    section, key, allows, binds_all = SWITCHES[condition]
    subject = "" if binds_all else "the container is unprivileged and "
    return f"while {subject}[{section}] {key} is {'false' if allows else 'true'}"


class Gate:
    """The table, for one container.

    Args:
        privileged: returns whether the container counts as privileged; called once, if anything depends on it.
        policy: the configuration with all keys present.
        ignored: receives a sentence for each request that is not granted.
        effects: receives the effect of each source that was read (see request.read).
    """

    __slots__ = ("_is_privileged", "_privileged", "effects", "ignored", "policy")

    def __init__(
        self, privileged: Callable[[], bool], policy: Policy, ignored: list[str], effects: dict[str, str]
    ) -> None:
        self._privileged, self.policy, self.ignored, self.effects = privileged, policy, ignored, effects
        self._is_privileged: Optional[bool] = None

    @property
    def privileged(self) -> bool:
        if self._is_privileged is None:
            self._is_privileged = self._privileged()
        return self._is_privileged

    def unmet_condition(self, grant: str, source: str, kind: str = "") -> str:
        return unmet_condition(grant, source, lambda: self.privileged, self.policy, kind)

    def lets(self, grant: str, source: str, otherwise: str, looked: Iterable[str] = ()) -> bool:
        """Return whether something may be granted; if not, note why, and what is left out.

        Args:
            grant: a key of TABLE.
            source: one of SOURCES.
            otherwise: the beginning of a sentence about what is left out.
            looked: keys of `effects` for the sources that have asked.
        """
        condition = self.unmet_condition(grant, source)
        if condition:
            reason = because(condition)
            self.ignored.append(f"{otherwise} {reason}")
            self.effects.update(dict.fromkeys(looked, f"is ignored {reason}"))
        return not condition

    def relabel(self, before: str, after: str) -> None:
        """Give the sources that have one effect another."""
        self.effects.update({source: after for source, effect in self.effects.items() if effect == before})


def privileged(spec: Mapping[str, object], process: Mapping[str, object]) -> bool:
    """Return whether a container has power over the host anyway: CAP_SYS_ADMIN in its engine's user namespace."""
    capabilities = process.get("capabilities")
    if not isinstance(capabilities, list):  # one is of OCI runtime spec 1.0.0-rc1 to rc4
        capabilities = member(member(process, "capabilities", dict), "bounding", list)
    return "CAP_SYS_ADMIN" in capabilities and not _in_a_user_namespace(member(spec, "linux", dict))


def _in_a_user_namespace(linux: Mapping[str, object]) -> bool:
    for space in member(linux, "namespaces", list):
        if isinstance(space, dict) and space.get("type") == "user":
            path = member(space, "path", str)
            try:
                own_namespace, namespace = posix.stat("/proc/self/ns/user"), posix.stat(path)
            except (OSError, ValueError):  # none to join, or none that can be looked at
                return True
            return (own_namespace.st_dev, own_namespace.st_ino) != (namespace.st_dev, namespace.st_ino)
    return bool(linux.get("uidMappings"))
