"""An ordinary user's newest Docker in both views of the cgroups: no rights on the host, nodes bound.

What rootlesskit does for it is done here by hand: a user namespace with more than one id, a /run of its own, and a
network without a way out. gpushim, its configuration and its state are root's, as installed.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import engines, lent, upstream
from e2e.engines import Docker, dockerd
from e2e.expect import INSIDE, probe, sees_by_cdi, sees_exactly, sees_nothing
from e2e.lent import USER, Installed

IMAGE = "debian:local"
VIEWS = ("v1", "v2")


class Kit(http.server.BaseHTTPRequestHandler):
    """What rootlesskit tells dockerd of itself: GET /v1/info of its API."""

    def do_GET(self) -> None:
        """Answer."""
        answer = {"apiVersion": "1.1.1", "version": "2.3.4", "stateDir": "/", "childPID": 1}
        body = json.dumps({**answer, "networkDriver": {"driver": "none"}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@contextlib.contextmanager
def rootlesskit(folder: Path) -> Iterator[None]:
    """Stand in a directory for rootlesskit, which tests do without."""
    with socketserver.UnixStreamServer(f"{folder}/api.sock", Kit) as server:
        os.chmod(f"{folder}/api.sock", 0o777)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            os.unlink(f"{folder}/api.sock")


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    with lent.installed() as found:
        yield found


@contextlib.contextmanager
def become(prefix: tuple[str, ...], specs: Path) -> Iterator[tuple[str, ...]]:
    """Hold the namespaces of an ordinary user's engine, where /run/cdi has these CDI specs."""
    with lent.become(prefix) as enter:
        script = "mount -t tmpfs -o mode=755 none /run; mkdir /run/cdi; mount --rbind $1 /run/cdi"
        engines.run([*enter, "/bin/sh", "-euc", script, "sh", str(specs)])
        yield enter


@pytest.fixture(scope="module", params=VIEWS)
def engine(request: pytest.FixtureRequest, installed: Installed, debian_image: Path) -> Iterator[Docker]:
    """The user's dockerd; it knows our CDI spec, our runtime, and, by its PATH, both hooks."""
    env = {
        **installed.env,
        "HOME": "/nowhere",
        "ROOTLESSKIT_STATE_DIR": str(installed.folder),  # by which it knows where it is
        "XDG_RUNTIME_DIR": "/run",
    }
    programs, stub = installed.folder / "gpushim/bin", str(installed.folder / "gpushim/shim/gpushim/create/stub.py")
    ways: dict[str, Any] = {
        "path_dirs": (programs,),
        "settings": {"rootless": True, "cgroup-parent": ""},
        "user": USER,
    }
    with upstream.entered(upstream.DOCKER, debian_image.parent, view=request.param) as place:
        # Its runc, in a user namespace, binds the nodes of the host, which has them in /dev.
        devices = f"lowerdir={installed.host.root}/dev:/dev"
        engines.run([*place.prefix, "/bin/mount", "-t", "overlay", "-o", devices, "overlay", "/dev"])
        # In it, whose runc is another: the user may not do it again.
        refresh = [*place.prefix, "/usr/bin/python3", "-IB", stub, "refresh"]
        engines.run(refresh, env={"PATH": engines.SYSTEM_PATH, **installed.env})
        specs = Path(installed.env["GPUSHIM_STATE"], "cdi")
        with (
            become(place.prefix, specs) as prefix,
            rootlesskit(installed.folder),
            dockerd({"nvidia": programs / "gpushim-runtime"}, env=env, prefix=prefix, **ways) as engine,
        ):
            engine.docker("load", f"--input={debian_image}")
            yield engine


def look(engine: Docker, installed: Installed, indices: list[int], *options: str) -> str:
    """Run a container that looks for the host's GPUs; returns its report."""
    common = ["--rm", "--network=none", f"--volume={installed.folder}/probe.py:{INSIDE}:ro"]
    report = json.loads(engine.docker("run", *common, *options, IMAGE, "python3", INSIDE).stdout)
    _, _, *others = probe(installed.host, indices)
    return json.dumps({**report, "made": dict.fromkeys(others, "EPERM")})  # nobody makes nodes there


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        (["--gpus=all"], [0, 1, 2]),
        (["--gpus=device=1"], [1]),
        (["--runtime=nvidia", "--device=nvidia.com/gpu=2"], [2]),
    ],
)
def test_by_the_cdi_spec(engine: Docker, installed: Installed, options: list[str], indices: list[int]) -> None:
    sees_by_cdi(look(engine, installed, indices, *options), installed.host, indices)


def test_by_our_runtime(engine: Docker, installed: Installed) -> None:
    output = look(engine, installed, [0, 2], "--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=0,2")
    sees_exactly(output, installed.host, [0, 2])


@pytest.mark.parametrize("runtime", ["runc", "nvidia"])
def test_no_gpu_is_seen_without_a_request(engine: Docker, installed: Installed, runtime: str) -> None:
    sees_nothing(look(engine, installed, [], f"--runtime={runtime}"))
