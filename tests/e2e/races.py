"""Images whose files change while the hook is at work: as fast as possible, or between two of its system calls."""

from __future__ import annotations

import contextlib
import mmap
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.hostile import HOOK, LIBS, WAYS, Trap, small_image
from e2e.hostile_places import Place
from fakehost import Host
from gpushim.oci.edits import hook_args
from unit.gpuhook.sandbox import exchange, until

WINDOW, LAUNCHER = "tests/e2e/window.py", Path(__file__).with_name("nosyscalls.py")
COMPAT = "usr/local/cuda/compat"
DIRECTORIES = ["etc", "etc/ld.so.conf.d", "usr", "usr/lib", LIBS, "usr/bin", COMPAT, "run", "dev", "usr/share"]
FILES = ["etc/ld.so.cache", "etc/ld.so.conf", f"{LIBS}/libcuda.so.{{0.driver}}", "usr/bin/nvidia-smi"]
PLACES = DIRECTORIES + FILES
LINKS = ("{canary}/{inside}", "{up}", "/volume/{inside}")
ENV = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]


class Race:
    """An image of few files, made again for each run, and a volume of the user's.

    Args:
        tree: of a Debian.
        work: absent directory.
        env: the engine's environment, or the place with its environment.
        way: who applies the plan.
    """

    def __init__(self, tree: Path, work: Path, env: dict[str, str] | Place, way: str) -> None:
        self.tree, self.work, self.volume = tree, work, work / "volume"
        (work / "root").mkdir(parents=True)
        self.trap = Trap(work, work / "root", env, way)
        for name in ("etc/ld.so.conf.d", "lib"):
            (self.volume / name).mkdir(parents=True)
        self.trap.watched.append(str(self.volume))

    def lay(self, place: str, link: str, host: Host) -> tuple[Path, Path]:
        """Make the image again; return the place in it, and beside that the link that is to have its name."""
        root = self.trap.root
        small_image(self.tree, root, *DIRECTORIES, "volume")
        (root / COMPAT / "libcuda.so.999.1").touch()
        found = root / place.format(host)
        if place in FILES:
            found.touch()
        inside = "etc/ld.so.cache" if place in FILES else "etc" if place.startswith("etc") else "lib"
        other = found.with_name(found.name + ".other")
        other.symlink_to(link.format(canary=self.trap.canary, up=self.trap.up(inside), inside=inside))
        return found, other

    def look(self, *before: dict[str, Any]) -> None:
        """Ask for a container that looks around and has the volume."""
        volume = {"destination": "/volume", "source": str(self.volume), "type": "bind", "options": ["rbind", "rw"]}
        self.trap.look(*ENV, before=before, mounts=[*self.trap.bundle.plain["mounts"], volume])

    def run(self, host: Host) -> bool:
        """Run it, harmless; return whether it was not refused."""
        with self.trap.harmless(host):
            done = self.trap.run()
        if done.returncode:
            self.trap.refused(done)
        else:
            self.trap.saw_nothing(done, host)
        return not done.returncode


@pytest.fixture(params=WAYS)
def race(request: pytest.FixtureRequest, debian_tree: Path, tmp_path: Path, gpushim_env: dict[str, str]) -> Race:
    """A race about to begin."""
    return Race(debian_tree, tmp_path / "race", gpushim_env, request.param)


@contextlib.contextmanager
def racer(work: Path, found: Path, other: Path) -> Iterator[mmap.mmap]:
    """Exchange two names as fast as possible from the moment when a file `go` is there; count in the result."""
    count = mmap.mmap(-1, 8)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            while not (work / "go").exists():
                time.sleep(0.001)
            (work / "racing").touch()
            for number in until(60):
                exchange(found, other)
                count[:] = number.to_bytes(8, "little")
        os._exit(1)
    try:
        yield count
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the racer gave up"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        for name in ("go", "racing"):
            (work / name).unlink()


def prepare(race: Race, host: Host) -> dict[str, Any]:
    """Return the config.json that the hook runs with, of which only its program is still to be changed."""
    race.lay(PLACES[0], LINKS[0], host)
    race.look()
    if race.trap.way == "shim":
        assert race.run(host)
        race.trap.way = "hook"  # from here on runc alone, with the edits of the shim
    spec: dict[str, Any] = race.trap.bundle.spec
    hook = spec["hooks"]["prestart"][-1]
    hook["args"] = [HOOK.name, *(hook_args(hook) or hook["args"][1:])]
    return spec


def windowed(race: Race, when: str, found: Path, other: Path, naive: str = "", error: str = "") -> str:
    """Write the hook with windows as a program of its own; with an error, that is all that new calls give it."""
    script, window = race.work / "windowed", race.trap.place.top / WINDOW
    words = [sys.executable, LAUNCHER, error] if error else []
    words += ["/usr/bin/python3", "-IBS", window, when, found, other, naive, race.work / "count"]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    script.chmod(0o755)
    return str(script)
