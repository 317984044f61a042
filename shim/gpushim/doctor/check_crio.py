"""Checks of CRI-O, by its files and by what it says of itself (`crio status config`).

Out of scope: changing them (engines/crio.py).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gpushim.doctor import Finding, Host, broken, entries, ok, skipped, warning
from gpushim.engines import crio
from gpushim.engines.docker.injected import SPEC_DIRECTORIES
from gpushim.engines.processes import ask, programs
from gpushim.engines.settings import dropin
from gpushim.engines.settings.setup import executes_ours
from gpushim.engines.settings.text import Toml
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.engines.processes.running import Engine

LISTEN = "/var/run/crio/crio.sock"
RUNTIME = crio.DEFAULT[:-1]


def daemon(host: Host) -> Iterator[Finding]:
    """Check that a CRI-O runs and answers, and tell its settings."""
    for engine in host.running("crio"):
        status = _status(host, engine)
        who = f"CRI-O (process {engine.pid})"
        if "error" in status:
            yield broken(f"{who} does not say its settings: {status['error']}", host.restart(engine))
        else:
            evidence = "" if status else ", which is not asked, as its program is not the system's"
            yield ok(f"{who} runs, with {' and '.join(filter(None, crio.places(engine)))}{evidence}")
    if not host.running("crio"):
        evidence = "no CRI-O runs"
        yield broken(evidence, host.start("crio")) if "crio" in host.named else skipped(evidence)


def runtime(host: Host) -> Iterator[Finding]:
    """Check that CRI-O has a handler of ours, has read it, and that it means the same low-level runtime as others."""
    for engine in host.running("crio"):
        who, status = f"CRI-O (process {engine.pid})", _status(host, engine)
        named = entries.for_gpus(engine, crio.programs_of(crio.settings(engine)))
        loaded = entries.for_gpus(engine, crio.programs_of(status)) if status and "error" not in status else named
        mine = [name for name, path in (*named.items(), *loaded.items()) if executes_ours(path, engine)]
        needed = host.for_pods("crio")
        for name in sorted({*named, *loaded}):
            path = named.get(name, "")
            if path and not engine.executable(path):
                evidence = f"CRI-O's handler {name} is {path}, which is not an executable file"
                if needed or name in mine:
                    yield broken(evidence, _configure(host, engine, name))
            elif path != loaded.get(name):
                has = f"{who} has {loaded.get(name) or 'nothing'} for the handler {name}"
                yield broken(f"{has}, and its files say {path or 'nothing'}", host.restart(engine))
            elif name in mine:
                yield ok(f"CRI-O's handler {name} is {path}")
        if not mine:
            other = named.get("nvidia", "")
            evidence = f"the settings of {who} do not name gpushim-runtime{other and f'; their nvidia is {other}'}"
            yield (
                broken(evidence, _configure(host, engine))
                if needed
                else skipped(f"{evidence}, and no Kubernetes is here")
            )
        yield from _low_level(host, engine) if mine else ()


def hooks(host: Host) -> Iterator[Finding]:
    """Check that the hooks which CRI-O calls for every container are there."""
    for engine in host.running("crio"):
        folders = crio.hook_directories(crio.settings(engine))
        then = "CRI-O starts containers without their GPUs"
        yield from entries.hooks("CRI-O", folders, engine.seen, then, "gpushim configure crio --hooks")


def devices(host: Host) -> Iterator[Finding]:
    """Check that CRI-O looks for CDI devices where gpushim's are."""
    for engine in host.running("crio"):
        settings = dropin.table(_status(host, engine), *RUNTIME) or dropin.table(crio.settings(engine), *RUNTIME)
        found = settings.get("cdi_spec_dirs")
        folders = [str(folder) for folder in (found if isinstance(found, list) and found else SPEC_DIRECTORIES)]
        own = entries.place(host)
        shown = ", ".join(folders)
        if not host.settings["cdi"]["write-spec"]:
            yield skipped(f"CRI-O does CDI from {shown}, and write-spec under [cdi] in {host.config} is false")
        elif entries.looks_there(host, map(engine.seen, folders)):
            yield ok(f"CRI-O does CDI from {shown}")
        else:
            yield warning(
                f"CRI-O does CDI from {shown}, and gpushim's spec is in {own}",
                f"add {shlex.quote(own)} to cdi_spec_dirs under [crio.runtime]; then {host.restart(engine)}",
            )


def handlers(host: Host) -> list[str]:
    """List the names of the handlers that are gpushim's in the settings of each CRI-O that runs."""
    programs_of = [(engine, crio.programs_of(crio.settings(engine))) for engine in host.running("crio")]
    return [name for engine, found in programs_of for name, path in found.items() if executes_ours(path, engine)]


def _low_level(host: Host, engine: Engine) -> Iterator[Finding]:
    status = _status(host, engine)
    try:
        known = status if dropin.table(status, *RUNTIME) else crio.settings(engine)
        evidence, fix = crio.otherwise(known, host.settings["runtime"]["low-level"], host.config)
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
    listen = str(dropin.table(crio.settings(engine), "crio", "api").get("listen") or LISTEN)
    answer = ask.program([program, "status", f"--socket={listen}", "config"])
    if answer.code != 0:
        return {"error": answer.last}
    try:
        found: dict[str, Any] = Toml.parse(answer.out.encode(), "the answer of CRI-O").get()
    except GpushimError as error:
        return {"error": str(error)}
    return found


def _configure(host: Host, engine: Engine, name: str = "nvidia") -> str:
    """Say how the handler gets into CRI-O's files, and is loaded."""
    return entries.configure("crio", crio.programs_of(crio.settings(engine)), host.restart(engine), name)


CHECKS = {"crio-daemon": daemon, "crio-runtime": runtime, "crio-hooks": hooks, "crio-cdi": devices}
