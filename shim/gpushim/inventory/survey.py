"""Survey the host: make a whole snapshot, and change nothing."""

from __future__ import annotations

import stat
from functools import partial
from typing import TYPE_CHECKING

from gpushim import __version__
from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import data_files, driver_files, ensure, gpus, modules, nodes, platforms, procfs
from gpushim.inventory.earlier import still
from gpushim.inventory.loader import TELLTALES
from gpushim.paths import rooted
from gpushim.paths.logfile import now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpushim.ground.model import (
        Failure,
        Inputs,
        Known,
        Listed,
        MpsPolicy,
        NodeFacts,
        Platform,
        Policy,
        Snapshot,
        Stamp,
    )
    from gpushim.inventory.earlier import Hung

ATTEMPTS = 3  # when the host changes during a survey, as it does when NVML makes device nodes
# Seconds that a snapshot holds at most, by the clock that also runs during a suspend.
PASSING = 30  # of what may soon be over: NVML failed, a GPU is sick or in MIG mode without an instance
SETTLED = 300  # of what rarely changes, and leaves no trace outside NVML: MIG mode without instances, health
LONGEST_LIFE = 1800  # where a survey takes long
# By member of the snapshot, the fact that changes with it; "life" if none does; "own" for what says nothing about the
# host. Members of members, and of the objects in lists, follow a dot; where names are data, there is a star.
COVER = {
    **dict.fromkeys(("version", "form", "gpushim", "written", "inputs", "stamp", "looked", "life", "told"), "own"),
    **dict.fromkeys(("source", "notes", "missing", "absent", "mps", "error"), "life"),
    **dict.fromkeys(("gpus.problem", "gpus.mig", "gpus.nvml"), "life"),
    "platform": "boot",
    "driver.version": "module",
    "driver.cuda": "libraries",
    "driver.*": "config",
    "driver.params": "gpus",  # parameters change when the module is loaded, and then all GPUs are bound again
    "driver.empty": "own",
    **dict.fromkeys(("gpus.index", "gpus.uuid", "gpus.minor", "gpus.pci", "gpus.model", "gpus.brand"), "gpus"),
    **dict.fromkeys(("gpus.arch", "gpus.node", "gpus.mig_capable", "gpus.vgpu", "gpus.pci_class"), "gpus"),
    "gpus.addressing": "gpus",  # a parameter of the module's
    # The firmware tells a NUMA node, and root may correct it in sysfs; NVLinks come up when a fabric manager starts.
    **dict.fromkeys(("gpus.numa", "gpus.peers", "gpus.fabric", "gpus.fabric_problem"), "life"),
    "gpus.memory": "life",  # ECC, switched on with a reset, takes some
    **dict.fromkeys(("mig.uuid", "mig.legacy", "mig.gpu", "mig.index", "mig.gi", "mig.ci", "mig.profile"), "mig"),
    **dict.fromkeys(("mig.memory", "mig.attributes", "mig.nodes", "mig.placement"), "mig"),
    **dict.fromkeys(("gpus.drm", "gpus.links", "nodes.*", "features.*", "imex", "runtime"), "nodes"),
    **dict.fromkeys(("files.*.path", "files.*.kind", "files.*.soname", "files.*.links"), "nodes"),
    "policy.*": "config",
}


def survey(
    config: str,
    settings: Policy,
    waiting: Callable[[str], None],
    indexed: Sequence[Known] = (),
    hung: Sequence[Hung] = (),
) -> Snapshot:
    """Survey the host; "runtime" is "" if there is no low-level runtime.

    GPUs in `indexed` have an index already; those in `hung` are not asked.
    """
    notes, runtime = [], ""
    try:
        runtime = policy.low_level(settings["runtime"]["low-level"])
    except GpushimError as problem:  # only containers need one
        notes.append(str(problem))
    root = settings["driver"]["root"]
    proc, sys = ensure.proc_dir(root), modules.sys_dir(root)
    times = procfs.keeps_times(proc, sys)
    busy: set[str] = set()
    for _ in range(ATTEMPTS):
        before, started = ensure.driver(proc, sys, times), system.clock()
        snapshot, system_platform = _list_devices(settings, proc, waiting, indexed, still(hung, before))
        paths = _watched(snapshot, system_platform, proc, busy)
        paths += [*_mps_control(root, settings["mps"]), *filter(None, (runtime,))]
        inputs: Inputs = {"config": config, "root": root, "sys": sys, "times": times, "nodes": paths}
        # The driver's facts are older than its answers: a change meanwhile makes the snapshot stale, never wrong.
        stamp: Stamp = {**ensure.current(inputs), **before}
        snapshot["inputs"], snapshot["stamp"], snapshot["runtime"] = inputs, stamp, runtime
        snapshot["notes"] += notes
        _add_nodes_and_files(snapshot, proc)
        took = system.clock() - started
        # What somebody asks for meanwhile it has not seen; and a life is not over before it can be gone by.
        snapshot["looked"], lasts = started, life(snapshot, took)
        snapshot["life"] = lasts and lasts + round(took)
        after = ensure.current(inputs)
        if stamp == after:
            break
        busy |= _busy_directories(paths, stamp["nodes"], after["nodes"])
    return snapshot


def _busy_directories(paths: list[str], saved: list[NodeFacts | None], current: list[NodeFacts | None]) -> set[str]:
    """List the directories that changed during a survey, as a package manager's do, and may go on changing."""
    facts = zip(paths, saved, current)
    return {
        path
        for path, saved_fact, host_fact in facts
        if saved_fact != host_fact and saved_fact and host_fact and stat.S_ISDIR(host_fact[1])
    }


def life(snapshot: Snapshot, took: float) -> int:
    """Return how many seconds a snapshot holds if no fact changes, 0 for without end.

    Surveys that take `took` seconds may use a hundredth of the time, but run at least twice an hour.
    """
    if is_passing(snapshot):
        return PASSING
    if snapshot["platform"] != "native":
        return 0
    unbound = None in snapshot["stamp"]["gpus"].values()
    if unbound or (snapshot["mig"] and not snapshot["inputs"]["times"]):
        return PASSING  # a fact is missing
    return max(SETTLED, min(LONGEST_LIFE, round(100 * took)))


def is_passing(snapshot: Snapshot) -> bool:
    """Return whether something is wrong that may soon be over."""
    parents = {mig["gpu"] for mig in snapshot["mig"]}
    return bool(
        snapshot["error"]
        or snapshot["missing"]
        or not snapshot["runtime"]
        or (snapshot["platform"] == "native" and snapshot["source"] != "nvml")
        or any(
            gpu["problem"] or gpu["fabric_problem"] or (gpu["mig"] and gpu["index"] not in parents)
            for gpu in snapshot["gpus"]
        )
    )


def _list_devices(
    settings: Policy,
    proc: str,
    waiting: Callable[[str], None],
    indexed: Sequence[Known],
    hung: Sequence[Hung],
) -> tuple[Snapshot, Platform | None]:
    """Return a snapshot of what the kernel module and NVML, or another platform, tell, without nodes and files."""
    driver = settings["driver"]
    notes: list[str] = []
    platform_notes: list[str] = []  # another platform's come when its files are listed, below
    version = procfs.module_version(proc)
    listed = procfs.listed_none(version or "")
    system_platform: Platform | None = None
    error: Failure | None = None
    try:
        policy.check_directories(driver, system.config_path())
        system_platform = platforms.find(driver, platform_notes)
        if system_platform:
            listed = platforms.gpus(system_platform, driver["root"], notes, waiting)
        else:
            notes += platform_notes
            if version is None and platform_notes:  # no module is to be loaded on a platform that is not whole
                raise GpushimError(f"{platform_notes[0]}; then run gpushim refresh", INVENTORY)
            _check_driver(version, driver["root"], proc)
            withheld = partial(nodes.withheld, driver=driver)
            listed = gpus.read(driver["root"], proc, version or "", notes, waiting, indexed, hung, withheld)
            notes += [
                f"GPU {gpu['index']} ({gpu['uuid'] or gpu['pci']}) is missing, and no other gets its index; if it is "
                "gone on purpose, run gpushim refresh --accept-indices"
                for gpu in listed["absent"]
            ]
            procfs.add_sysfs(listed["gpus"], modules.sys_dir(driver["root"]), driver["dev-root"])
    except GpushimError as problem:
        error = {"sentence": str(problem), "code": problem.exit_code}
    return _snapshot(settings, listed, system_platform, error, notes, proc), system_platform


def _snapshot(
    settings: Policy,
    listed: Listed,
    system_platform: Platform | None,
    error: Failure | None,
    notes: list[str],
    proc: str,
) -> Snapshot:
    state = system.state_dir()
    return {
        "version": ensure.READABLE,
        "form": ensure.FORM,
        "gpushim": __version__,
        "written": now(),
        "platform": system_platform["platform"] if system_platform else "native",
        "source": listed["source"],
        "notes": notes,
        "missing": listed["missing"],
        "absent": listed["absent"],
        "driver": {
            "version": listed["version"],
            "cuda": listed["cuda"],
            "params": f"{state}/params" if procfs.restricted_params(proc) else "",
            "empty": f"{state}/empty",
            **settings["driver"],
        },
        "error": error,
        "gpus": listed["gpus"],
        "mig": listed["mig"],
        "nodes": {},
        "mps": "",
        "features": {},
        "imex": [],
        "files": {},
        "policy": policy.of_containers(settings),
        "runtime": "",
    }


def _check_driver(version: str | None, root: str, proc: str) -> None:
    if not version:
        problem = "is not there" if version is None else "names no version"
        raise GpushimError(
            f"no NVIDIA driver is loaded ({proc}/driver/nvidia/version {problem}): load it (modprobe nvidia), then "
            "run gpushim refresh",
            INVENTORY,
        )
    if any(driver_files.library(root, name, version) for name in TELLTALES):
        return
    installed = driver_files.versions(root)
    if installed:
        raise gpus.mismatch(version, installed[0])
    raise GpushimError(
        f"the NVIDIA kernel module {version} is loaded, but there is neither libcuda.so.{version} nor "
        f"libnvidia-ml.so.{version} below {root}: install the driver's libraries, or set root under [driver]",
        INVENTORY,
    )


def _watched(snapshot: Snapshot, system_platform: Platform | None, proc: str, busy: set[str]) -> list[str]:
    driver = snapshot["driver"]
    if system_platform:
        return [*system_platform["watched"]]
    in_use = [gpu["node"] for gpu in snapshot["gpus"]] + [node for mig in snapshot["mig"] for node in mig["nodes"]]
    watched = nodes.watched(nodes.find(driver["dev-root"], proc, [], _drm(snapshot)), in_use)
    paths = []
    if not snapshot["error"]:  # which is looked at again soon
        files = driver_files.find(driver["root"], driver["version"], [])
        paths = driver_files.watched(driver["root"], driver["version"], files, busy)
    return [rooted.inside(driver["dev-root"], path) for path in watched] + [
        rooted.inside(driver["root"], path) for path in paths
    ]


def _mps_control(root: str, mps: MpsPolicy) -> list[str]:
    """List the path that shows a stamp whether MPS runs, if only root can make or remove it."""
    pipes = mps["pipe-directory"]
    watched = mps["enabled"] and not rooted.mistrust(root, pipes)
    return [rooted.inside(root, pipes) + "/control"] if watched else []


def _drm(snapshot: Snapshot) -> list[str]:
    return [path for gpu in snapshot["gpus"] for path in gpu["drm"]]


def _add_nodes_and_files(snapshot: Snapshot, proc: str) -> None:
    driver, notes = snapshot["driver"], snapshot["notes"]
    system_platform = platforms.find(driver, notes) if snapshot["platform"] != "native" else None
    if system_platform:
        snapshot["nodes"], snapshot["files"] = (
            system_platform["nodes"],
            driver_files.usable(system_platform["files"], notes),
        )
        return
    found_nodes = nodes.find(driver["dev-root"], proc, notes, _drm(snapshot))
    for gpu in snapshot["gpus"]:
        if gpu["node"] not in found_nodes and gpu["problem"] is None:
            problem = (
                f"GPU {gpu['index']} has no usable device node {gpu['node']}; run gpushim refresh as root, "
                f"which makes it, or nvidia-modprobe -c {gpu['minor']}"
            )
            gpu["problem"] = problem
            notes.append(problem)
    snapshot["nodes"] = found_nodes
    snapshot["features"] = nodes.features(found_nodes)
    snapshot["imex"] = nodes.imex_channels(found_nodes)
    if not snapshot["error"]:
        mps = snapshot["policy"]["mps"]
        pipes = mps["pipe-directory"] if mps["enabled"] else ""
        if pipes:
            snapshot["mps"] = data_files.mps_problem(driver["root"], pipes)
            notes += [snapshot["mps"]] if snapshot["mps"] else []
        found_files = driver_files.find(driver["root"], driver["version"], notes, mps=pipes)
        snapshot["files"] = driver_files.usable(found_files, notes, driver["root"])
        notes += driver_files.lacking(driver["root"], driver["version"])
