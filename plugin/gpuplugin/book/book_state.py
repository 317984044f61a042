"""What the book has, in a sentence for people.

Changes nothing. Out of scope: what follows from it (changes.py), what is done about one that is damaged (book.py).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from gpuplugin.book import book
from gpushim.ground import system
from gpushim.ground.errors import GpushimError, quote
from gpushim.paths import lock

if TYPE_CHECKING:
    from gpuplugin.book.book import Book
    from gpuplugin.book.page import Page

PAUSE = 0.01  # seconds between looks at the lock


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
        return f"is damaged: {shared.found}; gpushim-device-plugin puts it aside, {book.INSTEAD}"
    held = [len(one["entries"]) for one in page["gpus"].values() if one["entries"]]
    if page["boot"] != (system.boot() or ""):
        return f"is of an earlier boot: it has how {len(page['gpus'])} GPUs were given out, and nobody has one"
    unknown = f"; not all is known, for {quote(page['unknown'])}" if page["unknown"] else ""
    gpus = f"{len(held)} of its {len(page['gpus'])} GPUs"
    return f"is of this boot; devices given out: {sum(held)}, of {gpus}{unknown}"


def _lock() -> str:
    """Say whether somebody keeps its lock, which is held for moments."""
    path, until = f"{book.folder()}/{book.LOCK}", time.monotonic() + book.PATIENCE
    while lock.is_held(path):
        if time.monotonic() > until:
            return f". Its lock is held by a process that hangs; fuser {path} names it"
        time.sleep(PAUSE)
    return ""
