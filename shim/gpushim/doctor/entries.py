"""What checks of several engines say of an engine's settings: whose a runtime is, how it becomes gpushim's, CDI.

Out of scope: reading those settings (docker.py and its neighbours).
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from gpushim.cdi import publish
from gpushim.doctor import restarting
from gpushim.engines import is_ours, leads_to_ours

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.doctor import Host
    from gpushim.engines.running import Engine


def ours(engine: Engine, program: str) -> bool:
    """Say whether a program in an engine's settings is gpushim-runtime, or a link to it."""
    return is_ours(program) or leads_to_ours(engine.executable(program))


def for_gpus(engine: Engine, programs: dict[str, str]) -> dict[str, str]:
    """Return the programs of the runtimes for GPUs, whosever they are.

    Args:
        engine: that has them.
        programs: of all its runtimes, by the names of those; "" where the settings name none.
    """
    return {
        name: program
        for name, program in programs.items()
        if ours(engine, program) or (program and "nvidia" in name + program)
    }


def configure(
    engine: str, programs: dict[str, str], restart: str, name: str = "nvidia", options: tuple[str, ...] = ()
) -> str:
    """Return the command that makes gpushim-runtime a runtime of an engine's.

    Args:
        engine: as `gpushim configure` has it.
        programs: as `for_gpus` takes them.
        restart: how the engine is restarted, from `units.fix`; "" where it need not be.
        name: of the runtime.
        options: more of the command's.
    """
    words = ["gpushim", "configure", engine, *options]
    words += [f"--runtime-name={name}"] if name != "nvidia" else []
    words += ["--force"] if name in programs and not is_ours(programs[name]) else []
    return restarting(shlex.join(words), restart) if restart else shlex.join(words)


def place(host: Host) -> str:
    """Return the directory of the CDI spec that refresh writes."""
    return os.path.dirname(publish.path_of(host.settings))


def looks_there(host: Host, folders: Iterable[str]) -> bool:
    """Say whether directories of CDI specs have that of refresh's among them.

    Args:
        host: that is looked at.
        folders: as this process sees them.
    """
    return os.path.realpath(place(host)) in map(os.path.realpath, folders)


def moved(host: Host, folder: str) -> str:
    """Say how refresh comes to write its CDI spec elsewhere.

    Args:
        host: that is looked at.
        folder: in which an engine looks.
    """
    where = f"under [cdi] in {shlex.quote(host.config)}"
    return f"set output-directory {where} to {shlex.quote(folder)}; then gpushim refresh"
