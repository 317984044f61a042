"""The engines that run on this host, as /proc tells: which program, which settings file, seen through which root.

What runs in a PID namespace of its own (an engine inside a container) is somebody else's.
Out of scope: what the settings say; asking the engine (docker.py and its neighbours).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from gpushim.errors import GpushimError

# Names of processes, and the options that tell each where its settings are. k3s and rke2 start a containerd of their
# own, whose settings they write anew each time from a template.
CONFIG_OPTIONS = {
    "dockerd": ("--config-file",),
    "containerd": ("--config", "-config", "-c"),
    "crio": ("--config", "-config", "-c"),
    "k3s": (),
    "rke2": (),
}
# Nothing else of an environment is kept: it holds secrets.
VARIABLES = ("PATH", "HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "CONTAINER_CONFIG", "CONTAINER_CONFIG_DIR")
READ_LIMIT = 1 << 17  # bytes of a file in /proc; an argument may have 128 KiB (execve(2))


@dataclass(frozen=True)
class Engine:
    """A running engine.

    Attributes:
        name: a key of CONFIG_OPTIONS.
        pid: its process; parent: that process's parent.
        uid: user that it runs as, on this side of its user namespace; not 0 for a rootless engine.
        exe: path of its program within its root; "" if this user may not see it.
        argv: its command line.
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

    def seen(self, path: str) -> str:
        """Return the path under which this process opens a file of the engine's.

        Args:
            path: absolute, within the engine's root. A snap sees most of the host's directories; the plain path is
                taken wherever both mean the same directory.
        """
        if not self.root:
            return path
        folder = os.path.dirname(path)
        try:
            if os.path.samestat(os.stat(folder), os.stat(self.root + folder)):
                return path
        except OSError:
            pass  # one of the two has no such directory
        return self.root + path

    def option(self, *names: str) -> list[str]:
        """Return the values that its command line gives to an option, such as "--host" and "-H"."""
        values = []
        for place, word in enumerate(self.argv):
            name, equals, value = word.partition("=")
            if name in names:
                values.append(value if equals else "".join(self.argv[place + 1 : place + 2]))
        return values


def find(proc: str = "/proc") -> list[Engine]:
    """List the engines that run on this host, the oldest first.

    Args:
        proc: where procfs is mounted.
    """
    here = _link(f"{proc}/self/ns/pid")
    boot = _boot_time(proc)
    engines = []
    for entry in os.listdir(proc):
        if entry.isdigit():
            folder = f"{proc}/{entry}"
            engine = _engine(folder, int(entry), boot)
            # A namespace that this user may not see is another user's: taken for the host's.
            if engine and (_link(f"{folder}/ns/pid") or here) == here:
                engines.append(engine)
    return sorted(engines, key=lambda engine: (engine.started, engine.pid))


def reading(name: str, config: str, default: str) -> tuple[Engine | None, list[str]]:
    """Find the running engine whose settings are to be changed.

    Args:
        name: a key of CONFIG_OPTIONS.
        config: absolute path of the settings if somebody named them, else "".
        default: path of those that an engine reads without an option.

    Returns:
        this user's engine (the one that reads `config` where that is given) or none, and notes about those of others.

    Raises:
        GpushimError: several run, and nothing tells which one is meant.
    """
    engines = [engine for engine in find() if engine.name == name]
    mine = [engine for engine in engines if engine.uid == os.geteuid()]
    if config:
        mine = [engine for engine in mine if same_file(engine.seen(engine.config or default), config)]
    if len(mine) > 1:
        which = ", ".join(f"process {each.pid} reads {each.config or default}" for each in mine)
        raise GpushimError(f"{len(mine)} {name} run: {which}; say with --config whose settings you mean")
    others = [engine for engine in engines if engine.uid != os.geteuid()]
    notes = [
        f"user {each.uid} runs {name} too (process {each.pid}): it needs the same, by that user" for each in others
    ]
    return (mine[0] if mine else None), notes


def same_file(one: str, other: str) -> bool:
    """Say whether two paths mean one file, which need not exist."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _engine(folder: str, pid: int, boot: float) -> Engine | None:
    argv = tuple(os.fsdecode(word) for word in _bytes(f"{folder}/cmdline").split(b"\0")[:-1])
    # A rootless engine's name stands in its command line alone when a wrapper replaced its program's.
    exe = _link(f"{folder}/exe").removesuffix(" (deleted)")
    words = {os.path.basename(word) for word in (exe, *argv[:1])}
    name = next((name for name in CONFIG_OPTIONS if name in words), "")
    if not name or not argv or (name in ("k3s", "rke2") and argv[1:2] not in (("server",), ("agent",))):
        return None
    status = dict(line.split(":", 1) for line in _text(f"{folder}/status").splitlines() if ":" in line)
    root = "" if _same(f"{folder}/ns/mnt", f"{folder}/../self/ns/mnt") else f"{folder}/root"
    engine = Engine(
        name=name,
        pid=pid,
        parent=int(status.get("PPid", "0")),
        uid=int(status.get("Uid", "0 0").split()[1]),
        exe=exe,
        argv=argv,
        root=root,
        started=boot + _ticks(folder) / os.sysconf("SC_CLK_TCK"),
        unit=_unit(folder),
        environ=_environ(folder),
    )
    given = engine.option(*CONFIG_OPTIONS[name])
    if not given or not given[-1]:
        return engine
    config = os.path.normpath(os.path.join(_link(f"{folder}/cwd") or "/", given[-1]))
    return Engine(**{**engine.__dict__, "config": config})


def _same(one: str, other: str) -> bool:
    """Say whether two namespaces are one; those that this user may not see count as the same."""
    return (_link(one) or _link(other)) == _link(other)


def _environ(folder: str) -> dict[str, str]:
    pairs = (os.fsdecode(pair).partition("=") for pair in _bytes(f"{folder}/environ").split(b"\0"))
    return {name: value for name, _, value in pairs if name in VARIABLES}


def _unit(folder: str) -> str:
    """Return the systemd unit of a process: the last component of its cgroup path that is a service."""
    for line in _text(f"{folder}/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" or controllers == "name=systemd":
            for name in reversed(path.split("/")):
                if name.endswith(".service"):
                    return name
    return ""


def _ticks(folder: str) -> int:
    """Return when a process started, in clock ticks since boot: field 22 of proc_pid_stat(5)."""
    fields = _text(f"{folder}/stat").rpartition(")")[2].split()  # a name may contain spaces and parentheses
    return int(fields[19]) if len(fields) > 19 else 0


def _boot_time(proc: str) -> float:
    for line in _text(f"{proc}/stat").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def _text(path: str) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(READ_LIMIT)
    except OSError:
        return b""  # the process has ended, or belongs to another user


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
