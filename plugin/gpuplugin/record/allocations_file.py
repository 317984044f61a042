"""allocations.json: read, replaced and added to under one lock, by whichever process gives out this host's GPUs.

Its first line has all of it, and is replaced; lines after that have what was granted since, and are added while
kubelet waits. A kill loses nothing that was written. A loss of power is another boot, in which allocations do not
count; claims outlive one, so that the disk is waited for where there are some. What is damaged says nothing: not that
a GPU is free. A process that has read it before it was lost still knows who had what.
Out of scope: what is in it (record_form.py), what becomes of it (transitions.py), who asks kubelet
(kubelet_watch.py).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.record import record_form
from gpushim.ground import system
from gpushim.ground.errors import FAILED, GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.inventory import failure, save
from gpushim.paths import lock, trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from gpuplugin.record.record_form import Claim, Grants, Record

FOLDER = "device-plugin"  # on disk; with $GPUSHIM_STATE, below that
NAME, LOCK = "allocations.json", "allocations.lock"
LIMIT = 1 << 26  # bytes; 60 000 replicas that are all given out need some 20 MiB, with the longest names twice that
ADDED_LIMIT = 1 << 20  # bytes after the first line, about, before all of it is written in one again
DAMAGED = ".damaged"  # suffix of the last one that says nothing
INSTEAD = (
    "and goes by kubelet, its checkpoint and what it has read before; a GPU of which none tells is given out when "
    "kubelet has run for a while"
)
PATIENCE = 1.0  # seconds in which others are done with the lock
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNLIKE = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
_encode = json.JSONEncoder(separators=(",", ":")).encode


def folder() -> str:
    """Return the record's directory."""
    state = system.state_dir()
    return f"{system.LASTING_DIR if state == system.STATE_DIR else state}/{FOLDER}"


class AllocationsFile:
    """The record, as this process has read it last.

    Attributes:
        changes: how often somebody else has changed a division.
        damage: why the file that was read last, where that is no record, is none: a clause.
        stuck: something could not be granted, as the last try to write failed; a `write` that succeeds ends it.
    """

    def __init__(self) -> None:
        self._record: Record | None = None
        self._memory: Record | None = None  # what it was before the file was lost
        self._identity: object = None  # of the file that it was read from, or written to
        self._added = 0  # bytes after its first line
        self._boot = ""
        self.changes, self.stuck, self.damage = 0, False, ""

    @property
    def path(self) -> str:
        return f"{folder()}/{NAME}"

    @property
    def boot(self) -> str:
        """This boot's id, which the process does not outlive; "" while it cannot be read."""
        self._boot = self._boot or system.boot() or ""
        return self._boot

    def prepare(self) -> None:
        """Make its directory.

        Raises:
            GpushimError: it cannot be made, or others can write to it.
        """
        top = folder()
        try:
            if os.path.dirname(top) == system.state_dir():
                save.prepare(system.state_dir())
            os.makedirs(top, 0o700, exist_ok=True)
            if trust.ours(top) and os.stat(top).st_mode & 0o777 != 0o700:
                os.chmod(top, 0o700)  # an engine that mounts it may have made it
        except OSError as error:
            raise _write_error(error) from None
        if not trust.ours(top):
            raise GpushimError(
                f"{top} cannot be trusted: it must be a directory that only root can write to; remove it", FAILED
            )

    def read(self) -> Record | None:
        """Return the record as the file has it now; None if there is none, or it is damaged.

        Raises:
            GpushimError: a newer version has written it in another form, or it cannot be read now.
        """
        identity = trust.identity(self.path)
        if identity is None or identity != self._identity:
            record, before = self._parse(), self._record
            self._memory = before or self._memory
            if record and before and record["generation"] != before["generation"]:
                self.changes += 1
            self._record, self._identity = record, identity
        return self._record

    def _parse(self) -> Record | None:
        data = _content(self.path)
        if data is None or len(data) > LIMIT:
            self.damage = "it is not a readable file" if data is None else f"it has more than {LIMIT} bytes"
            return None
        self.damage = f"its {len(data)} bytes are no record, or half of one"
        try:
            first, *lines = data.split(b"\n")
            record = json.loads(first)
            _check_form(self.path, record)
            torn = lines.pop()  # the last, which is empty unless its writer was killed: nobody was told of it
            self._added = ADDED_LIMIT if torn else len(data) - len(first)
            return record_form.parse(record, lines, self.boot)
        except _UNLIKE:
            return None

    def current(self, record: Record | None) -> Record:
        """Return a record that was read as it is in this boot; where there is none, who had what when it was lost."""
        if record is not None:
            return record_form.after_boot(record, self.boot)
        empty = record_form.fresh(self.boot, f"{self.path} is damaged" if self.damaged else "")
        return record_form.recall(empty, record_form.after_boot(self._memory, self.boot)) if self._memory else empty

    def read_current(self) -> Record:
        """Return the record as it is in this boot; without one, as `current` has it. Raise as for `read`."""
        return self.current(self.read())

    def read_known(self) -> Record | None:
        """Return the record as it is in this boot; None if it cannot be read."""
        with contextlib.suppress(GpushimError):
            return self.read_current()
        return None

    @property
    def damaged(self) -> bool:
        """Whether there is a file that says nothing."""
        return self.read() is None and os.path.lexists(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[Record | None]:
        """Keep others from reading and writing in the body, which gets what `read` returns and does not change it.

        Raises:
            GpushimError: somebody keeps the lock, it cannot be made, or as for `read`.
        """
        with lock.held(f"{folder()}/{LOCK}", PATIENCE):
            yield self.read()

    def change(self, change: Callable[[Record], Record]) -> None:
        """Replace the record in this boot with what a function makes of it. Raise as for `locked` and `write`."""
        with self.locked() as before:
            record = self.current(before)
            changed = change(record)
            if changed != record:
                self.write(changed)

    def change_claims(self, uids: Collection[str], change: Callable[[Claim], Claim]) -> None:
        """Replace these claims, of those that the record has, as `change` does the record."""

        def change_each(record: Record) -> Record:
            claims = {uid: change(claim) if uid in uids else claim for uid, claim in record["claims"].items()}
            return {**record, "claims": claims}

        self.change(change_each)

    def write(self, record: Record) -> None:
        """Replace the record; the lock is held.

        Raises:
            GpushimError: it cannot be written.
        """
        data = _encode(record).encode()
        damaged = self._record is None and os.path.lexists(self.path)
        aside = self._link_aside() if damaged else ""
        claims = record["claims"], (self._record or record)["claims"]
        try:
            replace(self.path, data + b"\n", 0o600, durable=any(claims))
        except OSError as error:
            self._identity, self.stuck = None, True
            raise _write_error(error) from None
        if damaged:
            logger.warning("%s is damaged: %s. It is put aside (%s), %s", self.path, self.damage, aside, INSTEAD)
        self._record, self._identity, self._added, self.stuck = record, trust.identity(self.path), 0, False

    def _link_aside(self) -> str:
        """Keep a damaged file, which is the record until it is replaced; return where."""
        aside = self.path + DAMAGED
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
            os.link(self.path, aside, follow_symlinks=False)
        except OSError as error:
            return f"nowhere, for {error.strerror}"
        return aside

    def add(self, record: Record, grants: Grants) -> None:
        """Add what was granted just now; to replace the file would make ext4 write to the disk, which takes 1 ms.

        Args:
            record: as it is with them.
            grants: since it was read. The lock is held.

        Raises:
            GpushimError: it cannot be written.
        """
        data = _encode(grants).encode() + b"\n"
        if self._added + len(data) > ADDED_LIMIT:
            self.write(record)
            return
        self._identity, self.stuck = None, True
        try:
            _append(self.path, data)
        except OSError as error:
            raise _write_error(error) from None
        self._record, self._identity, self._added = record, trust.identity(self.path), self._added + len(data)
        self.stuck = False


def _append(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS)
    try:
        size = os.fstat(fd).st_size
        if os.write(fd, data) < len(data):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def _check_form(path: str, record: Any) -> None:
    number = record.get("form")
    if isinstance(number, int) and number > record_form.FORM:
        raise GpushimError(
            f"{path} is written by a newer version of gpushim, in a form that this one does not know; "
            "run that version, or drain this node and remove the file",
            FAILED,
        )


def _content(path: str) -> bytes | None:
    """Return what is in a regular file, LIMIT bytes and one of it; None if there is none.

    Raises:
        GpushimError: it cannot be read now, which says nothing of it.
    """
    try:
        with open(path, "rb", opener=lambda path, _: os.open(path, os.O_RDONLY | _FLAGS)) as file:
            return file.read(LIMIT + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError as error:
        if error.errno in failure.ERRNOS:
            raise GpushimError(f"{path} cannot be read now: {error.strerror}", FAILED) from None
        return None


def _write_error(error: OSError) -> GpushimError:
    return GpushimError(
        f"{folder()}, which has who has which GPU, cannot be written: {error.strerror}; without it a GPU could be "
        "given out twice. Make it a directory of root's on a disk with room",
        FAILED,
    )


def summarize(file: AllocationsFile) -> str:
    """Return a sentence about the state of the record."""
    subject = f"The record of who has what, {file.path},"
    try:
        os.lstat(file.path)
        record = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return f"{subject} is not there: nothing was given out yet."
    except OSError as error:
        return f"{subject} cannot be looked at: {error.strerror}; run this as root."
    except GpushimError as error:
        return f"{error}."
    return f"{subject} {_describe(file, record)}{_describe_lock()}."


def _describe(file: AllocationsFile, record: Record | None) -> str:
    if record is None:
        return f"is damaged: {file.damage}; gpushim-device-plugin puts it aside, {INSTEAD}"
    claims = f"; claims that have devices: {len(record['claims'])}" if record["claims"] else ""
    if record["boot"] != file.boot:
        return (
            f"is of an earlier boot: it has how {len(record['gpus'])} GPUs were given out, and no pod has one{claims}"
        )
    counts = [len(gpu["allocations"]) for gpu in record["gpus"].values() if gpu["allocations"]]
    unknown = f"; not all is known, for {quote(record['unknown'])}" if record["unknown"] else ""
    devices = f"{sum(counts)}, of {len(counts)} GPUs" if counts else "none"
    return f"is of this boot; devices given out: {devices}{claims}{unknown}"


def _describe_lock() -> str:
    """Return a clause about a process that keeps the lock, which is held for moments."""
    path, end = f"{folder()}/{LOCK}", time.monotonic() + PATIENCE
    while lock.is_held(path):
        if time.monotonic() > end:
            return f". Its lock is held by a process that hangs; fuser {path} names it"
        time.sleep(0.01)
    return ""
