"""What a node's engines are configured with, and in which order that changes: nothing goes that containers need.

An engine that needs the settings of a runtime for its containers (`handlers` of the engines' table) gets the new ones
first; the old ones stay as long as such a container is there, and are in the record until a later run finds none.
Out of scope: which containers need what (`gpushim configure`), and restarting (engine.py).
"""

from __future__ import annotations

import time

from gpuplugin.node import engine
from gpuplugin.node import record as records
from gpushim.engines.processes import table
from gpushim.ground.errors import GpushimError

NEEDED = "--only-needed"
LET_END, POLL = 10.0, 2.0  # seconds


def change(record: records.Record, words: list[str], restart: bool) -> None:
    """Configure an engine, and take back what was configured in another way before, but for what containers need."""
    if words and record.engine != words:
        engine.check(words)  # what cannot be configured could not be taken back either
    if record.engine not in ([], words):
        record.former.append(record.engine)
    record.former = [each for each in record.former if each != words]  # put back before it was taken back
    record.engine = words
    record.save()
    in_place = [each for each in record.former if _in_place(each, words)]
    for each in [each for each in record.former if not _needs(each)]:
        engine.configure([*named(each), engine.REMOVE], restart and not words)
        record.former.remove(each)
    if words and not engine.configure([*words, NEEDED] if in_place else words, restart):
        record.former = [each for each in record.former if each not in in_place]
    record.former = [
        each
        for each in record.former
        if each in in_place or engine.configure([*named(each), engine.REMOVE, NEEDED], restart)
    ]
    record.save()


def take_back(record: records.Record, restart: bool) -> None:
    """Take all back, and wait a moment for containers that need it: the device plugin's go with this.

    Raises:
        GpushimError: some are still there; what they need is as it was.
    """
    asked = [named(each) for each in (*record.former, record.engine) if each]
    for words in [each for place, each in enumerate(asked) if each not in asked[:place]]:
        end = time.monotonic() + (LET_END if _needs(words) else 0)
        while True:
            try:
                engine.configure([*words, engine.REMOVE], restart)
                break
            except GpushimError:
                if time.monotonic() >= end:
                    raise
                time.sleep(POLL)
    record.former, record.engine = [], []
    record.save()


def named(words: list[str]) -> list[str]:
    """Return what tells which settings are meant, of what an engine was configured with."""
    return [words[0], *(word for word in words[1:] if word.startswith(("--config=", "--runtime-name=")))]


def _needs(words: list[str]) -> bool:
    return table.ENGINES[words[0]].handlers


def _in_place(old: list[str], new: list[str]) -> bool:
    """Say whether old settings are taken back as new ones are put into the same file."""
    where = [[words[:1], [word for word in words if word.startswith("--config=")]] for words in (old, new)]
    return bool(new) and _needs(new) and where[0] == where[1]
