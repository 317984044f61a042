"""Checks of the host beneath the engines: the low-level runtime, cgroups, AppArmor, NVIDIA's toolkit."""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any, cast

from gpushim.config import policy
from gpushim.doctor import (
    Finding,
    Host,
    broken,
    corrected,
    listing,
    ok,
    ours,
    skipped,
    text,
    untrusted,
    warning,
)
from gpushim.doctor.entries import read_hook
from gpushim.engines import hooksd
from gpushim.engines.processes import ask, origin, programs
from gpushim.ground import seen, system
from gpushim.ground.errors import GpushimError
from gpushim.nvidia.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST = {"runc": (1, 1), "crun": (1, 0)}
# Flaws of releases: name, and the first good patch of each branch; later branches are good.
FLAWS = {
    "runc": (
        ("CVE-2024-21626", {(1, 1): 12}),
        ("CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881", {(1, 2): 8, (1, 3): 3, (1, 4): 0}),
        ("CVE-2026-41579", {(1, 3): 6, (1, 4): 3, (1, 5): 0}),
    ),
    "crun": (("CVE-2026-47766", {(1, 28): 0}),),
}
# Distributions fix old releases; their versions bear the distribution's mark.
_THEIRS = re.compile(r"\+ds|ubuntu|deb\d|\.el\d|\.fc\d|\.amzn|suse|rhaos")
SHOWN = 16  # processes that only look like an engine
MIGRATE = "gpushim migrate --write"
# Settings of NVIDIA's toolkit that take rights from containers, as `gpushim migrate` writes them.
HARDENING = (("requests", "accept-env-when-unprivileged", False), ("requests", "ignore-imex-channel-requests", True))
# Keys of NVIDIA's that take rights from containers, and have no equivalent here.
WITHHOLDING = (
    "supported-driver-capabilities",
    "nvidia-container-runtime.mode",
    "features.no-additional-gids-for-device-nodes",
)
REFRESH = "nvidia-cdi-refresh."


def low_level(host: Host) -> Iterator[Finding]:
    """Check that the low-level runtime exists, is not gpushim-runtime, runs, and is not too old."""
    names = host.settings["runtime"]["low-level"]
    setting = f"low-level under [runtime] in {shlex.quote(host.config)}"
    try:
        path = policy.low_level(names)
    except GpushimError as error:
        yield broken(str(error), _runtime_fix(host, names, setting))
        return
    real = os.path.realpath(path)
    if ours(real):
        yield broken(f"the low-level runtime {path} is gpushim-runtime itself", f"set {setting} to the path of runc")
        return
    if "nvidia" in os.path.basename(real):
        yield broken(
            f"the low-level runtime {path} is NVIDIA's, which injects a second time", f"set {setting} to runc"
        )
        return
    answer = ask.program([path, "--version"])
    match = re.search(r"^(\S+) version (\d+)\.(\d+)(?:\.(\d+))?", answer.out, re.MULTILINE)
    if answer.code != 0:
        yield broken(f"the low-level runtime {path} does not run: {answer.last}", f"reinstall it, or set {setting}")
    elif not match:
        yield warning(
            f"{path} --version says nothing known",
            f"see that {shlex.quote(path)} is a low-level runtime, or set {setting}",
        )
    else:
        version = (int(match[2]), int(match[3]), int(match[4] or 0))
        yield _judge(path, match[1], version, answer.out)


def _runtime_fix(host: Host, names: list[str], setting: str) -> str:
    runtime = host.program(*OLDEST)
    if runtime:
        return f"set {setting} to {shlex.quote(json.dumps([runtime]))}"
    candidates = [name for name in names if name in OLDEST or os.path.dirname(name) in policy.SYSTEM_PATH.split(":")]
    brings = next((base for base in map(os.path.basename, candidates) if base in OLDEST), "")
    if brings:
        return f"install {brings} (package {brings}), or set {setting}"
    return f"install runc (package runc), and set {setting} to {shlex.quote(json.dumps(['runc']))}"


def _judge(path: str, name: str, version: tuple[int, int, int], match: str) -> Finding:
    label = f"{path} is {name} {'.'.join(map(str, version))}"
    flaws = [flaw for flaw, good in FLAWS.get(name, ()) if _has_flaw(version, good)]
    if version[:2] < OLDEST.get(name, (0, 0)):
        oldest = ".".join(map(str, OLDEST[name]))
        return broken(f"{label}, too old: {oldest} is the oldest that is tested", f"install {name} {_newest(name)}")
    if flaws and not _THEIRS.search(match):
        evidence = f"{label}, whose makers have since fixed {', '.join(flaws)}"
        return warning(evidence, f"install {name} {_newest(name)}")
    return ok(f"{label}{', of a distribution, which fixes its own' if flaws else ''}")


def _newest(name: str) -> str:
    """Return the releases without any of the known flaws, the newest last."""
    *earlier, last = [f"{branch[0]}.{branch[1]}.{patch}" for branch, patch in sorted(FLAWS[name][-1][1].items())]
    return f"{', '.join(earlier)}{' or ' if earlier else ''}{last}, or newer"


def _has_flaw(version: tuple[int, int, int], good: dict[tuple[int, int], int]) -> bool:
    branch = version[:2]
    return version[2] < good[branch] if branch in good else branch < max(good)


def cgroups(host: Host) -> Iterator[Finding]:
    """Check that cgroups can restrict devices."""
    folder = f"{host.top}/sys/fs/cgroup"
    if os.path.exists(f"{folder}/cgroup.controllers"):
        yield ok("cgroup v2")
    elif os.path.isdir(f"{folder}/devices"):
        is_hybrid = os.path.isdir(f"{folder}/unified")
        yield ok("cgroup v1 with v2 beside it (hybrid)" if is_hybrid else "cgroup v1")
    else:
        yield broken(
            f"{folder} has neither cgroup v2 nor the devices controller of v1",
            f"mount -t cgroup2 cgroup2 {shlex.quote(folder)}",
        )


def apparmor(host: Host) -> Iterator[Finding]:
    """Check whether AppArmor confines a program that we need."""
    if not text(f"{host.top}/sys/module/apparmor/parameters/enabled").startswith("Y"):
        yield skipped("AppArmor is off")
        return
    profiles = text(f"{host.top}/sys/kernel/security/apparmor/profiles").splitlines()
    enforced = [line for line in profiles if re.search(r"(^|/)(runc|crun|gpushim\S*) \(enforce\)$", line)]
    if enforced:
        yield warning(
            f"AppArmor confines {enforced[0]}: what it forbids, as "
            "/run/gpushim and the driver's files may be, is in `journalctl -k -g apparmor`",
            f"aa-complain {shlex.quote(enforced[0].rpartition(' ')[0])}",
        )
    else:
        yield ok("AppArmor is on, and confines none of runc, crun and gpushim")


def old_config(host: Host) -> Iterator[Finding]:
    """Check for settings of NVIDIA's toolkit that were not taken over."""
    path = host.top + migrate.SYSTEM_CONFIG
    if host.problem:
        yield skipped(f"{host.config} is not valid, so nothing can be compared with it")
        return
    try:
        # gpushim's package brings a config.toml; only keys that NVIDIA's sets and gpushim's leaves out count.
        rows = _unmigrated_rows(host, path) if seen.exists(path) else []
    except GpushimError as error:
        yield warning(f"what {path} says cannot be taken over: {error}", f"{corrected(path)}; then {MIGRATE}")
        return
    evidence = ", ".join(f"{row.key} = {json.dumps(row.value)}" for row in rows)
    lost = " ".join(shlex.quote(row.key) for row in rows if row.left_out)
    steps = [f"read what gpushim migrate says of {lost}, and take it out of {shlex.quote(path)}"] if lost else []
    steps += [MIGRATE] if any(row.setting for row in rows) else []
    if any(_hardens(row) for row in rows):
        yield broken(f"{path} allows less than is in force: {evidence} has no effect here", "; then ".join(steps))
    elif rows:
        yield warning(f"{path} is there, which gpushim does not read: {evidence}", "; then ".join(steps))
    else:
        yield ok("no settings of NVIDIA's toolkit wait to be taken over")


def _unmigrated_rows(host: Host, path: str) -> list[migrate.Row]:
    own_sections, settings = policy.given(host.config) or {}, cast(Any, host.settings)  # by names that are data
    return [
        row
        for row in migrate.plan_migration(path, host.config).rows
        if row.left_out
        or (
            row.setting
            and row.setting[1] not in own_sections.get(row.setting[0], {})
            and settings[row.setting[0]][row.setting[1]] != row.setting[2]
        )
    ]


def _hardens(row: migrate.Row) -> bool:
    """Return whether a setting takes rights from containers that the policy grants without it."""
    return row.setting in HARDENING or (row.left_out and row.key in WITHHOLDING)


def old_hook(host: Host) -> Iterator[Finding]:
    """Check whether the hook that engines find by name is NVIDIA's."""
    for name in ("nvidia-container-runtime-hook", "nvidia-container-toolkit"):
        path = programs.lying(name, host.top)
        if path and not ours(path):
            yield warning(
                f"{path} is NVIDIA's: engines that look for that name call it instead of gpushim-hook",
                f"remove {shlex.quote(path)} or its package; then install gpushim-nvidia-compat",
            )
            return
    yield ok("no hook of NVIDIA's is in the way")


def old_hooks_d(host: Host) -> Iterator[Finding]:
    """Check for files in the hooks' directories of Podman and CRI-O that call NVIDIA's hook."""
    hooks = [(path, read_hook(path)) for folder in hooksd.DIRECTORIES for path in listing(host.top + folder)]
    nvidia_paths = [path for path, hook in hooks if "/nvidia-container" in hook and not ours(host.top + hook)]
    for path in nvidia_paths:
        yield warning(
            f"{path} makes Podman and CRI-O call NVIDIA's hook for every container", f"rm {shlex.quote(path)}"
        )
    if not nvidia_paths:
        yield ok("no hooks directory names NVIDIA's hook")


def old_units(host: Host) -> Iterator[Finding]:
    """Check for units of NVIDIA's that write a CDI spec of the same devices."""
    folder = f"{host.top}/etc/systemd/system"
    # Their package's units stay installed; what is enabled has a link in the directory of a target.
    wants = [path for path in listing(folder) if path.endswith((".wants", ".requires"))]
    units = [path for directory in wants for path in listing(directory) if os.path.basename(path).startswith(REFRESH)]
    if units and os.path.isdir(host.top + system.SYSTEMD):
        names = shlex.join(sorted({os.path.basename(path) for path in units}))
        yield warning(
            f"{units[0]} writes a CDI spec of the same devices, which engines then have twice",
            f"systemctl disable --now {names}; rm -f /var/run/cdi/nvidia.yaml",
        )
    else:
        yield ok("no nvidia-cdi-refresh is enabled")


def impostors(host: Host) -> Iterator[Finding]:
    """Check for untrusted processes with an engine's name."""
    hidden = [process for process in host.impostors if os.geteuid() and not process.uid]
    if hidden:
        processes = [f"{process.name} (process {process.pid}), which is root's" for process in hidden[:SHOWN]]
        yield warning(seen.sentence(processes), seen.AS_ROOT)
    for process in sorted(host.impostors, key=lambda entry: not entry.why.startswith(origin.UNSAFE))[:SHOWN]:
        evidence = f"process {process.pid} is named {process.name} but is ignored: {process.why}"
        if process in hidden:
            continue
        if process.why.startswith(origin.UNSAFE):
            yield warning(evidence, untrusted.program(process.why[len(origin.UNSAFE) + 2 :]))
        else:
            yield skipped(evidence)
    if len(host.impostors) > SHOWN:  # many processes must not bury the other findings
        yield skipped(f"so do {len(host.impostors) - SHOWN} more processes")
    if not host.impostors:
        yield ok("no process only looks like an engine")
