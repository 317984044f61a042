"""Programs that may be executed: in a few directories, where nobody but root or the caller could have put them.

No path that a process, a settings file or an image names is ever executed, and where root runs this, none that a
variable names. Out of scope: what is asked of them; the low-level runtime, which the configuration names (policy.py).
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from gpushim.config.policy import ENGINES, SYSTEM_PATH
from gpushim.ground.errors import GpushimError
from gpushim.paths import host_files

if TYPE_CHECKING:
    from gpushim.engines.processes.running import Engine

# Beside the system's: snaps, Flatcar, and k3s, rke2 and k0s, which bring a containerd of their own.
DIRECTORIES = (
    *SYSTEM_PATH.split(":"),
    "/snap/bin",
    "/var/lib/snapd/snap/bin",
    "/opt/bin",
    *(ENGINES[name] for name in ("k3s", "rke2", "k0s")),
)


def directories() -> tuple[str, ...]:
    """List where programs may lie: DIRECTORIES, and those of an ordinary user's own PATH."""
    folders = os.environ.get("PATH", "").split(":") if os.geteuid() else []
    return tuple(dict.fromkeys((*DIRECTORIES, *(folder for folder in folders if folder.startswith("/")))))


def path() -> str:
    return ":".join(directories())


def find(name: str, engine: Engine | None = None, top: str = "") -> str:
    """Find a program that may be executed.

    Args:
        name: such as "containerd".
        engine: the running one, whose program it must be; None for any.
        top: what stands before each directory: "", or a host's files elsewhere.

    Returns:
        a path in one of `directories`; "" if none of them has it, if somebody else could have made it, or if the
        engine has another root directory, in which paths mean other files.
    """
    if engine and engine.root:
        return ""
    for path in _candidates(name, top):
        # An upgrade replaces the file, not its path.
        is_engines = engine is None or not engine.exe or engine.exe in (path, os.path.realpath(path))
        if is_engines and trusted(path):
            return path
    return ""


def trusted(path: str) -> bool:
    """Return whether a path is an executable file that nobody else could have put there."""
    try:
        with host_files.open_parent(path) as file:
            status = file.status()
            host_files.check_file(path, status)
    except (OSError, GpushimError):
        return False
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & stat.S_IXUSR)


def lying(name: str, top: str = "", folders: tuple[str, ...] = ()) -> str:
    """Find where a program lies, whoever made it, to name it and not to execute it; "" if there is none.

    `folders` are those to look in, by default all where programs may lie; `top` is as `find` takes it.
    """
    return next(
        (path for path in _candidates(name, top, folders) if os.path.isfile(path) and os.access(path, os.X_OK)), ""
    )


def absent(name: str, top: str = "") -> str:
    path = lying(name, top)
    if path:
        return f"{path} is not executed: others could have put it there; remove it and install it from its package"
    return f"{name} is not installed in a directory whose programs gpushim executes"


def _candidates(name: str, top: str, folders: tuple[str, ...] = ()) -> list[str]:
    return [f"{top}{folder}/{name}" for folder in folders or directories()]
