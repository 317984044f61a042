"""Debian's packages of the driver, and the files of theirs that are left out."""

from __future__ import annotations

LEFT_OUT = {
    "/etc/nvidia/*/nvidia-blacklists-nouveau.conf": "a setting of modprobe's",
    "/etc/nvidia/*/nvidia-load.conf": "a setting of modprobe's",
    "/etc/nvidia/*/nvidia-modprobe.conf": "a setting of modprobe's",
    "/etc/nvidia/*/nvidia-options.conf": "a setting of modprobe's",
    "/usr/lib/systemd/*": "the host's services",
    "/usr/bin/nvidia-sleep.sh": "suspends the host",
    "/usr/sbin/nvidia-powerd": "a service of the host's",
    "/usr/bin/nvidia-detect": "tells which package a host needs",
    "*.ids": "which package is for which GPU",
    "*/nvidia-bug-report.sh": "reads the host's logs",
    "*/libOpenCL.so.1.0.0": "dispatches to any driver: an image has its own",
    "*/libGL.so.*": "of before GLVND: it replaces the image's own",
    "*/libEGL.so.*": "of before GLVND: it replaces the image's own",
}
