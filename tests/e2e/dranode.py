"""The DRA driver's half on the node as a process here, beside a kubelet and another half that a test speaks for.

Out of scope: a real kubelet and API server (test_dra.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import fakehost
from e2e.engines import SYSTEM_PATH, run
from e2e.leftovers import until
from e2e.plugins import environment
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host
from gpuplugin.kubelet import dra
from gpushim.containers import protobuf

PROGRAM = TOP / "bin" / "gpushim-dra-driver"
NODE, DRIVER = "node", "gpu.nvidia.com"
SECONDS = 30.0
OTHER = "gpu-00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Three GPUs, the first of which is divided."""
    root = tmp_path_factory.mktemp("dra") / "root"
    cache = str(TOP / ".cache" / "fakehost")
    return fakehost.build(str(root), 3, mig={0: ["3g.20gb", "1g.5gb"]}, compile_cache=cache)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory whose sockets have short paths."""
    path = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@dataclass
class Driver:
    """A driver; its process runs between `start` and `stop`, and the other half is the test's.

    Attributes:
        folder: short, for kubelet's directory and sockets.
        env: GPUSHIM_CONFIG and GPUSHIM_STATE.
        claims: what the API server has, by uid: objects, or JSON.
        pools: what the driver has wanted published, the last last.
        problem: why the other half cannot publish, or "".
        program: that has the driver.
        prefix: command that executes it.
    """

    folder: Path
    env: dict[str, str]
    claims: dict[str, Any] = field(default_factory=dict)
    pools: list[Any] = field(default_factory=list)
    problem: str = ""
    program: Path = PROGRAM
    prefix: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What its processes have said."""
        return self.folder / "log"

    def start(self, *flags: str) -> None:
        """Start it, and be the other half."""
        (self.folder / "plugins_registry").mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            known = [f"--kubelet-dir={self.folder}", f"--socket={self.folder}/s", f"--node-name={NODE}"]
            self.process = subprocess.Popen(
                [*self.prefix, self.program, *known, *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(self.env), start_new_session=True,
            )  # fmt: skip
        self.pools.clear()
        threading.Thread(target=self._answer, args=(self.process,), daemon=True).start()
        assert until(lambda: bool(self.pools and self.registration()), SECONDS), self.log.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int | None:
        """End its process by a signal; return its exit status."""
        assert self.process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number) if number == signal.SIGKILL else self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def _answer(self, process: subprocess.Popen[bytes]) -> None:
        """Be the other half as long as a process runs."""
        while process.poll() is None:
            with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as half:
                half.connect(f"{self.folder}/s")
                for line in half.makefile("rb"):
                    news = json.loads(line)
                    if "pool" in news:
                        self.pools.append(news["pool"])
                        news = {"generation": 0 if self.problem else len(self.pools), "problem": self.problem}
                        half.sendall(json.dumps({"published": news}).encode() + b"\n")
                        continue
                    found = self.claims.get(news["uid"])
                    text = found if isinstance(found, str) else json.dumps(found)
                    answer = f'"object": {text}' if found else '"absent": true'
                    half.sendall(f'{{"claim": {news["claim"]}, {answer}}}\n'.encode())
            time.sleep(0.01)

    def registration(self) -> str:
        """Return the path by which kubelet would find it, "" if there is none."""
        found = [*(self.folder / "plugins_registry").glob("gpushim-*.sock")]
        return str(found[0]) if found else ""

    def call(self, path: str, method: str, request: tuple[str, dict[str, Any]], answer: str) -> dict[str, Any]:
        """Call as kubelet does."""
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.default_authority", "localhost"))
        with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
            name, message = request
            write = partial(protobuf.encode, dra.MESSAGES, name)
            work = channel.unary_unary(method, write, partial(protobuf.decode, dra.MESSAGES, answer))
            found: dict[str, Any] = work(message, timeout=SECONDS, wait_for_ready=True)
            return found

    def register(self) -> dict[str, Any]:
        """Register it as kubelet does; return what it says of itself."""
        path = self.registration()
        service = f"/{dra.REGISTRATION}/"
        info = self.call(path, service + "GetInfo", ("Empty", {}), "PluginInfo")
        said = ("RegistrationStatus", {"registered": True})
        self.call(path, service + "NotifyRegistrationStatus", said, "Empty")
        return info

    def endpoint(self) -> str:
        """Return the path of its other socket."""
        info = self.call(self.registration(), f"/{dra.REGISTRATION}/GetInfo", ("Empty", {}), "PluginInfo")
        return str(info["endpoint"])

    def prepare(self, *uids: str, version: int = 0) -> dict[str, Any]:
        """Have claims prepared; return devices, or the error, by uid."""
        rows = [{"namespace": "d", "uid": uid, "name": f"c-{uid}"} for uid in uids]
        method = f"/{dra.PREPARING[version]}/NodePrepareResources"
        found = self.call(self.endpoint(), method, ("Claims", {"claims": rows}), "PreparedClaims")
        return {row["key"]: row["value"]["error"] or row["value"]["devices"] for row in found["claims"]}

    def unprepare(self, *uids: str) -> dict[str, str]:
        """Have claims taken back; return errors by uid."""
        rows = [{"namespace": "d", "uid": uid, "name": f"c-{uid}"} for uid in uids]
        method = f"/{dra.PREPARING[0]}/NodeUnprepareResources"
        found = self.call(self.endpoint(), method, ("Claims", {"claims": rows}), "UnpreparedClaims")
        return {row["key"]: (row["value"] or {}).get("error", "") for row in found["claims"]}

    def allocate(self, uid: str, *devices: str, **more: Any) -> None:
        """Have the API server have a claim that the scheduler has given devices."""
        results = [{"request": "r", "driver": DRIVER, "pool": NODE, "device": name, **more} for name in devices]
        status = {"allocation": {"devices": {"results": results}}}
        self.claims[uid] = {"metadata": {"uid": uid, "namespace": "d", "name": f"c-{uid}"}, "status": status}

    def devices(self) -> dict[str, dict[str, Any]]:
        """Return what it has wanted published last, by UUID."""
        pool = self.pools[-1] if self.pools else None
        return {one["attributes"]["uuid"]["string"]: one for row in (pool or {"slices": []})["slices"] for one in row}

    def taints(self) -> dict[str, dict[str, str]]:
        """Return values of taints by UUID and the key's end."""
        found: dict[str, dict[str, str]] = {}
        for uuid, one in self.devices().items():
            for row in one.get("taints", ()):
                found.setdefault(uuid, {})[row["key"].rpartition("/")[2]] = row.get("value", "")
        return found


@contextlib.contextmanager
def driver(folder: Path, env: dict[str, str], *flags: str) -> Iterator[Driver]:
    """Run a driver that its kubelet has registered."""
    found = Driver(folder, env)
    found.start(*flags)
    try:
        found.register()
        yield found
    finally:
        found.stop()


def becomes(one: Driver, condition: Any, seconds: float = SECONDS) -> None:
    """Wait until something is so."""
    assert until(lambda: bool(condition()), seconds), f"{one.pools[-1:]}\n{one.log.read_text()[-3000:]}"


@pytest.fixture
def env(host: Host, folder: Path) -> dict[str, str]:
    """Settings for that host, whose GPUs are listed."""
    found = settings(folder, host.root)
    refresh(found)
    return found


def refresh(env: dict[str, str], *flags: str, check: bool = True) -> None:
    """Have the host's GPUs listed, as `gpushim refresh --keep` does on a node."""
    run([str(TOP / "bin" / "gpushim"), "refresh", *flags], env={"PATH": SYSTEM_PATH, **env}, check=check)


def name(uuid: str) -> str:
    """Return a device's name."""
    return uuid.lower()


def cdi(uuid: str) -> list[str]:
    """Return what a container is told of a device."""
    return [f"nvidia.com/gpu={uuid}"]


@pytest.fixture
def port() -> int:
    """A port that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
