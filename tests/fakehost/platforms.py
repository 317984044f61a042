"""Turn a simulated host into one of another platform: WSL2, a Jetson with its CSV files, a Grace-Hopper.

Made from published listings of such systems; the libraries are those of the simulated driver under other names.
Out of scope: anything that the inventory does not look at.
"""

from __future__ import annotations

import os
import shutil

from fakehost import compiled, tree
from fakehost.host import Host

ATS = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS: the GPU reads page tables of the processor
DXG = (10, 61)  # major, minor; the latter is dynamic
WSL_LIB = "/usr/lib/wsl/lib"
STORE = "/usr/lib/wsl/drivers/nvlti.inf_amd64_9a2c79b60d6607c6"
OTHER_STORE = "/usr/lib/wsl/drivers/iigd_dch.inf_amd64_73655f941b1dd71f"
# Windows shows copies where a driver for Linux has links; name there: the simulated driver's.
WSL_LIBRARIES = {
    "libcuda.so": "libcuda.so",
    "libcuda.so.1": "libcuda.so",
    "libcuda.so.1.1": "libcuda.so",
    "libnvidia-ml.so.1": "libnvidia-ml.so",
    "libnvcuvid.so.1": "libnvcuvid.so",
    "libnvidia-encode.so.1": "libnvidia-encode.so",
    "libnvidia-opticalflow.so.1": "libnvidia-opticalflow.so",
    "libnvoptix.so.1": "libnvoptix.so",
}
STORED = {
    "libcuda.so.1.1": "libcuda.so",
    "libcuda_loader.so": "libcuda.so",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so",
    "libnvidia-ml.so.1": "libnvidia-ml.so",
    "libnvidia-ml_loader.so": "libnvidia-ml.so",
}
CSV = "/etc/nvidia-container-runtime/host-files-for-container.d"
TEGRA_LIB = "/usr/lib/aarch64-linux-gnu/tegra"
TEGRA_NODES = {"nvhost-ctrl": (500, 0), "nvmap": (10, 60), "nvhost-gpu": (501, 7), "dri/card0": (226, 0)}
TEGRA_LIBRARIES = {
    "libcuda.so.1.1": "libcuda.so",
    "libnvidia-ptxjitcompiler.so.35.4.1": "libnvidia-ptxjitcompiler.so",
    "libnvidia-eglcore.so.35.4.1": "libnvidia-eglcore.so",
}


def to_wsl(host: Host, cache: str = compiled.CACHE) -> None:
    """Make a WSL2 system of a host; the nodes of its GPUs and a word in proc stay, which the simulated NVML asks."""
    _forget_driver(host)
    tree.write_version(host.root, host.module_version)
    _copies(host, WSL_LIB, WSL_LIBRARIES)
    _copies(host, STORE, STORED)
    flags = ("-fPIC", "-shared", "-nostdlib")
    for name in ("libdxcore.so", "libd3d12.so"):
        built = compiled.compiled(cache, ("stub.c",), *flags, f"-Wl,-soname,{name}")
        compiled.place(built, f"{host.root}{WSL_LIB}/{name}", 0o555)
    tree.write(f"{host.root}{STORE}/nvcubins.bin", "simulated cubins\n")
    tree.write(f"{host.root}{OTHER_STORE}/igc64.so", "another vendor's\n")
    for folder in (WSL_LIB, STORE):
        shutil.move(shutil.copy2(f"{host.root}/usr/bin/nvidia-smi", host.root), f"{host.root}{folder}/nvidia-smi")
    _drop_libraries(host)
    tree.make_node(host.node("dxg"), *DXG, 0o666, 0, 0)


def to_tegra(host: Host) -> None:
    """Make a Jetson of a host."""
    _forget_driver(host)
    _copies(host, TEGRA_LIB, TEGRA_LIBRARIES)
    _drop_libraries(host)
    tree.write(f"{host.root}/etc/nv_tegra_release", "# R35 (release), REVISION: 4.1, BOARD: t186ref\n")
    tree.write(f"{host.root}/proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
    tree.write(f"{host.root}/etc/vulkan/nvidia_icd.json", "{}\n")
    tree.write(f"{host.root}/lib/firmware/ga10b/gpu.bin", "simulated firmware\n")
    os.symlink("libcuda.so.1.1", f"{host.root}{TEGRA_LIB}/libcuda.so")
    os.symlink("tegra/libcuda.so", f"{host.root}{os.path.dirname(TEGRA_LIB)}/libcuda.so")
    for name in os.listdir(f"{host.root}/dev"):
        if name.startswith("nvidia"):
            path = host.node(name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    for name, number in TEGRA_NODES.items():
        tree.make_node(host.node(name), *number, 0o660, 0, 44)
    devices = ["dev, /dev/nvhost-ctrl", "dev, /dev/nvmap", "dev, /dev/nvhost-gpu", "dev, /dev/nvhost-vic"]
    tree.write(f"{host.root}{CSV}/devices.csv", "\n".join([*devices, "dev, /dev/dri/card*"]) + "\n")
    drivers = ["# made by nvidia-l4t-init", "", "dir, /lib/firmware/ga10b", "lib, /etc/vulkan/nvidia_icd.json"]
    drivers += [f"lib, {TEGRA_LIB}/{name}" for name in TEGRA_LIBRARIES]
    drivers += [f"lib, {TEGRA_LIB}/libnvdla_of_other_boards.so", f"sym, {TEGRA_LIB}/libcuda.so"]
    drivers += [f"sym, {os.path.dirname(TEGRA_LIB)}/libcuda.so"]
    tree.write(f"{host.root}{CSV}/drivers.csv", "\n".join(drivers) + "\n")
    tree.write(f"{host.root}{CSV}/cudnn.csv", "lib, /etc/fakehost.conf\n")


def to_grace(host: Host) -> None:
    """Make a Grace-Hopper of a host whose GPUs are like GH200: open kernel modules, memory that all address."""
    for gpu in host.gpus:
        host.figure(gpu.index, addressing=ATS)
    builder = "Release Build  (builder@host)  Tue Apr  9 18:10:35 UTC 2024"
    words = f"NVIDIA UNIX Open Kernel Module for aarch64  {host.module_version}  {builder}"
    lines = f"NVRM version: {words}\nGCC version:  gcc version 12.2.0\n"
    tree.write(f"{host.root}/proc/driver/nvidia/version", lines)


def _forget_driver(host: Host) -> None:
    for folder in ("proc/driver", "sys/module/nvidia", "lib/firmware/nvidia", "run/nvidia-persistenced"):
        shutil.rmtree(f"{host.root}/{folder}")


def _copies(host: Host, folder: str, names: dict[str, str]) -> None:
    os.makedirs(f"{host.root}{folder}", exist_ok=True)
    for name, stem in names.items():
        compiled.place(f"{host.lib_path}/{stem}.{host.driver}", f"{host.root}{folder}/{name}", 0o555)


def _drop_libraries(host: Host) -> None:
    shutil.rmtree(host.lib_path)
    os.unlink(f"{host.root}/usr/bin/nvidia-smi")
    tree.write_loader_cache(host.root, (host.libdir,))
