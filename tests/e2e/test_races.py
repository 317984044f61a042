"""Images whose files change while the hook is at work, under the real runc (T-23359, T-24260).

Somebody exchanges a directory or a file with a link to the canary or to a volume: as fast as possible, or in each
window between two system calls of the hook. It begins when runc's own mounts are made: what runc does before is
runc's. GPUSHIM_RACE_SECONDS says for how long the races go on, for each applier of a plan.
"""

from __future__ import annotations

import json
import os

import pytest

from e2e.hostile import WAYS
from e2e.races import LINKS, PLACES, Race, prepare, racer, windowed
from e2e.races import race as race
from fakehost import Host
from unit.gpuhook.sandbox import until

SECONDS = float(os.environ.get("GPUSHIM_RACE_SECONDS", "4"))


def test_a_race(race: Race, gpu_host: Host) -> None:
    """T-23359, T-24260."""
    barrier = f": >{race.work}/go; while [ ! -e {race.work}/racing ]; do :; done"
    hook = {"path": "/bin/sh", "args": ["sh", "-c", barrier], "env": ["PATH=/bin"]}
    started = exchanged = 0
    for number in until(SECONDS):
        found, other = race.lay(PLACES[number % len(PLACES)], LINKS[number % len(LINKS)], gpu_host)
        race.look(hook)
        with racer(race.work, found, other) as count:
            started += race.run(gpu_host)
        exchanged += int.from_bytes(count[:], "little")
    assert started
    assert exchanged > 1000


WAYS_AND_WINDOWS = [(way, when, "") for way in WAYS for when in ("use", "look")]
WAYS_AND_WINDOWS += [("hook", "each", ""), ("hook", "use", "EPERM"), ("hook", "each", "ENOSYS")]


@pytest.mark.parametrize(("race", "when", "error"), WAYS_AND_WINDOWS, indirect=["race"])
def test_a_race_won_in_every_window(race: Race, gpu_host: Host, when: str, error: str) -> None:
    """T-23359, T-24260, T-30465: what is looked at is never what the name means when it is used."""
    spec = prepare(race, gpu_host)
    started = exchanged = 0
    for number, place in enumerate(PLACES):
        found, other = race.lay(place, LINKS[number % len(LINKS)], gpu_host)
        spec["hooks"]["prestart"][-1]["path"] = windowed(race, when, found, other, error=error)
        race.trap.bundle.config.write_text(json.dumps(spec))
        started += race.run(gpu_host)
        exchanged += int((race.work / "count").read_text())
    assert started > len(PLACES) / 2
    assert exchanged > 10 * len(PLACES)


@pytest.mark.parametrize("race", ["shim"], indirect=True)
def test_the_windows_are_real(race: Race, gpu_host: Host) -> None:
    """A resolver that leaves links to the kernel does reach the canary through them."""
    spec = prepare(race, gpu_host)
    found, other = race.lay("etc", LINKS[0], gpu_host)
    spec["hooks"]["prestart"][-1]["path"] = windowed(race, "look", found, other, naive="yes")
    race.trap.bundle.config.write_text(json.dumps(spec))
    race.trap.run()
    assert b"libcuda.so.1\0" in (race.trap.canary / "etc/ld.so.cache").read_bytes()
