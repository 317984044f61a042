"""All checks by name, and running them: each in a thread of its own, so that none can block the doctor."""

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
# Checks of the driver below its root; of config.toml's settings; of the state directory.
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


def table(engine_names: tuple[str, ...]) -> dict[str, Check]:
    """List the checks in order, for the engines that the user named, or for all."""
    related = {"kubernetes": ("containerd", "crio"), "crio": ("kubernetes",)}  # CRI-O has no other use
    engines = {
        *engine_names,
        *(other_engine for name in engine_names for other_engine in related.get(name, ())),
    } or set(ENGINES)
    checks_by_name = dict(GENERAL)
    for engine, checks in ENGINES.items():
        checks_by_name.update(checks if engine in engines else {})
    return checks_by_name


def judge(name: str, check: Check, look_at: Host) -> list[Finding]:
    """Run a check, unless the settings that it needs are not known."""
    absent = policy.absent(look_at.driver) if name in OF_THE_DRIVER else ""
    if look_at.problem and name in OF_THE_POLICY:
        findings = [skipped(f"not looked at while {look_at.config} is not valid")]
    elif absent:
        findings = [skipped(f"not looked at: {absent}")]
    else:
        findings = _run_within(SECONDS + look_at.settings["refresh"]["deadline-seconds"], check, look_at)
    is_own_state = look_at.state != system.STATE_DIR and name in OF_THE_STATE
    as_root = "as root: " if os.geteuid() and name in GENERAL and not is_own_state else ""
    plain = ("", seen.AS_ROOT)
    return [
        replace(finding, check=name, fix=finding.fix if finding.fix in plain else as_root + finding.fix)
        for finding in findings
    ]


def run(look_at: Host) -> list[Finding]:
    """Run the checks of a host one after the other; checks that do not concern this host may find nothing."""
    findings = [finding for name, check in table(look_at.named).items() for finding in judge(name, check, look_at)]
    return [_defer_fix(finding, findings) for finding in findings]


def _defer_fix(finding: Finding, findings: list[Finding]) -> Finding:
    """Remove a fix that must wait for another finding's, and name that finding."""
    for blocker in findings if finding.fix else ():
        blocked = any(finding.check.startswith(check) and command in finding.fix for check, command in blocker.blocks)
        if blocker.verdict == BROKEN and blocker.check != finding.check and blocked:
            return replace(finding, evidence=f"{finding.evidence}; {blocker.check} comes first", fix="")
    return finding


def worst(findings: list[Finding]) -> str:
    return max((finding.verdict for finding in findings), key=ORDER.index, default=OK)


def _run_within(seconds: float, check: Check, look_at: Host) -> list[Finding]:
    """Run a check, and give up after a time: a file system or a device may be stuck in the kernel."""
    findings: list[Finding] = []

    def work() -> None:
        try:
            findings.extend(check(look_at))
        except PermissionError as error:
            findings.append(warning(seen.sentence([str(error.filename)]), seen.AS_ROOT))
        except Exception as error:  # noqa: BLE001 - the other checks matter more than why this one fails
            findings.append(warning(f"the check itself failed: {type(error).__name__}: {error}", "report this"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        stuck = broken(f"the check has not ended within {seconds:g} s", "see dmesg; a mount or a device may be stuck")
        return [*findings, stuck]
    return findings
