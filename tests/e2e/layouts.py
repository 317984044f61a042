"""Nodes whose directories are those of k3s and of k0s: containerd's program and settings, its unit, kubelet's.

Both write containerd's settings at each start; here a script does, by the rules of their documentation: k3s from a
template (docs.k3s.io, "Configuring containerd"), k0s from the files of a directory, which since containerd 2.0 it
imports and before merged (docs.k0sproject.io, "Runtime"). containerd is Debian's.
Out of scope: kubelet (kube.py), what gpushim does with it (test_layouts.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fakehost
from e2e import chroots, leftovers, restarts, trees
from e2e.engines import Containerd, run
from e2e.leftovers import until
from e2e.node import Node

SECONDS = 40.0
K3S, K0S = "/var/lib/rancher/k3s", "/var/lib/k0s"
BASE = '{{ template "base" . }}'
# What a machine in a container needs, and where the pause image is named; by the settings' version.
CRI = {
    2: """[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/pause:local"
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
disable_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
""",
    3: """[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "docker.io/library/pause:local"
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
disable_hugetlb_controller = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
""",
}
TOP = 'disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]\n'
MARK = "# k0s_managed=true\n"
# What the service does: end containerd, write its settings, start it in the service's unit.
SERVICE = f"""{restarts.LINES}
layout = json.load(open("/run/layout.json"))
end()
base, config = layout["base"], layout["config"]
if layout["template"]:
    text = open(layout["template"]).read() if os.path.exists(layout["template"]) else layout["mark"]
    lines = text.replace(layout["mark"], base).splitlines(True)
    base = "".join(line for line in lines if not line.startswith("{{{{ "))  # conditions, on what k3s finds: nothing
for path in layout["merged"] and sorted(glob.glob(layout["merged"])):
    lines = open(path).read().splitlines(True)
    open(layout["made"], "w").write(layout["cri"] + "".join(line for line in lines if "version" not in line))
    break
else:
    if layout["merged"]:
        open(layout["made"], "w").write(layout["cri"])
open(config, "w").write(base)
ready = ["/usr/bin/ctr", "--address=" + layout["address"], "version"]
begin([layout["program"], *layout["words"]], layout["group"], ready, "/run/containerd.log")
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>/run/asked
[ "$1" != restart ] || exec /run/service
"""
# The arguments: a directory for what an overlay cannot hold, that of containerd's root, of its socket, its program.
PREPARE = """
state=$1 root=$2 socket=$3 program=$4
mkdir -p /root "$root" "$socket" "${program%/*}" "$state/root" "$state/${state##*/}" /run/systemd/system
mount --bind "$state/root" "$root"
mount --bind "$state/${state##*/}" "$socket"
mv /usr/bin/containerd "$program"
chmod 755 /usr/bin/systemctl /run/service
"""


@dataclass(frozen=True)
class Layout:
    """A layout.

    Attributes:
        suite: the Debian, of chroots.SUITES.
        unit: the service.
        config: the settings that containerd is given.
        ours: where gpushim's settings are to go.
        program: containerd.
        root: of containerd.
        socket: the directory of containerd's socket.
        kubelet: kubelet's directory.
        version: of the settings.
    """

    suite: str
    unit: str
    config: str
    ours: str
    program: str
    root: str
    socket: str
    kubelet: str = "/var/lib/kubelet"
    version: int = 3

    @property
    def address(self) -> str:
        """Where containerd answers, within the node."""
        return f"{self.socket}/containerd.sock"

    @property
    def words(self) -> list[str]:
        """containerd's arguments."""
        if self.config.startswith(K3S):
            return ["-c", self.config]
        places = f"--root={self.root}", f"--state={self.socket}/state", f"--address={self.address}"
        return [*places, "--log-level=info", f"--config={self.config}"]

    @property
    def _imports(self) -> str:
        return (
            "/run/k0s/containerd-cri.toml" if self.version == 2 else f"{self.config.removesuffix('.toml')}.d/*.toml"
        )

    @property
    def base(self) -> str:
        """The settings as the service writes them by itself."""
        if self.config.startswith(K3S):
            places = f'root = "{self.root}"\nstate = "{self.socket}/state"\n'
            return f'version = 3\n{places}{TOP}[grpc]\naddress = "{self.address}"\n{CRI[3]}'
        own = CRI[3] if self.version == 3 else ""
        return f'{MARK}version = {self.version}\nimports = ["{self._imports}"]\n{TOP}{own}'

    def described(self, group: Path) -> str:
        """Return what SERVICE reads; `group` is the unit's cgroup."""
        merges = self.version == 2
        return json.dumps(
            {
                "base": self.base,
                "config": self.config,
                "template": self.ours if self.ours.endswith(".tmpl") else "",
                "mark": BASE,
                "merged": f"{self.config.removesuffix('.toml')}.d/*.toml" if merges else "",
                "made": self._imports if merges else "",
                "cri": f"version = 2\n{CRI[2]}",
                "program": self.program,
                "words": self.words,
                "group": str(group),
                "address": self.address,
            }
        )


@dataclass
class Placed(Node):
    """A node with a layout."""

    place: chroots.Chroot | None = None

    @property
    def engine(self) -> Containerd:
        """Its containerd."""
        return Containerd(self.state / self.state.name, self.prefix)  # the name is that of the pods' cgroup, too

    def asked(self) -> list[str]:
        """Return what systemctl was asked for, each time."""
        return self.run("cat /run/asked 2>/dev/null", check=False).stdout.splitlines()


LAYOUTS = {
    "k3s": Layout(
        "sid", "k3s.service", f"{K3S}/agent/etc/containerd/config.toml",
        f"{K3S}/agent/etc/containerd/config-v3.toml.tmpl", f"{K3S}/data/current/bin/containerd",
        f"{K3S}/agent/containerd", "/run/k3s/containerd",
    ),
    "k0s": Layout(
        "sid", "k0sworker.service", "/etc/k0s/containerd.toml", "/etc/k0s/containerd.d/99-gpushim.toml",
        f"{K0S}/bin/containerd", f"{K0S}/containerd", "/run/k0s", f"{K0S}/kubelet",
    ),
    "k0s with containerd 1.7": Layout(
        "trixie", "k0sworker.service", "/etc/k0s/containerd.toml", "/etc/k0s/containerd.d/99-gpushim.toml",
        f"{K0S}/bin/containerd", f"{K0S}/containerd", "/run/k0s", f"{K0S}/kubelet", version=2,
    ),
}  # fmt: skip


@contextlib.contextmanager
def node(layout: Layout, *directories: Path) -> Iterator[Placed]:
    """Set a node up, with three GPUs, whose containerd runs as its service's.

    Args:
        layout: its directories.
        directories: to be seen on it under their own paths, read-only.
    """
    with leftovers.state() as state:
        host = fakehost.build(str(state / "driver"), 3, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
        group = Path("/sys/fs/cgroup/systemd/system.slice", layout.unit)
        with chroots.entered(layout.suite, *directories, view="v1") as place, _group(group):
            found = Placed(place.prefix, state, host, lower=chroots.tree(layout.suite), place=place)
            for path, text in {
                "/etc/gpushim/config.toml": f'[driver]\nroot = "{host.root}"\n',
                "/run/layout.json": layout.described(group),
                "/run/service": SERVICE,
                "/usr/bin/systemctl": SYSTEMCTL,
                f"{Path(layout.config).parent}/README": "of the service\n",
                f"{Path(layout.ours).parent}/README": "of the service\n",
            }.items():
                found.write(path, text)
            script = [*place.prefix, "/bin/sh", "-euc", PREPARE, "sh"]
            run([*script, str(state), layout.root, layout.socket, layout.program])
            found.run("/run/service")
            try:
                yield found
            finally:
                found.run(
                    "for each in $(grep -lx containerd /proc/[0-9]*/comm); do kill $(echo $each | cut -d/ -f3); done"
                )


@contextlib.contextmanager
def _group(group: Path) -> Iterator[None]:
    """Make a unit's cgroup, and remove it once its processes have ended."""
    group.mkdir(parents=True)
    try:
        yield
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), SECONDS)
        group.rmdir()
        with contextlib.suppress(OSError):
            group.parent.rmdir()
