"""Compile the simulated driver's libraries and programs with gcc, and keep the results.

A result is named after the hash of its source and command, so a second host costs only copies. 32-bit libraries
are written, not compiled (smallelf.py). For another machine, CC names the compiler, as make has it; what ldconfig and
the kernel say of that machine is not ours.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile

from fakehost import smallelf

SOURCES = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(os.path.dirname(os.path.dirname(SOURCES)), ".cache", "fakehost")
MARK = "# simulated GPU host\n"  # the first line of every table, in files and in libraries
TABLE_SIZE = 65536  # TEXT_SIZE in table.c

NVML = (
    "mig_models.c",
    "mig_nodes.c",
    "nvml.c",
    "nvml_device.c",
    "nvml_events.c",
    "nvml_figures.c",
    "nvml_links.c",
    "nvml_live.c",
    "nvml_mig.c",
    "nvml_mig_change.c",
    "nvml_mig_compute.c",
    "nvml_mig_gpu.c",
    "nvml_mps.c",
    "nvml_smi.c",
    "table.c",
    "table_store.c",
)
CUDA = ("cuda.c", "table.c")

# File name before the driver version, and SONAME; "" where the SONAME is the file name, as the installer has it.
UTILITY = (("libnvidia-cfg.so", "1"),)
COMPUTE = (
    ("libcudadebugger.so", "1"),
    ("libnvidia-opencl.so", "1"),
    ("libnvidia-gpucomp.so", ""),
    ("libnvidia-ptxjitcompiler.so", "1"),
    ("libnvidia-allocator.so", "1"),
    ("libnvidia-pkcs11.so", ""),
    ("libnvidia-pkcs11-openssl3.so", ""),
    ("libnvidia-nvvm.so", "4"),
)
OTHER = (
    ("libnvidia-encode.so", "1"),
    ("libnvcuvid.so", "1"),
    ("libnvidia-opticalflow.so", "1"),
    ("libnvidia-glcore.so", ""),
    ("libnvidia-eglcore.so", ""),
    ("libnvidia-glsi.so", ""),
    ("libnvidia-tls.so", ""),
    ("libnvidia-rtcore.so", ""),
    ("libnvoptix.so", "1"),
    ("libnvidia-fbc.so", "1"),
    ("libGLX_nvidia.so", "0"),
    ("libEGL_nvidia.so", "0"),
    ("libGLESv2_nvidia.so", "2"),
    ("libGLESv1_CM_nvidia.so", "1"),
    ("libnvidia-glvkspirv.so", ""),
    ("libnvidia-vulkan-producer.so", ""),
    ("libnvidia-ngx.so", "1"),
)
# With versions of their own.
OWN_VERSION = (
    ("libnvidia-egl-gbm.so", "1.1.0"),
    ("libnvidia-egl-wayland.so", "1.1.11"),
    ("libnvidia-egl-wayland2.so", "1.0.0"),
    ("libnvidia-egl-xcb.so", "1.0.0"),
    ("libnvidia-egl-xlib.so", "1.0.0"),
)
NVVM, OF_THE_DRIVER = "4.0.0", 495  # libnvidia-nvvm's version, until the driver that gave it its own
# What has no 32-bit edition.
ONLY_64 = (
    *("libcudadebugger.so", "libnvidia-cfg.so", "libnvidia-pkcs11.so", "libnvidia-pkcs11-openssl3.so"),
    *("libnvidia-rtcore.so", "libnvoptix.so", "libnvidia-vulkan-producer.so", "libnvidia-ngx.so"),
)
# The driver's installer leaves a development link for these only.
DEV_LINKS = (
    "libcuda.so",
    "libnvidia-ml.so",
    "libnvidia-cfg.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-allocator.so",
    "libnvidia-nvvm.so",
    "libnvidia-encode.so",
    "libnvcuvid.so",
    "libnvidia-fbc.so",
)
IMEX_PROGRAMS = ("nvidia-imex", "nvidia-imex-ctl")
PROGRAMS = ("nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-server")


@functools.cache  # hosts are made by the thousand
def compiled(cache: str, sources: tuple[str, ...], *flags: str) -> str:
    """Return the path of these sources compiled with these flags.

    Args:
        cache: directory that keeps results.
        sources: file names beside this module.
        flags: gcc's, added to the common ones.

    Raises:
        RuntimeError: the compiler is missing or does not like the source.
    """
    command = [os.environ.get("CC", "gcc"), "-O1", "-Wall", "-fvisibility=hidden", *flags]
    digest = hashlib.sha256("\0".join([*command, *sources]).encode())
    for name in (*sources, "table.h", "nvml.h", "nvml_mig.h"):
        with open(os.path.join(SOURCES, name), "rb") as file:
            digest.update(file.read())
    path = os.path.join(cache, digest.hexdigest()[:32])
    if not os.path.exists(path):
        os.makedirs(cache, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            output = os.path.join(scratch, "out")
            _run([*command, "-o", output, *(os.path.join(SOURCES, name) for name in sources)])
            os.rename(output, path)
    return path


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(f"the simulated host needs {command[0]}, and it is not installed") from None
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")


def install_libraries(directory: str, driver: str, cache: str, complete: bool) -> None:
    """Put the driver's libraries and their links into `directory`, as the driver's installer leaves them."""
    os.makedirs(directory, exist_ok=True)
    for stem, number in (*UTILITY, *COMPUTE, *OTHER):
        version = NVVM if stem == "libnvidia-nvvm.so" and int(driver.split(".")[0]) < OF_THE_DRIVER else driver
        _library(directory, stem, number, version, cache, ("stub.c",), "-nostdlib")
    _library(directory, "libnvidia-ml.so", "1", driver, cache, NVML, "-Wl,-z,defs")
    _library(directory, "libcuda.so", "1", driver, cache, CUDA, "-Wl,-z,defs")
    for stem, version in OWN_VERSION:
        _library(directory, stem, "1", version, cache, ("stub.c",), "-nostdlib")
    if complete:
        _library(directory, "libnvidia-nvvm70.so", "", "4", cache, ("stub.c",), "-nostdlib")
    vdpau = os.path.join(directory, "vdpau")
    os.makedirs(vdpau, exist_ok=True)
    _library(vdpau, "libvdpau_nvidia.so", "1", driver, cache, ("stub.c",), "-nostdlib")
    os.makedirs(os.path.join(directory, "gbm"), exist_ok=True)
    link("../libnvidia-allocator.so.1", os.path.join(directory, "gbm/nvidia-drm_gbm.so"))
    link(f"libGLX_nvidia.so.{driver}", os.path.join(directory, "libGLX_indirect.so.0"))
    _install_xorg(os.path.join(directory, "xorg/modules"), driver, cache)


def _install_xorg(modules: str, driver: str, cache: str) -> None:
    for folder, stem, file in (
        ("drivers", "nvidia_drv.so", "nvidia_drv.so"),
        ("extensions", "libglxserver_nvidia.so", f"libglxserver_nvidia.so.{driver}"),
    ):
        os.makedirs(os.path.join(modules, folder), exist_ok=True)
        built = compiled(cache, ("stub.c",), "-fPIC", "-shared", f"-Wl,-soname,{file}", "-nostdlib")
        place(built, os.path.join(modules, folder, file), 0o644)
        if stem != file:
            link(file, os.path.join(modules, folder, stem))


def install_libraries32(directory: str, driver: str) -> None:
    """Put the 32-bit editions and their links into `directory`."""
    os.makedirs(os.path.join(directory, "vdpau"), exist_ok=True)
    both = [("libnvidia-ml.so", "1"), ("libcuda.so", "1"), ("vdpau/libvdpau_nvidia.so", "1"), *COMPUTE, *OTHER]
    for path, number in both:
        stem = os.path.basename(path)
        if stem in ONLY_64:
            continue
        soname = f"{stem}.{number}" if number else f"{stem}.{driver}"
        file = os.path.join(directory, f"{path}.{driver}")
        with open(file + ".new", "wb") as output:
            output.write(smallelf.library("i386", soname))
        os.rename(file + ".new", file)
        if number:
            link(os.path.basename(file), os.path.join(os.path.dirname(file), soname))


def _library(
    directory: str, stem: str, number: str, version: str, cache: str, sources: tuple[str, ...], *flags: str
) -> None:
    name = f"{stem}.{version}"
    soname = f"{stem}.{number}" if number else name
    built = compiled(cache, sources, "-fPIC", "-shared", f"-Wl,-soname,{soname}", *flags)
    place(built, os.path.join(directory, name), 0o644)
    if number:
        link(name, os.path.join(directory, soname))
    if stem in DEV_LINKS:
        link(soname, os.path.join(directory, stem))


def install_programs(directory: str, cache: str, complete: bool) -> None:
    """Put nvidia-smi and the small programs into `directory`."""
    os.makedirs(directory, exist_ok=True)
    for name, source in (("nvidia-smi", "smi.c"), ("nvidia-cuda-mps-control", "mps.c")):
        place(compiled(cache, (source,)), os.path.join(directory, name), 0o755)
    for name in (*PROGRAMS, *(IMEX_PROGRAMS if complete else ())):
        place(compiled(cache, ("tool.c",)), os.path.join(directory, name), 0o755)


def place(source: str, path: str, mode: int) -> None:
    """Copy a file to `path` as a new file, so that whoever has the old one open keeps it."""
    shutil.copyfile(source, path + ".new")
    os.chmod(path + ".new", mode)
    os.rename(path + ".new", path)


def link(target: str, path: str) -> None:
    """Make `path` a symbolic link to `target`, replacing what was there."""
    os.symlink(target, path + ".new")
    os.rename(path + ".new", path)


def bake(path: str, text: str) -> None:
    """Write `text` over the table compiled into the library at `path`, keeping its inode.

    Args:
        path: a libnvidia-ml or libcuda made by `install_libraries`.
        text: the new table; starts with MARK, at most 64 KiB with its closing NUL.

    Raises:
        ValueError: the text does not fit.
    """
    data = text.encode()
    if len(data) >= TABLE_SIZE:
        raise ValueError("the table of GPUs is larger than the libraries have room for")
    with open(path, "r+b") as file:
        file.seek(file.read().index(MARK.encode()))
        file.write(data.ljust(TABLE_SIZE, b"\0"))
