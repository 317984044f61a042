"""A stranger's link, second name or file where a log is to be: root's refusals are not written there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.bundles import Bundle
from e2e.hostile_places import Place
from e2e.strangers import NOBODY


def impostors(log: Path, victim: Path) -> None:
    log.touch()
    os.chown(log, NOBODY, NOBODY)


LOGS: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda log, victim: log.symlink_to(victim),
    "second name": lambda log, victim: os.link(victim, log),
    "stranger's": impostors,
    "in a stranger's directory": lambda log, _: os.chown(log.parent, NOBODY, NOBODY),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_refusal_is_not_written_where_strangers_say(place: Place, tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "logs"
    victim.touch()
    folder.mkdir()
    made = Bundle(tmp_path / "bundle", tmp_path, place.env, runtime=place.top / "bin/gpushim-runtime")
    made.log = folder / "log.json"
    LOGS[name](made.log, victim)
    made.ask("NVIDIA_VISIBLE_DEVICES=99", args=["true"])
    done = made.call("create", "--bundle", str(made.directory), made.id, check=False)
    assert done.returncode != 0
    assert "99" in done.stderr
    assert victim.read_bytes() == b""
    assert not made.log.is_file() or made.log.read_bytes() == b""
