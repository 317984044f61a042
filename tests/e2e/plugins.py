"""The real device plugin, against the kubelet of kube.py.

It runs on this machine and not in the node's Debian: kubelet's directory, the simulated host and gpushim's state have
the same paths in both, so that its sockets are those that kubelet sees.
The node's pods are made by gpushim-runtime, and those whose names begin with "runc" by runc alone.
Out of scope: the node's kubelet (kube.py), what kubelet and containers must show (the tests).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from e2e import chroots, kube, programs, trees
from e2e.engines import SYSTEM_PATH, containerd, members, run
from e2e.kube import Node
from e2e.leftovers import until
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host
from gpuplugin.kubelet.v1beta1 import DEVICE_PLUGIN, reader, writer
from gpushim.refresh import keep

PROGRAM = TOP / "bin" / "gpushim-device-plugin"
ROOTS = ":".join(str(TOP / name) for name in ("plugin", "shim", "hook"))
COMMAND = [str(PROGRAM)] if PROGRAM.exists() else [sys.executable, "-c", "from gpuplugin.cli import main; main()"]
SECONDS = 30.0
# In the bundle's directory, as containerd's shim calls it: the pod's name decides who makes its containers.
CHOICE = """#!/bin/sh
if grep -q '"io.kubernetes.cri.sandbox-name":"runc' config.json 2>/dev/null; then exec runc "$@"; fi
exec {shim} "$@"
"""


def low_level(directory: Path) -> str:
    """Write a runtime below the shim that is the same file for the node and for the plugin.

    Their runc is not: a snapshot of the one would be out of date for the other, and each pod cost two refreshes.
    """
    path = directory / "runc"
    path.write_text('#!/bin/sh\nexec /usr/sbin/runc "$@"\n')
    path.chmod(0o755)
    return str(path)


def surveyed(host: Host, folder: Path) -> dict[str, str]:
    """Write a simulated host's settings, and have its GPUs listed.

    Args:
        host: whose.
        folder: for them, and for gpushim's state.

    Returns:
        GPUSHIM_CONFIG and GPUSHIM_STATE.
    """
    programs.path("kubelet")  # where there is none the test is skipped before anything is made
    env = settings(folder, host.root, low_level(folder))
    run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": SYSTEM_PATH, **env})
    return env


@contextlib.contextmanager
def gpu_node(host: Host, env: dict[str, str], debian_image: Path, busybox_tree: Path) -> Iterator[Node]:
    """Run a node for a simulated host, with CDI.

    Args:
        host: whose GPUs it has.
        env: GPUSHIM_CONFIG and GPUSHIM_STATE, after a refresh.
        debian_image: archive of its pods' image.
        busybox_tree: root filesystem of their pause container.

    Yields:
        The node, without any device plugin.
    """
    kubelet, state = programs.path("kubelet"), Path(env["GPUSHIM_STATE"])
    pause = trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    runtime = state.with_name("runtime")
    runtime.write_text(CHOICE.format(shim=TOP / "bin" / "gpushim-runtime"))
    runtime.chmod(0o755)
    with chroots.entered("sid", Path(host.root), kubelet, view="v1") as place:
        chroots.publish(place.prefix, state / "cdi")
        # A snapshot with MIG instances lives seconds on some kernels, so that a create there needs NVIDIA's bindings.
        subprocess.run([*place.prefix, "/bin/umount", str(TOP / "vendor")], check=True)
        with containerd(
            {"nvidia": runtime}, pause="docker.io/library/pause:local", env=env, prefix=place.prefix, cdi=True,
            default="nvidia",
        ) as engine:  # fmt: skip
            for archive in (debian_image, pause):
                engine.load(archive, ("k8s.io",))
            with kube.node(engine, place) as found:
                yield found


def environment(env: dict[str, str]) -> dict[str, str]:
    """Return all variables of a plugin's process."""
    return {"PATH": SYSTEM_PATH, "PYTHONPATH": ROOTS, **env}


@dataclass
class Plugin:
    """A device plugin; its process runs between `start` and `stop`, and may be started again.

    Attributes:
        node: whose kubelet it serves.
        env: variables of its own, GPUSHIM_CONFIG and GPUSHIM_STATE among them.
        flags: its arguments.
        log: all that its processes have said.
        process: the one that was started last.
        since: where in the log that one begins.
    """

    node: Node
    env: dict[str, str]
    flags: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    since: int = 0

    def start(self) -> None:
        """Start it, without waiting for anything."""
        self.since = self.log.stat().st_size
        command = [*COMMAND, f"--kubelet-dir={self.node.kubelet_dir}", *self.flags]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=environment(self.env),
            )  # fmt: skip

    def stop(self, number: int = signal.SIGTERM) -> int | None:
        """End it by a signal, with what it has started; return its exit status, None if there was none to end."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.send_signal(number)
        try:
            return process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the plugin does not end:\n{self.said()}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            until(lambda: not members(process.pid), SECONDS)

    def ended(self) -> int:
        """Wait for its own end, and return its exit status."""
        assert self.process is not None
        code, self.process = self.process.wait(SECONDS), None
        return code

    def said(self) -> str:
        """What it has said."""
        return self.log.read_text(errors="replace")

    def registered(self, resource: str) -> bool:
        """Return whether the process that runs says that kubelet knows a resource."""
        return f'registered {resource}"'.encode() in self.log.read_bytes()[self.since :]

    def offers(
        self, resource: str = "nvidia.com/gpu", ids: set[str] | None = None, seconds: float = SECONDS
    ) -> float:
        """Wait until kubelet would give out these devices of this process, or any; say how long that took."""
        began = time.monotonic()

        def there() -> bool:
            if not self.registered(resource):  # or the devices are those of another process
                return False
            found = set(self.node.allocatable(resource))
            return bool(found) if ids is None else found == ids

        if not until(there, seconds):
            raise AssertionError(f"{resource}: kubelet has {self.node.allocatable(resource)}\n{self.said()[-3000:]}")
        return time.monotonic() - began


@contextlib.contextmanager
def plugin(
    node: Node, env: dict[str, str], *flags: str, name: str = "plugin", start: bool = True
) -> Iterator[Plugin]:
    """Run a device plugin for the block, beside what keeps its snapshot true.

    Args:
        node: whose kubelet it serves.
        env: variables of its own, GPUSHIM_CONFIG and GPUSHIM_STATE among them.
        flags: its arguments.
        name: of its log, among those of one test.
        start: whether to start it at once.

    Yields:
        The plugin, as soon as it is started; `offers` waits for kubelet to have its devices.
    """
    log = node.work / f"{name}.log"
    log.write_bytes(b"")
    found = Plugin(node, env, flags, log)
    with kept(env, node.work / f"{name}-keep.log"):
        try:
            if start:
                found.start()
            yield found
        finally:
            found.stop()


@contextlib.contextmanager
def kept(env: dict[str, str], log: Path) -> Iterator[None]:
    """Have the snapshot kept true for the block, unless that is done already; `log` gets what is said."""
    state = env["GPUSHIM_STATE"]
    if keep.runs(state):
        yield
        return
    command = [str(TOP / "bin" / "gpushim"), "refresh", "--keep"]
    with log.open("wb") as file, subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={"PATH": SYSTEM_PATH, **env}
    ) as process:  # fmt: skip
        try:
            assert until(lambda: keep.runs(state), SECONDS), log.read_text()
            yield
        finally:
            process.terminate()


def allocated(node: Node, device: str, times: int = 1) -> list[float]:
    """Ask the plugin for a device as kubelet does, and return the seconds until each answer, the fewest first."""
    took = []
    path = f"unix:{node.kubelet_dir}/device-plugins/gpushim-gpu.sock"
    with grpc.insecure_channel(path, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        grpc.channel_ready_future(channel).result(SECONDS)
        call = channel.unary_unary(
            f"/{DEVICE_PLUGIN}/Allocate", writer("AllocateRequest"), reader("AllocateResponse")
        )
        for _ in range(times):
            began = time.monotonic()
            call({"container_requests": [{"devices_ids": [device]}]}, timeout=SECONDS)
            took.append(time.monotonic() - began)
    return sorted(took)
