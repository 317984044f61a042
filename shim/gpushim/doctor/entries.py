"""Parts that the checks of several engines share: runtimes for GPUs, commands that configure gpushim's, hooks, CDI.

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


def select_gpu_runtimes(engine: Engine, programs: dict[str, str]) -> dict[str, str]:
    """Return the runtimes for GPUs among an engine's programs by name, gpushim's or not."""
    return {
        name: program
        for name, program in programs.items()
        if executes_ours(program, engine) or (program and "nvidia" in name + program)
    }


def check_handlers(
    host: Host,
    engine: Engine,
    written_programs: dict[str, str],
    loaded_programs: dict[str, str],
    build_fix: Callable[[str], str],
) -> Iterator[Finding]:
    """Check a CRI engine's handlers for GPUs: their programs, that the engine has loaded them, and that one is ours.

    Args:
        written_programs: in the engine's settings, by name of the handler.
        loaded_programs: that the running engine has, by name of the handler.
        build_fix: returns the fix that writes and loads the handler of a name.
    """
    configured, loaded = select_gpu_runtimes(engine, written_programs), select_gpu_runtimes(engine, loaded_programs)
    own_names = [name for name, path in (*configured.items(), *loaded.items()) if executes_ours(path, engine)]
    title, is_needed = table.of(engine.name).title, host.for_pods(engine.name)
    process = f"{title} (process {engine.pid})"
    for name in sorted({*configured, *loaded}):
        path = configured.get(name, "")
        if path and not engine.executable(path):
            if is_needed or name in own_names:
                yield broken(f"{title}'s handler {name} is {path}, which is not an executable file", build_fix(name))
        elif path != loaded.get(name):
            difference = f"{process} has {loaded.get(name) or 'nothing'} for the handler {name}"
            yield broken(f"{difference}, and its files say {path or 'nothing'}", host.restart(engine))
        elif name in own_names:
            sentence = f"{title}'s handler {name} is {path}"
            yield find_changeable(sentence, engine.executable(path), build_fix(name)) or ok(sentence)
    if not own_names:
        evidence = f"the settings of {process} do not name gpushim-runtime"
        evidence += f"; their nvidia is {configured['nvidia']}" if configured.get("nvidia") else ""
        if is_needed:
            yield broken(evidence, build_fix("nvidia"))
        else:
            yield skipped(f"{evidence}, and no Kubernetes is here")


def find_changeable(sentence: str, program: str, command: str = "") -> Finding | None:
    """Return a finding if others could change a program of gpushim's that an engine executes; None if they could not.

    Args:
        sentence: the beginning of a sentence that names the program.
        program: its path, as this process sees it; a path below /proc/PID/root, of a snap's engine, is not judged,
            for its links mean another root.
        command: of gpushim, which replaces the program by the one beside this code; "" for none.
    """
    is_judged = not program.startswith("/proc/") and (leads_to_ours(program) or ours(program))
    problem = changeable.by(program) if is_judged else ""
    if not problem:
        return None
    own_path = setup.installed(setup.PROGRAM)
    words = command.partition(" ")[2] if command.startswith("gpushim ") else ""
    fix = command if command and not changeable.by(own_path) else changeable.fix(own_path, words)
    return broken(f"{sentence}, which runs with every container, and others could change it: {problem}", fix)


def report_absent(host: Host, name: str, ending: str = "", start_command: str = "") -> Finding:
    """Report that an engine does not run, which is a fault if the user named it.

    Args:
        name: of the engine, in table.ENGINES.
        ending: of the sentence.
        start_command: if systemd does not start the engine.
    """
    row = table.ENGINES[name]
    if any(process.name == row.process for process in host.impostors):
        return skipped(f"no {row.title} of this user runs (see engine-processes)")
    evidence = f"no {row.title} runs{ending}"
    return broken(evidence, start_command or host.start(name)) if name in host.named else skipped(evidence)


def build_command(
    engine: str, programs: dict[str, str], restart: str, name: str = "nvidia", options: tuple[str, ...] = ()
) -> str:
    """Return the command that makes gpushim-runtime a runtime of an engine.

    Args:
        engine: as `gpushim configure` names it.
        programs: of all its runtimes, by name; "" if the settings name none.
        restart: the fix that restarts the engine, from `units.fix`; "" if none is needed.
        options: more options of the command.
    """
    words = ["gpushim", "configure", engine, *options]
    words += [f"--runtime-name={name}"] if name != "nvidia" else []
    words += ["--force"] if name in programs and not is_ours(programs[name]) else []
    return restarting(shlex.join(words), restart) if restart else shlex.join(words)


def find_spec_folder(host: Host) -> str:
    """Return the directory of the CDI spec that refresh writes."""
    return os.path.dirname(output.path_of(host.settings))


def has_spec_folder(host: Host, folders: Iterable[str]) -> bool:
    """Return whether these directories, as this process sees them, include the one of refresh's CDI spec."""
    return os.path.realpath(find_spec_folder(host)) in map(os.path.realpath, folders)


def build_folder_fix(host: Host, folder: str) -> str:
    """Return the fix that makes refresh write its CDI spec to `folder`, which an engine reads."""
    section = f"under [cdi] in {shlex.quote(host.config)}"
    return f"set output-directory {section} to {shlex.quote(folder)}; then {REFRESH}"


def check_hooks(
    title: str, folders: list[str], host_path: Callable[[str], str], consequence: str, own_command: str = ""
) -> Iterator[Finding]:
    """Check that the hooks which an engine calls for every container exist (oci-hooks(5)).

    Args:
        host_path: returns the path by which this process opens a file of the engine's.
        consequence: of a missing hook.
        own_command: writes gpushim's own file again; "" for none.
    """
    count = 0
    for path in (path for folder in folders for path in listing(host_path(folder))):
        hook = read_hook(path)
        if "gpushim" not in hook and "nvidia-container" not in hook:
            continue
        count += 1
        remove = f"rm {shlex.quote(path)}"
        if not os.access(host_path(hook), os.X_OK):
            is_own_file = os.path.basename(path) == hooksd.FILE and "gpushim" in hook
            yield broken(
                f"{path} names {hook}, which is not there: {consequence}",
                (own_command if is_own_file else "") or remove,
            )
        elif ours(host_path(hook)):
            sentence = f"{path} makes {title} call {hook}"
            yield find_changeable(sentence, host_path(hook), own_command or remove) or ok(sentence)
        else:
            yield warning(f"{path} makes {title} call {hook}, which is not gpushim's", remove)
    if not count:
        yield skipped(f"{title} calls no hook for GPUs, and needs none with the runtime or CDI")


def has_own_hook(folders: list[str], host_path: Callable[[str], str]) -> bool:
    """Return whether an engine's directories of hooks name gpushim-hook; the arguments are those of check_hooks."""
    hooks = [read_hook(path) for folder in folders for path in listing(host_path(folder))]
    return any(ours(host_path(hook)) for hook in hooks if hook)


def read_hook(path: str) -> str:
    """Return the program that a file of a hooks directory names, or ""."""
    try:
        return hooksd.named(json.loads(text(path)))
    except (ValueError, RecursionError):
        return ""
