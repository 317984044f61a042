"""The rpms on a Debian 13 that has rpm: installed, verified, upgraded under containers, erased without a trace."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import built, packages, rpm_packages
from e2e.expect import probe, sees_exactly
from e2e.rpm_packages import COMPAT, MAIN, PLUGIN, RpmMachine, stand_in

OLD, HERE = built.OLD, built.version_here()
LIB = f"/usr/lib/gpushim/{HERE}"
CONFIG, DAEMON_JSON = "/etc/gpushim/config.toml", "/etc/docker/daemon.json"
CHANGED = f"S.5....T.  c {CONFIG}\n"  # by its owner, as it may be
BYTECODE = f"find {LIB} -name '*.pyc' -o -name '*.precompiled'"
SYSTEMCTL = '#!/bin/sh\necho "$*" >>/run/systemctl\n'
NVIDIAS = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools")


@pytest.fixture(scope="module")
def rpms() -> dict[str, dict[str, Path]]:
    return {version: built.packages("rpm", version) for version in (HERE, OLD)}


@pytest.fixture(scope="module")
def place(debian_tree: Path) -> Iterator[RpmMachine]:
    with rpm_packages.machine(debian_tree) as machine:
        yield machine


@pytest.fixture
def machine(place: RpmMachine, rpms: dict[str, dict[str, Path]]) -> RpmMachine:
    """A machine on which gpushim is installed and knows where the driver is."""
    if place.there.run(f"ls {LIB}/whole", check=False).returncode:
        place.rpm("-i", rpms[HERE][MAIN])
        packages.settle(place.there)
    return place


@pytest.fixture
def bare(place: RpmMachine) -> RpmMachine:
    """A machine without gpushim."""
    for name in place.rpm(r"-qa --queryformat '%{NAME}\n' 'gpushim*'").stdout.split():
        place.rpm(f"-e --nodeps {name}")
    place.there.run(f"rm -rf /etc/gpushim /etc/docker/* {' '.join(packages.LEFT)}; [ ! -e /usr/lib/gpushim ]")
    return place


def looks(machine: RpmMachine, *indices: int) -> None:
    """Run a container from the installed files that asks for GPUs, and look at what it has."""
    wanted = ",".join(map(str, indices))
    report = packages.bundle(machine.there).look(machine.there.host, [*indices], f"NVIDIA_VISIBLE_DEVICES={wanted}")
    sees_exactly(report, machine.there.host, [*indices])


def test_a_container_gets_its_gpus_and_the_files_stay_as_they_are(machine: RpmMachine) -> None:
    compiled = machine.there.run(BYTECODE).stdout
    looks(machine, 0, 2)
    machine.there.run("gpushim list; gpushim doctor", check=False)
    assert machine.rpm("--verify gpushim", check=False).stdout == CHANGED
    assert machine.there.run(BYTECODE).stdout == compiled
    assert compiled.count(".pyc\n") > 150
    assert machine.there.run(f"find {LIB} -newer /run/gpushim/inventory.json").stdout == ""


def test_without_the_command_line_s_packages_containers_get_their_gpus(machine: RpmMachine) -> None:
    looks(machine, 1)
    machine.there.run(f"mv {LIB}/vendor /root")
    try:
        assert machine.there.run("gpushim list", check=False).returncode == 1
        looks(machine, 0, 2)
    finally:
        machine.there.run(f"mv /root/vendor {LIB}")


@pytest.mark.parametrize("name", NVIDIAS)
def test_nvidias_packages_and_their_names_exclude_each_other(
    machine: RpmMachine, rpms: dict[str, dict[str, Path]], tmp_path: Path, name: str
) -> None:
    toolkit = stand_in(tmp_path, name, "", "1.19.0")
    machine.rpm("-i", toolkit)
    refused = machine.rpm("-U", rpms[HERE][COMPAT], check=False)
    assert refused.returncode
    assert f"{name} conflicts with gpushim-nvidia-compat" in refused.stderr
    machine.rpm(f"-e {name}")
    machine.rpm("-U", rpms[HERE][COMPAT])
    assert machine.rpm("-i", toolkit, check=False).returncode
    machine.rpm("-e gpushim-nvidia-compat")


def test_what_needs_nvidias_packages_takes_ours(
    machine: RpmMachine, rpms: dict[str, dict[str, Path]], tmp_path: Path
) -> None:
    wrapper = stand_in(tmp_path, "nvidia-docker2", "Requires: nvidia-container-toolkit >= 1.16.0", "2.14.0")
    assert machine.rpm("-i", wrapper, check=False).returncode
    machine.rpm("-i", rpms[HERE][COMPAT], wrapper)
    machine.rpm("-e gpushim-nvidia-compat nvidia-docker2")


def test_another_python_compiles_again(machine: RpmMachine, tmp_path: Path) -> None:
    compiled = machine.there.run(BYTECODE).stdout
    machine.there.run(f"find {LIB} -name __pycache__ -prune -exec rm -r {{}} +")
    machine.rpm("-i", stand_in(tmp_path, "python3", "", "3.14"))
    assert sorted(machine.there.run(BYTECODE).stdout.split()) == sorted(compiled.split())


def test_the_same_version_again_keeps_all_files(machine: RpmMachine, rpms: dict[str, dict[str, Path]]) -> None:
    compiled = machine.there.run(BYTECODE).stdout
    machine.rpm("--reinstall", rpms[HERE][MAIN])
    assert sorted(machine.there.run(BYTECODE).stdout.split()) == sorted(compiled.split())
    assert machine.rpm("--verify gpushim", check=False).stdout == CHANGED


@pytest.mark.parametrize(("lock", "seconds"), [("/run/gpushim/lock", 6), ("/root/another", 2)])
def test_old_files_stay_while_a_create_that_lists_gpus_uses_them(
    machine: RpmMachine, lock: str, seconds: int
) -> None:
    """rpm runs this script of the old package before it removes its files."""
    script = machine.rpm("-q --queryformat '%{PREUN}' gpushim").stdout
    machine.there.write("/root/preun", script)
    machine.there.run("mkfifo /root/held")
    machine.there.run(f"flock {lock} sh -c 'echo >/root/held; sleep 6' </dev/null >/dev/null 2>&1 & cat /root/held")
    start = time.monotonic()
    machine.there.run("sh /root/preun 1; rm /root/preun /root/held")
    assert seconds <= time.monotonic() - start < seconds + 3.5


class Loop(threading.Thread):
    """Containers that are created one after the other, each of which must see its GPU."""

    def __init__(self, machine: RpmMachine) -> None:
        super().__init__()
        self.bundle = packages.bundle(machine.there)
        self.node = f"/dev/nvidia{machine.there.host.gpus[1].minor}"
        self.wrong: list[str] = []
        self.count, self.ended = 0, False

    def run(self) -> None:
        while not self.ended:
            self.bundle.ask("NVIDIA_VISIBLE_DEVICES=1", args=["ls", self.node])
            done = self.bundle.run(check=False)
            self.count += 1
            if done.returncode or done.stdout != f"{self.node}\n":
                self.wrong.append(f"{self.count}: {done}")


def test_upgrades_break_no_create_and_keep_the_configuration(
    machine: RpmMachine, rpms: dict[str, dict[str, Path]]
) -> None:
    """Back and forth, while containers are created from old files, from new ones, and while they are exchanged."""
    config = machine.there.run(f"cat {CONFIG}").stdout
    loop = Loop(machine)
    loop.start()
    try:
        for version in (OLD, HERE):
            before = loop.count
            machine.rpm("-U --oldpackage", rpms[version][MAIN])
            assert loop.count > before + 3
            assert machine.there.run("ls /usr/lib/gpushim").stdout == f"{version}\n"
    finally:
        loop.ended = True
        loop.join()
    assert loop.wrong == []
    assert "  # mine" in config
    assert machine.there.run(f"cat {CONFIG}").stdout == config
    assert machine.rpm("--verify gpushim", check=False).stdout == CHANGED


def test_erasing_leaves_nothing_but_what_running_containers_need(
    bare: RpmMachine, rpms: dict[str, dict[str, Path]]
) -> None:
    before = packages.files(bare.there)
    bare.rpm("-i", rpms[HERE][MAIN], rpms[HERE][COMPAT], rpms[HERE][PLUGIN])
    original = bare.there.run(f"cat {CONFIG}").stdout
    packages.settle(bare.there)
    bundle = packages.bundle(bare.there)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=["sleep", "1000"])
    bundle.call("run", "--detach", "--bundle", str(bundle.directory), bundle.id)
    assert bare.there.run("ls /run/cdi/nvidia.com-gpu.json /run/gpushim/inventory.json /var/log/gpushim.log").stdout
    assert "nvidia.com/gpu: 3" in bare.there.run("gpushim-device-plugin --check").stdout
    bare.there.write(CONFIG, original)
    bare.rpm("-e gpushim gpushim-nvidia-compat gpushim-device-plugin")
    assert {line.split(" ")[0] for line in packages.traces(bare.there, before)} == packages.LEFT
    assert bundle.state() == "running"
    sees_exactly(bundle.call("exec", bundle.id, *probe(bare.there.host, [0])).stdout, bare.there.host, [0])
    bundle.call("delete", "--force", bundle.id)


def test_scripts_say_what_is_next_and_take_back_what_they_are_asked_to(
    bare: RpmMachine, rpms: dict[str, dict[str, Path]]
) -> None:
    first = bare.rpm("-i", rpms[HERE][MAIN]).stdout
    assert "gpushim configure docker" in first
    assert "systemctl restart docker" in first
    packages.settle(bare.there)
    bare.there.write(DAEMON_JSON, '{\n  "debug": true\n}\n')
    bare.there.run("gpushim configure docker")
    erased = bare.rpm("-e gpushim")
    assert f"{DAEMON_JSON} still names gpushim" in erased.stdout
    assert erased.stderr.endswith(f"warning: {CONFIG} saved as {CONFIG}.rpmsave\n")
    assert "  # mine" in bare.there.run(f"cat {CONFIG}.rpmsave").stdout
    again = bare.rpm("-i", rpms[HERE][MAIN]).stdout
    assert f"nothing more is needed, and no engine needs a restart: {DAEMON_JSON}" in again
    assert "nvidia-cdi-hook" in bare.there.run("ls /usr/local/bin").stdout
    bare.command, command = f"GPUSHIM_UNCONFIGURE=1 {bare.command}", bare.command
    bare.rpm("-e gpushim")
    bare.command = command
    assert json.loads(bare.there.run(f"cat {DAEMON_JSON}").stdout) == {"debug": True}
    assert bare.there.run("ls /etc/docker /usr/local/bin").stdout.split() == [
        *("/etc/docker:", "daemon.json", "/usr/local/bin:")
    ]


@pytest.mark.parametrize("brought", [True, False])
def test_a_unit_that_an_upgrade_brings_is_enabled(
    bare: RpmMachine, rpms: dict[str, dict[str, Path]], brought: bool
) -> None:
    """Boots after an upgrade are ordered, too; what is there already stays as the administrator has it."""
    bare.there.write("/usr/bin/systemctl", SYSTEMCTL)
    bare.there.run("chmod +x /usr/bin/systemctl")
    unit = "gpushim-refresh-boot.service"
    bare.rpm("-i", rpms[OLD][MAIN])
    bare.there.run(f": >/run/systemctl; rm -f {f'/usr/lib/systemd/system/{unit}' * brought}")
    bare.rpm("-U", rpms[HERE][MAIN])
    said = bare.there.run("cat /run/systemctl").stdout.splitlines()
    bare.rpm("-e gpushim")
    bare.there.run("rm /usr/bin/systemctl /run/systemctl")
    assert (f"--no-reload preset {unit}" in said) == brought


def test_systemd_gets_the_units_and_no_engine_is_restarted(
    bare: RpmMachine, rpms: dict[str, dict[str, Path]]
) -> None:
    bare.there.write("/usr/bin/systemctl", SYSTEMCTL)
    bare.there.run("chmod +x /usr/bin/systemctl; mkdir -p /run/systemd/system")
    said = []
    ours, theirs = ([rpms[version][name] for name in (MAIN, PLUGIN)] for version in (HERE, OLD))
    for words, files in (("-i", theirs), ("-U", ours), ("-e gpushim gpushim-device-plugin", [])):
        bare.rpm(words, *files)
        said.append(bare.there.run("cat /run/systemctl; rm /run/systemctl").stdout.splitlines())
    bare.there.run("rm -r /usr/bin/systemctl /run/systemd")
    watching = "gpushim-refresh.path gpushim-refresh-cdi.path gpushim-refresh.timer"
    both = f"{watching} gpushim-refresh.socket"
    booting = "gpushim-refresh-boot.service"  # not before the next boot
    started = [line for unit in both.split() for line in (f"--quiet is-enabled {unit}", f"--no-block start {unit}")]
    services = "gpushim-refresh.service gpushim-refresh-again.service gpushim-refresh-asked.service"
    served = "gpushim-device-plugin.service"
    enabled = ["daemon-reload", f"--quiet is-enabled {served}", f"--no-block start {served}"]
    assert said[0] == [
        *(f"--no-reload preset {both} {booting}", "daemon-reload", *started),
        *(f"--no-reload preset {served}", *enabled),
    ]
    restarted = [
        line for names in (watching, served) for line in ("daemon-reload", f"--no-block try-restart {names}")
    ]
    assert said[1] == [*restarted, "daemon-reload", "daemon-reload"]
    assert said[2] == [
        *(f"--no-reload --now disable {served}", "stop gpushim-mps@*.service", "daemon-reload"),
        *(f"--no-reload --now disable {both} {booting}", f"stop {services}", "daemon-reload"),
    ]
