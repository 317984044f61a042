"""The entry point of the hook: the container's state on stdin, everything else in the arguments (options.py).

A hook that a CDI spec brings knows neither the rootfs nor the GPUs: the rootfs is read from config.json, and the
container's GPUs are those of its arguments whose nodes are in it.

It runs in the host's namespaces when the container's mounts are done and its process waits, sees them
through /proc/<pid>/root, and has finish.py make links, the loader's cache and its configuration ready.

    gpushim-hook prestart

Without arguments it was not gpushim-runtime that put the hook there: standalone.py does the whole work. The
verb may be createRuntime too, and the program's name that of NVIDIA's hook, which some engines look for.

Of the engine's environment only GPUSHIM_CONFIG and GPUSHIM_STATE count, and these for the hook alone.

Hot path: the whole process within 1.4 times `python3 -IS -c pass` for a cache of 600 entries.
"""

from __future__ import annotations

import _signal
import posix
import sys
import time

from gpuhook.confine import confine, exhausted
from gpuhook.inject import roots
from gpuhook.loader.finish import Work, finish
from gpuhook.loader.options import Options, usage
from gpushim.ground import bounds
from gpushim.ground.errors import FAILED, ROOTFS, USAGE, GpushimError, for_engines, visible
from gpushim.ground.fastjson import loads
from gpushim.paths.walk import FIFO, TYPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

    from gpushim.paths.rootfs import Rootfs

STATE_DEADLINE = 10.0  # seconds
REST_DEADLINE = 1.0  # seconds
WAITING = (None, "creating", "created", roots.RESTORED)  # runc's word and crun's while these hooks run
SETTINGS = (b"GPUSHIM_CONFIG", b"GPUSHIM_STATE")


def read_state(fd: int, deadline: float = STATE_DEADLINE, limit: int = bounds.STATE) -> dict[str, Any]:
    """Read the container's state, which the runtime writes (OCI runtime-spec, State).

    Args:
        fd: where it comes from.
        deadline: seconds it may take until its end.
        limit: bytes that it may have.

    Raises:
        GpushimError: it does not come, is too large, is not JSON, has no pid, or the container runs already.
    """
    state = read_object(fd, deadline, limit)
    pid = state.get("pid")
    if type(pid) is not int or not 0 < pid < 1 << 31:
        raise GpushimError("the container's state on stdin names no pid; has its process ended?", ROOTFS)
    if state.get("status") not in WAITING:
        raise GpushimError(
            "the container's state on stdin says that it is past the stages prestart and createRuntime", ROOTFS
        )
    return state


def read_object(fd: int, deadline: float = STATE_DEADLINE, limit: int = bounds.STATE) -> dict[str, Any]:
    """Read the container's state unchecked; return an empty object for anything but a JSON object."""
    posix.set_blocking(fd, False)
    try:
        data = _read_state(fd, time.monotonic() + deadline, limit)
    finally:
        posix.set_blocking(fd, True)  # the other holders of a terminal or pipe expect it so
    if not data:
        raise GpushimError("no container's state came on stdin; the OCI runtime starts this, not a person", ROOTFS)
    state = loads(data, "the container's state on stdin")
    return state if isinstance(state, dict) else {}


def _read_state(fd: int, end: float, room: int) -> bytes:
    limit = room
    parts: list[bytes] = []
    while room >= 0:
        try:
            part = posix.read(fd, 1 << 16)
        except BlockingIOError:
            if time.monotonic() > end:
                raise GpushimError("the container's state did not come to its end on stdin in time", ROOTFS) from None
            time.sleep(0.0005)
            continue
        except OSError as error:
            raise GpushimError(f"the container's state cannot be read from stdin: {error.strerror}", ROOTFS) from None
        if not part:
            return b"".join(parts)
        parts.append(part)
        room -= len(part)
    raise GpushimError(f"the container's state on stdin has more than {limit} bytes", ROOTFS)


def prestart(argv: list[str], settings: dict[bytes, bytes]) -> None:
    """Make a created container ready.

    Args:
        argv: the words behind the verb; none if an engine called the hook by itself.
        settings: variables of gpushim's, which count only then.

    Raises:
        GpushimError: the arguments or the state are wrong, there is no such rootfs, or the container cannot have
            what it asks for.
    """
    if not argv:
        from gpuhook import standalone  # the whole of gpushim's create path, and ctypes

        # The state has the annotations of a container that may ask nothing.
        state = read_state(0, limit=bounds.CONFIG_JSON)
        posix.environ.update(settings)
        standalone.inject(state)
        return
    options = Options(argv)
    spec: dict[str, Any] = {}  # where no runtime of ours has seen it
    confine(options.log, for_good=bool(options.rootfs and not options.memory))
    try:
        state = read_state(0)
        if not options.rootfs:
            options.rootfs, spec = roots.read_bundle(state)
        if options.memory or spec:
            _limit(options, state, spec)
            confine(options.log)
        if not roots.is_restored(state):  # else CRIU has mounted what was mounted, and the rest is in the rootfs
            _make_ready(options, state, spec)
        elif options.bound:  # a boot may be between
            _check_bindings(options, _open_root(options, state), spec)
    except GpushimError as error:  # crun hands on the exit code of a hook, and nothing of what it says
        from gpushim.ground.fastjson import dumps
        from gpushim.paths.logfile import append, now

        append(options.log, dumps({"level": "error", "msg": str(error)[: bounds.LOG_TEXT], "time": now()}))
        raise


def _limit(options: Options, state: dict[str, Any], spec: dict[str, Any]) -> None:
    """Limit GPU memory, before the process is confined for good: NVML's child needs more than a hook."""
    if options.memory or options.memory_every or _names_limit(spec, options.empty.rpartition("/")[0] + "/limits/"):
        from gpuhook import cgroup_limits  # most containers have no limit

        root = _open_root(options, state)
        warn = Work(root, options.log).warn
        if spec:
            cgroup_limits.add_limits(options, spec, root, warn)
        cgroup_limits.limit(options, state, root.process, warn)


def _open_root(options: Options, state: dict[str, Any]) -> Rootfs:
    """Open the container's root; one that is restored has it already, and the rootfs has no path in it."""
    return roots.open_root(roots.process_of(state["pid"]), "/" if roots.is_restored(state) else options.rootfs)


def _check_bindings(options: Options, root: Rootfs, spec: dict[str, Any]) -> None:
    from gpuhook.inject import dev_links  # of a CDI spec

    dev_links.check_bindings(root, spec, options.gpu, options.bound, options.bindings)


def _make_ready(options: Options, state: dict[str, Any], spec: dict[str, Any]) -> None:
    root = _open_root(options, state)
    work = Work(root, options.log)
    if roots.is_host_root(root):
        work.warn("everything", GpushimError("the rootfs is the host's own root directory", ROOTFS))
        return
    roots.check(root)
    if options.bound:
        _check_bindings(options, root, spec)
    if options.mount:
        from gpuhook.inject import apply  # of a CDI spec

        apply.mount_files(options.mount, root, work.warn)
    if options.mounted:
        from gpuhook.inject import leaks  # for containers with a volume that can carry mounts to the host

        leaks.check(root, options.mounted)
    finish(work, options)


def _names_limit(spec: dict[str, Any], folder: str) -> bool:
    """Return whether a config.json names a limit of GPU memory, be it allowed or not; `folder` has root's."""
    process, annotations = spec.get("process"), spec.get("annotations")
    env = process.get("env") if isinstance(process, dict) else None
    named = any(isinstance(entry, str) and entry.startswith("GPUSHIM_MEMORY_LIMIT=") for entry in env or ())
    named = named or (isinstance(annotations, dict) and "gpushim/memory-limit" in annotations)
    mounts = spec.get("mounts")
    sources = [str(mount.get("source")) for mount in mounts or () if isinstance(mount, dict)]
    return named or any(source.startswith(folder) for source in sources)


def isolate() -> dict[bytes, bytes]:
    """Drop the caller's environment; return the variables in it that are gpushim's.

    Raises:
        GpushimError: Python was started with it.
    """
    if not sys.flags.isolated:
        raise GpushimError("Python runs with the caller's environment; start gpushim-hook itself", FAILED)
    settings = {name: posix.environ[name] for name in SETTINGS if name in posix.environ}
    posix.environ.clear()
    posix.umask(0o022)
    return settings


def run(argv: list[str]) -> None:
    settings = isolate()
    verb = argv[0] if argv else ""
    if verb in ("prestart", "createRuntime"):
        prestart(argv[1:], settings)
    elif verb not in ("poststart", "poststop"):
        raise GpushimError(
            f"usage: gpushim-hook prestart|createRuntime [{usage()}]  (or poststart, poststop: nothing to do)", USAGE
        )
    drain()


def main(
    argv: list[str], work: Callable[[list[str]], None] = run, refuse: Callable[[Exception], int] | None = None
) -> NoReturn:
    """Run as a process: exit 0, or write one sentence on stderr and exit with its code.

    Args:
        argv: the words behind the program's name.
        refuse: writes an error for people, and returns the exit code.
    """
    code, refuse, shell = 0, refuse or _refuse, None
    if argv[:1] == ["wait"] and len(argv) > 2:
        from gpuhook import wait  # in a child of a create, whose hook is a shell

        shell = wait.Shell(argv)
        argv = shell.argv
    if callable(_signal.getsignal(_signal.SIGINT)):  # CPython's, which would end in a traceback
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    try:
        # If 0, 1 or 2 came closed, a file of the container could become stderr.
        while posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC) <= 2:
            pass
        work(argv)
    except MemoryError:
        code = refuse(exhausted())
    except Exception as error:  # noqa: BLE001 - a bug of ours; an engine's user gets a sentence, not a traceback
        expected = isinstance(error, (GpushimError, OSError))
        code = refuse(error if expected else GpushimError(f"internal error, please report it: {error!r}", FAILED))
    if shell:
        shell.end(code)
    posix._exit(code)  # nothing is left to flush; taking the interpreter down costs a millisecond


def _refuse(error: Exception) -> int:
    say(str(error))
    return error.exit_code if isinstance(error, GpushimError) else FAILED


def drain() -> None:
    """Read the rest of stdin: crun before 1.17 dies of SIGPIPE if a hook ends before it has written all."""
    try:
        if posix.fstat(0).st_mode & TYPE == FIFO:  # a person's terminal would not end
            read_object(0, REST_DEADLINE, bounds.CONFIG_JSON)
    except (GpushimError, OSError):
        pass  # nothing more came, or no state


def say(sentence: str) -> None:
    """Write a line on stderr, made safe for a terminal and shortened for engines."""
    try:
        posix.write(2, f"gpushim-hook: {visible(for_engines(sentence))}\n".encode())
    except OSError:
        pass  # nobody listens
