"""Real engines with private state: dockerd and containerd, each started for the tests and gone afterwards.

Nothing here pulls images or sets up networks: containers share the host's network or have none. A prefix is a
command that executes an engine and its clients elsewhere, such as one of views.py or chroots.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e import cri, leftovers
from e2e.leftovers import STOP_SECONDS, until

# Absolute paths: a machine may carry other engines earlier on PATH.
DOCKERD, DOCKER = "/usr/sbin/dockerd", "/usr/bin/docker"
CONTAINERD, CTR = "/usr/bin/containerd", "/usr/bin/ctr"
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
READY_SECONDS = 40.0
CALL_SECONDS = 120.0
FEWER_COLLECTIONS = {"GOGC": "300"}  # of Go's programs, which take a sixth of an API server's time by default

Done = subprocess.CompletedProcess[str]


def run(command: list[str], *, check: bool = True, env: dict[str, str] | None = None) -> Done:
    """Run a client command within a deadline.

    Args:
        command: absolute path and arguments.
        check: fail, with both outputs in the message, unless it exits 0.
        env: its whole environment; a bare PATH without it.

    Returns:
        The finished process with its output as text.
    """
    environment = env or {"PATH": SYSTEM_PATH}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=CALL_SECONDS)
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def tail(log: Path) -> str:
    """Return the last warnings and errors of a daemon's log."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if "level=info" not in line][-10:])


@dataclass
class Daemon:
    """An engine's process, which may be killed and started again.

    Attributes:
        ready: a client's command that succeeds when it answers.
    """

    command: list[str]
    log: Path
    env: dict[str, str]
    ready: list[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting for anything."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**FEWER_COLLECTIONS, **self.env}, start_new_session=True,
            )  # fmt: skip

    def answers(self) -> bool:
        """Wait until it answers; return whether it does."""
        until(lambda: self._ended() or run(self.ready, check=False).returncode == 0, READY_SECONDS)
        return not self._ended() and run(self.ready, check=False).returncode == 0

    def _ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def stop(self, *numbers: int) -> None:
        """End it and its group by signals: a prefix that enters a PID namespace forks, and hands none on."""
        if self.process is None:
            return
        for number in numbers or (signal.SIGTERM, signal.SIGKILL):
            group = self.process.pid
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
            if until(lambda: self._ended() and not members(group), STOP_SECONDS):  # noqa: B023 - called here
                return


@contextlib.contextmanager
def _daemon(command: list[str], log: Path, env: dict[str, str], ready: list[str]) -> Iterator[Daemon]:
    """Run a daemon until the block ends; its log is printed if it does not come up."""
    daemon = Daemon(command, log, env, ready)
    daemon.start()
    try:
        assert daemon.answers(), f"{command[0]} does not come up:\n{tail(log)}"
        yield daemon
    finally:
        daemon.stop()


def members(group: int) -> bool:
    """Return whether a process group has any process that runs; init may reap the others seconds later."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, found = stat.read_text().rpartition(")")[2].split()[:3]
            if int(found) == group and state not in "ZX":
                return True
    return False


@dataclass
class Docker:
    """A running dockerd."""

    state: Path
    prefix: tuple[str, ...] = ()

    @property
    def socket(self) -> Path:
        """Where it answers."""
        return self.state / "docker.sock"

    @property
    def log(self) -> Path:
        """Where it writes what it does."""
        return self.state / "dockerd.log"

    def docker(self, *args: str, check: bool = True) -> Done:
        """Run the docker client against this daemon."""
        client = [*self.prefix, DOCKER, f"--config={self.state}", f"--host=unix://{self.socket}"]
        return run([*client, *args], check=check)


@contextlib.contextmanager
def dockerd(
    runtimes: dict[str, Path],
    *,
    default: str = "runc",
    env: dict[str, str] | None = None,
    path_dirs: tuple[Path, ...] = (),
    prefix: tuple[str, ...] = (),
    cdi: bool = False,
    settings: dict[str, object] | None = None,
    user: int = 0,
) -> Iterator[Docker]:
    """Run a dockerd without networks.

    Args:
        runtimes: executable of each runtime, by the name that `--runtime` takes.
        default: name of the runtime that it takes by itself.
        env: variables of the daemon, which runtimes and hooks inherit.
        path_dirs: directories put before the daemon's PATH.
        prefix: command that executes the daemon and its clients.
        cdi: whether to turn on its feature of that name, which Docker has had since version 25.
        settings: more of daemon.json.
        user: whose it is, by id.

    Yields:
        The daemon, once it answers.
    """
    with leftovers.state() as state:
        said: dict[str, object] = {
            "data-root": str(state / "data"),
            "exec-root": str(state / "exec"),
            "pidfile": str(state / "docker.pid"),
            "hosts": [f"unix://{state}/docker.sock"],
            "bridge": "none",
            "cgroup-parent": f"/{state.name}",
            "default-runtime": default,
            "iptables": False,
            "ip6tables": False,
            "runtimes": {name: {"path": str(path)} for name, path in runtimes.items()},
            **({"features": {"cdi": True}} if cdi else {}),
            **(settings or {}),
        }
        (state / "daemon.json").write_text(json.dumps(said))
        os.chown(state, user, user)
        state.chmod(0o711)  # which userns-remap wants
        path = ":".join([*map(str, path_dirs), SYSTEM_PATH])
        engine = Docker(state, prefix)
        ready = [*prefix, DOCKER, f"--host=unix://{engine.socket}", "version"]
        command = [*prefix, DOCKERD, f"--config-file={state}/daemon.json"]
        with _daemon(command, engine.log, {"PATH": path, **(env or {})}, ready):
            try:
                yield engine
            finally:
                left = engine.docker("ps", "--all", "--quiet").stdout.split()
                if left:
                    engine.docker("rm", "--force", *left)


@dataclass
class Containerd:
    """A running containerd, with ctr as its client and a CRI service."""

    state: Path
    prefix: tuple[str, ...] = ()

    @property
    def socket(self) -> Path:
        """Where it answers."""
        return self.state / "containerd.sock"

    @property
    def log(self) -> Path:
        """Where it writes what it does."""
        return self.state / "containerd.log"

    def ctr(self, *args: str, check: bool = True, namespace: str = "default") -> Done:
        """Run ctr against this daemon."""
        client = [*self.prefix, CTR, f"--address={self.socket}", f"--namespace={namespace}"]
        return run([*client, *args], check=check)

    def run(self, runtime: Path, *args: str, check: bool = True) -> Done:
        """Run `ctr run` with a low-level runtime; args are its options, then image, id and command."""
        private = [f"--runc-root={self.state}/runc", f"--fifo-dir={self.state}/fifo"]
        return self.ctr("run", *private, f"--runc-binary={runtime}", *args, check=check)

    def load(self, archive: Path, namespaces: tuple[str, ...] = ("default", "k8s.io")) -> None:
        """Import an image archive for ctr and for CRI, or for one of them."""
        for namespace in namespaces:
            self.ctr("images", "import", "--no-unpack", str(archive), namespace=namespace)
        if "k8s.io" in namespaces:  # CRI learns of it a moment later, and marks it
            assert until(self._cri_has_all, READY_SECONDS), "CRI does not see the image that was imported"

    def kept(self) -> dict[str, bool]:
        """List the containers that CRI has, by id, and whether each is a pod's own."""
        rows = self.ctr("containers", "ls", namespace="k8s.io").stdout.splitlines()[1:]
        return {row.split()[0]: "pause" in row for row in rows}

    def _cri_has_all(self) -> bool:
        rows = self.ctr("images", "ls", namespace="k8s.io").stdout.splitlines()[1:]
        return bool(rows) and all("io.cri-containerd.image=managed" in row for row in rows)

    @contextlib.contextmanager
    def cri(self) -> Iterator[cri.Client]:
        """Connect to the CRI service; its pods are removed afterwards."""
        logs = self.state / "pods"
        logs.mkdir(exist_ok=True)
        client = cri.Client(self.socket, logs)
        try:
            yield client
        finally:
            client.close()


CONTAINERD_CONFIG = """
version = 2
root = "{state}/root"
state = "{state}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
                    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
address = "{state}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{state}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
disable_hugetlb_controller = true
{more}
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{state}/cni"
conf_dir = "{state}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{default}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""

HANDLER_CONFIG = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
container_annotations = ["cdi.k8s.io/*"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
BinaryName = "{path}"
Root = "{state}/runc"
"""


@contextlib.contextmanager
def containerd(
    runtimes: dict[str, Path],
    *,
    pause: str,
    env: dict[str, str] | None = None,
    prefix: tuple[str, ...] = (),
    cdi: bool = False,
    default: str = "runc",
) -> Iterator[Containerd]:
    """Run a containerd.

    Args:
        runtimes: executable of each CRI runtime handler, by name.
        pause: reference of the image that pods are made of; load it before the first pod.
        env: variables of the daemon, which the runtimes inherit.
        prefix: command that executes the daemon and its clients.
        cdi: whether to turn on CDI, which containerd has had since version 1.7.
        default: the handler of pods that name none.

    Yields:
        The daemon, once it answers.
    """
    with leftovers.state() as state:
        state.chmod(0o711)  # which a pod's user namespace wants
        state.chmod(0o711)  # which a pod's user namespace wants
        config = CONTAINERD_CONFIG.format(
            state=state, pause=pause, more="enable_cdi = true" if cdi else "", default=default
        )
        for name, path in runtimes.items():
            config += HANDLER_CONFIG.format(name=name, path=path, state=state)
        (state / "config.toml").write_text(config)
        cri.network(state / "cni", state / "cni")
        engine = Containerd(state, prefix)
        ready = [*prefix, CTR, f"--address={engine.socket}", "version"]
        command = [*prefix, CONTAINERD, f"--config={state}/config.toml"]
        with _daemon(command, engine.log, {"PATH": SYSTEM_PATH, **(env or {})}, ready):
            yield engine
