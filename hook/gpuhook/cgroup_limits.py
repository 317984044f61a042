"""Limit how much memory of a GPU a created container may have: by its cgroup, before its first instruction.

The driver keeps such limits for a cgroup from version 615 on: by the kernel's controller dmem, in whose files they
are written here (Documentation/admin-guide/cgroup-v2.rst of Linux), or where the kernel has none, by NVML, which a
child asks (nvml_limits.py). The limit stands in the leaf, the cgroup that the container's process is in, for there
alone programs are told of it as the GPU's size. Each is read back: the first kernels with dmem say yes to some that
they do not keep.

Out of scope: what may be had (gpushim.decision.memory). Not on the path of a container without a limit.
"""

from __future__ import annotations

import posix
from errno import ENOENT

from gpuhook.inject import dev_links, devices
from gpuhook.loader.options import Options
from gpushim.ground import bounds
from gpushim.ground.errors import INVENTORY, ROOTFS, GpushimError, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from gpushim.decision.decide import Decision
    from gpushim.ground.model import Gpu, MigInstance, Snapshot
    from gpushim.paths.rootfs import Rootfs

    Sizes = dict[str, int]  # bytes, by PCI address as the kernel writes it
    Warn = Callable[[str, Exception], None]

CONTROLLER = "dmem"
DELEGATES = "run.oci.delegate-cgroup"  # crun's: a cgroup below the container's own, in which it begins
NVML_SECONDS = 20.0  # for a child that opens NVML, which takes seconds without nvidia-persistenced
DEPTH = 64  # cgroups above one another that are looked at
CHILD = "import sys; sys.path[:] = sys.argv[1].split(':'); from gpuhook.nvml_limits import main; main(sys.argv[2:])"


def limit(options: Options, state: dict[str, Any], process: str, warn: Warn) -> None:
    """Set the limits of a container, and check that they are in force.

    Args:
        state: the container's, as the runtime wrote it.
        process: directory of the container's process in /proc, held open.
        warn: takes a limit that is not in force, where config.toml only wants it.

    Raises:
        GpushimError: a limit is not in force, and must be.
    """
    sizes = {_name(pci): size for pci, size in options.memory}
    try:
        if sizes:
            _check_delegation(state)
            _set(sizes, options.nvml, process)
    except GpushimError as error:
        refusal = GpushimError(f"the limit of the container's GPU memory is not in force: {error}", error.exit_code)
        if options.memory_limits != "wanted":  # of config.toml
            raise refusal from None
        warn("the limit of GPU memory", refusal)


def limit_decided(decision: Decision, state: dict[str, Any], process: str) -> None:
    """Set the limits of a decision, as `limit` does; `process` is "" if the container's is not known."""
    (hook,) = [edit.value for edit in decision.edits if edit.kind == "hook"]
    limit(Options(hook["args"][2:]), state, process, lambda what, error: decision.ignored.append(str(error)))


def _check_delegation(state: dict[str, Any]) -> None:
    """Refuse a container that crun lets out of the cgroup that it begins in, as an image's annotation can ask."""
    annotations = state.get("annotations")
    if isinstance(annotations, dict) and DELEGATES in annotations:
        raise GpushimError(
            f"the container's annotation {DELEGATES} lets it leave the cgroup that has the limit; leave that out",
            ROOTFS,
        )


def _set(sizes: Sizes, nvml: str, process: str) -> None:
    cgroup = devices.find(process, ("2",)) if process else None
    if cgroup is None:
        raise GpushimError("limits of GPU memory need cgroup v2, which this host does not have", INVENTORY)
    if devices.is_shared(cgroup):
        raise GpushimError(
            f"the container has no cgroup of its own: {cgroup.path} is the engine's too; give it one (no "
            "--cgroups=disabled, no --cgroup-manager=disabled)",
            ROOTFS,
        )
    try:
        leaf = cgroup.open()
    except OSError as error:
        raise GpushimError(f"its cgroup {cgroup.path} cannot be opened: {error.strerror}", ROOTFS) from None
    try:
        if not devices.is_in(process, cgroup):
            raise GpushimError(f"the container's process has left its cgroup {cgroup.path}", ROOTFS)
        unknown = _set_by_kernel(sizes, cgroup, leaf)
        if unknown:
            _set_by_nvml(unknown, nvml, f"/proc/self/fd/{leaf}")
    finally:
        posix.close(leaf)


def _set_by_kernel(sizes: Sizes, cgroup: devices.Cgroup, leaf: int) -> Sizes:
    """Set limits by dmem; return those of GPUs that it does not know."""
    if not _enable(cgroup):
        return sizes
    regions = _values(leaf)
    unknown: Sizes = {}
    for pci, size in sizes.items():
        region = f"nvidia/{pci}/vidmem"
        if region not in regions:
            unknown[pci] = size
            continue
        _write(leaf, "dmem.max", f"{region} {size}")
        limit = _values(leaf).get(region, "")
        if not limit.isdecimal() or int(limit) > size:
            raise GpushimError(
                f"the kernel says {visible(limit)} where {size} bytes of GPU {pci} were set; update the kernel",
                INVENTORY,
            )
    return unknown


def _enable(cgroup: devices.Cgroup) -> bool:
    """Enable dmem in the cgroups above the leaf; return False where the kernel does not have it.

    systemd leaves alone what controllers it does not know, and of its own units it takes none away that is in use.
    """
    above: list[int] = []
    try:
        while len(above) < DEPTH:
            try:
                above.append(cgroup.open(len(above) + 1))
            except OSError:
                break  # what is above the mount is no cgroup
        for directory in reversed(above):
            if CONTROLLER not in _read(directory, "cgroup.controllers").split():
                return False
            if CONTROLLER not in _read(directory, "cgroup.subtree_control").split():
                _write(directory, "cgroup.subtree_control", "+" + CONTROLLER)
        return bool(above)
    finally:
        for directory in above:
            posix.close(directory)


def _values(leaf: int) -> dict[str, str]:
    """Return the limits in dmem.max by region."""
    lines = [line.split() for line in _read(leaf, "dmem.max").splitlines()]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def _read(directory: int, name: str) -> str:
    try:
        fd = posix.open(name, posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=directory)
        try:
            return posix.read(fd, bounds.MOUNT_TABLE).decode("utf-8", "replace")
        finally:
            posix.close(fd)
    except OSError as error:
        if error.errno == ENOENT:
            return ""
        raise GpushimError(f"{name} of a cgroup cannot be read: {error.strerror}", INVENTORY) from None


def _write(directory: int, name: str, text: str) -> None:
    try:
        fd = posix.open(name, posix.O_WRONLY | posix.O_CLOEXEC, dir_fd=directory)
        try:
            posix.write(fd, text.encode())  # one region for each write(2)
        finally:
            posix.close(fd)
    except OSError as error:
        path = posix.readlink(f"/proc/self/fd/{directory}")
        raise GpushimError(f"{text} cannot be written to {path}/{name}: {error.strerror}", INVENTORY) from None


def _set_by_nvml(sizes: Sizes, nvml: str, link: str) -> None:
    """Set limits by a child that asks NVML, which may hang or crash."""
    import contextlib
    import json
    import subprocess
    import sys

    if not nvml:
        raise GpushimError("the kernel has no controller dmem, and this driver has no NVML to ask", INVENTORY)
    paths = [*sys.path, *(path + end for path in sys.path[:2] for end in ("/vendor", "/../vendor"))]
    python = [sys.executable or "/usr/bin/python3", "-IBS", "-c", CHILD, ":".join(paths)]
    words = [nvml, posix.readlink(link), *(f"{pci}={size}" for pci, size in sizes.items())]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    child = subprocess.Popen([*python, *words], stdin=null, stdout=pipe, stderr=pipe, env={})
    try:
        out, err = child.communicate(timeout=NVML_SECONDS)
        error = json.loads(out)["error"]
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, and is left there
            child.communicate(timeout=1)
        error = f"NVML has not answered for {NVML_SECONDS:.0f} s"
    except (ValueError, KeyError, TypeError):
        error = f"NVML ended without an answer ({visible(err.decode('utf-8', 'replace').strip()[-200:])})"
    if error:
        raise GpushimError(visible(str(error)), INVENTORY)


def add_limits(options: Options, spec: dict[str, Any], root: Rootfs, warn: Warn) -> None:
    """Decide the limits of a container that an engine made by a CDI spec: no runtime of ours has seen it.

    Args:
        options: the hook's; gets the limits.
        warn: takes a limit that cannot be kept, where config.toml only wants it.

    Raises:
        GpushimError: a limit cannot be understood, or cannot be kept here.
    """
    try:
        _add_limits(options, spec, root, warn)
    except GpushimError as error:
        if error.exit_code != INVENTORY or options.memory_limits != "wanted":
            raise
        warn("the limit of GPU memory", error)


def _add_limits(options: Options, spec: dict[str, Any], root: Rootfs, warn: Warn) -> None:
    from gpushim.decision import memory
    from gpushim.inventory import ensure
    from gpushim.oci import request
    from gpushim.paths import trust

    state = options.empty.rpartition("/")[0]  # of the refresh that wrote the spec
    inventory: Snapshot = ensure.own(f"{state}/{ensure.SNAPSHOT}") if trust.ours(state) else ensure.NONE
    ignored: list[str] = []
    if inventory.get("form") != ensure.FORM:
        raise GpushimError(
            "the container's GPU memory is limited, and no snapshot tells how; run gpushim refresh, start it again",
            INVENTORY,
        )
    gpus, migs = _granted(spec, root, inventory)
    requested = request.limits_of(spec, inventory["policy"], state, ignored)
    limits = memory.decide(requested, gpus, migs, inventory, ignored)
    for sentence in ignored:
        warn("the limit of GPU memory", GpushimError(sentence))
    options.take(memory.words(limits, inventory, root.path))


def _granted(spec: dict[str, Any], root: Rootfs, inventory: Snapshot) -> tuple[list[Gpu], list[MigInstance]]:
    """Return the GPUs, and the MIG instances, that a container can open: by its rules, and by what is in its /dev."""
    minors = {*dev_links.granted_gpus(spec), *dev_links.gpus(root)}
    unknown = minors - {None} - {gpu["minor"] for gpu in inventory["gpus"]}
    if unknown:
        nodes = ", ".join(f"/dev/nvidia{minor}" for minor in unknown)
        raise GpushimError(
            f"the container's GPU memory is limited, and no snapshot has the GPU of {nodes}; run gpushim refresh, "
            "start it again",
            INVENTORY,
        )
    linux = spec.get("linux")
    devices = linux.get("devices") if isinstance(linux, dict) else None
    paths = {device.get("path") for device in devices or () if isinstance(device, dict)}
    gpus = [gpu for gpu in inventory["gpus"] if not gpu["mig"] and not minors.isdisjoint((gpu["minor"], None))]
    return gpus, [mig for mig in inventory["mig"] if None in minors or paths.issuperset(mig["nodes"])]


def _name(pci: str) -> str:
    """Return a PCI address as the kernel writes it: four digits of domain, more if need be."""
    domain, _, suffix = pci.lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{suffix}"
