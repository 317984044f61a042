"""dockerd as a program: the file that it reads, its socket, its answers (GET /info of its API), and its PATH.

For `docker run --gpus` it looks on its PATH, as it starts, for a program by one of two names that are NVIDIA's; its
version decides which of them counts (seen with 20.10 to 29.7). gpushim's package has neither, because NVIDIA's has
both and two packages cannot have one file; so `configure docker` links each that nobody has, in a directory that no
package writes to. A link is gpushim's if it leads to gpushim-hook.
Out of scope: what is to be changed in the file (__init__.py); what those programs do (gpuhook).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import time
from typing import TYPE_CHECKING, Any

from gpushim.config.policy import SYSTEM_PATH
from gpushim.engines.docker.daemon_json import entries, parse, program_of
from gpushim.engines.processes.ask import program
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import HOOK, Link, executes_ours
from gpushim.ground.errors import GpushimError
from gpushim.paths import changeable, host_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpushim.engines.processes.running import Engine

PROGRAM = "dockerd"
SYSTEM_CONFIG = "/etc/docker/daemon.json"
SNAP = "/var/snap/docker/current/config"
SNAP_CONFIG = f"{SNAP}/daemon.json"
SECONDS = 40.0  # a dockerd with many containers takes its time
VERSION_SECONDS = 5.0  # of one that is there, for a note
ANSWER_LIMIT = 16 << 20  # bytes
RUNTIME_HOOK, CDI_HOOK = "nvidia-container-runtime-hook", "nvidia-cdi-hook"
CDI_HOOK_SINCE = (29, 2)  # the Docker that looks for CDI_HOOK, and for RUNTIME_HOOK only if that is missing
LINKS, USER_LINKS = "/usr/local/bin", (".local/bin", "bin")  # an ordinary user's are below the home directory
PATH = SYSTEM_PATH  # also of systemd's services (DEFAULT_PATH), where no dockerd runs that tells another


def default_config(environ: Mapping[str, str] = os.environ) -> str:
    """Return the daemon.json that this user's dockerd, with such an environment, reads without --config-file.

    The snap's dockerd always has that option; its file counts where only the snap is installed.
    """
    if os.geteuid() != 0:
        config_home = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or os.path.expanduser('~')}/.config"
        return f"{config_home}/docker/daemon.json"
    if os.path.isdir(SNAP) and not os.path.isdir(os.path.dirname(SYSTEM_CONFIG)):
        return SNAP_CONFIG
    return SYSTEM_CONFIG


def config(engine: Engine | None) -> str:
    """Return the daemon.json of a dockerd, None for one that does not run, as this process opens it."""
    return engine.host_path(engine.config or default_config(engine.environ)) if engine else default_config()


def settings(path: str) -> dict[str, Any]:
    """Return what a daemon.json has; nothing where there is none, or it cannot be read or understood."""
    try:
        return parse(files.read(path), path)
    except GpushimError:
        return {}


def written(engine: Engine | None) -> dict[str, dict[str, Any]]:
    """Return the runtimes in the file of a dockerd; none without a dockerd, or if they cannot be told."""
    return entries(settings(config(engine))) if engine else {}


def programs(engine: Engine) -> dict[str, str]:
    """Return the program of each runtime in the file of a dockerd, by name."""
    return {name: program_of(entry) for name, entry in written(engine).items()}


def added(engine: Engine | None) -> list[str]:
    """List the runtimes that a dockerd, if one runs, has by its command line."""
    return [value.partition("=")[0] for value in engine.option("--add-runtime")] if engine else []


def loaded(info: dict[str, Any], entries: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the program of each runtime that dockerd has loaded, "" where nothing tells it.

    Args:
        info: what dockerd says, which is the name alone for a runtime with a runtimeType.
        entries: the runtimes of its daemon.json.
    """
    runtimes = info.get("Runtimes")
    pairs = runtimes.items() if isinstance(runtimes, dict) else ()
    return {name: program_of(entry) or program_of(entries.get(name)) for name, entry in pairs}


def ours(info: dict[str, Any], engine: Engine | None) -> list[str]:
    """List the names under which a dockerd has gpushim-runtime, by its answer and, where it is seen, its file."""
    return [name for name, program in loaded(info, written(engine)).items() if executes_ours(program, engine)]


def socket(engine: Engine | None, path: str = "") -> str:
    """Return dockerd's socket: of its command line, of its settings, or its usual one.

    Args:
        engine: the dockerd, if one runs.
        path: of its daemon.json; "" for the one that it reads.
    """
    from_here, environ = (engine.host_path, engine.environ) if engine else (str, os.environ)
    listed = settings(path or config(engine)).get("hosts")
    for host in [*(engine.option("--host", "-H") if engine else []), *(listed if isinstance(listed, list) else [])]:
        if str(host).startswith("unix://"):
            return from_here(str(host)[len("unix://") :])
    user = engine.uid if engine else os.geteuid()
    return from_here(f"{environ.get('XDG_RUNTIME_DIR', f'/run/user/{user}') if user else '/run'}/docker.sock")


def info(engine: Engine | None, path: str = "", seconds: float = SECONDS, patience: float = 0.0) -> dict[str, Any]:
    """Ask dockerd for /info.

    Args:
        engine: the dockerd, if one runs.
        path: as `socket` takes it.
        seconds: how long each step may take.
        patience: seconds for which it is asked again while it does not listen yet.

    Raises:
        OSError: it does not answer, or somebody else could.
        ValueError: what it answers is no JSON object.
    """
    end = time.monotonic() + patience
    while True:
        try:
            return ask(socket(engine, path), "/info", seconds)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def version(engine: Engine | None, path: str) -> str:
    """Return the version of a dockerd that runs; "" if it does not tell, or none runs."""
    try:
        return str(info(engine, path, VERSION_SECONDS).get("ServerVersion") or "") if engine else ""
    except (OSError, ValueError):
        return ""


def refusal(content: bytes, dockerd: str) -> str:
    """Return, as a clause, why a program would not start with a daemon.json; "" if it would, or does not tell."""
    # The same bytes that were judged here, whatever the file becomes in the meantime.
    answer = program([dockerd, "--validate", "--config-file", "/dev/stdin"], feed=content)
    last_line = (answer.error.strip().splitlines() or [""])[-1]
    if answer.code == 0 or "configure the Docker daemon" not in last_line:  # before 23 it does not know the option
        return ""
    return f"dockerd says: {last_line.rpartition('/dev/stdin: ')[2][:300]}"


def ask(address: str, path: str, seconds: float) -> dict[str, Any]:
    """Ask dockerd once, at its socket; the rest is as `info` has it."""
    import http.client  # takes as long as all else that `gpushim ps` needs

    connection = http.client.HTTPConnection("localhost", timeout=seconds)
    try:
        connection.sock = host_files.connect(address, seconds)
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read(ANSWER_LIMIT))
    except http.client.HTTPException as error:
        raise ValueError(f"no HTTP ({type(error).__name__})") from None
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise ValueError("no JSON object")
    return answer


def version_number(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version of Docker's; () if they are none."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if len(parts) == 2 and all(part.isdigit() for part in parts) else ()


def find_program(engine: Engine | None, name: str) -> str:
    """Return where a dockerd finds a program, as this process opens it; "" if nowhere.

    `engine` is None for one that systemd is going to start.
    """
    for folder in _path_folders(engine):
        path = os.path.join(folder, name)
        host_path = engine.host_path(path) if engine else path
        if os.path.isfile(host_path) and os.access(host_path, os.X_OK):
            return host_path
    return ""


def link_folders(engine: Engine | None) -> list[str]:
    """List the directories for links that are on the PATH of a dockerd; none where it has a root of its own."""
    on_path = _path_folders(engine)
    return [] if engine and engine.root else [folder for folder in _own_folders() if folder in on_path]


def missing_links(engine: Engine | None, hook: str, version: str) -> tuple[list[Link], list[str]]:
    """Work out which links a dockerd lacks for --gpus: of both names, for the version may change.

    A link of ours to a program that others could change counts as none.

    Args:
        engine: the dockerd; None for one that systemd is going to start.
        hook: absolute path of gpushim-hook.
        version: of Docker; "" if it is not known.

    Returns:
        the links, and a note about a name that this version needs, nobody has, and no link can be made for.
    """
    number = version_number(version)
    unneeded = (RUNTIME_HOOK if number >= CDI_HOOK_SINCE else CDI_HOOK) if number else ""
    links, notes = [], []
    for name in (CDI_HOOK, RUNTIME_HOOK):
        program_path = find_program(engine, name)
        if program_path and not (_is_own_link(program_path) and changeable.by(program_path)):
            continue
        paths = [f"{folder}/{name}" for folder in link_folders(engine)]
        free = [path for path in paths if _is_own_link(path, absent=True)]
        if free:
            links.append(Link(free[0], hook))
        elif name != unneeded:
            searched = f"the PATH of dockerd ({':'.join(_path_folders(engine))})"
            notes.append(f"{name} is not on {searched}: link it to {hook} there for docker run --gpus")
    return links, notes


def own_links() -> list[Link]:
    """List the links of gpushim's that are there, as links to be removed."""
    paths = [f"{folder}/{name}" for folder in _own_folders() for name in (CDI_HOOK, RUNTIME_HOOK)]
    return [Link(path) for path in paths if _is_own_link(path)]


def apply_links(links: list[Link]) -> tuple[list[Link], list[str]]:
    """Make and remove links.

    Returns:
        those that are now as wished, and for each other one a note with the command that does it.
    """
    applied, notes = [], []
    for link in links:
        try:
            _apply_link(link)
            applied.append(link)
        except (GpushimError, OSError) as error:
            reason = f"{link.path}: {error.strerror}" if isinstance(error, OSError) else str(error)
            notes.append(f"{reason}; for docker run --gpus: {link.command}")
    return applied, notes


def _apply_link(link: Link) -> None:
    folder, name = os.path.split(link.path)
    # By another name, as the way to the link itself would lead on to its target.
    with host_files.open_parent(f"{folder}/.{name}.gpushim", make=bool(link.target)) as target:
        if not _is_own_link(link.path, absent=True):
            raise FileExistsError(errno.EEXIST, "it is somebody else's by now")
        with contextlib.suppress(FileNotFoundError):  # one of ours that led nowhere, which a new one need not replace
            os.unlink(name, dir_fd=target.folder)
        if link.target:
            os.symlink(link.target, name, dir_fd=target.folder)


def _path_folders(engine: Engine | None) -> list[str]:
    return [folder for folder in (engine.environ.get("PATH", "") if engine else PATH).split(":") if folder[:1] == "/"]


def _own_folders() -> list[str]:
    top = os.path.expanduser("~")
    return [LINKS] if os.geteuid() == 0 else [f"{top}/{folder}" for folder in USER_LINKS if top.startswith("/")]


def _is_own_link(path: str, absent: bool = False) -> bool:
    """Return whether a path is a link of gpushim's; `absent` is the answer where there is nothing."""
    try:
        return posixpath.basename(os.readlink(path)) == HOOK
    except FileNotFoundError:
        return absent
    except OSError:  # no link
        return False
