"""CRI-O in a Debian that is entered (upstream.py), where all is in its usual place, gpushim's own files too.

The low-level runtimes and the monitor lie where CRI-O's packages have them: in /usr/libexec/crio and nowhere else.
No registry is needed: images come from a store of Podman's.
Out of scope: CRI-O as a cluster's engine (crioplane.py).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e import cri, engines, leftovers, trees, upstream
from e2e.engines import SYSTEM_PATH, Done, run
from fakehost import Host

CRIO = "/usr/bin/crio"
READY = (CRIO, "status", "info")
TOML = "/etc/gpushim/config.toml"
SETTINGS = """
[crio.runtime]
cgroup_manager = "cgroupfs"
disable_hostport_mapping = true
# Its own, and that with which the tests' program makes nodes: the rules of devices must forbid what it tries.
default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETPCAP", "SETUID", "MKNOD"]
[crio.image]
pause_image = "{pause}"
pause_command = "/bin/sleep 1000000"
[crio.network]
plugin_dirs = ["{plugins}"]
[crio.nri]
enable_nri = false
"""
# As 10-crio.conf of its packages has them, but for the cgroup, which is systemd's there.
RUNTIME = """
[crio.runtime.runtimes.{name}]
runtime_path = "/usr/libexec/crio/{name}"
runtime_root = "/run/{name}"
monitor_path = "/usr/libexec/crio/conmon"
"""
MONITOR = 'monitor_cgroup = "pod"\n'
CONFIG = """[driver]
root = "{root}"
dev-root = "{root}"
[log]
file = "/run/gpushim.log"
"""
STORAGE = """[storage]
driver = "overlay"
[storage.options]
additionalimagestores = {stores}
"""
LAY_OUT = """
state=$1
mkdir -p /usr/libexec/crio /run/crio
for name in runc crun conmon; do mv "$(command -v $name)" /usr/libexec/crio; done
mount --bind "$state/socket" /run/crio
cp -r "$state/etc/." /etc
"""
LINK = """
top=$1
ln -s "$top/bin/gpushim-runtime" "$top/bin/gpushim-hook" /usr/bin
umount "$top/vendor" # for the command line; as it knows engines of its own mount namespace only, nobody else hides it
"""


@dataclass
class Crio:
    """A Debian with CRI-O, which `running` starts."""

    state: Path
    prefix: tuple[str, ...]
    view: str

    @property
    def socket(self) -> Path:
        """Where it answers, on this side of the chroot."""
        return self.state / "socket/crio.sock"

    @property
    def log(self) -> Path:
        """Where it writes what it does."""
        return self.state / "crio.log"

    def sh(self, script: str, *args: str, check: bool = True) -> Done:
        """Run a shell script beside it."""
        return run([*self.prefix, "/bin/sh", "-euc", script, "sh", *args], check=check)

    def gpushim(self, *args: str, check: bool = True) -> Done:
        """Run a command of gpushim's."""
        return run([*self.prefix, str(trees.TOP / "bin" / "gpushim"), *args], check=check)

    def hands_over(self, said: str) -> None:
        """Let gpushim-runtime hand containers to CRI-O's default runtime, by the line that `said` has."""
        line = re.search(r"set '(low-level = .*)' under \[runtime\] in (\S+); then gpushim refresh", said)
        assert line, said
        self.sh("printf '[runtime]\\n%s\\n' \"$1\" >>$2", line[1], line[2])
        self.gpushim("refresh")

    @property
    def command(self) -> list[str]:
        """The program with its arguments, there."""
        return [CRIO, f"--root={self.state}/root", f"--runroot={self.state}/run"]

    def kept(self) -> dict[str, bool]:
        """List what it keeps, by id: pods, all of which is in one of them."""
        client = cri.Client(self.socket, self.state)
        try:
            return dict.fromkeys(client.pods(), True)
        finally:
            client.close()

    def doctor(self) -> list[dict[str, str]]:
        """Return what the doctor says of CRI-O."""
        found = json.loads(self.gpushim("doctor", "crio", "--format=json", check=False).stdout)["findings"]
        return [each for each in found if each["check"].startswith("crio-")]

    @contextlib.contextmanager
    def settings(self, more: str) -> Iterator[None]:
        """Let gpushim's configuration say more for the block."""
        self.sh("cp -p $1 $1.old; printf '%s\\n' \"$2\" >>$1", TOML, more)
        self.gpushim("refresh")
        try:
            yield
        finally:
            self.sh("mv $1.old $1", TOML)
            self.gpushim("refresh")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run CRI-O for the block."""
        ready = [*self.prefix, *READY]
        with engines._daemon([*self.prefix, *self.command], self.log, {"PATH": SYSTEM_PATH}, ready):
            yield

    @contextlib.contextmanager
    def cri(self) -> Iterator[cri.Client]:
        """Connect to it; its pods are removed afterwards."""
        (self.state / "pods").mkdir(exist_ok=True)
        client = cri.Client(self.socket, self.state / "pods", cgroup=f"/{self.state.name}")
        try:
            yield client
        finally:
            client.close()


@contextlib.contextmanager
def entered(host: Host, stores: list[Path], view: str) -> Iterator[Crio]:
    """Enter a Debian in which CRI-O could run, and which gpushim knows nothing of yet.

    Args:
        host: the simulated one, whose driver it has.
        stores: of images, Podman's; one has `localhost/pause:local`.
        view: of the cgroup file systems, as in views.SCRIPTS.
    """
    with leftovers.state() as state, upstream.entered(upstream.CRIO, Path(host.root), *stores, view=view) as place:
        engine = Crio(state, place.prefix, view)
        cri.network(state / "etc/cni/bin", state / "etc/cni/net.d")
        lay_out(engine, stores, {"gpushim/config.toml": CONFIG.format(root=host.root)})
        engine.sh(LINK, str(trees.TOP))
        yield engine


def lay_out(
    engine: Crio,
    stores: list[Path],
    more: dict[str, str],
    *,
    pause: str = "localhost/pause:local",
    plugins: str = "/etc/cni/bin",
    monitor: str = MONITOR,
) -> None:
    """Put settings and programs where CRI-O's packages have them.

    Args:
        engine: that is to read them.
        stores: of images, Podman's.
        more: files of others by their path below /etc.
        pause: the image of pods.
        plugins: directory of the programs that make networks.
        monitor: what the runtimes' entries say of the monitor's cgroup.
    """
    entries = (RUNTIME.format(name=name) + monitor for name in ("crun", "runc"))
    (engine.state / "socket").mkdir()
    for path, text in {
        "crio/crio.conf": SETTINGS.format(pause=pause, plugins=plugins),
        "crio/crio.conf.d/10-crio.conf": '[crio.runtime]\ndefault_runtime = "crun"\n' + "".join(entries),
        "containers/policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
        "containers/storage.conf": STORAGE.format(stores=[str(store) for store in stores]),
        **more,
    }.items():
        (engine.state / "etc" / path).parent.mkdir(parents=True, exist_ok=True)
        (engine.state / "etc" / path).write_text(text)
    engine.sh(LAY_OUT, str(engine.state))
