"""GPUs and MIG instances, through NVML where it works, else whole GPUs through /proc.

Each GPU is asked by itself, so that a sick one does not cost the others. Out of scope: device nodes (nodes.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gpushim.ground.errors import DRIVER, GpushimError
from gpushim.inventory import driver_files, nvml, procfs
from gpushim.inventory.earlier import FAILS, Indices, instead
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpushim.ground.model import Gpu, Known, Listed, MigInstance
    from gpushim.inventory.earlier import Hung


def read(
    root: str,
    proc: str,
    version: str,
    notes: list[str],
    waiting: Callable[[str], None],
    settled: Sequence[Known] = (),
    hung: Sequence[Hung] = (),
    withheld: Callable[[str], bool] = lambda node: False,
) -> Listed:
    """Find out which GPUs and MIG instances the host has.

    `settled` has the GPUs whose indices are settled, `hung` those that are not asked, and listed as they were;
    `withheld` says of a GPU's node that the GPU is not this host's.

    Raises:
        GpushimError: the kernel module and NVML's library are of different versions.
    """
    missing: list[str] = []
    known = [gpu for gpu in procfs.gpus(proc, missing, instead(hung)) if not withheld(gpu["node"])]
    indices = Indices(settled)
    try:
        nvml.bindings()
        path = driver_files.library(root, "libnvidia-ml.so", version)
        if path is None:
            raise nvml.UnusableError(f"there is no libnvidia-ml.so.{version} below {root}")
        libcuda = driver_files.library(root, "libcuda.so", version)
        with nvml.session(rooted.inside(root, path), waiting) as session:
            found = _ask(session, proc, known, indices, version, notes, waiting, hung)
            found["cuda"] = nvml.cuda(session, libcuda and rooted.inside(root, libcuda))
            return _without(withheld, found)
    except nvml.UnusableError as error:
        if error.mismatch:
            raise mismatch(version, (driver_files.versions(root) or [""])[0]) from None
        # NVML may have failed after it told some.
        return _by_proc(known, Indices(settled), version, str(error), notes, missing)


def _without(withheld: Callable[[str], bool], listed: Listed) -> Listed:
    gpus = [gpu for gpu in listed["gpus"] if not withheld(gpu["node"])]
    numbers = {gpu["index"] for gpu in gpus}
    return {**listed, "gpus": gpus, "mig": [mig for mig in listed["mig"] if mig["gpu"] in numbers]}


def _by_proc(
    known: list[Gpu], indices: Indices, version: str, why: str, notes: list[str], missing: list[str]
) -> Listed:
    """Return what the kernel alone tells."""
    for gpu in known:
        indices.settle(gpu)
    notes.append(f"{why}: {procfs.UNASKED}")
    divided = [gpu for gpu in known if gpu["mig"]]
    missing += [f"the MIG instances of GPU {gpu['index']} ({gpu['pci']}) are not listed: {why}" for gpu in divided]
    notes += missing
    return {
        **procfs.listed_none(version),
        "gpus": sorted(known, key=lambda gpu: gpu["index"]),
        "missing": missing,
        "absent": indices.absent,
    }


def mismatch(module: str, libraries: str) -> GpushimError:
    """Say that kernel module and libraries differ; `libraries` is "" or the module's if their version is unknown."""
    other = libraries if libraries not in ("", module) else "of another version"
    return GpushimError(
        f"the NVIDIA kernel module is {module} but its libraries are {other}: reboot, or reload the module "
        "(rmmod/modprobe), then run gpushim refresh",
        DRIVER,
    )


def _ask(
    session: Any,
    proc: str,
    known: list[Gpu],
    indices: Indices,
    version: str,
    notes: list[str],
    waiting: Callable[[str], None],
    hung: Sequence[Hung],
) -> Listed:
    missing: list[str] = []
    spared, migs = _spared(hung, indices, notes)
    gpus: list[Gpu] = []
    sick: dict[int, str] = {}
    handles: dict[int, Any] = {}
    for index, look_up in _each(session, known, {gpu["pci"] for gpu in spared}):
        waiting(f"GPU {index} to answer NVML")
        try:
            handle = look_up()
            gpu = _gpu(session, session.nvmlDeviceGetIndex(handle) if hung else index, handle)
            instances = list(_mig_instances(session, proc, handle, gpu, missing)) if gpu["mig"] else []
            indices.settle(gpu)
            handles[gpu["index"]] = handle
            gpus.append(gpu)
            migs += [{**mig, "gpu": gpu["index"]} for mig in instances]
        except (session.NVMLError, UnicodeDecodeError) as error:
            sick[index] = str(error)
    waiting("NVML to report how GPUs are connected")
    nvml.add_peers(session, gpus, handles, {gpu["pci"] for gpu in [*known, *gpus]})
    gpus += spared
    left = [gpu for gpu in known if gpu["pci"] not in {one["pci"] for one in gpus}]
    gpus += _sick_gpus(sick, left, indices, notes, missing)
    notes += missing
    return {
        "source": "nvml",
        "version": version,
        "cuda": "",
        "gpus": sorted(gpus, key=lambda gpu: gpu["index"]),
        "mig": migs,
        "missing": missing,
        "absent": indices.absent,
    }


def _each(session: Any, known: list[Gpu], spared: set[str]) -> Iterator[tuple[int, Callable[[], Any]]]:
    """List the GPUs to ask, by NVML's number, or, where some are spared, by address, which touches no other."""
    if not spared:
        for index in range(session.nvmlDeviceGetCount()):
            yield index, partial(session.nvmlDeviceGetHandleByIndex, index)
        return
    for index, gpu in enumerate(known):
        if gpu["pci"] not in spared:
            yield index, partial(session.nvmlDeviceGetHandleByPciBusId, gpu["pci"].encode())


def _spared(hung: Sequence[Hung], indices: Indices, notes: list[str]) -> tuple[list[Gpu], list[MigInstance]]:
    """List the GPUs that are not asked, and their MIG instances, as they were."""
    gpus: list[Gpu] = []
    migs: list[MigInstance] = []
    for one, gpu in zip(hung, instead(hung).values()):
        indices.settle(gpu)
        gpus.append(gpu)
        migs += [{**mig, "gpu": gpu["index"]} for mig in one["mig"]]
        notes.append(str(gpu["problem"]))
    return gpus, migs


def _gpu(session: Any, index: int, handle: Any) -> Gpu:
    minor = session.nvmlDeviceGetMinorNumber(handle)
    mode = _mig_mode(session, handle)
    return {
        **nvml.gpu(session, index, handle, f"/dev/nvidia{minor}"),
        "minor": minor,
        "pci": procfs.pci_address(session.nvmlDeviceGetPciInfo(handle).busId),
        "mig": bool(mode),
        "mig_capable": mode is not None,
        "vgpu": nvml.is_vgpu(session, handle),
        "fabric": nvml.fabric(session, handle),
        "fabric_problem": "" if mode else nvml.fabric_problem(session, handle),  # MIG instances use no NVLink
        "addressing": nvml.addressing(session, handle),
    }


def _sick_gpus(
    sick: dict[int, str], left: list[Gpu], indices: Indices, notes: list[str], missing: list[str]
) -> Iterator[Gpu]:
    """Match GPUs that do not answer NVML with those of /proc that NVML did not list; both are in PCI order.

    Where their numbers differ, nobody can say which is which.
    """
    alike = len(sick) == len(left)
    for (index, error), gpu in zip(sick.items(), left if alike else ()):
        found: Gpu = {**gpu, "index": index, "nvml": index}
        indices.settle(found)
        found["problem"] = problem = f"GPU {found['index']} ({gpu['pci']}) {FAILS}: {error}"
        notes.append(problem)
        yield found
    for index, error in () if alike else sick.items():
        missing.append(
            f"NVML's GPU {index} is left out: it does not answer NVML ({error}), and /proc does not show which it is"
        )
    for gpu in () if alike else left:
        missing.append(f"GPU {gpu['pci']} is left out: NVML does not list it; is its node {gpu['node']} there?")


def _mig_instances(session: Any, proc: str, parent: Any, gpu: Gpu, missing: list[str]) -> Iterator[MigInstance]:
    for index in range(session.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            handle = session.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
        except session.NVMLError as error:
            if error.value in (session.NVML_ERROR_NOT_FOUND, session.NVML_ERROR_INVALID_ARGUMENT):
                continue  # no instance with this number
            raise
        gi, ci = session.nvmlDeviceGetGpuInstanceId(handle), session.nvmlDeviceGetComputeInstanceId(handle)
        uuid = session.nvmlDeviceGetUUID(handle)
        nodes = procfs.mig_nodes(proc, gpu["minor"], gi, ci)
        if not nodes:
            missing.append(f"MIG instance {uuid} is left out: the kernel does not list its capability nodes")
            continue
        yield {
            "uuid": uuid,
            "legacy": f"MIG-{gpu['uuid']}/{gi}/{ci}",
            "gpu": gpu["index"],
            "index": index,
            "gi": gi,
            "ci": ci,
            "placement": nvml.placement(session, parent, gi),
            "profile": session.nvmlDeviceGetName(handle).rpartition("MIG ")[2],
            "memory": nvml.memory(session, handle),
            "attributes": nvml.attributes(session, handle),
            "nodes": nodes,
        }


def _mig_mode(session: Any, handle: Any) -> int | None:
    """Return whether a GPU is in MIG mode now, 1 or 0; None if it has none."""
    try:
        current, _pending = session.nvmlDeviceGetMigMode(handle)
    except (session.NVMLError_NotSupported, session.NVMLError_FunctionNotFound):
        return None
    return int(current)  # a pending mode comes with the next reset
