"""Hostile images under other low-level runtimes and cgroup layouts than this machine's own (hostile_places.PLACES).

What reaches furthest is run in every place: T-23266, T-24260 won in its windows, and some of T-0132. Each image of
test_hostile.py is run in one more place at least, and the applier of the plan changes from one to the next.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from e2e.hostile import LIBS, WAYS, Trap, small_image
from e2e.hostile_code import VARIABLES, arm
from e2e.hostile_layouts import REFUSED, TRAPS
from e2e.hostile_places import PLACES, Place, place
from e2e.races import LINKS, Race, prepare, windowed
from fakehost import Host

FAMILY = [name for name in TRAPS if name.startswith("T-0132")]
OTHERS = [name for name in TRAPS if name not in FAMILY]
CASES = [
    (where, name, WAYS[number % 2])
    for number, where in enumerate(PLACES)
    for place_of, name in enumerate(FAMILY)
    if (place_of - number) % 3 == 0
]
CASES += [(list(PLACES)[number % len(PLACES)], name, WAYS[number // 2 % 2]) for number, name in enumerate(OTHERS)]
# A FIFO in the way of a mount, be it whose it may: this crun waits for ever for somebody who writes to it.
WAITING = ("crun of sid, v2", "T-0134 library directory is a FIFO", "shim")
CASES[CASES.index(WAITING)] = ("runc 1.3, v2", *WAITING[1:])
# It makes no mount where a link leads to nothing either.
REFUSED_BY_CRUN = {"T-0132 together", "T-0134 library directory", "T-0134 library directory dangles"}
WINDOWS = [("use", "etc"), ("look", LIBS), ("each", "etc/ld.so.conf.d"), ("use", f"{LIBS}/libcuda.so.{{0.driver}}")]


@pytest.fixture(scope="module")
def places(gpu_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Place]]:
    """Gives any of PLACES, which is made when it is asked for the first time."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def get(name: str) -> Place:
            return stack.enter_context(place(name, tmp_path_factory.mktemp("place"), gpu_host))

        yield get


@pytest.fixture
def where(request: pytest.FixtureRequest, places: Callable[[str], Place]) -> Place:
    """One of PLACES."""
    return places(request.param)


@pytest.fixture
def root(debian_tree: Path, tmp_path: Path) -> Path:
    """A small image: a chroot does not see what is mounted in /tmp."""
    (tmp_path / "root").mkdir()
    small_image(debian_tree, tmp_path / "root", "etc/ld.so.conf.d")
    return tmp_path / "root"


@pytest.mark.parametrize(("where", "name", "way"), CASES, indirect=["where"])
def test_an_image_of_links_harms_nothing(
    where: Place, root: Path, tmp_path: Path, gpu_host: Host, name: str, way: str
) -> None:
    trap = Trap(tmp_path, root, where, way)
    TRAPS[name](trap, gpu_host)
    trap.look("NVIDIA_VISIBLE_DEVICES=all")
    with trap.harmless(gpu_host):
        done = trap.run()
    if done.returncode and name in (REFUSED | REFUSED_BY_CRUN if "crun" in where.program else REFUSED):
        trap.refused(done)
    else:
        trap.saw_nothing(done, gpu_host)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", PLACES, indirect=True)
def test_no_variable_reaches_a_process_of_the_host(
    where: Place, root: Path, tmp_path: Path, gpu_host: Host, way: str
) -> None:
    """T-23266, P-1, P-3."""
    trap = Trap(tmp_path, root, where, way)
    arm(trap.root, trap.work / "owned")
    env = [f"{name}={value}" for value, names in VARIABLES.items() for name in names]
    trap.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["/busybox", "env"])
    with trap.harmless(gpu_host):
        done = trap.run()
    assert not (trap.work / "owned").exists()
    assert done.returncode == 0, done.stderr
    assert set(env) <= set(done.stdout.splitlines())


@pytest.mark.parametrize(("where", "way"), [*product(PLACES, WAYS)], indirect=["where"])
def test_a_race_won_in_every_window(
    where: Place, debian_tree: Path, tmp_path: Path, gpu_host: Host, way: str
) -> None:
    """T-24260, T-23359, T-30465."""
    race = Race(debian_tree, tmp_path / "race", where, way)
    spec = prepare(race, gpu_host)
    started = exchanged = 0
    for number, (when, name) in enumerate(WINDOWS):
        found, other = race.lay(name, LINKS[number % len(LINKS)], gpu_host)
        spec["hooks"]["prestart"][-1]["path"] = windowed(race, when, found, other)
        race.trap.bundle.config.write_text(json.dumps(spec))
        started += race.run(gpu_host)
        exchanged += int((race.work / "count").read_text())
    assert started > len(WINDOWS) / 2
    assert exchanged > 10 * len(WINDOWS)
