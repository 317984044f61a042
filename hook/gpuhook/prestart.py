"""The door of the hook: the container's state on stdin, everything else in the arguments.

    gpushim-hook prestart --rootfs DIR [--log FILE] [--lib SONAME=PATH]... [--link TARGET::PATH]...
        [--driver VERSION] [--cuda VERSION] [--profile-mask MASK] [--cover SOURCE::PATH]...

It runs in the host's namespaces when the container's mounts are done and its process waits, sees them
through /proc/<pid>/root, and has finish.py make links, the loader's cache and its configuration ready.

    gpushim-hook prestart

Without arguments it was not gpushim-runtime that put the hook there: standalone.py does the whole work. The
verb may be createRuntime too, and the program's name that of NVIDIA's hook, which some engines look for.

Out of scope: mounts and device nodes, which config.json brings or live.py; the engine's environment, of which
only GPUSHIM_CONFIG and GPUSHIM_STATE are read, and these by the hook alone.

Hot path: the whole process within 1.4 times `python3 -IS -c pass` for a cache of 600 entries.
"""

from __future__ import annotations

import posix
import sys
import time

from gpuhook.finish import Work, finish
from gpuhook.rootfs import Rootfs
from gpushim.errors import FAILED, ROOTFS, GpushimError
from gpushim.fastjson import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USAGE = 2
STATE_LIMIT = 1 << 20  # bytes; annotations are in it, and engines keep those far below
STATE_DEADLINE = 10.0  # seconds
WAITING = (None, "creating", "created")  # runc's word and crun's while these hooks run
SETTINGS = (b"GPUSHIM_CONFIG", b"GPUSHIM_STATE")


class Options:
    """What the arguments say.

    Args:
        argv: the words behind the verb.

    Raises:
        GpushimError: one of them cannot be understood.
    """

    __slots__ = ("covers", "cuda", "driver", "libs", "links", "log", "profile_mask", "rootfs")

    def __init__(self, argv: list[str]) -> None:
        self.rootfs = self.log = ""
        self.covers: list[tuple[str, str]] = []  # path on the host, path in the container
        self.driver = self.cuda = ""  # versions of the host's, if a newer libcuda of the image's own may be used
        self.profile_mask = 0  # bit n: the container's displays may use the GPU with minor number n
        self.libs: list[tuple[str, str, str]] = []  # SONAME, directory, file name
        self.links: list[tuple[str, str, str]] = []  # text, directory, file name
        words = iter(argv)
        for word in words:
            value = next(words, "")
            if word == "--rootfs" and value.startswith("/"):
                self.rootfs = value
            elif word == "--log" and value.startswith("/"):
                self.log = value
            elif word == "--cover" and value.startswith("/") and "::/proc/" in value:
                source, _, path = value.partition("::")
                self.covers.append((source, path))
            elif word == "--driver":
                self.driver = value
            elif word == "--cuda":
                self.cuda = value
            elif word == "--profile-mask":
                self.profile_mask = _mask(value)
            elif word == "--lib":
                self.libs.append(_place(word, value, "="))
            elif word == "--link":
                self.links.append(_place(word, value, "::"))
            else:
                raise GpushimError(f"{word} {value}: not an option of prestart, or not an absolute path", USAGE)
        if not self.rootfs:
            raise GpushimError("prestart needs --rootfs and the absolute path of the rootfs", USAGE)


def _mask(value: str) -> int:
    try:
        mask = int(value, 16)
    except ValueError:
        mask = 0
    if not 0 < mask < 1 << 64:
        raise GpushimError(f"--profile-mask {value!r}: want a mask of 64 bits in hexadecimal", USAGE)
    return mask


def _place(word: str, value: str, separator: str) -> tuple[str, str, str]:
    left, _, path = value.partition(separator)
    directory, _, name = path.rpartition("/")
    odd = not left or not path.startswith("/") or name in ("", ".", "..") or "\n" in value
    if odd or (word == "--lib" and "/" in left):
        form = "SONAME=PATH" if word == "--lib" else "TARGET::PATH"
        raise GpushimError(f"{word} {value!r}: want {form} with an absolute PATH", USAGE)
    return left, directory or "/", name


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
    posix.set_blocking(fd, False)
    try:
        data = _read_state(fd, time.monotonic() + deadline)
    finally:
        posix.set_blocking(fd, True)  # the other holders of a terminal or pipe expect it so
    if not data:
        raise GpushimError("no container's state came on stdin; the OCI runtime starts this, not a person", ROOTFS)
    state = loads(data, "the container's state on stdin")
    pid = state.get("pid") if isinstance(state, dict) else None
    if type(pid) is not int or not 0 < pid < 1 << 31:
        raise GpushimError("the container's state on stdin names no pid; has its process ended?", ROOTFS)
    if state.get("status") not in WAITING:
        raise GpushimError(
            "the container's state on stdin says that it is past the stages prestart and createRuntime", ROOTFS
        )
    return state  # type: ignore[no-any-return]


def _read_state(fd: int, end: float) -> bytes:
    data = b""
    while len(data) <= STATE_LIMIT:
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
    raise GpushimError(f"the container's state on stdin has more than {STATE_LIMIT} bytes", ROOTFS)


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
    pid = read_state(0)["pid"]
    work = open_container(options, pid)
    if work is not None:
        finish(work, options, pid)


def open_container(options: Options, pid: int) -> Work | None:
    """Open a created container's rootfs, in the mount namespace of its process.

    Args:
        options: the hook's arguments.
        pid: of the container's process.

    Returns:
        the container; None, after a line in the log, if its rootfs is the host's own.

    Raises:
        GpushimError: there is no such rootfs.
    """
    try:
        root = Rootfs(f"/proc/{pid}/root", options.rootfs)
        ours, hosts = posix.fstat(root.fd), posix.stat("/")
    except OSError as error:
        sentence = f"the rootfs {options.rootfs} of process {pid} cannot be opened: {error.strerror}"
        raise GpushimError(sentence, ROOTFS) from None
    work = Work(root, options.log)
    if (ours.st_dev, ours.st_ino) == (hosts.st_dev, hosts.st_ino):
        work.warn("everything", GpushimError("the rootfs is the host's own root directory", ROOTFS))
        return None
    return work


def run(argv: list[str]) -> None:
    """Do what the verb says.

    Args:
        argv: the words behind the program's name.

    Raises:
        GpushimError: it cannot be done.
    """
    if not sys.flags.isolated:
        raise GpushimError("Python runs with the caller's environment; start gpushim-hook itself", FAILED)
    settings = {name: posix.environ[name] for name in SETTINGS if name in posix.environ}
    posix.environ.clear()
    posix.umask(0o022)
    verb = argv[0] if argv else ""
    if verb in ("prestart", "createRuntime"):
        prestart(argv[1:], settings)
    elif verb not in ("poststart", "poststop"):
        raise GpushimError(
            "usage: gpushim-hook prestart|createRuntime [--rootfs DIR [--log FILE] [--lib SONAME=PATH]... "
            "[--link TARGET::PATH]... [--driver VERSION] [--cuda VERSION] [--profile-mask MASK] "
            "[--cover SOURCE::PATH]...]  (or poststart, poststop: nothing to do)",
            USAGE,
        )


def main(argv: list[str]) -> None:
    """Run as a process: exit 0, or say one sentence on stderr and exit with its code.

    Args:
        argv: the words behind the program's name.
    """
    code = 0
    try:
        # If 0, 1 or 2 came closed, a file of the container could become stderr.
        while posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC) <= 2:
            pass
        run(argv)
    except GpushimError as error:
        code = error.exit_code
        _say(str(error))
    except OSError as error:
        code = FAILED
        _say(str(error))
    except Exception as error:  # noqa: BLE001 - a bug of ours; an engine's user gets a sentence, not a traceback
        code = FAILED
        _say(f"internal error, please report it: {error!r}")
    posix._exit(code)  # nothing is left to flush; taking the interpreter down costs a millisecond


def _say(sentence: str) -> None:
    try:
        posix.write(2, f"gpushim-hook: {sentence}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # nobody listens
