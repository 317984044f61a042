"""Checks of Docker, as the dockerd that runs sees the host: its PATH, its root, its settings, its own answers.

Out of scope: changing its settings (engines/docker).
"""

from __future__ import annotations

import grp
import os
import shlex
import stat
from typing import TYPE_CHECKING, Any

from gpushim.doctor import REFRESH, Finding, Host, broken, corrected, entries, ok, ours, skipped, warning
from gpushim.engines import docker
from gpushim.engines.docker import dockerd
from gpushim.engines.docker.dockerd import CDI_HOOK, RUNTIME_HOOK
from gpushim.engines.processes import ask, programs
from gpushim.engines.processes.running import SLACK
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import executes_ours, is_ours
from gpushim.ground.errors import GpushimError
from gpushim.paths import trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.engines.processes.running import Engine

CDI_SINCE, CDI_DEFAULT, CDI_GPUS = docker.CDI_SINCE, (28, 2), dockerd.CDI_HOOK_SINCE  # versions of Docker


def daemon(host: Host) -> Iterator[Finding]:
    """Check that a dockerd runs and answers."""
    for engine in host.running("dockerd"):
        info = _info(host, engine)
        subject = f"dockerd (process {engine.pid}{', in a root of its own' if engine.root else ''})"
        if "error" in info:
            fix = info["fix"] or f"{host.restart(engine)}; then see its log if it still does not answer"
            yield broken(f"{subject} does not answer on {dockerd.socket(engine)}: {info['error']}", fix)
        else:
            kind = "rootless " if engine.uid else ""
            yield ok(
                f"{kind}{subject} is version {info.get('ServerVersion')}, cgroup driver {info.get('CgroupDriver')}"
            )
    if not host.running("dockerd"):
        yield _absent(host)


def _absent(host: Host) -> Finding:
    if any(impostor.name == "dockerd" for impostor in host.impostors):
        return skipped("no dockerd of this user runs (see engine-processes)")
    if programs.lying("dockerd", host.top):
        path = host.top + dockerd.default_config()
        start, wrong = host.start("docker"), _wrong(host, path)
        evidence = f"no dockerd runs, and none would start: {wrong}" if wrong else "no dockerd runs"
        fix = f"{corrected(path)}; then {start}" if wrong else start
        return (broken if "docker" in host.named else warning)(evidence, fix)
    return (
        broken("Docker is not installed", "install Docker (package docker.io, or docker-ce)")
        if "docker" in host.named
        else skipped("no Docker here")
    )


def _wrong(host: Host, path: str, engine: Engine | None = None) -> str:
    """Return why dockerd would not start with a file, or ""."""
    try:
        content = files.read(path)
    except GpushimError as error:
        return str(error)
    validator, added = programs.find("dockerd", engine, host.top), tuple(dockerd.added(engine))
    return host.once(f"{path}: {content!r}", lambda: docker.wrong(content, path, validator, added))


def runtime(host: Host) -> Iterator[Finding]:
    """Check that the runtime is in dockerd's file, and that dockerd knows it."""
    for engine in host.running("dockerd"):
        path = dockerd.config(engine)
        if wrong := _wrong(host, path, engine):
            # A restart, and what configure writes, would end it.
            sentence = f"dockerd (process {engine.pid}) would not start again: {wrong}"
            yield broken(sentence, corrected(path), (("docker-", ""),))
            continue
        info, named_programs = _info(host, engine), dockerd.programs(engine)
        own_names = [name for name, program in named_programs.items() if executes_ours(program, engine)]
        loaded_names = names(host, engine)
        if loaded_names:
            default = (
                f", and {info['DefaultRuntime']} is the default" if info.get("DefaultRuntime") in loaded_names else ""
            )
            yield ok(f"dockerd knows the runtime {loaded_names[0]}{default}")
        elif own_names:
            evidence = f"{path} has the runtime {own_names[0]}, which the running dockerd does not know"
            yield broken(evidence, host.restart(engine))
        else:
            nvidias = named_programs.get("nvidia")
            yield (warning if dockerd.find_program(engine, RUNTIME_HOOK) else broken)(
                f"{path}, which dockerd (process {engine.pid}) reads, does not name gpushim-runtime"
                + (f"; its nvidia is {nvidias}" if nvidias else ""),
                _configure(host, engine),
            )


def program(host: Host) -> Iterator[Finding]:
    """Check that dockerd can execute each runtime for GPUs in the root that it has."""
    for engine in host.running("dockerd"):
        yield from _default(host, engine)
        for name, path in entries.select_gpu_runtimes(engine, dockerd.programs(engine)).items():
            command = _configure(host, engine, name)
            if executable := engine.executable(path):
                yield entries.find_changeable(f"the runtime {name} is {path}", executable, command) or ok(
                    f"dockerd can execute {path}"
                )
                continue
            location = "in dockerd's own root" if engine.root else "here" if "/" in path else "on dockerd's PATH"
            yield broken(
                f"the runtime {name} is {path}, which is not an executable file {location}",
                f"install gpushim where dockerd sees it; then {command}" if engine.root else command,
            )


def _default(host: Host, engine: Engine) -> Iterator[Finding]:
    """Find a default runtime that is missing: without it no --gpus and no CDI works."""
    info = _info(host, engine)
    name = str(info.get("DefaultRuntime") or "")
    entry = dockerd.loaded(info, dockerd.written(engine)).get(name, "")
    program = "runc" if name in ("runc", "io.containerd.runc.v2") else entry
    # containerd's shim executes it, and containerd may be a service with a PATH of its own.
    searchers = [
        searcher
        for searcher in (engine, *host.running("containerd"))
        if searcher.environ.get("PATH") or "/" in program
    ]
    if not program or is_ours(program) or "nvidia" in name + program:
        return  # `program` says it
    if searchers and not any(searcher.executable(program) for searcher in searchers):
        yield broken(
            f"dockerd's default runtime {name} is {program}, which is not an executable file on any engine's PATH",
            f"install {shlex.quote(program.rpartition('/')[2])} where dockerd and containerd see it",
        )


def hook(host: Host) -> Iterator[Finding]:
    """Check what `docker run --gpus` needs on dockerd's PATH."""
    for engine in host.running("dockerd"):
        path = dockerd.find_program(engine, RUNTIME_HOOK)
        searched = f"the PATH of dockerd (process {engine.pid})"
        today = version_of(host, engine) >= CDI_GPUS
        by_cdi = dockerd.find_program(engine, CDI_HOOK) if today else ""
        if finding := _changeable(host, engine, by_cdi or path, searched):
            yield finding
        elif by_cdi:
            yield ok(f"{by_cdi} is on {searched}: docker run --gpus uses CDI")
        elif not path:
            name, says = (
                (CDI_HOOK, "AMD CDI spec not found, or no known GPU vendor found")
                if today
                else (RUNTIME_HOOK, "could not select device driver")
            )
            yield warning(
                f"{name} is in no directory of {searched}, {engine.environ.get('PATH') or 'which is empty'}: "
                f"docker run --gpus fails ({says})",
                _gpus_fix(host, engine, name),
            )
        elif not ours(path):
            yield warning(
                f"{path}, the first on {searched}, is not gpushim's",
                f"remove {shlex.quote(path)} or its package; then {_configure(host, engine)}",
            )
        else:
            yield ok(f"{path} is on {searched}")


def _changeable(host: Host, engine: Engine, path: str, searched: str) -> Finding | None:
    removal = f"remove {shlex.quote(path)} or its package; then {_configure(host, engine)}"
    return entries.find_changeable(f"{path} is on {searched}", path, removal) if path else None


def _gpus_fix(host: Host, engine: Engine, name: str) -> str:
    if engine.root:  # the host's files are not in it
        return "docker run --runtime=nvidia, or --device nvidia.com/gpu=all, instead"
    if len(host.running("dockerd")) > 1:  # `configure` links for this host's own dockerd
        return f"link gpushim-hook as {name} in a directory of that PATH; then {host.restart(engine)}"
    first = "" if dockerd.link_folders(engine) else f"put {shlex.quote(dockerd.LINKS)} on the PATH of dockerd; then "
    return f"{first}{_configure(host, engine)}"


def restarted(host: Host) -> Iterator[Finding]:
    """Check that dockerd started after what it looks at only then, and has the runtimes that its file has now."""
    for engine in host.running("dockerd"):
        by_cdi = dockerd.find_program(engine, CDI_HOOK) if version_of(host, engine) >= CDI_GPUS else ""
        paths = [by_cdi, dockerd.find_program(engine, RUNTIME_HOOK)]
        late = [path for path in paths if path and _is_late(host, engine, path)]
        if late:
            evidence = f"dockerd has run since before {late[0]} was installed: docker run --gpus may not find it"
        elif not names(host, engine) and engine.before(dockerd.config(engine)):
            evidence = f"{dockerd.config(engine)} was changed after dockerd (process {engine.pid}) started"
        else:
            evidence = _not_loaded(host, engine)
        if evidence:
            yield warning(evidence, _fix_of_names(host, engine) or host.restart(engine))
        else:
            yield ok("dockerd started after all that it reads at its start")


def _is_late(host: Host, engine: Engine, path: str) -> bool:
    """Return whether a dockerd may have started before a name of the hook's was there.

    An upgrade lays a package's names down anew, and what a link leads to; the links of `configure` stay. A dockerd
    that knows gpushim's runtime has looked at its PATH since gpushim came.
    """
    if os.path.dirname(path) not in dockerd.link_folders(engine) and names(host, engine):
        return False
    return os.lstat(path).st_ctime > engine.started + SLACK


def _fix_of_names(host: Host, engine: Engine) -> str:
    """Return how gpushim's loaded runtimes get into the file before a restart drops them; "" if they are in it."""
    info, named_programs = _info(host, engine), dockerd.programs(engine)
    executed = [
        *dockerd.added(engine),
        *(name for name, program in named_programs.items() if executes_ours(program, engine)),
    ]
    lost = [] if executed else names(host, engine)
    if not lost:
        return ""
    options = ["--set-as-default"] if info.get("DefaultRuntime") == lost[0] else []
    options += ["--cdi"] if info.get("CDISpecDirs") and version_of(host, engine) < CDI_DEFAULT else []
    return _configure(host, engine, lost[0], tuple(options))


def _not_loaded(host: Host, engine: Engine) -> str:
    """Return which runtime in the file differs from that in the running dockerd, or ""."""
    info, path = _info(host, engine), dockerd.config(engine)
    named_programs = dockerd.programs(engine)
    loaded = dockerd.loaded(info, dockerd.written(engine))
    if "error" in info or _wrong(host, path, engine):
        return ""  # `daemon` and `runtime` say it
    for name in named_programs:
        if named_programs[name] != loaded.get(name, ""):
            has = loaded.get(name) or "no such runtime"
            return f"the runtime {name} of {path} is {named_programs[name]}, and the dockerd that runs has {has}"
    dropped = [
        name for name in names(host, engine) if name not in named_programs and not engine.option("--add-runtime")
    ]
    if dropped:
        return f"the dockerd that runs has the runtime {dropped[0]}, which {path} does not have any more"
    default, loaded_default = dockerd.settings(path).get("default-runtime"), info.get("DefaultRuntime")
    return (
        f"default-runtime of {path} is {default}, and that of the dockerd that runs is {loaded_default}"
        if default and loaded_default and default != loaded_default
        else ""
    )


def devices(host: Host) -> Iterator[Finding]:
    """Check what dockerd does about CDI."""
    for engine in host.running("dockerd"):
        info = _info(host, engine)
        version = version_of(host, engine)
        device_names = [
            str(device.get("ID")) for device in info.get("DiscoveredDevices") or () if isinstance(device, dict)
        ]
        if "error" in info or version < CDI_SINCE:
            yield skipped("Docker does CDI from version 25 on")
        elif not info.get("CDISpecDirs"):
            default = version >= CDI_DEFAULT
            evidence = (
                "features.cdi is false" if default else "features.cdi is not true, as it must be before version 28.2"
            )
            yield warning(f"dockerd does not do CDI: {evidence}", _configure(host, engine, options=("--cdi",)))
        elif version >= CDI_DEFAULT and not any(name.startswith("nvidia.com/gpu=") for name in device_names):
            folders = [str(each) for each in info["CDISpecDirs"]]
            yield warning(f"dockerd finds no nvidia.com/gpu in {', '.join(folders)}", _list(host, engine, folders))
        elif version < CDI_DEFAULT and (links := _links(engine, [str(each) for each in info["CDISpecDirs"]])):
            number = ".".join(map(str, version))
            yield warning(
                f"{links[0]}, as dockerd sees it, is a link, in which Docker {number} finds no spec",
                "install Docker 28.2 or newer, or use docker run --runtime=nvidia",
            )
        else:
            yield ok(f"dockerd does CDI from {', '.join(info['CDISpecDirs'])}")


def _links(engine: Engine, folders: list[str]) -> list[str]:
    """Return those of the directories that are links in a root of the engine's own, as rootlesskit makes them."""
    return [folder for folder in folders if (path := engine.host_path(folder)) != folder and os.path.islink(path)]


def view(host: Host) -> Iterator[Finding]:
    """Check that each dockerd sees the state, also a rootless one with a /run of its own."""
    for engine in host.running("dockerd"):
        state = engine.host_path(host.state)
        if state == host.state or trust.ours(state) or not os.path.lexists(host.state):
            yield ok(f"dockerd (process {engine.pid}) sees {host.state}")
            continue
        lacks = "cannot be trusted" if os.path.lexists(state) else "is not there, as it was not when dockerd started"
        yield broken(
            f"dockerd (process {engine.pid}) has a root of its own, in which {host.state} {lacks}",
            host.restart(engine),
        )


def alone(host: Host) -> Iterator[Finding]:
    """Check whether the hook alone gives GPUs, which systemd takes away at a reload: `NVML: Unknown Error`."""
    for engine in host.running("dockerd"):
        info = _info(host, engine)
        if not hook_alone(host, engine) or info.get("CgroupDriver") != "systemd":
            yield ok("containers need not get their GPUs from the hook alone")
        else:
            yield warning(
                "only the hook gives GPUs, and the cgroup driver is systemd: what changes a container's cgroup "
                "(docker update) can take its GPUs away again",
                f"{_configure(host, engine)}; then use docker run --runtime=nvidia",
            )


def _configure(host: Host, engine: Engine, name: str = "nvidia", options: tuple[str, ...] = ()) -> str:
    """Return how the runtime gets into the file that this dockerd reads, and is loaded."""
    options = (*options, f"--config={dockerd.config(engine)}") if len(host.running("dockerd")) > 1 else options
    command = entries.build_command("docker", dockerd.programs(engine), host.restart(engine), name, options)
    if engine.option("--add-runtime"):  # dockerd does not start with runtimes in both places
        path = shlex.quote(dockerd.config(engine))
        return f"move --add-runtime from the command line of dockerd into {path}; then {command}"
    return command


def _list(host: Host, engine: Engine, folders: list[str]) -> str:
    """Return how gpushim's CDI devices get into one of the directories that dockerd reads."""
    if not host.settings["cdi"]["write-spec"]:
        return f"set write-spec = true under [cdi] in {shlex.quote(host.config)}; then {REFRESH}"
    if not entries.has_spec_folder(host, map(engine.host_path, folders)):
        folder, path = shlex.quote(entries.find_spec_folder(host)), shlex.quote(dockerd.config(engine))
        return f"add {folder} to cdi-spec-dirs in {path}; then {host.restart(engine)}"
    return REFRESH


def _info(host: Host, engine: Engine) -> dict[str, Any]:
    return host.once(f"dockerd {engine.pid}", lambda: _asked(engine))


def _asked(engine: Engine) -> dict[str, Any]:
    try:
        return dockerd.info(engine, seconds=ask.SECONDS)
    except PermissionError as error:
        evidence, _, fix = str(error).rpartition("; ")  # host_files.py says who could have put the socket there
        root = "run this as root, or as a user who may use that socket"
        return {"error": evidence or f"{error}{_outside(dockerd.socket(engine))}", "fix": fix if evidence else root}
    except (OSError, ValueError) as error:
        return {"error": str(error), "fix": ""}


def _outside(path: str) -> str:
    """Return the clause that this user is not in the group which may use a socket; "" where that is not why."""
    try:
        status = os.stat(path)
        group = grp.getgrgid(status.st_gid).gr_name
    except (OSError, KeyError):
        return ""
    if not status.st_mode & stat.S_IWGRP or status.st_gid in (os.getegid(), *os.getgroups()):
        return ""
    return f", and user {os.geteuid()} is not in its group {group}"


def names(host: Host, engine: Engine) -> list[str]:
    """List the names under which a dockerd knows gpushim-runtime."""
    return dockerd.ours(_info(host, engine), engine)


def hook_alone(host: Host, engine: Engine) -> bool:
    """Return whether the hook is all by which a dockerd gives GPUs."""
    return not names(host, engine) and bool(dockerd.find_program(engine, RUNTIME_HOOK))


def version_of(host: Host, engine: Engine) -> tuple[int, ...]:
    """Return the version that a dockerd says it is; () if it does not answer."""
    return dockerd.version_number(str(_info(host, engine).get("ServerVersion")))


CHECKS = {
    "docker-daemon": daemon,
    "docker-runtime": runtime,
    "docker-program": program,
    "docker-hook": hook,
    "docker-hook-alone": alone,
    "docker-view": view,
    "docker-restart": restarted,
    "docker-cdi": devices,
}
