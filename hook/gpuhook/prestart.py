"""The door of the hook: the container's state on stdin, everything else in the arguments.

    gpushim-hook prestart [--rootfs DIR] [--log FILE] [--lib SONAME=PATH[::DIR]]... [--lib32 SONAME=PATH[::DIR]]...
        [--link TARGET::PATH]... [--node-link TARGET::PATH]... [--driver VERSION] [--cuda VERSION]
        [--profile-mask MASK] [--cover SOURCE::PATH]... [--gpu MINOR=PCINAME]... [--empty DIR]

A library that is mounted in DIR, with others, gets a link at PATH, where it is on the host.

A hook that a CDI spec brings knows neither the rootfs nor the GPUs: the one is read from config.json, and of the
GPUs named those are the container's whose nodes are in it.

It runs in the host's namespaces when the container's mounts are done and its process waits, sees them
through /proc/<pid>/root, and has finish.py make links, the loader's cache and its configuration ready.

    gpushim-hook prestart

Without arguments it was not gpushim-runtime that put the hook there: standalone.py does the whole work. The
verb may be createRuntime too, and the program's name that of NVIDIA's hook, which some engines look for.

Out of scope: mounts and device nodes, which config.json brings or live.py; the engine's environment, but for
GPUSHIM_CONFIG and GPUSHIM_STATE, and these for the hook alone.

Hot path: the whole process within 1.4 times `python3 -IS -c pass` for a cache of 600 entries.
"""

from __future__ import annotations

import _signal
import posix
import sys
import time

from gpuhook import roots
from gpuhook.confine import confine, exhausted
from gpuhook.finish import Work, finish
from gpuhook.rootfs import Rootfs
from gpuhook.walk import held
from gpushim import bounds
from gpushim.errors import FAILED, ROOTFS, GpushimError, for_engines, visible
from gpushim.fastjson import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Library = tuple[str, str, str, str]  # SONAME, directory, file name; the directory it is mounted in, or ""

USAGE = 2
STATE_DEADLINE = 10.0  # seconds
WAITING = (None, "creating", "created")  # runc's word and crun's while these hooks run
VERSIONS, PATHS = ("--driver", "--cuda"), ("--rootfs", "--log", "--empty")
SETTINGS = (b"GPUSHIM_CONFIG", b"GPUSHIM_STATE")


class Options:
    """What the arguments say.

    Args:
        argv: the words behind the verb.

    Raises:
        GpushimError: one of them cannot be understood.
    """

    __slots__ = (
        *("covers", "cuda", "driver", "empty", "gpus", "libs", "libs32", "links", "log", "node_links"),
        *("profile_mask", "rootfs"),
    )

    def __init__(self, argv: list[str]) -> None:
        self.rootfs = self.log = self.empty = ""  # paths on the host
        self.covers: list[tuple[str, str]] = []  # path on the host, path in the container
        self.driver = self.cuda = ""  # versions of the host's, if a newer libcuda of the image's own may be used
        self.profile_mask = 0  # bit n: the container's displays may use the GPU with minor number n
        self.gpus: list[tuple[int, str]] = []  # minor number, name below /proc/driver/nvidia/gpus
        self.libs: list[Library] = []
        self.libs32: list[Library] = []  # for 32-bit programs
        self.links: list[tuple[str, str, str]] = []  # text, directory, file name
        self.node_links: list[tuple[str, str, str]] = []  # the same, below /dev
        libraries = {"--lib": self.libs, "--lib32": self.libs32}
        places = {"--link": self.links, "--node-link": self.node_links}
        words = iter(argv)
        for word in words:
            value = next(words, "")
            if word in libraries:
                libraries[word].append(_library(word, value))
            elif word in places:
                places[word].append(_place(word, value))
            elif word in VERSIONS or (word in PATHS and value.startswith("/")):
                setattr(self, word[2:], value)
            elif word == "--cover" and value.startswith("/") and "::/proc/" in value:
                source, _, path = value.partition("::")
                self.covers.append((source, path))
            elif word == "--profile-mask":
                self.profile_mask = _mask(value)
            elif word == "--gpu":
                self.gpus.append(_gpu(value))
            else:
                raise GpushimError(f"{word} {value}: not an option of prestart, or not an absolute path", USAGE)


def _mask(value: str) -> int:
    try:
        mask = int(value, 16)
    except ValueError:
        mask = 0
    if not 0 < mask < 1 << 64:
        raise GpushimError(f"--profile-mask {value!r}: want a mask of 64 bits in hexadecimal", USAGE)
    return mask


def _gpu(value: str) -> tuple[int, str]:
    minor, _, name = value.partition("=")
    known = minor.isascii() and minor.isdecimal() and len(minor) < 8
    if not known or name in ("", ".", "..") or "/" in name:
        raise GpushimError(f"--gpu {value!r}: want MINOR=PCINAME", USAGE)
    return int(minor), name


def _library(word: str, value: str) -> Library:
    soname, _, place = value.partition("=")
    path, mark, source = place.partition("::")
    directory, _, name = path.rpartition("/")
    if _odd(soname, path, value) or "/" in soname or (mark and not source.startswith("/")):
        raise GpushimError(f"{word} {value!r}: want SONAME=PATH with an absolute PATH", USAGE)
    return soname, directory or "/", name, source


def _place(word: str, value: str) -> tuple[str, str, str]:
    text, _, path = value.partition("::")
    node = word == "--node-link"
    if _odd(text, path, value) or (node and (not path.startswith("/dev/") or ".." in path.split("/"))):
        where = "a PATH below /dev/" if node else "an absolute PATH"
        raise GpushimError(f"{word} {value!r}: want TARGET::PATH with {where}", USAGE)
    directory, _, name = path.rpartition("/")
    return text, directory or "/", name


def _odd(left: str, path: str, value: str) -> bool:
    return not left or not path.startswith("/") or path.endswith(("/", "/.", "/..")) or "\n" in value


def read_state(fd: int, deadline: float = STATE_DEADLINE) -> dict[str, Any]:
    """Read the container's state, which the runtime writes (OCI runtime-spec, State).

    Args:
        fd: where it comes from.
        deadline: seconds it may take until its end.

    Returns:
        the state; its "pid" is a positive int.

    Raises:
        GpushimError: it does not come, is too large, is not JSON, has no pid, or the container runs already.
    """
    state = read_object(fd, deadline)
    pid = state.get("pid")
    if type(pid) is not int or not 0 < pid < 1 << 31:
        raise GpushimError("the container's state on stdin names no pid; has its process ended?", ROOTFS)
    if state.get("status") not in WAITING:
        raise GpushimError(
            "the container's state on stdin says that it is past the stages prestart and createRuntime", ROOTFS
        )
    return state


def read_object(fd: int, deadline: float = STATE_DEADLINE) -> dict[str, Any]:
    """Read the container's state, whatever it says; what is no JSON object is an empty one."""
    posix.set_blocking(fd, False)
    try:
        data = _read_state(fd, time.monotonic() + deadline)
    finally:
        posix.set_blocking(fd, True)  # the other holders of a terminal or pipe expect it so
    if not data:
        raise GpushimError("no container's state came on stdin; the OCI runtime starts this, not a person", ROOTFS)
    state = loads(data, "the container's state on stdin")
    return state if isinstance(state, dict) else {}


def _read_state(fd: int, end: float) -> bytes:
    data = b""
    while len(data) <= bounds.STATE:
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
            return data
        data += part
    raise GpushimError(f"the container's state on stdin has more than {bounds.STATE} bytes", ROOTFS)


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

        state = read_state(0)
        posix.environ.update(settings)
        standalone.inject(state)
        return
    options = Options(argv)
    confine(options.log)
    state = read_state(0)
    if not options.rootfs:
        from gpuhook.bundled import rootfs_of  # gpushim-runtime names it

        options.rootfs = rootfs_of(state)
    work = open_container(options, process_of(state["pid"]))
    if work is not None:
        roots.check(work.root)
        finish(work, options)


def process_of(pid: int) -> str:
    """Hold a container's process: return its directory in /proc.

    Raises:
        GpushimError: there is no such process.
    """
    try:
        return held(pid)
    except OSError as error:
        raise GpushimError(f"the container's process {pid} cannot be found: {error.strerror}", ROOTFS) from None


def open_container(options: Options, process: str) -> Work | None:
    """Open a created container's rootfs, in the mount namespace of its process.

    Args:
        options: the hook's arguments.
        process: directory of the container's process in /proc, held open; "" if this process is in its mount
            namespace.

    Returns:
        the container; None, after a line in the log, if its rootfs is the host's own.

    Raises:
        GpushimError: there is no such rootfs.
    """
    try:
        root = Rootfs(process, options.rootfs)
        work = Work(root, options.log)
        ours, hosts = posix.fstat(root.fd), posix.stat("/")
        if (ours.st_dev, ours.st_ino) == (hosts.st_dev, hosts.st_ino):
            work.warn("everything", GpushimError("the rootfs is the host's own root directory", ROOTFS))
            return None
    except OSError as error:
        place = visible(options.rootfs)
        raise GpushimError(f"the rootfs {place} cannot be opened: {error.strerror}", ROOTFS) from None
    return work


def isolate() -> dict[bytes, bytes]:
    """Get rid of the caller's environment; return what of it is gpushim's.

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
    """Do what the verb says.

    Args:
        argv: the words behind the program's name.

    Raises:
        GpushimError: it cannot be done.
    """
    settings = isolate()
    verb = argv[0] if argv else ""
    if verb in ("prestart", "createRuntime"):
        prestart(argv[1:], settings)
    elif verb not in ("poststart", "poststop"):
        raise GpushimError(
            "usage: gpushim-hook prestart|createRuntime [[--rootfs DIR] [--log FILE] [--lib SONAME=PATH[::DIR]]... "
            "[--lib32 SONAME=PATH[::DIR]]... [--link TARGET::PATH]... [--node-link TARGET::PATH]... "
            "[--driver VERSION] [--cuda VERSION] [--profile-mask MASK] [--cover SOURCE::PATH]... "
            "[--gpu MINOR=PCINAME]... [--empty DIR]]"
            "  (or poststart, poststop: nothing to do)",
            USAGE,
        )


def main(argv: list[str], work: Callable[[list[str]], None] = run) -> None:
    """Run as a process: exit 0, or say one sentence on stderr and exit with its code.

    Args:
        argv: the words behind the program's name.
        work: what to do with them.
    """
    code = 0
    if callable(_signal.getsignal(_signal.SIGINT)):  # CPython's, which would end in a traceback
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    try:
        # If 0, 1 or 2 came closed, a file of the container could become stderr.
        while posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC) <= 2:
            pass
        work(argv)
    except GpushimError as error:
        code = error.exit_code
        say(str(error))
    except OSError as error:
        code = FAILED
        say(str(error))
    except MemoryError:
        code = ROOTFS
        say(str(exhausted()))
    except Exception as error:  # noqa: BLE001 - a bug of ours; an engine's user gets a sentence, not a traceback
        code = FAILED
        say(f"internal error, please report it: {error!r}")
    posix._exit(code)  # nothing is left to flush; taking the interpreter down costs a millisecond


def say(sentence: str) -> None:
    """Write a line on stderr."""
    try:
        posix.write(2, f"gpushim-hook: {visible(for_engines(sentence))}\n".encode())
    except OSError:
        pass  # nobody listens
