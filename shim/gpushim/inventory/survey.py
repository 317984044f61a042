"""Find out what the host has: a whole snapshot, which refresh.py saves.

Out of scope: what is where (gpus.py, nodes.py, drm.py, files.py), and changing anything on the host.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpushim import __version__, policy, selection, stamp
from gpushim.errors import INVENTORY, GpushimError
from gpushim.inventory import data_files, drm, ensure, files, gpus, modules, nodes, platforms, procfs, rooted
from gpushim.logfile import now

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS = 3  # when the host changes while it is looked at, as it does when NVML makes device nodes
MOMENT = 0.02  # seconds, in which the kernel's clock for files goes on
LONGEST_LIFE = 1800  # seconds of a snapshot, where a look takes long


def survey(config: str, settings: dict[str, Any], waiting: Callable[[str], None]) -> dict[str, Any]:
    """Find out what the host has.

    Args:
        config: path of config.toml.
        settings: the policy.
        waiting: called with what is asked next, before each call that may take long.

    Returns:
        a snapshot; its "runtime" is "" if there is no low-level runtime.
    """
    notes, runtime = [], ""
    try:
        runtime = policy.low_level(settings["runtime"]["low-level"])
    except GpushimError as trouble:  # only containers need one
        notes.append(str(trouble))
    root, dev_root = settings["driver"]["root"], settings["driver"]["dev-root"]
    proc, sys = stamp.proc_dir(root), modules.sys_dir(root)
    times = keeps_times(proc, sys)
    for _ in range(ATTEMPTS):
        before, started = stamp.driver(proc, sys, times), stamp.clock()
        snapshot = _ask_driver(settings, proc, waiting)
        paths = [*_watched(snapshot, proc), *_mps_control(root, settings["mps"]), *filter(None, (runtime,))]
        inputs = {"config": config, "root": root, "dev-root": dev_root, "sys": sys, "times": times, "nodes": paths}
        facts = stamp.current(inputs)
        # Those of the driver from before it was asked: a change since then makes the snapshot stale, never wrong.
        then = [facts[0], facts[1], *before, *facts[-2:]]
        snapshot.update(inputs=inputs, stamp=then, runtime=runtime, policy=settings)
        snapshot["notes"] += notes
        _add_nodes_and_files(snapshot, proc)
        snapshot["looked"] = stamp.clock()
        snapshot["life"] = life(snapshot, snapshot["looked"] - started)
        if then == stamp.current(inputs):
            break
    return snapshot


def life(snapshot: dict[str, Any], took: float) -> int:
    """Say how many seconds a snapshot holds, if no fact changes; 0 is without end.

    Args:
        snapshot: all but its "life".
        took: seconds that the look took; what seldom changes is not worth more than a hundredth of the time, down to
            two looks an hour.
    """
    if is_passing(snapshot):
        return stamp.PASSING
    if snapshot["platform"] != "native":
        return 0
    unbound = any(inode is None for _, inode in snapshot["stamp"][stamp.FACTS.index("gpus")])
    if unbound or (snapshot["mig"] and not snapshot["inputs"]["times"]):
        return stamp.PASSING  # a fact is not to be had here
    return max(stamp.SETTLED, min(LONGEST_LIFE, round(100 * took)))


def is_passing(snapshot: dict[str, Any]) -> bool:
    """Say whether something is not as it should be that may be over in a moment."""
    parents = {mig["gpu"] for mig in snapshot["mig"]}
    return bool(
        snapshot["error"]
        or snapshot["missing"]
        or not snapshot["runtime"]
        or (snapshot["platform"] == "native" and snapshot["source"] != "nvml")
        or any(gpu["problem"] or (gpu["mig"] and gpu["index"] not in parents) for gpu in snapshot["gpus"])
    )


def trouble(snapshot: dict[str, Any]) -> str:
    """Say what failed that may well not fail the next time, or ""."""
    failed = [note for note in snapshot["notes"] if note.startswith(gpus.NVML_FAILS)]
    return next(iter([*selection.unusable(snapshot), *failed]), "")


def keeps_times(proc: str, sys: str) -> bool:
    """Say whether procfs keeps the times of its entries: old kernels make them anew for each look.

    Args:
        proc: where the procfs that shows the driver is mounted.
        sys: where the sysfs that shows the GPUs is mounted.
    """
    before = stamp.driver(proc, sys, True)
    if not before[-1]:
        return True
    time.sleep(MOMENT)
    return before == stamp.driver(proc, sys, True)


def _ask_driver(settings: dict[str, Any], proc: str, waiting: Callable[[str], None]) -> dict[str, Any]:
    """Begin a snapshot with what the kernel module and NVML tell."""
    root = settings["driver"]["root"]
    notes: list[str] = []
    version = procfs.module_version(proc)
    found: dict[str, Any] = {"platform": "native", "source": "proc", "version": version or "", "cuda": ""}
    found.update(gpus=[], mig=[], missing=[])
    error = None
    state = stamp.state_dir()
    covers = {"params": f"{state}/params" if procfs.restricted_params(proc) else "", "empty": f"{state}/empty"}
    try:
        policy.check_directories(settings["driver"], stamp.config_path())
        said: list[str] = []  # what is wrong with its files is said when they are listed, below
        other = platforms.find(settings["driver"], said)
        if other:
            found.update(platforms.gpus(other, root, notes, waiting), platform=other["platform"])
        else:
            notes += said
            _check_driver(version, root, proc)
            found.update(gpus.read(root, proc, version or "", notes, waiting))
            drm.add(found["gpus"], modules.sys_dir(root), settings["driver"]["dev-root"])
    except GpushimError as trouble:
        error = {"sentence": str(trouble), "code": trouble.exit_code}
    return {
        "version": ensure.SCHEMA,
        "gpushim": __version__,
        "written": now(),
        "platform": found["platform"],
        "source": found["source"],
        "notes": notes,
        "missing": found["missing"],
        "driver": {"version": found["version"], "cuda": found["cuda"], **covers, **settings["driver"]},
        "error": error,
        "gpus": found["gpus"],
        "mig": found["mig"],
    }


def _check_driver(version: str | None, root: str, proc: str) -> None:
    if not version:
        trouble = "is not there" if version is None else "does not tell a version"
        raise GpushimError(
            f"no NVIDIA driver is loaded ({proc}/driver/nvidia/version {trouble}): load it (modprobe nvidia), then "
            "run gpushim refresh",
            INVENTORY,
        )
    if any(files.library(root, name, version) for name in files.TELLTALES):
        return
    installed = files.versions(root)
    if installed:
        raise gpus.mismatch(version, installed[0])
    raise GpushimError(
        f"the NVIDIA kernel module {version} is loaded, but there is neither libcuda.so.{version} nor "
        f"libnvidia-ml.so.{version} below {root}: install the driver's libraries, or set root under [driver]",
        INVENTORY,
    )


def _watched(snapshot: dict[str, Any], proc: str) -> list[str]:
    driver = snapshot["driver"]
    other = platforms.find(driver, []) if snapshot["platform"] != "native" else None
    if other:
        return list(other["watched"])
    watched = nodes.watched(nodes.find(driver["dev-root"], proc, [], _drm(snapshot)), _nodes_in_use(snapshot))
    found = {} if snapshot["error"] else files.find(driver["root"], driver["version"], [])
    return [files.inside(driver["dev-root"], path) for path in watched] + [
        files.inside(driver["root"], path) for path in [*files.SOCKETS, *files.watched(driver["root"], found)]
    ]


def _mps_control(root: str, mps: dict[str, Any]) -> list[str]:
    """List the path by which a stamp sees MPS come and go: nothing that others than root can make come and go."""
    pipes = mps["pipe-directory"]
    watched = mps["enabled"] and not rooted.mistrust(root, pipes)
    return [files.inside(root, pipes) + "/control"] if watched else []


def _nodes_in_use(snapshot: dict[str, Any]) -> list[str]:
    return [gpu["node"] for gpu in snapshot["gpus"]] + [node for mig in snapshot["mig"] for node in mig["nodes"]]


def _drm(snapshot: dict[str, Any]) -> list[str]:
    return [path for gpu in snapshot["gpus"] for path in gpu["drm"]]


def _add_nodes_and_files(snapshot: dict[str, Any], proc: str) -> None:
    driver, notes = snapshot["driver"], snapshot["notes"]
    other = platforms.find(driver, notes) if snapshot["platform"] != "native" else None
    if other:
        snapshot.update(nodes=other["nodes"], files=other["files"], features={}, imex=[], mps="")
        return
    found = nodes.find(driver["dev-root"], proc, notes, _drm(snapshot))
    for gpu in snapshot["gpus"]:
        if gpu["node"] not in found and gpu["problem"] is None:
            gpu["problem"] = (
                f"GPU {gpu['index']} has no usable device node {gpu['node']}; run gpushim refresh as root, "
                f"which makes it, or nvidia-modprobe -c {gpu['minor']}"
            )
            notes.append(gpu["problem"])
    snapshot["nodes"] = found
    snapshot["features"] = nodes.features(found)
    snapshot["imex"] = nodes.imex_channels(found)
    snapshot["files"] = {}
    snapshot["mps"] = ""
    if not snapshot["error"]:
        mps = snapshot["policy"]["mps"]
        pipes = mps["pipe-directory"] if mps["enabled"] else ""
        if pipes:
            snapshot["mps"] = data_files.mps_trouble(driver["root"], pipes)
            notes += [snapshot["mps"]] if snapshot["mps"] else []
        snapshot["files"] = files.find(driver["root"], driver["version"], notes, mps=pipes)
        notes += files.lacking(driver["root"], driver["version"])
