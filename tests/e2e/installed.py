"""A machine of its own on which gpushim is installed as a package installs it, with engines in their usual places.

It is an entered Debian (chroots.py) beside a simulated host with GPUs: files of gpushim are copies below /usr,
engines read and write /etc, /run and /var/lib, and commands can be typed as the documentation has them. Its
systemd alone is missing: `restart` stands for `systemctl restart`.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fakehost
from e2e import chroots, engines, leftovers, trees
from e2e.engines import Containerd, Done
from fakehost import Host
from gpushim.engines.docker import dockerd

# The arguments: the checkout, a directory for what an overlay cannot hold, the simulated host's root.
INSTALL = """
top=$1 state=$2 root=$3
umount "$top/vendor"
mkdir -p /root
cp -a "$state/installed/." /
printf '[driver]\\nroot = "%s"\\n' "$root" >/etc/gpushim/config.toml
for engine in docker containerd containers; do
    mkdir -p "$state/$engine" "/var/lib/$engine"
    mount --bind "$state/$engine" "/var/lib/$engine"
done
mkdir -p "$state/run" /run/containerd
mount --bind "$state/run" /run/containerd
"""
# What a machine in a container needs beside the distribution's own settings.
CONTAINERD = """version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/pause:local"
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
disable_hugetlb_controller = true
"""
PODMAN = """[containers]
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
netns = "host"
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


@dataclass
class Machine:
    """The machine, and the engines that run on it."""

    prefix: tuple[str, ...]
    state: Path
    host: Host
    running: dict[str, contextlib.ExitStack] = field(default_factory=dict)

    def run(self, line: str, *, check: bool = True) -> Done:
        """Run a line of shell as root."""
        env = {"PATH": engines.SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
        return engines.run([*self.prefix, "/bin/sh", "-c", f"cd /root; {line}"], check=check, env=env)

    @property
    def containerd(self) -> Containerd:
        """The containerd that `restart` starts."""
        return Containerd(self.state / "run", self.prefix)

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        script = 'mkdir -p "${1%/*}"; printf %s "$2" >"$1"'
        engines.run([*self.prefix, "/bin/sh", "-euc", script, "sh", path, text])

    def restart(self, engine: str) -> None:
        """Start `docker` or `containerd`, after ending the one that runs."""
        self.stop(engine)
        stack = self.running[engine] = contextlib.ExitStack()
        if engine == "docker":
            command = [engines.DOCKERD, "--bridge=none", "--iptables=false", "--ip6tables=false"]
            command += [f"--cgroup-parent=/{self.state.name}"]
            ready = [engines.DOCKER, "version"]
        else:
            command, ready = [engines.CONTAINERD], [engines.CTR, "version"]
        stack.enter_context(
            engines._daemon(
                [*self.prefix, *command],
                self.state / f"{engine}.log",
                {"PATH": dockerd.PATH},  # as systemd has it for services
                [*self.prefix, *ready],
            )
        )

    def stop(self, engine: str) -> None:
        """End an engine."""
        if engine in self.running:
            self.running.pop(engine).close()

    def plain(self, text: str) -> str:
        """Take out of what programs said what is another one each time: paths, processes, times."""
        text = text.replace(self.host.root, "").replace(str(self.state), "")
        text = re.sub(r"\(process \d+\)", "(process 812)", text)
        return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "2026-11-20T08:00:00Z", text)


@contextlib.contextmanager
def machine(
    suite: str, view: str = "v1", *, lower: str = "", compat: bool = True, layout: str = "debian"
) -> Iterator[Machine]:
    """Set a machine up.

    Args:
        suite: one of chroots.SUITES.
        view: of the cgroup file systems; Docker and containerd work in "v1", Podman in "v2".
        lower: root filesystems instead of the suite's, as for chroots.entered.
        compat: whether the package with NVIDIA's names is installed, too.
        layout: where the simulated driver's files are, one of fakehost/layouts.py's.

    Yields:
        The machine, with three GPUs, on which no engine runs.
    """
    with leftovers.state() as state, contextlib.ExitStack() as stack:
        cache = str(trees.TOP / ".cache" / "fakehost")
        host = fakehost.build(str(state / "driver"), 3, layout=layout, compile_cache=cache)
        stack.enter_context(_persistenced(host))
        place = stack.enter_context(chroots.entered(suite, view=view, lower=lower))
        for package in (["main", trees.TOP / "vendor"], ["compat"])[: 2 if compat else 1]:
            subprocess.run([trees.TOP / "packaging/install", state / "installed", *package], check=True)
        install = ["/bin/sh", "-euc", INSTALL, "sh", str(trees.TOP), str(state), host.root]
        subprocess.run([*place.prefix, *install], check=True)
        found = Machine(place.prefix, state, host)
        try:
            yield found
        finally:
            for engine in [*found.running]:
                found.stop(engine)


@contextlib.contextmanager
def _persistenced(host: Host) -> Iterator[None]:
    """Let somebody listen where nvidia-persistenced does."""
    path = Path(host.root, "run/nvidia-persistenced/socket")
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield
