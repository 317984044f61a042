"""containerd as a program: which one runs, its version, the settings as it reads them, and what its CRI says.

Out of scope: what is to be changed (__init__.py).
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpushim.config.policy import SYSTEM_PATH
from gpushim.engines.containerd import services
from gpushim.engines.processes import ask, programs, running
from gpushim.engines.settings import files, toml
from gpushim.ground.errors import GpushimError
from gpushim.paths import host_files

if TYPE_CHECKING:
    from gpushim.engines.processes.running import Engine

NAME = "containerd"
SYSTEM_CONFIG = "/etc/containerd/config.toml"
ADDRESS = "/run/containerd/containerd.sock"
CALL_SECONDS = 30
ANSWER_SECONDS = 40.0  # until a containerd that was just restarted has loaded its plugins
_VERSION = re.compile(r"^containerd \S+ v?(\d+)\.(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Daemon:
    """A containerd, running or not.

    Attributes:
        config: absolute path of its settings, within its root.
        version: such as (1, 7); (0, 0) if no program tells it.
        notes: about others that run.
        stopped: the service whose containerd it is, by its name in services, if that does not run.
    """

    config: str
    engine: Engine | None = None
    version: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)
    stopped: str = ""

    @property
    def merges(self) -> bool:
        """Whether its files add up; before 2.0 the table of a plugin replaces that of the files read earlier.

        False where the version is unknown, too: then gpushim's file has all of the CRI's settings, which suits both.
        """
        return self.version >= (2, 0)

    def host_path(self, path: str) -> str:
        """Return the path under which this process opens a file of containerd's, as `Engine.host_path` does."""
        return self.engine.host_path(path) if self.engine else path

    def shown(self) -> str:
        """Name it for messages, with its version if that is known."""
        return f"containerd {self.version[0]}.{self.version[1]}" if any(self.version) else "containerd"


def find(config: str, files_only: bool = False) -> Daemon:
    """Find the containerd whose settings are to be changed, without those that dockerd keeps for itself.

    Args:
        config: absolute path of the settings if somebody named them, else "".
        files_only: look at no process.

    Raises:
        GpushimError: several run or are installed, and nothing tells which one is meant.
    """
    default = _default_config()
    engine, notes = (None, []) if files_only else running.reading(NAME, config, default)
    service = "" if config else _service((engine and engine.config) or default, engine)
    config_path = (engine.config if engine else config or services.CONFIGS.get(service)) or default
    service = "" if engine else services.of(config_path)
    if service and not config:
        notes.append(f"no containerd runs, and {service} is installed: its settings, {config_path}, are meant")
    return Daemon(config_path, engine, _version(engine, config_path), notes, service)


def of(engine: Engine) -> Daemon:
    config = engine.config or SYSTEM_CONFIG
    return Daemon(config, engine, _version(engine, config))


def _service(default: str, engine: Engine | None) -> str:
    """Return the only service whose containerd can be meant where none of it runs; "" if there is none.

    Args:
        default: path of the settings that are meant without a service.
        engine: the containerd that runs with these settings, if one does.

    Raises:
        GpushimError: several are installed, and nothing tells which one is meant.
    """
    here_too = services.installed() if os.geteuid() == 0 else []
    if services.of(default) or not here_too:
        return ""
    lies = programs.lying(NAME, folders=tuple(SYSTEM_PATH.split(":")))
    alone = engine is not None or os.path.exists(default) or bool(lies)
    if not alone and len(here_too) == 1:
        return here_too[0]
    main_services = [f"{NAME} with {default}"] if alone else []
    running_services = [*main_services, *(f"{name} with {services.CONFIGS[name]}" for name in here_too)]
    raise GpushimError(f"{' and '.join(running_services)} are installed; choose one with --config")


def dump(daemon: Daemon) -> dict[str, Any]:
    """Return the settings as containerd itself reads them, all files and defaults together.

    Raises:
        GpushimError: it cannot read them, with its reason.
    """
    exists = files.read(daemon.host_path(daemon.config)) is not None  # a file that is named must be there
    arguments = ("--config", daemon.config, "config", "dump") if exists else ("config", "default")
    answer = _call(daemon.engine, daemon.config, *arguments)
    if answer is None and daemon.engine and daemon.engine.root:
        pid, exe, words = daemon.engine.pid, daemon.engine.exe or NAME, " ".join(arguments)
        raise GpushimError(
            f"containerd (process {pid}) has a root directory of its own, so it is not asked how it reads its "
            f"settings; see what `nsenter --target {pid} --mount --root {exe} {words}` says"
        )
    if answer is None and not daemon.engine:
        raise GpushimError(f"it is unknown how containerd reads its settings: {programs.absent(NAME)}")
    if answer is None:
        raise GpushimError(
            "no containerd program was found to ask how it reads its settings; link the program of the "
            f"running one to {programs.DIRECTORIES[0]}/{NAME}"
        )
    if answer.code != 0:
        raise GpushimError(f"containerd does not read {daemon.config}: {answer.last}; it would not start either")
    return toml.parse(answer.out.encode(), "the answer of containerd")


def ask_cri(daemon: Daemon, settings: dict[str, Any], name: str) -> tuple[str | None, str]:
    """Ask the running containerd for a runtime of its CRI, waiting until it answers.

    Returns:
        the runtime's program, "" if the CRI has no such runtime, None if only crictl could ask and it is not there;
        and what is wrong with the CRI, or "".
    """
    addresses = daemon.engine.option("--address", "-address", "-a") if daemon.engine else []
    address = daemon.host_path((addresses or [settings.get("grpc", {}).get("address") or ADDRESS])[-1])
    try:
        address = host_files.socket_path(address)
    except (OSError, GpushimError) as error:
        return None, f"containerd cannot be asked at {address}: {error}"
    crictl = programs.find("crictl")
    if crictl:
        answer = _patiently([crictl, f"--runtime-endpoint=unix://{address}", "info"])
        if answer.code != 0:
            return None, f"the CRI does not answer at {address}: {answer.last}; see containerd's journal"
        return _registered(answer.out, name), ""
    ctr = programs.find("ctr")
    if not ctr:
        return None, ""
    answer = _patiently([ctr, f"--address={address}", "plugins", "ls"])
    if answer.code != 0:
        return None, f"containerd does not answer at {address}: {answer.last}; see its journal"
    states = {line.split()[1]: line.split()[-1] for line in answer.out.splitlines() if len(line.split()) > 2}
    wrong = states.get("cri") not in ("ok", "skip")
    return None, "its CRI plugin is not running; see containerd's journal" if wrong else ""


def _registered(info: str, name: str) -> str | None:
    """Find the program of a runtime in what `crictl info` prints; None if that is of another form."""
    try:
        runtimes = json.loads(info)["config"]["containerd"]["runtimes"]
        return str(runtimes[name]["options"]["BinaryName"]) if name in runtimes else ""
    except (ValueError, KeyError, TypeError):
        return None


def _default_config() -> str:
    if os.geteuid() == 0:
        return SYSTEM_CONFIG
    return f"{os.environ.get('XDG_CONFIG_HOME') or os.path.expanduser('~/.config')}/containerd/config.toml"


def _version(engine: Engine | None, config: str) -> tuple[int, int]:
    answer = _call(engine, config, "--version")
    match = _VERSION.search(answer.out) if answer else None
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _call(engine: Engine | None, config: str, *arguments: str) -> ask.Answer | None:
    """Run containerd's program with other arguments; None if it is in no directory where programs may be executed."""
    bundled = "" if engine else services.program(config)  # the system's may be of another version
    program = bundled if bundled and programs.trusted(bundled) else "" if bundled else programs.find(NAME, engine)
    # k3s is many programs in one, and its first argument tells which; hence the name.
    return ask.program([NAME, *arguments], CALL_SECONDS, executable=program) if program else None


def _patiently(command: list[str]) -> ask.Answer:
    end = time.monotonic() + ANSWER_SECONDS
    while True:
        answer = ask.program(command, CALL_SECONDS)
        if answer.code == 0 or time.monotonic() > end:
            return answer
        time.sleep(0.2)
