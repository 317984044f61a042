"""The control daemon of MPS: NVIDIA's program is started, told its limits, asked, and ended.

It runs with a /dev/shm of its group, in a mount namespace of its own, for the daemon and its clients must share it
and nobody else's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from typing import TYPE_CHECKING

from gpuplugin.processes import spawn
from gpushim.config import policy
from gpushim.engines.processes import ask
from gpushim.ground.errors import CONFIG, INVENTORY, GpushimError, quote, visible
from gpushim.ground.logs import logger
from gpushim.inventory import driver_files
from gpushim.paths import rooted, selinux

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplugin.devices.mps_group import MpsGroup
    from gpuplugin.mps.mps import Folders
    from gpushim.ground.model import Snapshot

PROGRAM = "nvidia-cuda-mps-control"
ANSWER = 10.0  # seconds that the daemon has for a command
START = 30.0  # seconds until it answers
POLL = 0.05  # seconds between looks at a daemon that starts or ends
ASKED = "get_default_active_thread_percentage"  # of all drivers' commands, the one that changes nothing
TAIL = 300  # bytes at the end of what it says that a sentence has
_UNKNOWN = re.compile("unknown|invalid|error|not supported|usage", re.IGNORECASE)
RUNCON = "/usr/bin/runcon"
UNSHARED = ("--mount", "--propagation", "slave")
# The shell's arguments: the group's directory, and a command line.
_WITH_SHM = 'cd / && mount --bind "$1" /dev/shm && shift && exec "$@"'


class ControlDaemon:
    """A daemon, between `start` and `end`.

    Attributes:
        pid: of its process, and of its process group; 0 for none.

    Raises:
        GpushimError: the driver has no such program.
    """

    def __init__(self, snapshot: Snapshot, group: MpsGroup, folders: Folders) -> None:
        self._group, self._folders, self._version = group, folders, snapshot["driver"]["version"]
        self._program = find_daemon(snapshot)
        self._environment = _environment(snapshot, group, folders, self._program)
        self.pid = 0

    def start(self, stopped: Callable[[float], bool]) -> bool:
        """Start it, and set its limits; return whether it serves: not where `stopped`, which waits, says to give up.

        Raises:
            GpushimError: it ends, does not answer, or does not take its limits.
        """
        words = [self._program, "-f", *(["-M"] if self._group.multi_user else [])]
        with open(f"{self._folders.log}/output.log", "ab") as output:
            output.truncate(0)
            unshared = [
                find_program("unshare"),
                *UNSHARED,
                find_program("sh"),
                "-c",
                _WITH_SHM,
                "sh",
                self._folders.shm,
            ]
            unshared = [*domain_words(self._folders.pipe), *unshared]
            log = output.fileno()
            self.pid = spawn.spawn([*unshared, *words], stdout=log, stderr=log, variables=self._environment)
        deadline = time.monotonic() + START
        while not self._answers():
            if stopped(POLL):
                return False
            if time.monotonic() > deadline:
                raise GpushimError(f"{PROGRAM} does not answer; see {self._folders.log}", INVENTORY)
        self._limit()
        return True

    def check(self) -> None:
        """Raise GpushimError if it has ended, or does not answer."""
        self._check_runs()
        self.ask(ASKED)

    def ask(self, *commands: str) -> str:
        """Send it commands, and return its output.

        Raises:
            GpushimError: it does not answer.
        """
        lines = "".join(f"{command}\n" for command in commands).encode()
        result = ask.program([self._program], ANSWER, lines, more=self._environment)
        if result.code is None:
            sentence = f"{PROGRAM} does not answer {commands[0]}: {result.error}; see {self._folders.log}"
            raise GpushimError(sentence, INVENTORY)
        answer = f"{result.out}{result.error}".strip()
        if result.code:
            raise GpushimError(
                f"{PROGRAM} does not take {commands[0]}: {quote(answer)}; see {self._folders.log}", INVENTORY
            )
        return answer

    def has_clients(self) -> bool:
        """Return whether a process uses it now.

        Raises:
            GpushimError: it does not answer.
        """
        servers = [line for line in self.ask("get_server_list").split() if line.isdigit()]
        return any(self.ask(f"get_client_list {server}") for server in servers)

    def end(self) -> None:
        """End it with its servers and their clients, by force if need be."""
        if not self.pid:
            return
        if not spawn.has_ended(self.pid):
            with contextlib.suppress(GpushimError):
                self.ask("quit")
                deadline = time.monotonic() + ANSWER
                while not spawn.has_ended(self.pid) and time.monotonic() < deadline:
                    time.sleep(POLL)
        spawn.kill(self.pid)
        os.waitpid(self.pid, 0)
        self.pid = 0

    def _answers(self) -> bool:
        self._check_runs()
        try:
            self.ask(ASKED)
        except GpushimError:
            return False
        return True

    def _check_runs(self) -> None:
        if not spawn.has_ended(self.pid):
            return
        with open(f"{self._folders.log}/output.log", "rb") as output:
            output.seek(max(os.fstat(output.fileno()).st_size - TAIL, 0))
            answer = " ".join(output.read(TAIL).decode("utf-8", "replace").split())
        raise GpushimError(
            f"{PROGRAM} has ended: {visible(answer) or 'no output'}; see {self._folders.log}", INVENTORY
        )

    def _limit(self) -> None:
        """Set the limits that each client has unless it asks for lower ones."""
        self.ask(f"set_default_active_thread_percentage {self._group.threads}")
        for index, size in enumerate(self._group.limits):  # as its CUDA_VISIBLE_DEVICES has them
            if size is None:
                continue
            name = f"default_device_pinned_mem_limit {index}"
            answer = self.ask(f"set_{name} {size}M") + self.ask(f"get_{name}")
            if not re.search("[0-9]", answer) or _UNKNOWN.search(answer):
                raise GpushimError(
                    f"MPS of driver {self._version} takes no limit of memory ({quote(answer)}), so "
                    f"{self._group.name} cannot have one; drivers from 495 on do: update it, or use timeSlicing",
                    CONFIG,
                )


def domain_words(pipe: str) -> list[str]:
    """Return the words that start a program in the one domain of SELinux to whose sockets containers may connect.

    A unit's domain may not become that, but an engine's may, which a unit's may become (container-selinux 2.250).
    A clients' directory `pipe` without a label needs no words.
    """
    if not selinux.type_of(pipe):
        return []
    words = [word for domain in (selinux.ENGINE, selinux.DAEMON) for word in (RUNCON, f"--type={domain}")]
    result = ask.program([*words, find_program("true")])
    if result.code == 0:
        return words
    logger.warning(
        "%s", f"SELinux lets no client connect: {PROGRAM} cannot be {selinux.DAEMON}: {quote(result.last)}"
    )
    return []


def find_program(name: str) -> str:
    """Return the path of a program of the host's.

    Raises:
        GpushimError: there is none.
    """
    path = shutil.which(name, path=f"{policy.SYSTEM_PATH}:{os.environ.get('PATH', '')}")
    if path is None:
        raise GpushimError(f"there is no {name}, which MPS needs; install util-linux", INVENTORY)
    return path


def find_daemon(snapshot: Snapshot) -> str:
    """Return the path of the daemon's program.

    Raises:
        GpushimError: there is none.
    """
    return find_in_driver(snapshot, PROGRAM, "compute", "nvidia-compute-utils, or nvidia-driver-cuda")


def find_in_driver(snapshot: Snapshot, name: str, capability: str, packages: str) -> str:
    """Return the path of a program of the driver's.

    Raises:
        GpushimError: there is none.
    """
    root = snapshot["driver"]["root"]
    for file in snapshot["files"].get(capability, ()):
        if file["path"].rpartition("/")[2] == name:
            return rooted.inside(root, rooted.resolve(root, file["path"]) or file["path"])
    raise GpushimError(
        f"there is no {name} below {root}; install it with the driver's packages ({packages}), and run gpushim "
        "refresh",
        INVENTORY,
    )


def _environment(snapshot: Snapshot, group: MpsGroup, folders: Folders, program: str) -> dict[str, str]:
    variables = {
        "PATH": f"{os.path.dirname(program)}:{policy.SYSTEM_PATH}:{os.environ.get('PATH', '')}".rstrip(":"),
        "LC_ALL": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in group.gpus),
        "CUDA_MPS_PIPE_DIRECTORY": folders.pipe,
        "CUDA_MPS_LOG_DIRECTORY": folders.log,
    }
    driver = snapshot["driver"]
    library = driver_files.library(driver["root"], "libcuda.so", driver["version"]) if driver["root"] != "/" else None
    if library:  # the loader looks below / only
        variables["LD_LIBRARY_PATH"] = os.path.dirname(rooted.inside(driver["root"], library))
    return variables
