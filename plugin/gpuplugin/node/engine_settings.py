"""Change the settings of a node's engines, and remove none that containers need.

An engine that needs a runtime's settings for running containers (`handlers` of the engines' table) gets the new ones
first; the old ones stay as long as such a container exists, and in the record until a later run finds none.
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


def change_engine(record: records.Record, words: list[str], restart: bool) -> None:
    """Configure an engine, and remove former settings except those that containers need."""
    if words and record.engine != words:
        engine.check_settings(words)  # settings that gpushim refuses could not be removed either
    if record.engine not in ([], words):
        record.former.append(record.engine)
    # Some were configured again before they were removed.
    record.former = [settings for settings in record.former if settings != words]
    record.engine = words
    record.save()
    overwritten = [settings for settings in record.former if _writes_same_file(settings, words)]
    for settings in [settings for settings in record.former if not _needs(settings)]:
        engine.configure([*identify_settings(settings), engine.REMOVE], restart and not words)
        record.former.remove(settings)
    if words and not engine.configure([*words, NEEDED] if overwritten else words, restart):
        record.former = [settings for settings in record.former if settings not in overwritten]
    record.former = [
        settings
        for settings in record.former
        if settings in overwritten or engine.configure([*identify_settings(settings), engine.REMOVE, NEEDED], restart)
    ]
    record.save()


def take_back(record: records.Record, restart: bool) -> None:
    """Remove all settings; wait a moment for containers that need them, as the device plugin's end with this pod.

    Raises:
        GpushimError: such containers still run; their settings are unchanged.
    """
    settings = [identify_settings(entry) for entry in (*record.former, record.engine) if entry]
    for words in [entry for number, entry in enumerate(settings) if entry not in settings[:number]]:
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


def identify_settings(words: list[str]) -> list[str]:
    """Return the engine and the options that identify its settings."""
    return [words[0], *(word for word in words[1:] if word.startswith(("--config=", "--runtime-name=")))]


def _needs(words: list[str]) -> bool:
    return table.ENGINES[words[0]].handlers


def _writes_same_file(old: list[str], new: list[str]) -> bool:
    """Return whether new settings replace old ones in the same file."""
    files = [[words[:1], [word for word in words if word.startswith("--config=")]] for words in (old, new)]
    return bool(new) and _needs(new) and files[0] == files[1]
