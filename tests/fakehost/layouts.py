"""Where distributions keep a driver's files, and the files that are neither libraries nor programs.

debian      Debian and Ubuntu, also NVIDIA's installer there
rhel        RHEL, Fedora, SUSE: 64-bit libraries in /usr/lib64, 32-bit ones in /usr/lib
nixos       all in a store; links to it below /run/opengl-driver and /run/current-system; no ld.so.cache
container   a driver container that has not run ldconfig; the kernel was told where its firmware is

Out of scope: the libraries and programs themselves (compiled.py).
"""

from __future__ import annotations

import json
import os

from fakehost import tree

LIBDIRS = {
    "debian": "usr/lib/x86_64-linux-gnu",
    "rhel": "usr/lib64",
    "nixos": "nix/store/q8xk3v7m-nvidia-x11-{driver}/lib",
    "container": "usr/lib/x86_64-linux-gnu",
}
GRAPHICS = "nix/store/4gyz1n2c-graphics-drivers"
GRAPHICS32 = "nix/store/9w0pb6ra-graphics-drivers-32"
WITHOUT_CACHE = ("nixos", "container")
EGL_PLATFORMS = (
    ("09_nvidia_wayland2", "libnvidia-egl-wayland2.so.1"),
    ("10_nvidia_wayland", "libnvidia-egl-wayland.so.1"),
    ("15_nvidia_gbm", "libnvidia-egl-gbm.so.1"),
    ("20_nvidia_xcb", "libnvidia-egl-xcb.so.1"),
    ("20_nvidia_xlib", "libnvidia-egl-xlib.so.1"),
)


def libdir32(libdir: str) -> str:
    """Return where 32-bit libraries are on a host that has the 64-bit ones in `libdir`."""
    if libdir.startswith("nix/"):
        return os.path.dirname(libdir) + "-lib32/lib"
    return {"usr/lib/x86_64-linux-gnu": "usr/lib/i386-linux-gnu", "usr/lib64": "usr/lib"}.get(libdir, "usr/lib32")


def bindir(layout: str, libdir: str) -> str:
    """Return where the programs are."""
    return os.path.dirname(libdir) + "-bin/bin" if layout == "nixos" else "usr/bin"


def firmware(layout: str) -> str:
    """Return where the firmware is."""
    return "run/current-system/firmware" if layout == "nixos" else "lib/firmware"


def write_firmware_path(root: str, layout: str) -> None:
    """Write the directory that the kernel was told to look for firmware in, if it was."""
    path = {"nixos": "/run/current-system/firmware", "container": f"{root}/lib/firmware"}.get(layout, "")
    tree.write(f"{root}/sys/module/firmware_class/parameters/path", path + "\n")


def write_data(root: str, layout: str, libdir: str, complete: bool) -> None:
    """Write what graphics and display need beside libraries, and GPUDirect Storage's configuration."""
    share = f"{os.path.dirname(libdir)}/share" if layout == "nixos" else "usr/share"
    etc = f"{os.path.dirname(libdir)}/etc" if layout == "nixos" else "etc"
    vulkan = f"{root}/{etc if layout == 'debian' else share}/vulkan"
    name = "nvidia_icd.json" if layout == "debian" else "nvidia_icd.x86_64.json"
    for icd in (name, "nvidia_icd.i686.json"):
        _icd(f"{vulkan}/icd.d/{icd}", "libGLX_nvidia.so.0", api_version="1.3.242")
    layer = {"name": "VK_LAYER_NV_optimus", "type": "INSTANCE", "library_path": "libGLX_nvidia.so.0"}
    layers = json.dumps({"file_format_version": "1.0.0", "layer": layer})
    tree.write(f"{vulkan}/implicit_layer.d/nvidia_layers.json", layers)
    _icd(f"{root}/{share}/glvnd/egl_vendor.d/10_nvidia.json", "libEGL_nvidia.so.0")
    for platform, soname in EGL_PLATFORMS:
        _icd(f"{root}/{share}/egl/egl_external_platform.d/{platform}.json", soname)
    tree.write(f"{root}/{share}/nvidia/nvoptix.bin", "simulated weights of OptiX's denoiser\n")
    if layout != "nixos":  # its X server is told by a generated xorg.conf
        match = '  Identifier "nvidia"\n  MatchDriver "nvidia-drm"\n  Driver "nvidia"\n'
        output = f'Section "OutputClass"\n{match}EndSection\n'
        tree.write(f"{root}/{share}/X11/xorg.conf.d/nvidia-drm-outputclass.conf", output)
        tree.write(f"{root}/etc/X11/xorg.conf.d/10-nvidia.conf", output)
    if complete:
        tree.write(f"{root}/{etc}/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
    tree.write(f"{root}/etc/cufile.json", json.dumps({"logging": {"level": "ERROR"}}))
    os.makedirs(f"{root}/run/udev/data", exist_ok=True)


def _icd(path: str, library: str, **more: str) -> None:
    icd = {"file_format_version": "1.0.0", "ICD": {"library_path": library, **more}}
    tree.write(path, json.dumps(icd, indent=4) + "\n")


def link_store(root: str, libdir: str) -> None:
    """Make what NixOS shows of its store: /run/opengl-driver, and the system's programs."""
    package = os.path.dirname(libdir)
    for name, package32 in ((GRAPHICS, ""), (GRAPHICS32, "-lib32")):
        for folder in ("lib", "share", "etc"):
            _mirror(root, f"{package}{package32}/{folder}", f"{name}/{folder}")
    for name, link in ((GRAPHICS, "opengl-driver"), (GRAPHICS32, "opengl-driver-32")):
        if not os.path.lexists(f"{root}/run/{link}"):
            os.symlink(f"/{name}", f"{root}/run/{link}")
    _mirror(root, f"{package}-bin/bin", "run/current-system/sw/bin")


def _mirror(root: str, source: str, target: str) -> None:
    """Fill a directory with links to another's files, as buildEnv does."""
    for folder, _, names in os.walk(f"{root}/{source}"):
        below = os.path.relpath(folder, f"{root}/{source}")
        place = os.path.normpath(f"{root}/{target}/{below}")
        os.makedirs(place, exist_ok=True)
        for name in names:
            if not os.path.lexists(f"{place}/{name}"):
                os.symlink(os.path.normpath(f"/{source}/{below}/{name}"), f"{place}/{name}")
