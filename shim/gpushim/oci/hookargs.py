"""The options of `gpushim-hook prestart`: one table for all code that writes, parses, moves, shows or explains them.

On the create path and the hook path: imports nothing.
"""

from __future__ import annotations

HOST, CONTAINER = "host", "container"

# Forms of values, as the usage shows them, and the kinds of the paths in them: after "=", if any, separated by "::".
FORMS: dict[str, tuple[str, ...]] = {
    "DIR": (HOST,),
    "FILE": (HOST,),
    "VERSION": (),
    "REASON": (),
    "MASK": (),
    "MINOR=PCINAME": (),
    "MINOR=INODE": (),
    "SONAME=PATH": (CONTAINER,),
    "TARGET::PATH": (CONTAINER, CONTAINER),
    "TARGET::NODE": (CONTAINER, CONTAINER),
    "SOURCE::PATH": (HOST, CONTAINER),
    "SOURCE::MOUNT": (HOST, CONTAINER),
    "PCINAME=BYTES": (),
    "WORD": (),
}
# The form of an option's value, and its name where `gpushim explain` counts such values, else "".
# An option whose value has two parts may be repeated.
OPTIONS: dict[str, tuple[str, str]] = {
    "--rootfs": ("DIR", ""),
    "--log": ("FILE", ""),
    "--lib": ("SONAME=PATH", "libraries linked by SONAME and named to the loader"),
    "--lib32": ("SONAME=PATH", "32-bit libraries linked by SONAME and named to the loader"),
    "--link": ("TARGET::PATH", "links"),
    "--node-link": ("TARGET::NODE", "links to device nodes"),
    "--driver": ("VERSION", ""),  # the host's, if a newer libcuda of the image's own may be used
    "--cuda": ("VERSION", ""),  # of that driver
    "--own-libcuda": ("REASON", ""),  # why a newer libcuda of the image's own may not be used, for the log
    "--profile-mask": ("MASK", ""),  # bit n: the container's displays may use the GPU with minor number n
    "--cover": ("SOURCE::PATH", "paths of /proc/driver/nvidia covered"),
    "--gpu": ("MINOR=PCINAME", ""),  # name below /proc/driver/nvidia/gpus
    "--bound": ("MINOR=INODE", ""),  # of the GPU's binding to the driver, when it had that minor number
    "--bindings": ("DIR", ""),  # of sysfs, which has these bindings by PCINAME
    "--empty": ("DIR", ""),
    "--mount": ("SOURCE::MOUNT", "files mounted by the hook"),
    "--socket": ("SOURCE::MOUNT", "sockets of services, mounted by the hook if they are there"),
    "--memory": ("PCINAME=BYTES", "limits of GPU memory"),
    "--memory-limits": ("WORD", ""),  # as in [requests] of config.toml
    "--memory-every": ("WORD", ""),  # in a CDI spec: config.toml limits containers that ask for no limit, too
    "--nvml": ("FILE", ""),  # for limits that only the driver can keep
    "--mounted": ("SOURCE::MOUNT", "mounts looked for on the host"),  # where a volume can carry them there
}


def words(option: str, *parts: str) -> list[str]:
    return [option, ("=" if "=" in OPTIONS[option][0] else "::").join(parts)]
