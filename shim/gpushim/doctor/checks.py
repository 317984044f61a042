"""All checks by name, and running them: each in a thread of its own, so that none can block the doctor.

Out of scope: what a check does.
"""

from __future__ import annotations

import importlib
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gpushim.config import policy
from gpushim.doctor import (
    BROKEN,
    OK,
    SKIPPED,
    WARNING,
    Finding,
    Host,
    broken,
    check_cdi,
    check_device_nodes,
    check_driver,
    check_grants,
    check_host,
    check_kubernetes,
    check_memory,
    check_mig,
    check_selinux,
    check_state,
    skipped,
    warning,
)
from gpushim.engines.processes import table as engines
from gpushim.ground import seen, system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Check = Callable[[Host], Iterator[Finding]]

GENERAL: dict[str, Check] = {
    "config": check_state.config,
    "platform": check_driver.platform,
    "driver-module": check_driver.module,
    "driver-libraries": check_driver.agreement,
    "more-modules": check_driver.more_modules,
    "nvml": check_driver.nvml,
    "fabric": check_driver.fabric,
    "mig": check_mig.instances,
    "memory-limits": check_memory.limits,
    "persistence": check_driver.persistence,
    "library-cache": check_driver.cache,
    "device-nodes": check_device_nodes.existing,
    "dev-char-links": check_device_nodes.links,
    "grants": check_grants.images,
    "device-rules": check_grants.device_rules,
    "state-directory": check_state.directory,
    "snapshot": check_state.snapshot,
    "log": check_state.log,
    "space": check_state.space,
    "programs": check_state.programs,
    "code": check_state.installed,
    "python": check_state.python,
    "yaml": check_state.yaml,
    "units": check_state.units,
    "low-level-runtime": check_host.low_level,
    "cgroups": check_host.cgroups,
    "selinux": check_selinux.labels,
    "apparmor": check_host.apparmor,
    "cdi-spec": check_cdi.spec,
    "cdi-files": check_cdi.files,
    "cdi-conflicts": check_cdi.conflicts,
    "cdi-paths": check_cdi.paths,
    "cdi-hooks": check_cdi.hooks,
    "cdi-versions": check_cdi.readable,
    "engine-processes": check_host.impostors,
    "nvidia-config": check_host.old_config,
    "nvidia-hook": check_host.old_hook,
    "nvidia-hooks-d": check_host.old_hooks_d,
    "nvidia-units": check_host.old_units,
}
ENGINES: dict[str, dict[str, Check]] = {
    **{name: importlib.import_module(f"gpushim.doctor.check_{name}").CHECKS for name in engines.ENGINES},
    "kubernetes": {**check_kubernetes.CHECKS},
}
# What says something about the driver below its root; about what config.toml says; about the state directory.
OF_THE_DRIVER = (
    *("platform", "driver-module", "driver-libraries", "more-modules", "nvml", "fabric", "persistence"),
    *("library-cache", "device-nodes", "dev-char-links"),
)
OF_THE_POLICY = (
    *(
        *OF_THE_DRIVER,
        "memory-limits",
        "grants",
        "device-rules",
        "snapshot",
        "log",
        "space",
        "yaml",
        "low-level-runtime",
    ),
    *("cdi-spec", "cdi-files", "cdi-conflicts", "cdi-paths", "cdi-versions"),
)
OF_THE_STATE = ("state-directory", "snapshot", "cdi-spec")
SECONDS = 30.0  # for a check, on top of what NVML may take
ORDER = (SKIPPED, OK, WARNING, BROKEN)  # the gravest last


def table(named: tuple[str, ...]) -> dict[str, Check]:
    """List the checks in order, for the engines that the user named, or for all."""
    beside = {"kubernetes": ("containerd", "crio"), "crio": ("kubernetes",)}  # CRI-O has no other use
    engines = {*named, *(each for name in named for each in beside.get(name, ()))} or set(ENGINES)
    found = dict(GENERAL)
    for engine, checks in ENGINES.items():
        found.update(checks if engine in engines else {})
    return found


def judge(name: str, check: Check, look_at: Host) -> list[Finding]:
    """Run a check, unless what it needs of config.toml is not known."""
    absent = policy.absent(look_at.driver) if name in OF_THE_DRIVER else ""
    if look_at.problem and name in OF_THE_POLICY:
        found = [skipped(f"not looked at while {look_at.config} is not valid")]
    elif absent:
        found = [skipped(f"not looked at: {absent}")]
    else:
        found = _within(SECONDS + look_at.settings["refresh"]["deadline-seconds"], check, look_at)
    mine = look_at.state != system.STATE_DIR and name in OF_THE_STATE
    as_root = "as root: " if os.geteuid() and name in GENERAL and not mine else ""
    plain = ("", seen.AS_ROOT)
    return [replace(one, check=name, fix=one.fix if one.fix in plain else as_root + one.fix) for one in found]


def run(look_at: Host) -> list[Finding]:
    """Run the checks of a host one after the other; those that do not concern this host may find nothing."""
    found = [one for name, check in table(look_at.named).items() for one in judge(name, check, look_at)]
    return [_after(one, found) for one in found]


def _after(one: Finding, found: list[Finding]) -> Finding:
    """Remove a fix that must wait for another finding's, and name that."""
    for first in found if one.fix else ():
        blocked = any(one.check.startswith(check) and command in one.fix for check, command in first.blocks)
        if first.verdict == BROKEN and first.check != one.check and blocked:
            return replace(one, evidence=f"{one.evidence}; {first.check} comes first", fix="")
    return one


def worst(found: list[Finding]) -> str:
    """Return the gravest verdict."""
    return max((finding.verdict for finding in found), key=ORDER.index, default=OK)


def _within(seconds: float, check: Check, look_at: Host) -> list[Finding]:
    """Run a check, and give up after a time: a file system or a device may be stuck in the kernel."""
    found: list[Finding] = []

    def work() -> None:
        try:
            found.extend(check(look_at))
        except PermissionError as error:
            found.append(warning(seen.sentence([str(error.filename)]), seen.AS_ROOT))
        except Exception as error:  # noqa: BLE001 - the other checks matter more than why this one fails
            found.append(warning(f"the check itself failed: {type(error).__name__}: {error}", "report this"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        stuck = broken(f"the check has not ended within {seconds:g} s", "see dmesg; a mount or a device may be stuck")
        return [*found, stuck]
    return found
