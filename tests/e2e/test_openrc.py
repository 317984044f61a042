"""A host whose init is OpenRC instead of systemd: the packages, a service of the documentation's, gpushim-node.

OpenRC is Debian's own. It starts services here, and has not booted the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, chroots, node, packages, pages
from e2e.installed import CONTAINERD, Machine
from e2e.leftovers import until
from e2e.node import Node
from e2e.packages import MAIN, PLUGIN

SUITE, SECONDS = "trixie", 20.0
PACKAGES = pages.TOP / "docs/packages.md"
SERVICE = "#!/sbin/openrc-run\nsupervisor=supervise-daemon\ncommand=/usr/bin/containerd\n"
# As it is after a boot, but that no cgroup is made for a service, which would stay on the machine.
BOOTED = """
ln -sf openrc-init /sbin/init
mkdir /run/openrc
cd /run/openrc
mkdir daemons exclusive failed hotplugged inactive options scheduled started starting stopping tmp wasinactive
touch /run/openrc/softlevel
echo 'rc_cgroup_mode="none"' >>/etc/rc.conf
chmod 755 /etc/init.d/containerd
"""
VERIFIED = "verified: containerd has the runtime nvidia\n"


def boot(there: Machine) -> None:
    """Let OpenRC have containerd as a service, which runs."""
    there.write("/etc/init.d/containerd", SERVICE)
    there.run(BOOTED)
    there.run("rc-service containerd start")
    assert until(lambda: there.run("ctr version", check=False).returncode == 0, SECONDS)


def do(there: Machine, said: str) -> None:
    """Restart containerd by the command that a sentence has, and ask it."""
    (command,) = set(re.findall(r"\bservice containerd restart\b", said))
    there.run(command)
    assert until(lambda: there.run("ctr version", check=False).returncode == 0, SECONDS)
    assert there.run("gpushim configure containerd --verify").stdout == VERIFIED


def files(there: Node) -> dict[str, str]:
    """Return what is there, without what OpenRC has of services that run, and what a removal leaves."""
    mine = ("/run/openrc/", "/run/supervise-")
    return {
        path: facts
        for path, facts in there.files().items()
        if not path.startswith(mine) and path not in packages.LEFT
    }


@pytest.fixture
def there(debian_tree: Path) -> Iterator[Machine]:
    """A machine on which apt can install packages."""
    with packages.machine(SUITE, debian_tree, below=str(chroots.tree("openrc"))) as there:
        there.write("/etc/containerd/config.toml", CONTAINERD)
        there.run("ldconfig")
        boot(there)
        yield there
        there.run("rc-service containerd stop")


def test_packages_say_what_does_not_happen_and_the_documented_service_does_it(there: Machine) -> None:
    before = packages.files(there)
    done = packages.install(there, *(built.packages("deb")[name] for name in (MAIN, PLUGIN)))
    assert "Have your init run\ngpushim: gpushim refresh --keep instead" in done.stdout
    packages.settle(there)
    doctor = there.run("gpushim doctor --all", check=False).stdout
    assert "neither systemd runs here nor gpushim refresh --keep" in doctor
    (script,) = (one.text for one in pages.blocks(PACKAGES.read_text()) if one.text.startswith("#!/sbin/openrc-run"))
    there.write("/etc/init.d/gpushim-refresh", script)
    there.run("chmod 755 /etc/init.d/gpushim-refresh; rc-service gpushim-refresh start")
    spec = "cat /var/run/cdi/nvidia.com-gpu.json"
    assert until(lambda: there.run(spec, check=False).returncode == 0, SECONDS)
    assert json.loads(there.run("gpushim list --format=json").stdout)
    assert "gpushim refresh --keep runs" in there.run("gpushim doctor --all", check=False).stdout
    do(there, there.run("gpushim configure containerd").stderr)
    there.run("rc-service gpushim-refresh stop; rm /etc/init.d/gpushim-refresh")
    there.run(f"GPUSHIM_UNCONFIGURE=1 apt-get purge --yes --auto-remove {MAIN} {PLUGIN}")
    left = packages.removal_traces(there, before)
    assert [row for row in left if not row.startswith(("/run/openrc/", "/run/supervise-"))] == []


def test_gpushim_node_leaves_the_restart_to_the_node(tmp_path: Path) -> None:
    """It succeeds, so that its pod goes on to list the GPUs, and says the same whenever it is run again."""
    payload = node.payload(tmp_path / "payload")
    with node.node(SUITE, str(chroots.tree("openrc"))) as there:
        there.stop("containerd")
        boot(there)
        before = files(there)
        for _ in range(2):
            done = there.call("install", "--restart", payload=payload)
            assert "gpushim-node: note: systemd does not run containerd here, so do this on the node: " in done.stderr
        do(there, done.stderr)
        assert "systemd" not in there.call("install", "--restart", payload=payload).stderr
        assert not there.run("ls /etc/systemd/system/gpushim* 2>/dev/null", check=False).stdout
        assert "service containerd restart" in there.call("uninstall", "--restart", payload=payload).stderr
        there.run("service containerd restart")
        assert files(there) == before
        there.run("rc-service containerd stop")
