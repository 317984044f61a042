"""Checks of Docker, as the dockerd that runs sees the host: its PATH, its root, its settings, its own answers.

Out of scope: changing its settings (engines/docker.py).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpushim.doctor import SLACK, Finding, Host, ask, broken, ok, ours, skipped, warning
from gpushim.engines import docker, files, gpus, is_ours, jsontext, programs
from gpushim.engines.gpus import CDI_HOOK, HOOK
from gpushim.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.engines.running import Engine

RESTART = "systemctl restart docker"
CDI_SINCE, CDI_DEFAULT, CDI_GPUS = (25, 0), (28, 2), gpus.CDI_SINCE  # versions of Docker


def daemon(host: Host) -> Iterator[Finding]:
    """Check that a dockerd runs and answers."""
    for engine in host.running("dockerd"):
        info = _info(host, engine)
        where = f"dockerd (process {engine.pid}{', in a root of its own' if engine.root else ''})"
        if "error" in info:
            yield broken(
                f"{where} does not answer on {socket_of(engine)}: {info['error']}", "see journalctl -u docker"
            )
        else:
            kind = "rootless " if engine.uid else ""
            yield ok(
                f"{kind}{where} is version {info.get('ServerVersion')}, cgroup driver {info.get('CgroupDriver')}"
            )
    if not host.running("dockerd"):
        yield _absent(host)


def _absent(host: Host) -> Finding:
    if any(each.name == "dockerd" for each in host.strangers):
        return skipped("no dockerd runs that is this user's (engine-processes says more)")
    if programs.lying("dockerd", host.top):
        return (broken if "docker" in host.named else warning)("no dockerd runs", "systemctl start docker")
    return broken("Docker is not installed", "install it") if "docker" in host.named else skipped("no Docker here")


def runtime(host: Host) -> Iterator[Finding]:
    """Check that the runtime is in the file that dockerd reads, and that dockerd knows it."""
    for engine in host.running("dockerd"):
        path = _config(engine)
        try:
            entries = _runtimes(path)
        except GpushimError as error:
            yield broken(str(error), f"correct {path}")
            continue
        info = _info(host, engine)
        written = [name for name, entry in entries.items() if is_ours(entry.get("path"))]
        known = names(host, engine)
        if known:
            default = f", and {info['DefaultRuntime']} is the default" if info.get("DefaultRuntime") in known else ""
            yield ok(f"dockerd knows the runtime {known[0]}{default}")
        elif written:
            yield broken(f"{path} has the runtime {written[0]}, which the running dockerd does not know", RESTART)
        else:
            other = "".join(f"; its nvidia is {e.get('path')}" for name, e in entries.items() if name == "nvidia")
            yield (warning if _hook(engine) else broken)(
                f"{path}, which dockerd (process {engine.pid}) reads, has no runtime of gpushim's{other}",
                "gpushim configure docker --restart",
            )


def program(host: Host) -> Iterator[Finding]:
    """Check that dockerd can execute the runtime in the root that it has."""
    for engine in host.running("dockerd"):
        for name, path in _paths(engine):
            place = engine.seen(path)
            if not path.startswith("/"):
                yield warning(f"the runtime {name} is {path}, without a directory", "gpushim configure docker")
            elif not os.path.isfile(place) or not os.access(place, os.X_OK):
                why = "in dockerd's own root" if engine.root else "here"
                yield broken(
                    f"the runtime {name} is {path}, which is not an executable file {why}",
                    "install gpushim where dockerd sees it, then gpushim configure docker",
                )
            else:
                yield ok(f"dockerd can execute {path}")


def hook(host: Host) -> Iterator[Finding]:
    """Check what `docker run --gpus` needs on the PATH of the dockerd that runs, by its version."""
    for engine in host.running("dockerd"):
        path = _hook(engine)
        where = f"the PATH of dockerd (process {engine.pid})"
        today = version_of(host, engine) >= CDI_GPUS
        by_cdi = gpus.found(engine, CDI_HOOK) if today else ""
        if by_cdi:
            yield ok(f"{by_cdi} is on {where}: docker run --gpus uses CDI")
        elif not path:
            name, says = (
                (CDI_HOOK, "AMD CDI spec not found, or no known GPU vendor found")
                if today
                else (HOOK, "could not select device driver")
            )
            yield warning(
                f"{name} is in no directory of {where}, {_path(engine) or 'which is empty'}: "
                f"docker run --gpus fails ({says})",
                _gpus_fix(engine),
            )
        elif not ours(path):
            yield warning(
                f"{path}, the first on {where}, is not gpushim's", "remove nvidia-container-toolkit's package"
            )
        else:
            yield ok(f"{path} is on {where}")


def _gpus_fix(engine: Engine) -> str:
    if engine.root:  # nothing of this host's is in it
        return "docker run --runtime=nvidia, or --device nvidia.com/gpu=all, instead"
    first = "" if gpus.folders(engine) else f"put {gpus.SYSTEM} on the PATH of dockerd, then "
    return f"{first}gpushim configure docker --restart"


def restarted(host: Host) -> Iterator[Finding]:
    """Check that dockerd started after what it looks at only then."""
    for engine in host.running("dockerd"):
        path = _hook(engine)
        # ctime: packages keep the mtime that a file had where it was built.
        if path and os.stat(path).st_ctime > engine.started + SLACK:
            yield warning(
                f"dockerd has run since before {path} was installed: docker run --gpus may not find it", RESTART
            )
        elif not names(host, engine) and _changed(_config(engine)) > engine.started + SLACK:
            yield warning(f"{_config(engine)} was changed after dockerd (process {engine.pid}) started", RESTART)
        else:
            yield ok("dockerd started after all that it reads at its start")


def devices(host: Host) -> Iterator[Finding]:
    """Check what dockerd does about CDI."""
    for engine in host.running("dockerd"):
        info = _info(host, engine)
        version = version_of(host, engine)
        found = [str(each.get("ID")) for each in info.get("DiscoveredDevices") or () if isinstance(each, dict)]
        if "error" in info or version < CDI_SINCE:
            yield skipped("Docker does CDI from version 25 on")
        elif not info.get("CDISpecDirs"):
            default = version >= CDI_DEFAULT
            told = (
                "features.cdi is false" if default else "features.cdi is not true, as it must be before version 28.2"
            )
            yield warning(f"dockerd does not do CDI: {told}", f"gpushim configure docker --cdi, then {RESTART}")
        elif version >= CDI_DEFAULT and not any(each.startswith("nvidia.com/gpu=") for each in found):
            yield warning(f"dockerd finds no nvidia.com/gpu in {', '.join(info['CDISpecDirs'])}", "gpushim refresh")
        else:
            yield ok(f"dockerd does CDI from {', '.join(info['CDISpecDirs'])}")


def alone(host: Host) -> Iterator[Finding]:
    """Check whether device rules are only ever changed behind runc's back: `NVML: Unknown Error` after a reload."""
    for engine in host.running("dockerd"):
        info = _info(host, engine)
        if names(host, engine) or not _hook(engine) or info.get("CgroupDriver") != "systemd":
            yield ok("containers need not get their GPUs from the hook alone")
        else:
            yield warning(
                "only the hook gives GPUs, and the cgroup driver is systemd: what changes a container's cgroup "
                "(docker update) can take its GPUs away again",
                "gpushim configure docker --restart, and docker run --runtime=nvidia",
            )


def _info(host: Host, engine: Engine) -> dict[str, Any]:
    key = f"dockerd {engine.pid}"
    if key not in host.answers:
        try:
            host.answers[key] = ask.docker(socket_of(engine), "/info")
        except (OSError, ValueError) as error:
            host.answers[key] = {"error": str(error)}
    found: dict[str, Any] = host.answers[key]
    return found


def _config(engine: Engine) -> str:
    if engine.config:
        return engine.seen(engine.config)
    if not engine.uid:
        return engine.seen(docker.SYSTEM_CONFIG)
    home = engine.environ.get("XDG_CONFIG_HOME") or f"{engine.environ.get('HOME', '')}/.config"
    return engine.seen(f"{home}/docker/daemon.json")


def _settings(path: str) -> str:
    return jsontext.parse(files.read(path) or b"", path)


def _runtimes(path: str) -> dict[str, dict[str, Any]]:
    found = jsontext.get(_settings(path), ("runtimes",))
    return {name: entry for name, entry in (found or {}).items() if isinstance(entry, dict)}


def _paths(engine: Engine) -> list[tuple[str, str]]:
    try:
        entries = _runtimes(_config(engine))
    except GpushimError:
        return []  # `runtime` says it
    return [(name, str(entry["path"])) for name, entry in entries.items() if is_ours(entry.get("path"))]


def names(host: Host, engine: Engine) -> list[str]:
    """List the names under which a dockerd knows gpushim-runtime."""
    entries = _info(host, engine).get("Runtimes") or {}
    return [name for name, entry in entries.items() if is_ours((entry or {}).get("path"))]


def version_of(host: Host, engine: Engine) -> tuple[int, ...]:
    """Return the version that a dockerd says it is; () if it does not answer."""
    return gpus.number(str(_info(host, engine).get("ServerVersion")))


def socket_of(engine: Engine) -> str:
    """Return dockerd's socket: of its command line, of its settings, or its usual one."""
    hosts = engine.option("--host", "-H")
    try:
        listed = jsontext.get(_settings(_config(engine)), ("hosts",))
    except GpushimError:
        listed = None
    for each in [*hosts, *(listed if isinstance(listed, list) else [])]:
        if str(each).startswith("unix://"):
            return engine.seen(str(each)[len("unix://") :])
    folder = engine.environ.get("XDG_RUNTIME_DIR", f"/run/user/{engine.uid}") if engine.uid else "/run"
    return engine.seen(f"{folder}/docker.sock")


def _path(engine: Engine) -> str:
    return engine.environ.get("PATH", "")


def _hook(engine: Engine) -> str:
    return gpus.found(engine, HOOK)


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
