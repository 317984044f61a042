"""The simulated host's directories: proc, sys, dev, firmware, sockets, loader cache.

Every file has the form that the driver or the kernel gives it. Out of scope: libraries and programs
(compiled.py) and what the host says about itself (fakehost.conf, host.py).
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import stat
import subprocess
import threading
import uuid
from collections.abc import Iterable

from fakehost.gpus import COMPUTES, INSTANCES, Gpu, ci_cap, gi_cap

NVIDIA_MAJOR, MODESET_MINOR, CTL_MINOR = 195, 254, 255
CAPS_IMEX_MAJOR, DRM_MAJOR = 236, 226
MIG_MINORS_GPUS = 32  # the driver lists this many, whatever is plugged in
FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Write a whole file under a new inode, making its directories."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        fd = os.open(path + ".new", flags)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path + ".new", flags)
    try:
        os.write(fd, text.encode())
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
    os.rename(path + ".new", path)


def lay_out(root: str) -> None:
    """Make the directories and links that every merged-usr Debian has."""
    for name in ("bin", "lib", "lib64", "sbin"):
        os.makedirs(f"{root}/usr/{name}", exist_ok=True)
        if not os.path.lexists(f"{root}/{name}"):
            os.symlink(f"usr/{name}", f"{root}/{name}")
    for name in ("dev", "etc", "proc", "run", "sys", "tmp", "var"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    if not os.path.lexists(f"{root}/var/run"):
        os.symlink("/run", f"{root}/var/run")


def write_firmware(directory: str, driver: str) -> None:
    """Put the two GSP images where the kernel looks for them."""
    for name in FIRMWARE:
        write(f"{directory}/nvidia/{driver}/{name}", f"simulated {name} {driver}\n")


def write_socket(directory: str, name: str = "socket") -> None:
    """Leave a real socket inode behind, as a running nvidia-persistenced has; nobody listens."""
    os.makedirs(directory, exist_ok=True)
    remove(f"{directory}/{name}")
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:  # by way of the descriptor: a socket's address has room for 107 bytes only
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)


def write_mps(root: str) -> None:
    """Leave behind what a running MPS control daemon has in its directory."""
    write(f"{root}/run/nvidia-mps/nvidia-cuda-mps-control.pid", "4242\n")
    write_socket(f"{root}/run/nvidia-mps", "control")


def write_loader_cache(root: str, libdirs: Iterable[str]) -> None:
    """Let the real ldconfig write etc/ld.so.cache, with paths as seen inside the root.

    Raises:
        RuntimeError: ldconfig fails.
    """
    write(f"{root}/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    write(f"{root}/etc/ld.so.conf.d/fakehost.conf", "".join(f"/{libdir}\n" for libdir in libdirs))
    command = ["/sbin/ldconfig", "-i", "-r", root]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")


def write_proc(
    root: str,
    gpus: Iterable[Gpu],
    driver: str,
    module: str,
    majors: dict[str, int],
    files: tuple[int, int, int, int],
    kept: Iterable[str] = (),
) -> None:
    """Write proc/driver/nvidia, proc/driver/nvidia-caps, proc/devices and proc/modules again.

    Args:
        root: the host's.
        gpus: those plugged in.
        driver: version of the libraries.
        module: version of the kernel module.
        majors: of drivers with a dynamic one.
        files: the module's parameters about nodes: whether to modify them, uid, gid, mode.
        kept: places of MIG instances that are the same as before, below proc/driver/nvidia/capabilities.
    """
    modify, uid, gid, mode = files
    base = f"{root}/proc/driver/nvidia"
    _clear(base, {f"capabilities/{place}" for place in kept})
    write_version(root, module)
    write(
        f"{base}/params",
        f"ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: {modify}\nDeviceFileUID: {uid}\n"
        f"DeviceFileGID: {gid}\nDeviceFileMode: {mode}\nInitializeSystemMemoryAllocations: 1\n"
        'UsePageAttributeTable: 4294967295\nEnableMSI: 1\nRegistryDwords: ""\n',
    )
    write(f"{base}/registry", 'Binary: ""\n')
    _write_capability(f"{base}/capabilities/mig/config", 1, 0o400)
    _write_capability(f"{base}/capabilities/mig/monitor", 2, 0o444)
    os.makedirs(f"{base}/gpus", exist_ok=True)
    for gpu in gpus:
        _write_gpu(base, gpu, driver)
    write(f"{root}/proc/driver/nvidia-caps/mig-minors", _mig_minors())
    write(f"{root}/proc/devices", _devices(module, majors))
    write(
        f"{root}/proc/modules",
        "nvidia_uvm 1531904 0 - Live 0x0000000000000000 (POE)\n"
        "nvidia_modeset 1318912 0 - Live 0x0000000000000000 (POE)\n"
        "nvidia 56840192 2 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (POE)\n",
    )


def write_version(root: str, module: str) -> None:
    """Write what the loaded kernel module says of itself, in proc and in sys."""
    write(
        f"{root}/proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {module}  Sun May 12 19:39:15 UTC 2024\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14) \n",
    )
    write(f"{root}/sys/module/nvidia/version", f"{module}\n")


def _write_gpu(base: str, gpu: Gpu, driver: str) -> None:
    write(
        f"{base}/gpus/{gpu.pci}/information",
        f"Model: \t\t {gpu.model}\nIRQ:   \t\t {130 + gpu.index}\nGPU UUID: \t {gpu.uuid}\n"
        "Video BIOS: \t 92.00.45.00.03\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n"
        f"DMA Mask: \t 0x7fffffffffff\nBus Location: \t {gpu.pci}\nDevice Minor: \t {gpu.minor}\n"
        f"GPU Firmware: \t {driver}\nGPU Excluded:\t No\n",
    )
    write(f"{base}/gpus/{gpu.pci}/registry", 'Binary: ""\n')
    if gpu.mig_mode is None:
        return
    mig = f"{base}/capabilities/gpu{gpu.minor}/mig"
    os.makedirs(mig, exist_ok=True)
    for gi in {instance.gi for instance in gpu.instances}:
        if not os.path.isdir(f"{mig}/gi{gi}"):
            _write_capability(f"{mig}/gi{gi}/access", gi_cap(gpu.minor, gi), 0o444)
    for device in gpu.mig:
        instance = f"{mig}/gi{device.gi}"
        if os.path.isdir(f"{instance}/ci{device.ci}"):
            continue  # it has been there all the time
        _write_capability(f"{instance}/access", gi_cap(gpu.minor, device.gi), 0o444)
        cap = ci_cap(gpu.minor, device.gi, device.ci)
        _write_capability(f"{instance}/ci{device.ci}/access", cap, 0o444)


def _clear(base: str, kept: set[str]) -> None:
    """Remove what is in a directory but for these places in it, which stay what they are, as entries of /proc do."""
    for folder, folders, names in os.walk(base, topdown=False):
        below = folder[len(base) + 1 :]
        if any(place == below or below.startswith(place + "/") for place in kept):
            continue
        for name in names:
            if not (name == "access" and any(place.startswith(below + "/") for place in kept)):
                os.unlink(f"{folder}/{name}")
        for name in folders:
            if not any(f"{place}/".startswith(f"{below}/{name}/".lstrip("/")) for place in kept):
                shutil.rmtree(f"{folder}/{name}")


def _write_capability(path: str, minor: int, mode: int) -> None:
    write(path, f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n", mode)


@functools.cache
def _mig_minors() -> str:
    lines = ["config 1", "monitor 2"]
    for minor in range(MIG_MINORS_GPUS):
        for gi in range(INSTANCES):
            lines.append(f"gpu{minor}/gi{gi}/access {gi_cap(minor, gi)}")
            lines += [f"gpu{minor}/gi{gi}/ci{ci}/access {ci_cap(minor, gi, ci)}" for ci in range(COMPUTES)]
    return "".join(line + "\n" for line in lines)


def _devices(module: str, majors: dict[str, int]) -> str:
    # Up to branch 535 the module registered one front end for every minor of its major.
    first = ["nvidia-frontend"] if int(module.split(".")[0]) <= 535 else ["nvidia", "nvidia-modeset", "nvidiactl"]
    lines = [(1, "mem"), (5, "/dev/tty"), (136, "pts"), (DRM_MAJOR, "drm"), *((NVIDIA_MAJOR, name) for name in first)]
    lines += [(major, name) for name, major in majors.items()]
    characters = "".join(f"{major:3d} {name}\n" for major, name in sorted(lines))
    return f"Character devices:\n{characters}\nBlock devices:\n  8 sd\n259 blkext\n"


def bind(root: str, gpus: Iterable[Gpu], again: Iterable[str]) -> None:
    """Bring the driver's bindings in line with the GPUs.

    sysfs gives no inode number twice, so what goes is only put aside: its number stays taken.

    Args:
        root: the host's.
        gpus: those that the driver is bound to.
        again: bus ids of those among them that were unbound meanwhile.
    """
    base, aside = f"{root}/sys/bus/pci/drivers/nvidia", f"{root}/usr/lib/fakehost/unbound"
    os.makedirs(base, exist_ok=True)
    os.makedirs(aside, exist_ok=True)
    wanted = {gpu.pci for gpu in gpus}
    for name in set(os.listdir(base)) - (wanted - set(again)):
        os.rename(f"{base}/{name}", f"{aside}/{uuid.uuid4()}")
    for name in wanted - set(os.listdir(base)):
        os.symlink(f"../../../../bus/pci/devices/{name}", f"{base}/{name}")


def write_sys(root: str, gpus: Iterable[Gpu]) -> None:
    """Write sys/bus/pci/devices again, links into sys/devices."""
    base, devices = f"{root}/sys/bus/pci/devices", f"{root}/sys/devices"
    for folder in (base, devices):
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(base)
    for gpu in gpus:
        os.makedirs(f"{devices}/{gpu.pcie_root}/{gpu.pci}")
        os.symlink(f"../../../devices/{gpu.pcie_root}/{gpu.pci}", f"{base}/{gpu.pci}")
        write(f"{base}/{gpu.pci}/vendor", "0x10de\n")
        write(f"{base}/{gpu.pci}/device", f"0x{gpu.device_id:04x}\n")
        write(f"{base}/{gpu.pci}/class", f"{gpu.pci_class}\n")
        write(f"{base}/{gpu.pci}/numa_node", f"{gpu.numa}\n")


def nodes(gpus: Iterable[Gpu], majors: dict[str, int], imex: int) -> dict[str, tuple[int, int]]:
    """Return major and minor of every device node, by name below dev/."""
    found = {
        "nvidiactl": (NVIDIA_MAJOR, CTL_MINOR),
        "nvidia-modeset": (NVIDIA_MAJOR, MODESET_MINOR),
        "nvidia-uvm": (majors["nvidia-uvm"], 0),
        "nvidia-uvm-tools": (majors["nvidia-uvm"], 1),
    }
    caps = {1, 2}
    for gpu in gpus:
        found[f"nvidia{gpu.minor}"] = (NVIDIA_MAJOR, gpu.minor)
        caps |= {gi_cap(gpu.minor, instance.gi) for instance in gpu.instances}
        for mig in gpu.mig:
            caps |= {gi_cap(gpu.minor, mig.gi), ci_cap(gpu.minor, mig.gi, mig.ci)}
    for minor in caps:
        found[f"nvidia-caps/nvidia-cap{minor}"] = (majors["nvidia-caps"], minor)
    for channel in range(imex):
        found[f"nvidia-caps-imex-channels/channel{channel}"] = (CAPS_IMEX_MAJOR, channel)
    return found


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    if os.path.lexists(path):
        os.unlink(path)


def make_node(path: str, major: int, minor: int, mode: int, uid: int, gid: int) -> None:
    """Make one character device with exactly this mode and owner; one that is right is not touched.

    Raises:
        RuntimeError: the file system or our rights do not allow device nodes.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    wanted = (stat.S_IFCHR | mode, os.makedev(major, minor), uid, gid)
    if os.path.lexists(path):
        found = os.lstat(path)
        if (found.st_mode, found.st_rdev, found.st_uid, found.st_gid) == wanted:
            return
    if os.statvfs(os.path.dirname(path)).f_flag & os.ST_NODEV:
        raise RuntimeError(f"{path}: this file system is mounted nodev; build the host elsewhere")
    made = f"{path}.{os.getpid()}.{threading.get_ident()}"  # a refresh may be making the node itself just now
    try:
        os.mknod(made, stat.S_IFCHR | mode, os.makedev(major, minor))
    except PermissionError:
        raise RuntimeError(f"{path}: making a device node needs root") from None
    os.chown(made, uid, gid)
    os.chmod(made, mode)  # mknod's own is cut down by the umask
    os.rename(made, path)
