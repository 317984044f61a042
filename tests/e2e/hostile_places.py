"""Low-level runtimes and cgroup layouts in which hostile images are run, and copies of what is executed there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e import chroots, engines, views
from e2e.trees import TOP
from e2e.views import CRUN
from e2e.witness import RUNC, settings
from fakehost import Host


@dataclass(frozen=True)
class Place:
    """Where a container is run: a low-level runtime in a view of the machine.

    Args:
        env: the engine's environment, whose configuration names that runtime.
        program: its path there.
        prefix: what to put before a command that shall run there.
        top: the checkout whose programs are run there.
    """

    env: dict[str, str]
    program: str = RUNC
    prefix: tuple[str, ...] = ()
    top: Path = TOP


# Suite of a chroot, or "" for this machine; view of the cgroup file systems; low-level runtime. The machine's own
# runc 1.1.5 in its own view is where all other tests of hostile images are.
PLACES = {
    "runc 1.1.5, v2": ("", "v2", RUNC),
    "crun 1.8, v1": ("", "v1", CRUN),
    "runc 1.1.15, v2": ("trixie", "v2", RUNC),
    "crun of trixie, v1": ("trixie", "v1", CRUN),
    "runc 1.3, v1": ("sid", "v1", RUNC),
    "runc 1.3, v2": ("sid", "v2", RUNC),
    "crun of sid, v2": ("sid", "v2", CRUN),
}


@contextlib.contextmanager
def place(name: str, work: Path, host: Host) -> Iterator[Place]:
    """Hold one of PLACES.

    Args:
        name: of it.
        work: empty directory.
        host: the simulated host.

    Yields:
        The place, with the host's GPUs listed.
    """
    suite, view, program = PLACES[name]
    low = str(views.low_level((view, program), work))
    env = settings(work, host.root, low)
    engines.run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
    with contextlib.ExitStack() as stack:
        if not suite:
            yield Place(env, low, stack.enter_context(views.view(view)))
            return
        prefix = stack.enter_context(chroots.entered(suite, Path(host.root), view=view)).prefix
        # Its Python has compiled neither its own modules nor ours, and ours never writes what it compiles.
        top = checkout(work / "top")
        folders = [str(top / name) for name in ("hook/gpuhook", "shim/gpushim", "shim/gpushim/inventory")]
        engines.run([*prefix, "/usr/bin/python3", "-IS", "-m", "compileall", "-q", "-l", *folders])
        yield Place(env, low, prefix, top)


def checkout(top: Path) -> Path:
    """Copy what is executed, as it lies in a checkout where nobody has compiled anything.

    Args:
        top: absent directory.

    Returns:
        top.
    """
    for name in ("bin", "hook", "shim"):
        shutil.copytree(TOP / name, top / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (top / "vendor").symlink_to(TOP / "vendor")
    (top / "tests/e2e").mkdir(parents=True)
    shutil.copy2(TOP / "tests/e2e/window.py", top / "tests/e2e")
    return top
