"""The book of who has what: one file for all that give out this host's GPUs, whichever process, front or settings.

It has the division in which each GPU and MIG instance was given out last, and who got something of it: a line with
all of it, which is replaced, and lines with what was given since, which are added while kubelet waits. It outlives
the process; after a boot the divisions stand, and nobody has anything. Whoever reads and writes holds its lock, which
is a file of root's, too, and never held while anybody is asked. A kill loses nothing of what was written, and a loss
of power is another boot, so that the disk is not waited for. What is damaged says nothing: not that a GPU is free.
Out of scope: what follows from it (changes.py), who asks kubelet (kubelet_view.py), what is in it (by_device.py).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any

from gpuplugin.book import by_device
from gpuplugin.book.page import FORM, booted, checked, fresh, grown
from gpuplugin.kubelet import cgroups
from gpushim.ground import system
from gpushim.ground.errors import FAILED, GpushimError, quote
from gpushim.ground.logs import logger
from gpushim.inventory import failure, save
from gpushim.paths import lock, trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuplugin.book.by_device import Given
    from gpuplugin.book.page import Gifts, Page

FOLDER = "device-plugin"  # on disk; with $GPUSHIM_STATE, below that
NAME, LOCK = "book.json", "book.lock"
LIMIT = 1 << 26  # bytes; 60 000 replicas that are all given out need some 20 MiB, with the longest names twice that
MORE = 1 << 20  # bytes after the first line, about, before all of it is written in one again
ASIDE = ".damaged"  # where one that says nothing is put, the last
INSTEAD = (
    "and goes by kubelet and its checkpoint; a GPU of which neither tells is given out when kubelet has run for a "
    "while"
)
PATIENCE = 1.0  # seconds in which others are done with the lock
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_written = json.JSONEncoder(separators=(",", ":")).encode


def folder() -> str:
    """Return the book's directory."""
    state = system.state_dir()
    return f"{system.LASTING_DIR if state == system.STATE_DIR else state}/{FOLDER}"


class Book:
    """The book, as this process knows it.

    Attributes:
        news: how often somebody else has changed a division.
        found: of one that is damaged, what is there, a clause.
        stuck: something could not be given, as the last try to write failed; a `write` that succeeds ends it.
    """

    def __init__(self) -> None:
        self._page: Page | None = None  # the last that was read or written
        self._seen: object = None  # identity of its file
        self._more = 0  # bytes after its first line
        self._boot = ""
        self.news, self.stuck, self.found = 0, False, ""

    @property
    def path(self) -> str:
        """Where it is."""
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
        place = folder()
        try:
            if os.path.dirname(place) == system.state_dir():
                save.prepare(system.state_dir())
            os.makedirs(place, 0o700, exist_ok=True)
            if trust.ours(place) and os.stat(place).st_mode & 0o777 != 0o700:
                os.chmod(place, 0o700)  # who mounts it may have made it
        except OSError as error:
            raise _unwritable(error) from None
        if not trust.ours(place):
            sentence = f"{place} cannot be trusted: it must be a directory that only root can write to; remove it"
            raise GpushimError(sentence, FAILED)

    def read(self) -> Page | None:
        """Return what it has now; None if there is no book, or it is damaged.

        Raises:
            GpushimError: a newer version has written it in another form.
        """
        seen = trust.identity(self.path)
        if seen is None or seen != self._seen:
            found = self._parsed()
            if found and self._page and found["turn"] != self._page["turn"]:
                self.news += 1
            self._page, self._seen = found, seen
        return self._page

    def _parsed(self) -> Page | None:
        data = content(self.path)
        if data is None or len(data) > LIMIT:
            self.found = "it is not a readable file" if data is None else f"it has more than {LIMIT} bytes"
            return None
        self.found = f"its {len(data)} bytes are no book, or half of one"
        try:
            first, *more = data.split(b"\n")
            found = json.loads(first)
            check_form(self.path, found, FORM)
            torn = more.pop()  # the last, which is empty unless its writer was killed: nobody was told of it
            self._more = MORE if torn else len(data) - len(first)
            # What was given in an earlier boot has ended; a loss of power may have torn it.
            lines = more if found["boot"] == self.boot else []
            return checked(grown(found, [*map(json.loads, lines)]))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return None

    def now(self, found: Page | None) -> Page:
        """Return what it has as it is in this boot; a book without entries where there is none."""
        if found is None:
            return fresh(self.boot, f"{self.path} is damaged" if self.damaged else "")
        return booted(found, self.boot)

    @property
    def damaged(self) -> bool:
        """Whether there is one that says nothing."""
        return self.read() is None and os.path.lexists(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[Page | None]:
        """Let nobody else read or write meanwhile; as `read`, of which nothing may be changed in place.

        Raises:
            GpushimError: somebody keeps the lock, it cannot be made, or as for `read`.
        """
        with lock.held(f"{folder()}/{LOCK}", PATIENCE):
            yield self.read()

    def write(self, page: Page) -> None:
        """Have this in it from now on; the lock is held.

        Raises:
            GpushimError: it cannot be written.
        """
        data = _written(page).encode()
        damaged = self._page is None and os.path.lexists(self.path)
        aside = self._set_aside() if damaged else ""
        try:
            replace(self.path, data + b"\n", 0o600, durable=False)
        except OSError as error:
            self._seen, self.stuck = None, True
            raise _unwritable(error) from None
        if damaged:
            logger.warning("%s is damaged: %s. It is put aside (%s), %s", self.path, self.found, aside, INSTEAD)
        self._page, self._seen, self._more, self.stuck = page, trust.identity(self.path), 0, False

    def _set_aside(self) -> str:
        """Keep what is damaged, which is the book all the while; returns where."""
        aside = self.path + ASIDE
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
            os.link(self.path, aside, follow_symlinks=False)
        except OSError as error:
            return f"nowhere, for {error.strerror}"
        return aside

    def _add(self, page: Page, new: Gifts) -> None:
        """Have what was given just now in it, too; to replace it would make ext4 write to the disk, which takes 1 ms.

        Raises:
            GpushimError: it cannot be written.
        """
        data = _written(new).encode() + b"\n"
        if self._more + len(data) > MORE:
            self.write(page)
            return
        self._seen = None
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | _FLAGS)
            try:
                size = os.fstat(fd).st_size
                if os.write(fd, data) < len(data):
                    os.ftruncate(fd, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(fd)
        except OSError as error:
            raise _unwritable(error) from None
        self._page, self._seen, self._more = page, trust.identity(self.path), self._more + len(data)

    def give(
        self,
        given: Sequence[Given],
        giver: str = by_device.PLUGIN,
        to: str = "",
        pods: Mapping[str, str] | None = None,
    ) -> None:
        """Note that a container or claim gets something, before anybody is told.

        Args:
            given: what it gets.
            giver: the front that gives it.
            to: the container or claim, "" while it is not known.
            pods: as for `by_device.with_uids`.

        Raises:
            GpushimError: the book has some of it in another division, a process is left of a pod that has it, or the
                book says nothing or cannot be written.
        """
        with self.locked() as page:
            if page is None or page["boot"] != self.boot:
                raise GpushimError(f"{self.path} is missing or damaged, and what pods have is asked again", FAILED)
            page = by_device.with_uids(page, pods or {})
            running = cgroups.running(by_device.former_uids(page, {(one.resource, one.id) for one in given}))
            after, new = by_device.give(page, given, giver, to, system.clock(), running)
            self.stuck = True
            self._add(after, new)
            self.stuck = False


def check_form(path: str, found: Any, form: int) -> None:
    """Refuse a file that a newer version has written.

    Args:
        path: of the file.
        found: what is in it.
        form: the newest that this version knows.

    Raises:
        GpushimError: it is in a newer form.
    """
    if isinstance(found, dict) and isinstance(found.get("form"), int) and found["form"] > form:
        raise GpushimError(
            f"{path} is written by a newer version of gpushim, in a form that this one does not know; "
            "run that version, or drain this node and remove the file",
            FAILED,
        )


def content(path: str) -> bytes | None:
    """Return what is in a regular file, LIMIT bytes and one of it; None if there is none.

    Args:
        path: of the file, in the book's directory.

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


def _unwritable(error: OSError) -> GpushimError:
    return GpushimError(
        f"{folder()}, which has who has which GPU, cannot be written: {error.strerror}; without it a GPU could be "
        "given out twice. Make it a directory of root's on a disk with room",
        FAILED,
    )


def summary(shared: Book) -> str:
    """Say in which state the book is."""
    who = f"The book of who has what, {shared.path},"
    try:
        os.lstat(shared.path)
        page = shared.read()
    except (FileNotFoundError, NotADirectoryError):
        return f"{who} is not there: nothing was given out yet."
    except OSError as error:
        return f"{who} cannot be looked at: {error.strerror}; run this as root."
    except GpushimError as error:
        return f"{error}."
    return f"{who} {_state(shared, page)}{_lock()}."


def _state(shared: Book, page: Page | None) -> str:
    if page is None:
        return f"is damaged: {shared.found}; gpushim-device-plugin puts it aside, {INSTEAD}"
    held = [len(one["entries"]) for one in page["gpus"].values() if one["entries"]]
    if page["boot"] != (system.boot() or ""):
        return f"is of an earlier boot: it has how {len(page['gpus'])} GPUs were given out, and nobody has one"
    unknown = f"; not all is known, for {quote(page['unknown'])}" if page["unknown"] else ""
    return f"is of this boot; devices given out: {f'{sum(held)}, of {len(held)} GPUs' if held else 'none'}{unknown}"


def _lock() -> str:
    """Say whether somebody keeps its lock, which is held for moments."""
    path, until = f"{folder()}/{LOCK}", time.monotonic() + PATIENCE
    while lock.is_held(path):
        if time.monotonic() > until:
            return f". Its lock is held by a process that hangs; fuser {path} names it"
        time.sleep(0.01)
    return ""
