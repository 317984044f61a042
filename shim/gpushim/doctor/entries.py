"""What the checks of several engines share: runtimes for GPUs, how gpushim's is configured, hooks, CDI directories.

Out of scope: reading the settings (each engine's own check_NAME.py).
"""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING

from gpushim.cdi.generate import output
from gpushim.doctor import REFRESH, broken, listing, ok, ours, restarting, skipped, text, warning
from gpushim.engines import hooksd
from gpushim.engines.processes import table
from gpushim.engines.settings import setup
from gpushim.engines.settings.setup import executes_ours, is_ours, leads_to_ours
from gpushim.paths import changeable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpushim.doctor import Finding, Host
    from gpushim.engines.processes.running import Engine


def for_gpus(engine: Engine, programs: dict[str, str]) -> dict[str, str]:
    """Return the runtimes for GPUs among an engine's programs by name, gpushim's or not."""
    return {
        name: program
        for name, program in programs.items()
        if executes_ours(program, engine) or (program and "nvidia" in name + program)
    }


def handlers(
    host: Host,
    engine: Engine,
    written: dict[str, str],
    loaded: dict[str, str],
    again: Callable[[str], str],
) -> Iterator[Finding]:
    """Check the handlers for GPUs of a CRI's engine: their programs, that it has read them, and that one is ours.

    Args:
        host: that is looked at.
        engine: that runs.
        written: programs in its settings, by name of the handler.
        loaded: those that it has.
        again: says how a handler of a name gets into the settings, and is loaded.
    """
    named, known = for_gpus(engine, written), for_gpus(engine, loaded)
    mine = [name for name, path in (*named.items(), *known.items()) if executes_ours(path, engine)]
    title, needed = table.of(engine.name).title, host.for_pods(engine.name)
    who = f"{title} (process {engine.pid})"
    for name in sorted({*named, *known}):
        path = named.get(name, "")
        if path and not engine.executable(path):
            if needed or name in mine:
                yield broken(f"{title}'s handler {name} is {path}, which is not an executable file", again(name))
        elif path != known.get(name):
            has = f"{who} has {known.get(name) or 'nothing'} for the handler {name}"
            yield broken(f"{has}, and its files say {path or 'nothing'}", host.restart(engine))
        elif name in mine:
            what = f"{title}'s handler {name} is {path}"
            yield foreign(what, engine.executable(path), again(name)) or ok(what)
    if not mine:
        other = named.get("nvidia", "")
        evidence = f"the settings of {who} do not name gpushim-runtime{other and f'; their nvidia is {other}'}"
        yield broken(evidence, again("nvidia")) if needed else skipped(f"{evidence}, and no Kubernetes is here")


def foreign(what: str, program: str, again: str = "") -> Finding | None:
    """Find that others could change a program of gpushim's that an engine executes; None if they could not.

    Args:
        what: the beginning of a sentence that names the program.
        program: its path, as this process sees it; one below /proc/PID/root, of a snap's engine, is not judged, for
            its links mean another root.
        again: command of gpushim's that names the program beside this code instead; "" for none.
    """
    judged = not program.startswith("/proc/") and (leads_to_ours(program) or ours(program))
    found = changeable.by(program) if judged else ""
    if not found:
        return None
    here = setup.installed(setup.PROGRAM)
    whole = again.partition(" ")[2] if again.startswith("gpushim ") else ""
    fix = again if again and not changeable.by(here) else changeable.fix(here, whole)
    return broken(f"{what}, which runs with every container, and others could change it: {found}", fix)


def absent(host: Host, name: str, which: str = "", start: str = "") -> Finding:
    """Say that an engine does not run, which is a fault where somebody named it.

    Args:
        host: that is looked at.
        name: of the engine, in table.ENGINES.
        which: end of the sentence.
        start: how it is started, if not as systemd starts it.
    """
    row = table.ENGINES[name]
    if any(each.name == row.process for each in host.impostors):
        return skipped(f"no {row.title} of this user runs (see engine-processes)")
    evidence = f"no {row.title} runs{which}"
    return broken(evidence, start or host.start(name)) if name in host.named else skipped(evidence)


def configure(
    engine: str, programs: dict[str, str], restart: str, name: str = "nvidia", options: tuple[str, ...] = ()
) -> str:
    """Return the command that makes gpushim-runtime a runtime of an engine.

    Args:
        engine: as `gpushim configure` has it.
        programs: of all its runtimes, by name; "" where the settings name none.
        restart: how the engine is restarted, from `units.fix`; "" where it need not be.
        name: of the runtime.
        options: more options of the command.
    """
    words = ["gpushim", "configure", engine, *options]
    words += [f"--runtime-name={name}"] if name != "nvidia" else []
    words += ["--force"] if name in programs and not is_ours(programs[name]) else []
    return restarting(shlex.join(words), restart) if restart else shlex.join(words)


def place(host: Host) -> str:
    """Return the directory of the CDI spec that refresh writes."""
    return os.path.dirname(output.path_of(host.settings))


def looks_there(host: Host, folders: Iterable[str]) -> bool:
    """Say whether the directory that refresh writes its CDI spec to is among these, as this process sees them."""
    return os.path.realpath(place(host)) in map(os.path.realpath, folders)


def moved(host: Host, folder: str) -> str:
    """Say how refresh comes to write its CDI spec to `folder`, in which an engine looks."""
    where = f"under [cdi] in {shlex.quote(host.config)}"
    return f"set output-directory {where} to {shlex.quote(folder)}; then {REFRESH}"


def hooks(title: str, folders: list[str], seen: Callable[[str], str], then: str, own: str = "") -> Iterator[Finding]:
    """Check that the hooks which an engine calls for every container are there (oci-hooks(5)).

    Args:
        title: of the engine.
        folders: from which it takes hooks.
        seen: returns the path under which this process opens a file of the engine's.
        then: what a missing hook causes.
        own: command that writes gpushim's own file again; "" for none.
    """
    known = 0
    for path in (path for folder in folders for path in listing(seen(folder))):
        hook = hook_of(path)
        if "gpushim" not in hook and "nvidia-container" not in hook:
            continue
        known += 1
        remove = f"rm {shlex.quote(path)}"
        if not os.access(seen(hook), os.X_OK):
            mine = os.path.basename(path) == hooksd.FILE and "gpushim" in hook
            yield broken(f"{path} names {hook}, which is not there: {then}", (own if mine else "") or remove)
        elif ours(seen(hook)):
            what = f"{path} makes {title} call {hook}"
            yield foreign(what, seen(hook), own or remove) or ok(what)
        else:
            yield warning(f"{path} makes {title} call {hook}, which is not gpushim's", remove)
    if not known:
        yield skipped(f"{title} calls no hook for GPUs, and needs none with the runtime or CDI")


def calls_ours(folders: list[str], seen: Callable[[str], str]) -> bool:
    """Say whether an engine's directories of hooks name gpushim-hook; the arguments are as above."""
    hooks = [hook_of(path) for folder in folders for path in listing(seen(folder))]
    return any(ours(seen(hook)) for hook in hooks if hook)


def hook_of(path: str) -> str:
    """Return the program that a file of a hooks directory names, or ""."""
    try:
        return hooksd.named(json.loads(text(path)))
    except (ValueError, RecursionError):
        return ""
