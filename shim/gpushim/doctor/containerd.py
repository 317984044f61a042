"""Checks of containerd, by the settings that it has merged itself (`containerd config dump`).

Out of scope: changing them (engines/containerd.py); Docker's use of containerd, which needs no entry there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpushim.doctor import SLACK, Finding, Host, ask, broken, ok, skipped, warning
from gpushim.engines import files, is_ours, programs, tomltext
from gpushim.errors import GpushimError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.engines.running import Engine

PROGRAM = "containerd"
CONFIG = "/etc/containerd/config.toml"
SOCKET = "/run/containerd/containerd.sock"
# Where the CRI's settings are, by the generation of containerd.
PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
KUBELET = "/var/lib/kubelet"
RESTART = "systemctl restart containerd"
CONFIGURE = "gpushim configure containerd --restart"


def daemon(host: Host) -> Iterator[Finding]:
    """Check that a containerd runs, and tell its settings."""
    for engine in engines(host):
        merged = _merged(host, engine)
        if "error" in merged:
            yield broken(
                f"containerd (process {engine.pid}) has no good settings: {merged['error']}", f"correct {CONFIG}"
            )
        else:
            yield ok(f"containerd (process {engine.pid}) runs, with {engine.config or CONFIG}")
    if not engines(host):
        told = "no containerd runs"
        if any(each.name == PROGRAM for each in host.strangers):
            yield skipped(f"{told} that is this user's (engine-processes says more)")
        else:
            yield broken(told, "systemctl start containerd") if "containerd" in host.named else skipped(told)


def runtime(host: Host) -> Iterator[Finding]:
    """Check that the CRI has a handler of ours, whose program is there."""
    for engine, cri in _with_cri(host):
        handlers = _handlers(cri)
        if not handlers:
            needed = "containerd" in host.named or "kubernetes" in host.named or os.path.isdir(host.top + KUBELET)
            told = f"the settings of containerd (process {engine.pid}) have no runtime of gpushim's"
            yield broken(told, CONFIGURE) if needed else skipped(f"{told}, and no Kubernetes is here")
        for name, options in handlers.items():
            path = str(options["BinaryName"])
            place = engine.seen(path)
            if path.startswith("/") and os.path.isfile(place) and os.access(place, os.X_OK):
                yield ok(f"containerd's handler {name} is {path}")
            else:
                yield broken(f"containerd's handler {name} is {path}, which is not an executable file", CONFIGURE)


def driver(host: Host) -> Iterator[Finding]:
    """Check that our handler and runc's use the same cgroup driver."""
    for _, cri in _with_cri(host):
        runc = _runtimes(cri).get("runc", {}).get("options") or {}
        for name, options in _handlers(cri).items():
            theirs, mine = bool(runc.get("SystemdCgroup")), bool(options.get("SystemdCgroup"))
            if theirs == mine:
                yield ok(f"the handlers {name} and runc both {'use' if mine else 'do without'} systemd's cgroups")
            else:
                yield broken(
                    f"SystemdCgroup of the handler {name} is {str(mine).lower()}, of runc {str(theirs).lower()}: "
                    "pods with GPUs get cgroups where kubelet does not look",
                    CONFIGURE,
                )


def restarted(host: Host) -> Iterator[Finding]:
    """Check that containerd started after its settings were written."""
    for engine in engines(host):
        path = engine.seen(engine.config or CONFIG)
        places = [path, os.path.dirname(path) + "/conf.d"]
        late = [
            place for place in places if os.path.exists(place) and os.stat(place).st_mtime > engine.started + SLACK
        ]
        if late:
            yield warning(f"{late[0]} was changed after containerd (process {engine.pid}) started", RESTART)
        else:
            yield ok("containerd started after its settings were written")


def devices(host: Host) -> Iterator[Finding]:
    """Check whether the CRI injects CDI devices."""
    for _, cri in _with_cri(host):
        if cri.get("enable_cdi", True):
            known = "enable_cdi" in cri
            yield ok("containerd injects CDI devices") if known else skipped("this containerd does not do CDI")
        else:
            yield warning("enable_cdi of containerd is false: pods get no CDI devices", f"{CONFIGURE} --cdi")


def engines(host: Host) -> list[Engine]:
    """List the containerds that run, without those that a dockerd started for itself."""
    dockers = {engine.pid for engine in host.running("dockerd")}
    return [engine for engine in host.running("containerd") if engine.parent not in dockers]


def socket_of(host: Host, engine: Engine) -> str:
    """Return containerd's socket: of its command line, of its settings, or its usual one."""
    given = engine.option("--address", "-a") or [(_merged(host, engine).get("grpc") or {}).get("address") or SOCKET]
    return engine.seen(str(given[-1]))


def _with_cri(host: Host) -> Iterator[tuple[Engine, dict[str, Any]]]:
    for engine in engines(host):
        merged = _merged(host, engine)
        plugins = merged.get("plugins") or {}
        disabled = [str(each) for each in merged.get("disabled_plugins") or ()]
        for name in PLUGINS:
            if isinstance(plugins.get(name), dict) and name not in disabled and "cri" not in disabled:
                yield engine, plugins[name]
                break


def _runtimes(cri: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = (cri.get("containerd") or {}).get("runtimes") or {}
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)}


def _handlers(cri: dict[str, Any]) -> dict[str, dict[str, Any]]:
    options = {name: entry.get("options") or {} for name, entry in _runtimes(cri).items()}
    return {name: each for name, each in options.items() if is_ours(each.get("BinaryName"))}


def _merged(host: Host, engine: Engine) -> dict[str, Any]:
    key = f"containerd {engine.pid}"
    if key not in host.answers:
        host.answers[key] = _dump(engine)
    found: dict[str, Any] = host.answers[key]
    return found


def _dump(engine: Engine) -> dict[str, Any]:
    config = engine.seen(engine.config or CONFIG)
    try:
        text = files.read(config) or b""
        program = programs.find(PROGRAM, engine)
        # Else it has another root, or is k3s, one program with many names, which puts all settings into one file.
        if program and os.path.basename(engine.exe) == PROGRAM:
            words = [program, *(["--config", config] if engine.config else [])]
            answer = ask.program([*words, "config", "dump"])
            if answer.code != 0:
                return {"error": answer.last}
            text = answer.out.encode()
        found: dict[str, Any] = tomltext.get(tomltext.parse(text, config), ())
    except GpushimError as error:
        return {"error": str(error)}
    return found
