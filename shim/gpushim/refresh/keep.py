"""`gpushim refresh --keep`: keep the snapshot true until a signal comes, where no unit of systemd's does it.

Every LOOK seconds, and when the device plugin asks, it compares the stamp, as a create does. A child lists the GPUs,
because NVML can hang: when the host has changed, the snapshot's life nears its end, the CDI spec is gone, or the
plugin asks for it, but not while the plugin has released the GPUs. After a failure it tries more and more rarely, but
at once when the host has changed. It holds a lock, which the kernel releases at the end of the process, in whatever
namespaces it runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from gpushim.cdi.generate import output
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.inventory import ensure, failure, renew, save
from gpushim.paths import lock, trust
from gpushim.refresh import plugin_requests

if TYPE_CHECKING:
    from typing import Any

    from gpushim.ground.model import Snapshot

LOOK = 2.0  # seconds, as the device plugin looks
AHEAD = 30.0  # seconds before the end of a snapshot's life, or half of it: no create shall have to list GPUs
FIRST, LONGEST = 1.0, 60.0  # seconds between failed attempts
# Seconds, then a child is killed: a minute until nothing changes, and ten for the slowest deadline, twice.
DEADLINE = 22 * 60.0
GRACE = 0.5  # seconds that a killed child has to end
ENDS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
TAIL = 16384  # bytes of the end of a child's output
WHOLE = __file__.rpartition("/gpushim/")[0] + "/whole"  # last file of an installed version
LOCK = "keeper"  # in the state directory
RECORD = f"{system.LASTING_DIR}/node.json"  # of the files that gpushim-node has installed on this host
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITTEN = fcntl.DN_CREATE | fcntl.DN_RENAME | fcntl.DN_MULTISHOT


def keep() -> None:
    """Keep the snapshot true until a signal of ENDS comes.

    Raises:
        GpushimError: this version's files have gone.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDS, signal.SIGCHLD, signal.SIGIO})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was inherited as ignored, children cannot be waited for
    keeping, installed = Keep(system.config_path(), system.state_dir()), os.path.exists(WHOLE)
    logger.info("keeping the list of GPUs up to date, checked every %g s", LOOK)
    try:
        while True:
            if installed and not os.path.exists(WHOLE):
                raise GpushimError("another version has taken this one's place; start gpushim refresh --keep again")
            keeping.look()
            if _wait(keeping):
                logger.info("no longer keeping the list of GPUs up to date")
                return
    finally:
        keeping.stop()


def _wait(keeping: Keep) -> bool:
    """Wait for the time of the next look, the end of a child, or a request; return whether a signal of ENDS came."""
    until = time.monotonic() + LOOK
    while (seconds := until - time.monotonic()) > 0:
        info = signal.sigtimedwait({*ENDS, signal.SIGCHLD, signal.SIGIO}, seconds)
        if info and info.si_signo in ENDS:
            return True
        if info and (info.si_signo == signal.SIGCHLD or keeping.is_asked()):
            break
    return False


class Keep:
    def __init__(self, config: str, state: str) -> None:
        self.config, self.state = config, state
        self._lock = Lock(state)
        self._folder = _Folder(os.path.dirname(f"{state}/{plugin_requests.NAME}"))
        self._began = system.clock()
        self._child: _Child | None = None
        self._pause, self._again = FIRST, 0.0  # seconds; time.monotonic()
        self._failed_for: Any = None  # facts about host and configuration
        self._served: Any = None  # identity of the plugin's request that the last child found
        self._spec = True  # there is a CDI spec, or a refresh is to show why not
        self._logged: set[str] = set()

    def look(self) -> None:
        """Wait for the child, and start one if it is needed."""
        self._lock.take()
        self._folder.watch()
        if self._child is not None:
            code = self._child.ended()
            if code is None:
                return
            self._finish(code, self._child)
        if self._is_needed() and self._is_allowed():
            self._start()

    def stop(self) -> None:
        """Kill the child, if there is one; wait a moment for its end."""
        self._lock.leave()
        self._folder.leave()
        if self._child is not None:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.process.wait(GRACE)

    def _is_needed(self) -> bool:
        if os.path.lexists(f"{self.state}/{plugin_requests.RELEASED}"):
            return False  # a refresh opens all GPUs
        if self.is_asked():
            return True
        snapshot = ensure.read(self.config, self.state) or self._read_newer()
        if snapshot is None or not ensure.alive(snapshot, min(AHEAD, snapshot["life"] / 2)):
            return True
        has_spec = _has_spec(snapshot)
        if has_spec:
            self._spec = True
        return self._spec and not has_spec

    def _read_newer(self) -> Snapshot | None:
        """Return a true snapshot that another version has made since: two that renew each other's never end."""
        snapshot = save.of_another(self.config, self.state)
        return snapshot if snapshot and snapshot["looked"] > self._began else None

    def _is_allowed(self) -> bool:
        if time.monotonic() >= self._again:
            return True
        if failure.facts(self.config) == self._failed_for and not self.is_asked():
            return False
        self._pause = FIRST
        return True

    def is_asked(self) -> bool:
        """Return whether the device plugin has asked since the last child was started."""
        return self._request() not in (None, self._served)

    def _request(self) -> Any:
        return trust.identity(f"{self.state}/{plugin_requests.NAME}")

    def _start(self) -> None:
        self._failed_for, self._served = failure.facts(self.config), self._request()
        try:
            self._child = _Child([*renew.command(), "--unattended"])
        except OSError as error:
            self._tell([f"gpushim: gpushim refresh cannot be started: {error.strerror}"])
            self._delay()

    def _finish(self, code: int, child: _Child) -> None:
        self._child, lines = None, child.lines()
        if code < 0 and not child.late:
            lines.append(f"gpushim: gpushim refresh was ended by signal {-code}; run it by hand to see why")
        self._tell(lines)
        snapshot = ensure.read(self.config, self.state)
        # Where refresh writes none, the next one does not either.
        self._spec = snapshot is None or _has_spec(snapshot)
        if code < 0 or snapshot is None:
            self._delay()
        else:
            self._pause, self._again = FIRST, 0.0

    def _delay(self) -> None:
        self._again = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST)

    def _tell(self, lines: list[str]) -> None:
        keys = {line: _message(line) for line in lines}
        for line, key in keys.items():
            if key not in self._logged:
                print(line, file=sys.stderr, flush=True)
        self._logged = set(keys.values())


def _has_spec(snapshot: Snapshot) -> bool:
    return os.path.lexists(output.path_of(snapshot["policy"]))


class _Child:
    def __init__(self, words: list[str]) -> None:
        self.late, self._until = False, time.monotonic() + DEADLINE
        null, self._output = subprocess.DEVNULL, os.memfd_create("refresh")
        try:
            self.process = subprocess.Popen(
                words,
                stdin=null,
                stdout=null,
                stderr=self._output,
                start_new_session=True,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),  # there is one thread
            )
        except OSError:
            os.close(self._output)
            raise

    def ended(self) -> int | None:
        """Return the exit code, or minus a signal's number; None while it runs.

        A late child is killed and waited for, however long a driver that hangs holds it: another would hang beside
        it.
        """
        code = self.process.poll()
        if code is None and not self.late and time.monotonic() > self._until:
            self.late = True
            logger.warning("gpushim refresh has not ended after %g s and is killed; %s", DEADLINE, failure.SLOW)
            self.kill()
        return code

    def kill(self) -> None:
        """Kill the child, not yet waited for, with its children."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def lines(self) -> list[str]:
        """Return the end of its output, and close it."""
        text = failure.tail(self._output, TAIL)
        os.close(self._output)
        return text.splitlines()


def _message(line: str) -> str:
    """Return the message of a log line, without the time that a line of JSON has."""
    try:
        return str(json.loads(line)["msg"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return line


class _Folder:
    """The directory of requests, of whose changes SIGIO tells, where the kernel has dnotify (fcntl(2), F_NOTIFY)."""

    def __init__(self, path: str) -> None:
        self._path, self._fd = path, -1

    def watch(self) -> None:
        """Watch it, or what is there in its place now."""
        if self._fd >= 0 and _is_same(self._fd, self._path):
            return
        self.leave()
        with contextlib.suppress(OSError):  # there is none yet
            self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
            fcntl.fcntl(self._fd, fcntl.F_NOTIFY, _WRITTEN)

    def leave(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Lock:
    """The lock of a keeper, in a state directory that may be removed and made again at any time."""

    def __init__(self, state: str) -> None:
        self._state, self._path = state, f"{state}/{LOCK}"
        self._fd = -1

    def take(self) -> None:
        """Take the lock if it can be had: another keeper may hold it, or there is no directory yet."""
        if self._fd >= 0:
            if _is_same(self._fd, self._path):
                return
            self.leave()
        if not trust.ours(self._state):
            return
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
            if not lock.private(os.fstat(self._fd)):
                os.unlink(self._path)  # others may hold it; the next look makes another
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # doctor looks just now, another one runs, or the disk is full
            self.leave()

    def leave(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def runs(state: str) -> bool:
    """Return whether a process keeps the snapshot.

    Raises:
        PermissionError: this user may not know.
    """
    return lock.is_held(f"{state}/{LOCK}", unreadable_is_free=False)


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except OSError:
        return False
