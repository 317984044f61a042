"""The engines that run on this host, as /proc tells: which program, which settings file, seen through which root.

Whatever a process says of itself, it is an engine only if root (for an ordinary user: that user) alone could have
started it where it is: by its user ids, its namespaces, its cgroup, and by who may write its program. Others that
bear an engine's name are impostors: nothing that they name is opened. No path of any process is ever executed.
What runs in a PID namespace of its own (an engine inside a container) is somebody else's.
Out of scope: what the settings say; asking the engine (its own module).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace

from gpushim.engines.processes import origin, table
from gpushim.ground.errors import GpushimError
from gpushim.paths.walk import walk_from

# Programs with several engines in them; the first argument, which root chose, tells which. They start a containerd of
# their own, whose settings they write from a template at each start.
MANY = ("k3s", "rke2")
# Names of processes, and the options that tell each where its settings are.
CONFIG_OPTIONS = {
    name: table.of(name).options for name in (*(row.process for row in table.ENGINES.values()), *MANY) if name
}
# Nothing else of an environment is kept: it holds secrets.
VARIABLES = {"PATH", "HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"}
VARIABLES.update(name for row in table.ENGINES.values() for name in row.variables)
NOTED = 8  # users whose engines are named
TICKS = 0.02  # seconds; the kernel tells the start of a process, and stamps files, in ticks of up to 10 ms
SLACK = 2.0  # seconds by which a clock that is set can make a start seem too early


@dataclass(frozen=True)
class Engine:
    """A running engine.

    Attributes:
        name: a key of CONFIG_OPTIONS.
        pid: its process; parent: that process's parent.
        uid: user that it runs as, on this side of its user namespace; not 0 for a rootless engine.
        exe: path of its program within its root; "" if this user may not see it.
        config: absolute path of its settings as its command line gives it, within its root; "" if it gives none.
        root: its root as seen from here: "" if it is ours, else /proc/PID/root (snap, chroot).
        started: seconds since the epoch.
        unit: systemd unit that it runs in, or "".
        environ: those VARIABLES that it has.
    """

    name: str
    pid: int
    parent: int = 0
    uid: int = 0
    exe: str = ""
    argv: tuple[str, ...] = ()
    config: str = ""
    root: str = ""
    started: float = 0.0
    unit: str = ""
    environ: dict[str, str] = field(default_factory=dict)

    def host_path(self, path: str) -> str:
        """Return the path under which this process opens a file of the engine's, given its path in the engine's root.

        A snap sees most of the host's directories: the plain path is returned where both mean the same directory.
        """
        if not self.root:
            return path
        folder = os.path.dirname(path)
        try:
            if os.path.samestat(os.stat(folder), _within(self.root, folder)):
                return path
        except OSError:
            pass  # one of the two has no such directory
        return self.root + path

    def executable(self, program: str) -> str:
        """Find the file that a program in the engine's settings is, on the engine's PATH if it has no directory.

        Returns:
            its path as this process sees it; "" if the engine finds no executable file.
        """
        folders = [] if "/" in program else self.environ.get("PATH", "").split(":")
        paths = [program, *(f"{folder}/{program}" for folder in folders)]
        candidates = [self.host_path(path) for path in paths if path.startswith("/")]
        return next((path for path in candidates if os.path.isfile(path) and os.access(path, os.X_OK)), "")

    def before(self, path: str, slack: float = SLACK) -> bool:
        """Return whether it started over `slack` seconds before a file, or the link that leads to it, changed."""
        return changed(path) > self.started + slack

    def option(self, *names: str) -> list[str]:
        """Return the values that its command line gives to an option, such as "--host" and "-H"."""
        values = []
        for position, word in enumerate(self.argv):
            name, equals, value = word.partition("=")
            if name in names:
                values.append(value if equals else "".join(self.argv[position + 1 : position + 2]))
        return values


@dataclass(frozen=True)
class Impostor:
    """A process that bears an engine's name, but is none of this host's.

    Attributes:
        name: a key of CONFIG_OPTIONS.
        uid: of the user that it runs as; -1 if that cannot be seen.
        why: what shows that it is none, as a clause.
    """

    name: str
    pid: int
    uid: int
    why: str


def changed(path: str) -> float:
    """Return when a file, or the link that leads to it, was made or changed: seconds since the epoch; 0 for none.

    Not by mtime: packages and `cp -p` keep the one that a file had elsewhere.
    """
    try:
        return max(os.lstat(path).st_ctime, os.stat(path).st_ctime)
    except OSError:
        return 0.0


def find(proc: str = "/proc") -> list[Engine]:
    """List the engines that run on this host, the oldest first; `proc` is where procfs is mounted."""
    return look(proc)[0]


def look(proc: str = "/proc") -> tuple[list[Engine], list[Impostor]]:
    """List the engines that run on this host, the oldest first, and processes that only look like one."""
    boot = _boot_time(proc)
    engines, impostors = [], []
    for entry in os.listdir(proc):
        try:
            fd = os.open(f"{proc}/{entry}", os.O_PATH | os.O_DIRECTORY) if entry.isdigit() else -1
        except OSError:
            continue  # it has ended
        if fd < 0:
            continue
        try:  # all by way of one fd: the number may be another process's a moment later
            process = _process(f"/proc/self/fd/{fd}", int(entry), proc, boot)
        finally:
            os.close(fd)
        if isinstance(process, Engine):
            engines.append(process)
        elif process:
            impostors.append(process)
    return sorted(engines, key=lambda engine: (engine.started, engine.pid)), impostors


def reading(name: str, config: str, default: str) -> tuple[Engine | None, list[str]]:
    """Find the running engine whose settings are to be changed; the containerd of a dockerd is that dockerd's own.

    Args:
        name: a key of CONFIG_OPTIONS.
        config: absolute path of the settings if somebody named them, else "".
        default: absolute path of the settings that an engine reads without an option.

    Returns:
        this user's engine (the one that reads `config` if given) or None, and notes about the engines of others.

    Raises:
        GpushimError: several run, and nothing tells which one is meant.
    """
    engines, impostors = look()
    dockers = {engine.pid for engine in engines if engine.name == "dockerd"}
    matching = [engine for engine in engines if engine.name == name and engine.parent not in dockers]
    if config:
        matching = [engine for engine in matching if same_file(engine.host_path(engine.config or default), config)]
    if len(matching) > 1:
        readers = ", ".join(f"process {engine.pid} reads {engine.config or default}" for engine in matching)
        raise GpushimError(f"{len(matching)} {name} run: {readers}; choose one with --config")
    pids = {each.uid: each.pid for each in impostors if each.name == name and each.uid not in (os.geteuid(), -1)}
    notes = [
        f"user {uid} runs {name} too (process {pid}): it needs the same, by that user" for uid, pid in pids.items()
    ]
    notes += [
        f"process {each.pid} is named {name} but is ignored: {each.why}"
        for each in impostors
        if each.name == name and each.uid == os.geteuid()
    ]
    if len(notes) > NOTED:  # one user can have many, and bury what else is said
        notes[NOTED:] = [f"there are {len(notes) - NOTED} more such processes"]
    return (matching[0] if matching else None), notes


def same_file(path: str, other_path: str) -> bool:
    """Return whether two paths mean one file, which need not exist."""
    try:
        return os.path.samefile(path, other_path)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other_path)


def _process(folder: str, pid: int, proc: str, boot: float) -> Engine | Impostor | None:
    """Judge a process: an engine, an impostor with an engine's name, or neither."""
    first = _cmdline(folder)
    argv = tuple(os.fsdecode(word) for word in first[0].split(b"\0")[:-1])
    exe = first[1].removesuffix(" (deleted)")
    called = [os.path.basename(word) for word in (exe, *argv[:1])]
    engine_names = [name for name in called if name in CONFIG_OPTIONS]
    # A namespace that this user may not see is taken for this one: its owner makes it an impostor.
    own_space, space = origin.link(f"{proc}/self/ns/pid"), origin.link(f"{folder}/ns/pid")
    if not engine_names or not argv or (space or own_space) != own_space:
        return None
    name = engine_names[-1] if called[0] in MANY else engine_names[0]
    if name in MANY and argv[1:2] not in (("server",), ("agent",)):
        return None
    status = dict(line.split(":", 1) for line in origin.lines_of(f"{folder}/status") if ":" in line)
    uids = [int(word) for word in status.get("Uid", "").split()[:3]]  # real, effective, saved
    root = "" if origin.link(f"{folder}/ns/mnt") == origin.link(f"{proc}/self/ns/mnt") else f"{folder}/root"
    evidence = origin.why_not(folder, proc, uids, exe, root, CONFIG_OPTIONS)
    if evidence:
        return Impostor(name, pid, uids[1] if len(uids) > 1 else -1, evidence)
    if _cmdline(folder) != first:  # it was a user's when it said that, and has executed a set-user-ID program
        return Impostor(name, pid, -1, "it has become another program meanwhile")
    engine = Engine(
        name=name,
        pid=pid,
        parent=int(status.get("PPid", "0")),
        uid=uids[1],
        exe=exe,
        argv=argv,
        root=root and f"{proc}/{pid}/root",
        started=boot + _ticks(folder) / os.sysconf("SC_CLK_TCK"),
        unit=origin.unit(folder),
        environ=_environ(folder),
    )
    configs = engine.option(*CONFIG_OPTIONS[name])
    if not configs or not configs[-1]:
        return engine
    return replace(engine, config=os.path.normpath(os.path.join(origin.link(f"{folder}/cwd") or "/", configs[-1])))


def _cmdline(folder: str) -> tuple[bytes, str]:
    """Return the command line of a process, and what its program is."""
    return origin.data(f"{folder}/cmdline"), origin.link(f"{folder}/exe")


def _within(root: str, path: str) -> os.stat_result:
    """Return the status of a path below another root, whatever its links say."""
    fd = walk_from(root, path)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _environ(folder: str) -> dict[str, str]:
    pairs = (os.fsdecode(pair).partition("=") for pair in origin.data(f"{folder}/environ").split(b"\0"))
    return {name: value for name, _, value in pairs if name in VARIABLES}


def _ticks(folder: str) -> int:
    """Return when a process started, in clock ticks since boot: field 22 of proc_pid_stat(5)."""
    fields = origin.text(f"{folder}/stat").rpartition(")")[2].split()  # a name may contain spaces and parentheses
    return int(fields[19]) if len(fields) > 19 else 0


def _boot_time(proc: str) -> float:
    if proc == "/proc":  # its btime has whole seconds
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for line in origin.text(f"{proc}/stat").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
