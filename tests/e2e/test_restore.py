"""Checkpoint and restore with real CRIU: what a container was given is there again, whoever writes config.json.

No machine without NVIDIA's driver has /proc/driver/nvidia/params, which the hook covers: /proc/version stands for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import installed, trees
from e2e.installed import Machine
from fakehost import tree

PLACES = [("restore", "runc"), ("restore-sid", "runc"), ("restore-sid", "crun")]
# The arguments: a tree for containers, the directory of tests.
SETUP = """
for file in /usr/lib/gpushim/*/gpushim/decision/hook_entry.py /usr/lib/gpushim/*/gpuhook/inject/cover.py; do
    grep -q /proc/driver/nvidia/params $file
    sed -i s,/proc/driver/nvidia/params,/proc/version, $file
done
python3 -m compileall -q /usr/lib/gpushim
python3 -IBS /usr/lib/gpushim/*/gpushim/create/stub.py compile
cp -a {tree}/. {state}/tree
printf '[runtime]\\nlow-level = ["{low}"]\\n' >>/etc/gpushim/config.toml
gpushim refresh
"""
WAIT = "while :; do sleep 1000; done"
COVER = "ModifyDeviceFiles: 0"


def _set_up(machine: Machine, low: str) -> None:
    (machine.state / "tree").mkdir()
    machine.run(SETUP.format(tree=trees.debian(), state=machine.state, low=low))
    machine.run("mkdir /etc/criu")
    for name in ("runc", "crun"):  # the machine has a part of its host's cgroups, of which CRIU wants all
        machine.write(f"/etc/criu/{name}.conf", "external mnt[]\nmanage-cgroups ignore\n")


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    suite, low = request.param
    with installed.machine(suite) as found:
        _set_up(found, low)
        # A cgroup of its own, or crun's CRIU makes all of the root's again below the container's, with what a kubelet
        # has set there.
        found.run(f"mkdir -p /srv/cgroup; mount -t cgroup2 none /srv/cgroup; mkdir /srv/cgroup/{found.state.name}")
        yield found
        found.run(f"rmdir /srv/cgroup/{found.state.name}")


@pytest.fixture
def bundle(machine: Machine) -> Iterator[Path]:
    """A bundle as an engine writes it; its container is gone afterwards."""
    folder = machine.state / "bundle"
    for name in ("", "images", "work"):
        (folder / name).mkdir()
    machine.run(f"runc spec --bundle {folder}")
    spec = json.loads((folder / "config.json").read_text())
    spec["root"] = {"path": f"{machine.state}/tree"}
    spec["process"] |= {"terminal": False, "args": ["sh", "-c", WAIT]}
    spec["linux"]["namespaces"].remove({"type": "network"})  # for which CRIU wants iptables
    if "crun" in low_level(machine):
        del spec["linux"]["maskedPaths"]  # with which it restores no container at all
        del spec["linux"]["resources"]  # which it cannot write in this machine's hierarchy
    (folder / "config.json").write_text(json.dumps(spec))
    (machine.state / "log").unlink(missing_ok=True)
    yield folder
    call(machine, f"delete --force {machine.state.name}", check=False)
    machine.run(f"rm -r {folder}")


def ask(bundle: Path, *env: str) -> None:
    spec = json.loads((bundle / "config.json").read_text())
    spec["process"]["env"] += env
    (bundle / "config.json").write_text(json.dumps(spec))


def low_level(machine: Machine) -> str:
    return machine.run("cat /run/gpushim/runtime").stdout.strip()


def call(machine: Machine, line: str, runtime: str = "gpushim-runtime", *, check: bool = True) -> str:
    """Call a runtime in the machine's cgroup, whose name its container has, too; returns what it says."""
    words = "--cgroup-manager=cgroupfs" if "crun" in low_level(machine) else ""
    enter = f"echo $$ >/srv/cgroup/{machine.state.name}/cgroup.procs"
    done = machine.run(
        f"{enter}; {runtime} --root {machine.state}/run --log {machine.state}/log {words} {line}", check=check
    )
    return done.stdout + done.stderr


def start(machine: Machine, bundle: Path, verb: str = "run", runtime: str = "gpushim-runtime") -> None:
    words = f"--image-path {bundle}/images --work-path {bundle}/work" if verb == "restore" else ""
    line = f"{verb} --detach {words} --bundle {bundle} {machine.state.name} </dev/null >/dev/null 2>&1"
    call(machine, f"{line} || {{ cat {machine.state}/log; exit 1; }}", f"cd {bundle}; setsid {runtime}")


def checkpoint(machine: Machine, bundle: Path, runtime: str = "gpushim-runtime", *, check: bool = True) -> str:
    return call(
        machine,
        f"checkpoint --image-path {bundle}/images --work-path {bundle}/work {machine.state.name}",
        runtime,
        check=check,
    )


def seen(machine: Machine) -> tuple[str, str, list[str]]:
    """Return what the container has: its GPUs, the driver's parameters, and where something is mounted."""
    said = [
        call(machine, f"exec {machine.state.name} {line}")
        for line in ("nvidia-smi -L", "cat /proc/version", "cat /proc/self/mounts")
    ]
    return said[0], said[1], sorted(line.split()[1] for line in said[2].splitlines())


@pytest.mark.parametrize("writes", [True, False], ids=["an engine writes config.json again", "the same bundle"])
def test_a_restored_container_has_what_it_had(machine: Machine, bundle: Path, writes: bool) -> None:
    ask(bundle, "NVIDIA_VISIBLE_DEVICES=1")
    plain = (bundle / "config.json").read_bytes()
    start(machine, bundle)
    before = seen(machine)
    checkpoint(machine, bundle)
    if writes:
        (bundle / "config.json").write_bytes(plain)
    start(machine, bundle, "restore")
    assert seen(machine) == before
    assert machine.host.gpus[1].uuid in before[0]
    assert COVER in before[1]
    assert before[2].count("/proc/version") == 1


def test_without_the_line_criu_names_a_mount_of_the_hooks(machine: Machine, bundle: Path) -> None:
    ask(bundle, "NVIDIA_VISIBLE_DEVICES=1")
    start(machine, bundle)
    machine.run("mkdir /etc/aside; mv /etc/criu/*.conf /etc/aside")
    try:
        checkpoint(machine, bundle, check=False)
    finally:
        machine.run("mv /etc/aside/*.conf /etc/criu; rmdir /etc/aside")
    said = (bundle / "work/dump.log").read_text()
    assert re.search(r"/(proc/version|run/nvidia-persistenced/socket) doesn't have a proper root mount", said)


def test_a_container_without_a_request_is_restored(machine: Machine, bundle: Path) -> None:
    start(machine, bundle)
    checkpoint(machine, bundle)
    start(machine, bundle, "restore")
    assert "nvidia" not in call(machine, f"exec {machine.state.name} cat /proc/self/mounts")


@pytest.mark.parametrize("request_of", ["NVIDIA_VISIBLE_DEVICES=1", "A=1"])
def test_the_hook_alone_refuses_a_restore_of_its_gpus_alone(machine: Machine, bundle: Path, request_of: str) -> None:
    """Their device rules are in no checkpoint; crun calls no such hook then."""
    ask(bundle, request_of)
    spec = json.loads((bundle / "config.json").read_text())
    spec["hooks"] = {"prestart": [{"path": "/usr/bin/gpushim-hook", "args": ["gpushim-hook", "prestart"]}]}
    (bundle / "config.json").write_text(json.dumps(spec))
    low = low_level(machine)
    start(machine, bundle, runtime=low)
    checkpoint(machine, bundle, low)
    words = f"restore --detach --image-path {bundle}/images --work-path {bundle}/work --bundle {bundle}"
    said = call(
        machine, f"{words} {machine.state.name} </dev/null >/dev/null 2>&1; cat {machine.state}/log", low, check=False
    )
    refused = "the container cannot be restored: the hook alone has given it GPUs" in said
    assert refused is ("NVIDIA" in request_of and low.endswith("runc"))


LOGS = "/var/lib/containers/storage/overlay-containers/*/userdata/*.log"


@pytest.fixture(scope="module")
def podman(debian_image: Path) -> Iterator[Machine]:
    with installed.machine("restore", view="v2") as found:
        _set_up(found, "runc")
        found.write("/etc/containers/containers.conf", installed.PODMAN)
        found.run(f"podman load --input={debian_image}; gpushim configure podman")
        yield found


@pytest.mark.parametrize("way", ["--runtime=nvidia --env=NVIDIA_VISIBLE_DEVICES=1", "--device=nvidia.com/gpu=1"])
def test_podman_restores_a_container_that_it_made_again(podman: Machine, way: str) -> None:
    """Podman writes another config.json for a restore, without what gpushim-runtime has added."""
    command = "sh -c 'while :; do sleep 1000; done'"
    podman.run(f"podman run --detach --name=c {way} localhost/debian:local {command} >/dev/null 2>&1")
    try:
        before = [podman.run(f"podman exec c {line}").stdout for line in ("nvidia-smi -L", "cat /proc/version")]
        for verb in (
            "checkpoint",
            "restore",
        ):  # CRIU gives up now and then on a busy machine
            again = f"{{ tail -n 15 {LOGS} >&2; sleep 1; podman container {verb} c; }}"
            podman.run(f"podman container {verb} c || {again} || {{ tail -n 15 {LOGS} >&2; exit 1; }}")
        after = [podman.run(f"podman exec c {line}").stdout for line in ("nvidia-smi -L", "cat /proc/version")]
        assert podman.host.gpus[1].uuid in before[0]
        assert (after, COVER in after[1]) == (before, True)
    finally:
        podman.run("podman rm --force --time=0 c")


def test_no_gpu_that_was_bound_anew_is_restored_by_cdi(podman: Machine) -> None:
    """Podman keeps what the spec said when the container began: its node may be another GPU's now."""
    words = "--device=nvidia.com/gpu=1 localhost/debian:local sh -c 'while :; do sleep 1000; done'"
    podman.run(f"podman run --detach --name=c {words} >/dev/null 2>&1")
    try:
        podman.run("podman container checkpoint c || { sleep 1; podman container checkpoint c; }")
        host = podman.host
        tree.bind(host.root, host.gpus, [gpu.pci for gpu in host.gpus])
        said = podman.run("podman container restore c", check=False)
        assert (said.returncode != 0, "is bound to the driver anew" in said.stderr) == (True, True), said
    finally:
        podman.run("podman rm --force --time=0 c")
