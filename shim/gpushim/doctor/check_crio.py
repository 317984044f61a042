"""Checks of CRI-O, by its files and by what it says of itself (`crio status config`).

Out of scope: changing them (engines/crio.py).
"""

from __future__ import annotations

import functools
import shlex
from typing import TYPE_CHECKING, Any

from gpushim.cdi.specs import DIRECTORIES
from gpushim.doctor import Finding, Host, broken, entries, ok, skipped, warning
from gpushim.engines import crio
from gpushim.engines.processes import ask, programs
from gpushim.engines.settings import toml
from gpushim.engines.settings.setup import executes_ours
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.engines.processes.running import Engine

LISTEN = "/var/run/crio/crio.sock"
RUNTIME = crio.DEFAULT[:-1]


def daemon(host: Host) -> Iterator[Finding]:
    """Check that CRI-O runs and answers, with readable settings."""
    for engine in host.running("crio"):
        status = _status(host, engine)
        subject = f"CRI-O (process {engine.pid})"
        if "error" in status:
            yield broken(f"{subject} does not report its settings: {status['error']}", host.restart(engine))
        else:
            evidence = "" if status else ", which is not asked, as its program is not the system's"
            yield ok(f"{subject} runs, with {' and '.join(filter(None, crio.config_paths(engine)))}{evidence}")
    if not host.running("crio"):
        yield entries.report_absent(host, "crio")


def runtime(host: Host) -> Iterator[Finding]:
    """Check that CRI-O has read a handler of ours, with the low-level runtime of the others."""
    for engine in host.running("crio"):
        named_programs, status = crio.programs_of(crio.settings(engine)), _status(host, engine)
        loaded = crio.programs_of(status) if status and "error" not in status else named_programs
        configure = functools.partial(_configure, host, engine)
        yield from entries.check_handlers(host, engine, named_programs, loaded, configure)
        if any(executes_ours(path, engine) for path in (*named_programs.values(), *loaded.values())):
            yield from _low_level(host, engine)


def hooks(host: Host) -> Iterator[Finding]:
    """Check that the hooks which CRI-O calls for every container are there."""
    for engine in host.running("crio"):
        folders = crio.hook_directories(crio.settings(engine))
        effect = "CRI-O starts containers without their GPUs"
        yield from entries.check_hooks("CRI-O", folders, engine.host_path, effect, "gpushim configure crio --hooks")


def devices(host: Host) -> Iterator[Finding]:
    """Check that CRI-O looks for CDI devices where gpushim's are."""
    for engine in host.running("crio"):
        settings = toml.table(_status(host, engine), *RUNTIME) or toml.table(crio.settings(engine), *RUNTIME)
        listed = settings.get("cdi_spec_dirs")
        folders = [str(folder) for folder in (listed if isinstance(listed, list) and listed else DIRECTORIES)]
        own_folder = entries.find_spec_folder(host)
        names = ", ".join(folders)
        if not host.settings["cdi"]["write-spec"]:
            yield skipped(f"CRI-O does CDI from {names}, and write-spec under [cdi] in {host.config} is false")
        elif entries.has_spec_folder(host, map(engine.host_path, folders)):
            yield ok(f"CRI-O does CDI from {names}")
        else:
            yield warning(
                f"CRI-O does CDI from {names}, and gpushim's spec is in {own_folder}",
                f"add {shlex.quote(own_folder)} to cdi_spec_dirs under [crio.runtime]; then {host.restart(engine)}",
            )


def handlers(host: Host) -> list[str]:
    """List the names of the handlers that are gpushim's in the settings of each CRI-O that runs."""
    programs_of = [(engine, crio.programs_of(crio.settings(engine))) for engine in host.running("crio")]
    return [name for engine, paths in programs_of for name, path in paths.items() if executes_ours(path, engine)]


def _low_level(host: Host, engine: Engine) -> Iterator[Finding]:
    status = _status(host, engine)
    try:
        data = status if toml.table(status, *RUNTIME) else crio.settings(engine)
        evidence, fix = crio.otherwise(data, host.settings["runtime"]["low-level"], host.config)
    except GpushimError:
        return  # low-level-runtime says so
    if evidence:
        yield warning(evidence, fix)


def _status(host: Host, engine: Engine) -> dict[str, Any]:
    """Return CRI-O's own settings; {} if it cannot be asked, {"error": why} if its answer cannot be used."""
    return host.once(f"crio {engine.pid}", lambda: _asked(engine))


def _asked(engine: Engine) -> dict[str, Any]:
    program = programs.find(crio.PROGRAM, engine)
    if not program:
        return {}
    listen = str(toml.table(crio.settings(engine), "crio", "api").get("listen") or LISTEN)
    answer = ask.program([program, "status", f"--socket={listen}", "config"])
    if answer.code != 0:
        return {"error": answer.last}
    try:
        return toml.parse(answer.out.encode(), "the answer of CRI-O")
    except GpushimError as error:
        return {"error": str(error)}


def _configure(host: Host, engine: Engine, name: str = "nvidia") -> str:
    """Return how the handler gets into CRI-O's files, and is loaded."""
    return entries.build_command("crio", crio.programs_of(crio.settings(engine)), host.restart(engine), name)


CHECKS = {"crio-daemon": daemon, "crio-runtime": runtime, "crio-hooks": hooks, "crio-cdi": devices}
