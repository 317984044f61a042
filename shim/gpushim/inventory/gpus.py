"""GPUs and MIG instances, through NVML where it works, else whole GPUs through /proc.

Each GPU is asked by itself, so that a sick one does not cost the others.
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
    indexed: Sequence[Known] = (),
    hung: Sequence[Hung] = (),
    withheld: Callable[[str], bool] = lambda node: False,
) -> Listed:
    """List the host's GPUs and MIG instances.

    GPUs in `indexed` have an index already; those in `hung` are listed as they were, without asking them; those whose
    node is `withheld` are not this host's.

    Raises:
        GpushimError: the kernel module and NVML's library are of different versions.
    """
    missing: list[str] = []
    proc_gpus = [gpu for gpu in procfs.gpus(proc, missing, instead(hung)) if not withheld(gpu["node"])]
    indices = Indices(indexed)
    try:
        nvml.bindings()
        path = driver_files.library(root, "libnvidia-ml.so", version)
        if path is None:
            raise nvml.UnusableError(f"there is no libnvidia-ml.so.{version} below {root}")
        libcuda = driver_files.library(root, "libcuda.so", version)
        with nvml.session(rooted.inside(root, path), waiting) as session:
            listed = _list_by_nvml(session, proc, proc_gpus, indices, version, notes, waiting, hung)
            listed["cuda"] = nvml.cuda(session, libcuda and rooted.inside(root, libcuda))
            return _drop_withheld(withheld, listed)
    except nvml.UnusableError as error:
        if error.mismatch:
            raise mismatch(version, (driver_files.versions(root) or [""])[0]) from None
        # Fresh indices, as NVML may have failed after it listed some GPUs.
        return _list_by_proc(proc_gpus, Indices(indexed), version, str(error), notes, missing)


def _drop_withheld(withheld: Callable[[str], bool], listed: Listed) -> Listed:
    gpus = [gpu for gpu in listed["gpus"] if not withheld(gpu["node"])]
    numbers = {gpu["index"] for gpu in gpus}
    return {**listed, "gpus": gpus, "mig": [mig for mig in listed["mig"] if mig["gpu"] in numbers]}


def _list_by_proc(
    proc_gpus: list[Gpu], indices: Indices, version: str, reason: str, notes: list[str], missing: list[str]
) -> Listed:
    for gpu in proc_gpus:
        indices.settle(gpu)
    notes.append(f"{reason}: {procfs.UNASKED}")
    divided = [gpu for gpu in proc_gpus if gpu["mig"]]
    missing += [f"the MIG instances of GPU {gpu['index']} ({gpu['pci']}) are not listed: {reason}" for gpu in divided]
    notes += missing
    return {
        **procfs.listed_none(version),
        "gpus": sorted(proc_gpus, key=lambda gpu: gpu["index"]),
        "missing": missing,
        "absent": indices.absent,
    }


def mismatch(module: str, libraries: str) -> GpushimError:
    """Return the refusal for a kernel module and libraries that differ; `libraries` may be "", unknown."""
    actual = libraries if libraries not in ("", module) else "of another version"
    return GpushimError(
        f"the NVIDIA kernel module is {module} but its libraries are {actual}: reboot, or reload the module "
        "(rmmod/modprobe), then run gpushim refresh",
        DRIVER,
    )


def _list_by_nvml(
    session: Any,
    proc: str,
    proc_gpus: list[Gpu],
    indices: Indices,
    version: str,
    notes: list[str],
    waiting: Callable[[str], None],
    hung: Sequence[Hung],
) -> Listed:
    hung_gpus, migs = _list_hung(hung, indices, notes)
    gpus: list[Gpu] = []
    missing, sick, handles = list[str](), dict[int, str](), dict[int, Any]()
    for index, look_up in _gpus_to_ask(session, proc_gpus, {gpu["pci"] for gpu in hung_gpus}):
        waiting(f"GPU {index} to answer NVML")
        try:
            handle = look_up()
            gpu = _read_gpu(session, session.nvmlDeviceGetIndex(handle) if hung else index, handle)
            instances = list(_mig_instances(session, proc, handle, gpu, missing)) if gpu["mig"] else []
            indices.settle(gpu)
            handles[gpu["index"]] = handle
            gpus.append(gpu)
            migs += [{**mig, "gpu": gpu["index"]} for mig in instances]
        except (session.NVMLError, UnicodeDecodeError) as error:
            sick[index] = str(error)
    waiting("NVML to report how GPUs are connected")
    nvml.add_peers(session, gpus, handles, {gpu["pci"] for gpu in [*proc_gpus, *gpus]})
    gpus += hung_gpus
    unlisted = [gpu for gpu in proc_gpus if gpu["pci"] not in {listed["pci"] for listed in gpus}]
    gpus += _sick_gpus(sick, unlisted, indices, notes, missing)
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


def _gpus_to_ask(session: Any, proc_gpus: list[Gpu], hung: set[str]) -> Iterator[tuple[int, Callable[[], Any]]]:
    """List the GPUs to ask by NVML's number or, where some hang, by address, which touches no other GPU."""
    if not hung:
        for index in range(session.nvmlDeviceGetCount()):
            yield index, partial(session.nvmlDeviceGetHandleByIndex, index)
        return
    for index, gpu in enumerate(proc_gpus):
        if gpu["pci"] not in hung:
            yield index, partial(session.nvmlDeviceGetHandleByPciBusId, gpu["pci"].encode())


def _list_hung(hung: Sequence[Hung], indices: Indices, notes: list[str]) -> tuple[list[Gpu], list[MigInstance]]:
    gpus: list[Gpu] = []
    migs: list[MigInstance] = []
    for entry, gpu in zip(hung, instead(hung).values()):
        indices.settle(gpu)
        gpus.append(gpu)
        migs += [{**mig, "gpu": gpu["index"]} for mig in entry["mig"]]
        notes.append(str(gpu["problem"]))
    return gpus, migs


def _read_gpu(session: Any, index: int, handle: Any) -> Gpu:
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
    sick: dict[int, str], unlisted: list[Gpu], indices: Indices, notes: list[str], missing: list[str]
) -> Iterator[Gpu]:
    """Match GPUs that do not answer NVML with those of /proc that NVML did not list; both are in PCI order.

    Where their numbers differ, the match is unknown and all are left out.
    """
    alike = len(sick) == len(unlisted)
    for (index, error), gpu in zip(sick.items(), unlisted if alike else ()):
        sick_gpu: Gpu = {**gpu, "index": index, "nvml": index}
        indices.settle(sick_gpu)
        sick_gpu["problem"] = problem = f"GPU {sick_gpu['index']} ({gpu['pci']}) {FAILS}: {error}"
        notes.append(problem)
        yield sick_gpu
    for index, error in () if alike else sick.items():
        missing.append(
            f"NVML's GPU {index} is left out: it does not answer NVML ({error}), and /proc does not show which it is"
        )
    for gpu in () if alike else unlisted:
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
    """Return 1 if a GPU is in MIG mode, 0 if not, None if it has no such mode."""
    try:
        current, _pending = session.nvmlDeviceGetMigMode(handle)
    except (session.NVMLError_NotSupported, session.NVMLError_FunctionNotFound):
        return None
    return int(current)  # a pending mode comes with the next reset
