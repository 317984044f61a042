"""The paths of gpushim's configuration and state on this system, and this boot.

On the create path: imports only `posix`, `time` and the error.
"""

from __future__ import annotations

import posix
import time

from gpushim.ground.errors import CONFIG, GpushimError

CONFIG_FILE = "/etc/gpushim/config.toml"
STATE_DIR = "/run/gpushim"
LASTING_DIR = "/var/lib/gpushim"  # for what outlives a boot
SYSTEMD = "/run/systemd/system"  # exists where systemd is process 1 (sd_booted(3))
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def config_path() -> str:
    """Return the path of config.toml: GPUSHIM_CONFIG, which must be absolute, or the one in /etc."""
    return _from_environment(b"GPUSHIM_CONFIG", CONFIG_FILE)


def state_dir() -> str:
    """Return the directory of the snapshot: GPUSHIM_STATE (tests, rootless use; absolute), or the one in /run."""
    return _from_environment(b"GPUSHIM_STATE", STATE_DIR)


def boot() -> str | None:
    return text(BOOT_ID, 64)


def clock() -> float:
    """Return the seconds since boot, suspends included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _from_environment(name: bytes, default: str) -> str:
    value = posix.environ.get(name)
    if not value:
        return default
    if not value.startswith(b"/"):
        raise GpushimError(
            f"{str(name, 'ascii')} is {ascii(value)[1:]}, which is not an absolute path; begin it with /", CONFIG
        )
    return str(value, "utf-8", "surrogateescape")


def text(path: str, limit: int) -> str | None:
    """Read the first bytes of a small file of the kernel's; None if it cannot be read."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        return str(posix.read(fd, limit), "latin-1")
    except OSError:
        return None
    finally:
        posix.close(fd)
