"""Checks of containerd, by the settings that it has merged itself (`containerd config dump`).

Out of scope: changing them (engines/containerd); Docker's use of containerd, which needs no entry there.
"""

from __future__ import annotations

import functools
import glob
import os
import shlex
from typing import TYPE_CHECKING, Any

from gpushim.doctor import Finding, Host, broken, corrected, entries, ok, skipped, warning
from gpushim.engines import containerd
from gpushim.engines.containerd import imports, process, services
from gpushim.engines.containerd.process import ADDRESS, NAME
from gpushim.engines.processes import programs, units
from gpushim.engines.settings import files, toml
from gpushim.engines.settings.setup import executes_ours
from gpushim.ground.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.engines.processes.running import Engine

PLUGINS = tuple(reversed(imports.CRI.values()))  # where the CRI's settings are, by the generation of containerd


def daemon(host: Host) -> Iterator[Finding]:
    """Check that containerd runs, with readable settings."""
    for engine in engines(host):
        merged, path, subject = _merged(host, engine), _config(engine), f"containerd (process {engine.pid})"
        if "error" in merged:
            yield broken(f"the settings of {subject} cannot be used: {merged['error']}", corrected(path))
        elif os.path.exists(path):
            yield ok(f"{subject} runs, with {path}")
        elif engine.config:
            evidence = f"{subject} was started with --config {path}, which no longer exists: it would not start again"
            yield broken(evidence, _configure(host, engine))
        else:
            yield ok(f"{subject} runs with its built-in settings: there is no {path}")
    if not engines(host):
        installed = services.installed(host.top)
        clause = f", and {' and '.join(installed)} is installed" if installed else ""
        start = units.fix("start", services.unit(installed[0], host.top), top=host.top) if installed else ""
        yield entries.report_absent(host, NAME, clause, start)


def runtime(host: Host) -> Iterator[Finding]:
    """Check that the CRI has a handler of ours, whose program is there."""
    is_needed = host.for_pods(NAME)
    with_cri = list(_with_cri(host))
    for engine, cri in with_cri:
        named_programs = _programs(cri)
        configure = functools.partial(_configure, host, engine)
        yield from entries.check_handlers(host, engine, named_programs, named_programs, configure)
    readers = [engine for engine, _ in with_cri]
    for engine in engines(host):
        if is_needed and engine not in readers and "error" not in _merged(host, engine):
            evidence = f"the CRI of containerd (process {engine.pid}) is disabled, so there are no pods"
            settings = shlex.quote(_config(engine))
            yield broken(evidence, f"take it out of disabled_plugins in {settings}; then {host.restart(engine)}")
        yield from _ignored(host, engine)


def _ignored(host: Host, engine: Engine) -> Iterator[Finding]:
    """Find runtimes in a table of another version than the file's, which containerd passes over without a word."""
    path = _config(engine)
    try:
        data = toml.parse(files.read(path) or b"", path)
    except GpushimError:
        return  # `daemon` says it
    version = data.get("version", 1)
    for number, name in imports.CRI.items() if isinstance(version, int) else ():
        if number != version and toml.table(data, "plugins", name, "containerd", "runtimes"):
            right, quoted = imports.CRI.get(version, imports.CRI[3]), shlex.quote(path)
            yield warning(
                f"{path} is of version {version}, in which containerd ignores the runtimes of plugins {name}",
                f"move them to plugins {right} in {quoted}; then {host.restart(engine)}",
            )


def driver(host: Host) -> Iterator[Finding]:
    """Check that our handler and runc's use the same cgroup driver."""
    for engine, cri in _with_cri(host):
        runc = _options(cri).get("runc", {})
        for name, options in _handlers(engine, cri).items():
            of_runc, of_handler = bool(runc.get("SystemdCgroup")), bool(options.get("SystemdCgroup"))
            if of_runc == of_handler:
                yield ok(
                    f"the handlers {name} and runc both {'use' if of_handler else 'do without'} systemd's cgroups"
                )
            else:
                yield broken(
                    f"SystemdCgroup of the handler {name} is {str(of_handler).lower()}, of runc "
                    f"{str(of_runc).lower()}: "
                    "pods with GPUs get cgroups where kubelet does not look",
                    _configure(host, engine, name),
                )


def restarted(host: Host) -> Iterator[Finding]:
    """Check that containerd started after its settings were written, and gpushim's copy of some is not older."""
    for engine in engines(host):
        try:
            copy = containerd.outdated(process.of(engine))
        except GpushimError:
            copy = ""  # `daemon` says it
        if copy:
            evidence = f"the CRI's settings were changed since {copy} has a copy of them, which counts"
            yield warning(evidence, _configure(host, engine))
        imports = [
            str(pattern) for pattern in _merged(host, engine).get("imports") or () if str(pattern).startswith("/")
        ]
        # Where an import is a pattern, what was removed from its directory counts too.
        read = [path for pattern in imports for path in (*glob.glob(pattern), *_folder(pattern))]
        paths = [_config(engine), os.path.dirname(_config(engine)) + "/conf.d", *map(engine.host_path, read)]
        late = [path for path in paths if engine.before(path)]
        if late:
            evidence = f"{late[0]} was changed after containerd (process {engine.pid}) started"
            yield warning(evidence, host.restart(engine))
        else:
            yield ok("containerd started after its settings were written")


def _folder(pattern: str) -> list[str]:
    return [os.path.dirname(pattern)] if glob.has_magic(pattern) else []


def devices(host: Host) -> Iterator[Finding]:
    """Check whether the CRI injects CDI devices."""
    for engine, cri in _with_cri(host):
        folders = cri.get("cdi_spec_dirs")
        if "enable_cdi" not in cri:
            yield skipped("this containerd does not do CDI")
        elif cri["enable_cdi"] and isinstance(folders, list) and not _configured_folders(host, engine, folders):
            evidence = f"containerd does CDI from {', '.join(map(str, folders))}"
            evidence += f", and the spec is in {entries.find_spec_folder(host)}"
            yield warning(evidence, entries.build_folder_fix(host, str(folders[-1])))
        elif cri["enable_cdi"]:
            yield ok("containerd injects CDI devices")
        else:
            service = services.of(_config(engine))
            yield warning(
                "enable_cdi of containerd is false: pods get no CDI devices",
                f"upgrade {service} to a release whose containerd is 2.0 or newer, which does CDI by itself"
                if service in services.RANCHER
                else _configure(host, engine, options=("--cdi",)),
            )


def _configured_folders(host: Host, engine: Engine, folders: list[Any]) -> bool:
    """Return whether containerd looks for CDI devices where refresh writes them, if somebody chose that directory."""
    cdi = host.settings["cdi"]
    is_listed = entries.has_spec_folder(host, [engine.host_path(str(folder)) for folder in folders])
    return is_listed or not folders or not cdi["write-spec"] or not cdi["output-directory"]


def engines(host: Host) -> list[Engine]:
    """List the containerds that run, without those that a dockerd started for itself."""
    dockers = {engine.pid for engine in host.running("dockerd")}
    return [engine for engine in host.running("containerd") if engine.parent not in dockers]


def handlers(host: Host) -> list[str]:
    """List the names of the handlers that are gpushim's, of all containerds that run."""
    return [name for engine, cri in _with_cri(host) for name in _handlers(engine, cri)]


def socket_of(host: Host, engine: Engine) -> str:
    """Return containerd's socket: of its command line, of its settings, or its usual one."""
    addresses = engine.option("--address", "-a") or [
        (_merged(host, engine).get("grpc") or {}).get("address") or ADDRESS
    ]
    return engine.host_path(str(addresses[-1]))


def _with_cri(host: Host) -> Iterator[tuple[Engine, dict[str, Any]]]:
    for engine in engines(host):
        merged = _merged(host, engine)
        plugins = merged.get("plugins") or {}
        disabled = [str(plugin) for plugin in merged.get("disabled_plugins") or ()]
        for name in PLUGINS:
            if isinstance(plugins.get(name), dict) and name not in disabled and "cri" not in disabled:
                yield engine, plugins[name]
                break


def _options(cri: dict[str, Any]) -> dict[str, dict[str, Any]]:
    runtimes = (cri.get("containerd") or {}).get("runtimes") or {}
    return {name: entry.get("options") or {} for name, entry in runtimes.items() if isinstance(entry, dict)}


def _programs(cri: dict[str, Any]) -> dict[str, str]:
    return {name: str(options.get("BinaryName", "")) for name, options in _options(cri).items()}


def _handlers(engine: Engine, cri: dict[str, Any]) -> dict[str, dict[str, Any]]:
    named_programs = _programs(cri)
    return {name: options for name, options in _options(cri).items() if executes_ours(named_programs[name], engine)}


def _config(engine: Engine) -> str:
    return engine.host_path(engine.config or process.SYSTEM_CONFIG)


def _configure(host: Host, engine: Engine, name: str = "nvidia", options: tuple[str, ...] = ()) -> str:
    """Return how the runtime gets into the settings that this containerd reads, and is loaded."""
    cri = next((cri for each, cri in _with_cri(host) if each is engine), {})
    has_others = len(engines(host)) > 1 or (services.installed(host.top) and not services.of(_config(engine)))
    options = (*options, f"--config={_config(engine)}") if has_others else options
    return entries.build_command("containerd", _programs(cri), host.restart(engine), name, options)


def _merged(host: Host, engine: Engine) -> dict[str, Any]:
    return host.once(f"containerd {engine.pid}", lambda: _dump(engine))


def _dump(engine: Engine) -> dict[str, Any]:
    daemon = process.Daemon(engine.config or process.SYSTEM_CONFIG, engine)
    try:
        # Else it has another root, or is k3s, one program with many names, which puts all settings into one file.
        if os.path.basename(engine.exe) == NAME and programs.find(NAME, engine):
            return process.dump(daemon)
        path = _config(engine)
        return toml.parse(files.read(path) or b"", path)
    except GpushimError as error:
        return {"error": str(error)}


CHECKS = {
    "containerd-daemon": daemon,
    "containerd-runtime": runtime,
    "containerd-cgroups": driver,
    "containerd-restart": restarted,
    "containerd-cdi": devices,
}
