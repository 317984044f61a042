"""An ordinary user's Podman with our hook: no rights on the host, nodes bound, device rules left as they are.

The user has one id and no helper that maps more (newuidmap). gpushim, its configuration and its state are root's, as
installed; in the user's namespace that owner appears as nobody.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import leftovers
from e2e.expect import INSIDE, PROBE, sees_exactly
from e2e.podman import Podman, podman, write_hook
from e2e.trees import TOP
from e2e.views import PLACES, name_of, view
from e2e.witness import RUNC, settings
from fakehost import Host

USER = 1  # "daemon" on every Debian
BECOME = ("/usr/bin/setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
GPUS = ("--env=NVIDIA_VISIBLE_DEVICES=0,2", "localhost/debian:local")
LOAD_SECONDS = 120.0


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A simulated host that the user may look at."""
    with leftovers.state() as state:
        state.chmod(0o755)
        yield fakehost.build(f"{state}/host", 3, compile_cache=str(TOP / ".cache" / "fakehost"))


@pytest.fixture(scope="module")
def users_podman(debian_image: Path, host: Host) -> Iterator[Podman]:
    """The user's Podman; everything else that the user has lies in its state directory."""
    with leftovers.state() as roots, leftovers.state() as state, podman(state, None, Path(RUNC), BECOME) as engine:
        roots.chmod(0o755)
        shutil.copy2(PROBE, state)
        subprocess.run(["/bin/chown", "--recursive", "--no-dereference", f"{USER}:{USER}", state], check=True)
        for name in ("bin", "hook", "shim", "vendor"):
            shutil.copytree(TOP / name, roots / "gpushim" / name, symlinks=True)
        (roots / "settings").mkdir()
        environment = settings(roots / "settings", host.root)
        refresh = ["/usr/bin/python3", "-IB", str(roots / "gpushim/shim/gpushim/create/stub.py"), "refresh"]
        subprocess.run(refresh, env=environment, check=True, capture_output=True)
        log = roots / "settings" / "gpushim.log"
        log.touch()
        (state / "settings").symlink_to(roots / "settings")  # for the test
        os.chown(log, USER, USER)
        write_hook(state, roots / "gpushim/bin/gpushim-hook", environment)
        with debian_image.open("rb") as archive:  # which the user need not be allowed to open
            load = engine.command("load", "--quiet")
            subprocess.run(load, stdin=archive, env=engine.env, check=True, capture_output=True, timeout=LOAD_SECONDS)
        engine.stop()
        yield engine


@pytest.fixture(params=PLACES, ids=name_of)
def engine(request: pytest.FixtureRequest, users_podman: Podman) -> Iterator[Podman]:
    """The same with another runtime and in another view."""
    layout, program = request.param
    with view(layout) as prefix:
        engine = dataclasses.replace(users_podman, runtime=Path(program), prefix=(*prefix, *BECOME))
        yield engine
        engine.stop()


def test_the_gpus_asked_for(engine: Podman, host: Host) -> None:
    # crun insists on a cgroup of its own, which this user may not make, unless it is told not to; runc does not.
    cgroups = [] if str(engine.runtime) == RUNC else ["--cgroups=disabled"]
    volume = f"--volume={engine.state}/probe.py:{INSIDE}:ro"
    done = engine.podman("run", "--rm", "--network=none", *cgroups, volume, *GPUS, "python3", INSIDE)
    report = {**json.loads(done.stdout), "made": {"195:2": "EPERM"}}  # nobody makes nodes there
    sees_exactly(json.dumps(report), host, [0, 2])
    lines = [json.loads(line) for line in (engine.state / "settings/gpushim.log").read_text().splitlines()]
    *_, warning, info = lines
    assert (warning["level"], info["msg"]) == ("warning", "GPU container")
    assert "skipped the device rules, which this user may not change" in warning["msg"]
