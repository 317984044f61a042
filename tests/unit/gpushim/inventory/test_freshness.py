"""No create gets what was true once: each member of a real snapshot changes on the host, one at a time.

The members are those of the snapshot of a simulated host with all there is; `survey.COVER` says which fact changes
with each. What has none has a life, which is over here before the create.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fakehost import Host, tree
from fakehost.gpus import H100, describe
from gpushim.inventory import earlier, ensure, renew, survey
from sample import share
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow

MIG = [(1, 0, "3g.20gb"), (2, 0, "2g.10gb")]
BY_DATA = ("nodes", "features", "files")  # members whose names are data: paths, features, capabilities
NODES = {"gdrdrv": 300, "infiniband/uverbs0": 231, "nvidia-fs0": 301, "nvidia-nvswitchctl": 302}

Change = Callable[[Machine, Host], object]


def build(machine: Machine) -> Host:
    """A host with a whole GPU, a divided one and one in MIG mode, and all that a snapshot can have."""
    host = machine.build(
        [{}, {"mig": MIG}, {"mig": []}], "[mps]\nenabled = true\n", drm=True, imex=2, mps=True, complete=True
    )
    for name, major in NODES.items():
        make(host, name, major)
    return host


def make(host: Host, name: str, major: int, minor: int = 0) -> None:
    tree.make_node(host.node(name), major, minor, 0o666, 0, 0)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """List a snapshot's members by the names that survey.COVER has for them."""
    if isinstance(value, list) and (name == "files.*" or (value and isinstance(value[0], dict))):
        for one in value:
            yield from leaves(one, name)
    elif isinstance(value, dict) and survey.COVER.get(name) != "own" and name.count(".") < 1 + (name == "files.*"):
        for key, one in value.items():
            word = "*" if name in BY_DATA else key
            yield from leaves(one, f"{name}.{word}" if name else key)
    else:
        yield name, value


def column(snapshot: Any, name: str) -> list[Any]:
    """All values of a member, and of a snapshot's own names of data."""
    names = sorted(snapshot[name.partition(".")[0]]) if name.partition(".")[0] in BY_DATA else []
    return [names, *(value for found, value in leaves(snapshot) if found == name)]


def fact(name: str) -> str:
    """Return what covers a member; all but a few of "driver" and "policy" are settings."""
    top = name.partition(".")[0]
    return survey.COVER.get(name) or survey.COVER.get(top) or survey.COVER[f"{top}.*"]


def regpu(host: Host, index: int, **changes: Any) -> None:
    for key, value in changes.items():
        setattr(host.gpus[index], key, value)
    host.update()


def swap(machine: Machine, host: Host) -> None:
    """Unbind two GPUs, and bind them in the other order."""
    one, other = host.gpus[0], host.gpus[2]
    one.minor, other.minor = other.minor, one.minor
    host.update()


def unplug(machine: Machine, host: Host) -> None:
    fields = ({"uuid": gpu.uuid, "minor": gpu.minor, "pci": gpu.pci, "mig": gpu.mig} for gpu in host.gpus[1:])
    host.gpus[:] = [*describe([{key: one[key] for key in ("uuid", "minor", "pci")} for one in fields], None)]
    host.update()


def divide(*devices: Any) -> Change:
    return lambda machine, host: host.set_mig(1, devices)


def upgrade(machine: Machine, host: Host) -> None:
    shutil.rmtree(host.lib_path)
    machine.build([{}, {"mig": MIG}, {"mig": []}], driver="550.54.14", cuda="12.4", drm=True, imex=2, mps=True)


def address(machine: Machine, host: Host) -> None:
    """Load the module again with another way to address the host's memory."""
    regpu(host, 0, **RENAMED)
    host.figure(0, addressing=1)


def reload(machine: Machine, host: Host) -> None:
    host.modify = not host.modify
    host.update()


def configure(more: str) -> Change:
    return lambda machine, host: machine.configure(f'[driver]\nroot = "{host.root}"\n{more}')


def remove(path: str) -> Change:
    return lambda machine, host: os.unlink(host.root + path)


def reboot(machine: Machine, host: Host) -> None:
    """Boot as another kind of machine: WSL2 has one node for all GPUs."""
    make(host, "dxg", 10, 125)
    tree.write(f"{host.root}/usr/lib/wsl/lib/libdxcore.so", "a library")
    forget(machine, "another boot")


def forget(machine: Machine, boot: str) -> None:
    """Let the snapshot be of another boot."""
    path = Path(machine.state, ensure.SNAPSHOT)
    saved = json.loads(path.read_text())
    saved["stamp"]["boot"] = boot
    path.write_text(json.dumps(saved))


def fail(**how: Any) -> Change:
    return lambda machine, host: host.behave(**how)


def runtime(machine: Machine, host: Host) -> None:
    os.unlink(machine.folder / "bin/first")


def move(machine: Machine, host: Host) -> None:
    """Let the driver be in another place."""
    left = ("/dev", "/nvidia-caps", "/run", "/tmp")
    others = f"{host.root}2"
    shutil.copytree(host.root, others, symlinks=True, ignore=lambda at, names: names if at.endswith(left) else [])
    machine.configure(f'[driver]\nroot = "{others}"\ndev-root = "{host.root}"\n')


def without_drm(machine: Machine, host: Host) -> None:
    """Unload nvidia_drm."""
    shutil.rmtree(host.node("dri"))
    for gpu in host.gpus:
        shutil.rmtree(f"{host.root}/sys/bus/pci/devices/{gpu.pci}/drm")


def remajor(machine: Machine, host: Host) -> None:
    """Load nvidia_uvm again; its node stays behind, until a refresh fixes it."""
    devices = Path(host.root, "proc/devices")
    devices.write_text(devices.read_text().replace("508 nvidia-uvm", "507 nvidia-uvm"))


def regdrdrv(machine: Machine, host: Host) -> None:
    """Load gdrdrv, whose node is of another time and number."""
    devices = Path(host.root, "proc/devices")
    devices.write_text(devices.read_text().replace("508 nvidia-uvm", "299 gdrdrv\n508 nvidia-uvm"))


def nodes_elsewhere(machine: Machine, host: Host) -> None:
    """Have refresh make the nodes below another directory; below / they would be this machine's."""
    others = Path(machine.folder, "others/dev")
    others.mkdir(parents=True)
    os.mknod(others / "null", 0o020666, os.makedev(1, 3))
    machine.configure(f'[driver]\nroot = "{host.root}"\ndev-root = "{others.parent}"\n')


CLUSTER = "00112233-4455-6677-8899-aabbccddeeff"
RENAMED = {"uuid": "GPU-00000000-1111-2222-3333-444444444444"}
CHANGES: dict[str, Change] = {  # by member, and a word more where one member may change in several ways
    "source": fail(fail=999),
    "notes": fail(fail_gpu={0: 15}),
    "missing": fail(fail=999),
    "mps": lambda machine, host: os.chmod(f"{host.root}/run/nvidia-mps", 0o777),
    "error": lambda machine, host: host.half_upgrade("550.54.14"),
    "platform": reboot,
    "driver.version": upgrade,
    "driver.version of the module alone": lambda machine, host: host.half_upgrade("550.54.14"),
    "driver.cuda": upgrade,
    "driver.root": move,
    "driver.dev-root": nodes_elsewhere,
    "driver.load-kernel-modules": configure("load-kernel-modules = false\n"),
    "driver.params": reload,
    "absent": unplug,
    "gpus.index": unplug,
    "gpus.nvml": unplug,
    "gpus.uuid": lambda machine, host: regpu(host, 0, **RENAMED),
    "gpus.minor": swap,
    "gpus.node": swap,
    "gpus.pci": lambda machine, host: regpu(host, 0, pci="0000:06:00.0"),
    "gpus.model": lambda machine, host: regpu(host, 0, **H100, **RENAMED),
    "gpus.brand": lambda machine, host: regpu(host, 0, brand="tesla", **RENAMED),
    "gpus.arch": lambda machine, host: regpu(host, 0, **H100, **RENAMED),
    "gpus.memory": lambda machine, host: regpu(host, 0, memory=38000),
    "gpus.mig_capable": lambda machine, host: regpu(host, 0, mig_mode=None, **RENAMED),
    "gpus.vgpu": lambda machine, host: regpu(host, 0, brand="nvidiavws", **RENAMED),
    "gpus.pci_class": lambda machine, host: regpu(host, 0, pci_class="0x030000", **RENAMED),
    "gpus.fabric_problem": lambda machine, host: host.fabric_state(0, 1),
    "gpus.fabric": lambda machine, host: regpu(host, 0, fabric=f"{CLUSTER} 7"),
    "gpus.addressing": address,
    "gpus.mig": lambda machine, host: host.set_mig(0, []),
    "gpus.problem": fail(fail_gpu={0: 15}),
    "gpus.drm": without_drm,
    "gpus.numa": lambda machine, host: regpu(host, 0, numa=7),
    "gpus.peers": lambda machine, host: regpu(host, 0, links={1: 4}),
    "gpus.peers over the bus": lambda machine, host: regpu(host, 0, near={1: 20}),
    "gpus.links": lambda machine, host: shutil.rmtree(host.node("dri/by-path")),
    "mig.uuid": divide(*((*one, f"MIG-00000000-1111-2222-3333-44444444444{one[0]}") for one in MIG)),
    "mig.legacy": divide((1, 1, "3g.20gb")),
    "mig.gpu": lambda machine, host: host.set_mig(0, MIG),
    "mig.index": divide(MIG[0]),
    "mig.gi": divide((3, 0, "2g.10gb")),
    "mig.ci": divide((1, 1, "3g.20gb")),
    "mig.placement": divide((1, 0, "2g.10gb"), MIG[1]),
    "mig.profile": divide((1, 0, "4g.20gb"), MIG[1]),
    "mig.memory": divide((1, 0, "3g.40gb"), MIG[1]),
    "mig.attributes": divide((1, 0, "1c.3g.20gb"), MIG[1]),
    "mig.nodes": divide((1, 1, "3g.20gb")),
    "nodes.*": lambda machine, host: os.chmod(host.node("nvidia0"), 0o600),
    "nodes.* with another major": remajor,
    "features.*": lambda machine, host: make(host, "infiniband/uverbs1", 231, 1),
    "features.* of a module with another major": regdrdrv,
    "imex": lambda machine, host: make(host, "nvidia-caps-imex-channels/channel7", tree.CAPS_IMEX_MAJOR, 7),
    "files.*.path": remove("/usr/bin/nvidia-debugdump"),
    "files.*.kind": remove("/usr/bin/nvidia-debugdump"),
    "files.*.soname": lambda machine, host: os.unlink(f"{host.lib_path}/libnvidia-opencl.so.{host.driver}"),
    "files.*.links": lambda machine, host: os.unlink(f"{host.lib_path}/libnvidia-opticalflow.so.{host.driver}"),
    "policy.log": configure('[log]\nfile = "/dev/null"\n'),
    "runtime": runtime,
}  # fmt: skip


def age(machine: Machine) -> None:
    """Let the snapshot's life be over."""
    path = Path(machine.state, ensure.SNAPSHOT)
    saved = json.loads(path.read_text())
    saved["looked"] -= saved["life"]
    path.write_text(json.dumps(saved))


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The members of the snapshot of a host that has everything."""
    machine = Machine(tmp_path_factory.mktemp("members"))
    build(machine)
    return dict(leaves(machine.refreshed()))


def test_every_member_is_covered_and_changed(members: dict[str, Any]) -> None:
    assert {name: fact(name) for name in members}
    uncovered = [name for name in members if fact(name) != "own" and name not in CHANGES]
    assert [name for name in uncovered if not name.startswith(("policy.", "driver.", "error."))] == []


def test_the_cover_names_nothing_that_is_not_there(members: dict[str, Any]) -> None:
    gone = [name for name in survey.COVER if name not in members and not name.endswith(".*")]
    assert gone == []
    assert {name.partition(" ")[0] for name in CHANGES} <= set(survey.COVER) | set(members)


@pytest.mark.parametrize("change", share(CHANGES, 2))
def test_what_changed_is_never_handed_out_as_it_was(machine: Machine, change: str) -> None:
    name = change.partition(" ")[0]
    host = build(machine)
    programs = machine.folder / "bin"
    programs.mkdir()
    for program in ("first", "second"):
        shutil.copy("/bin/true", programs / program)
    low = f'[runtime]\nlow-level = ["{programs}/first", "{programs}/second"]\n'
    if name == "runtime":
        configure(low)(machine, host)
    machine.listed()
    before = machine.saved()
    CHANGES[change](machine, host)
    if fact(name) == "life":
        age(machine)
    given = renew.snapshot(machine.config, machine.state)  # what a create is told
    another = Path(f"{machine.state}-of-another")
    another.mkdir()
    shutil.copy(f"{machine.state}/{earlier.INDICES}", another)  # of this boot
    true = renew.snapshot(machine.config, str(another))  # what a first look tells
    assert column(true, name) != column(before, name)
    assert column(given, name) == column(true, name)


# Beside what the simulated host has, each in directories that are not there either, or on the way to which there are.
APPEARS = (
    *("/usr/bin/nvidia-imex", "/usr/sbin/nv-fabricmanager", "/usr/local/bin/nvidia-imex-ctl", "/etc/cufile.json"),
    *("/etc/glvnd/egl_vendor.d/10_nvidia.json", "/usr/local/share/OpenCL/vendors/nvidia.icd"),
    *("/lib/firmware/nvidia/VERSION/gsp_new.bin", "/lib/firmware/updates/nvidia/VERSION/gsp_other.bin"),
)


@pytest.mark.parametrize("path", APPEARS)
def test_a_file_that_appears_is_noticed(machine: Machine, path: str) -> None:
    host = machine.build(1)
    assert machine.refreshed()["life"] == pytest.approx(survey.SETTLED, abs=20)  # and what listing took
    path = path.replace("VERSION", host.driver)
    tree.write(host.root + path, "a file")
    assert ensure.read(machine.config, machine.state) is None
    assert path in {entry["path"] for entries in machine.refreshed()["files"].values() for entry in entries}


def test_a_directory_in_the_place_of_another_is_noticed(machine: Machine) -> None:
    """As `cp -a`, `rsync -a` and mounts leave it: with the same time."""
    host = machine.build(1)
    machine.refreshed()
    folder = Path(host.root, "usr/bin")
    shutil.copytree(folder, f"{folder}2", symlinks=True)
    folder.rename(f"{folder}1")
    Path(f"{folder}2").rename(folder)
    shutil.copystat(f"{folder}1", folder)
    assert ensure.read(machine.config, machine.state) is None


def test_a_directory_that_somebody_keeps_changing_refuses_nothing(machine: Machine) -> None:
    """As a package manager does for minutes: then the files are looked at, not the directory."""
    host = machine.build(1)
    done = threading.Event()

    def write() -> None:
        for number in itertools.takewhile(lambda _: not done.is_set(), itertools.count()):
            Path(host.root, f"usr/bin/{number}").touch()
            Path(host.root, f"usr/bin/{number}").unlink()

    with ThreadPoolExecutor() as others:
        others.submit(write)
        try:
            machine.refreshed()
            assert ensure.read(machine.config, machine.state) is not None
        finally:
            done.set()
    tree.write(f"{host.root}/usr/bin/nvidia-imex", "a file")
    assert ensure.read(machine.config, machine.state) is None


@pytest.mark.parametrize("above", ["usr/local/bin", "usr/local"])
def test_whoever_may_write_to_a_directory_of_programs_makes_no_snapshot_stale(machine: Machine, above: str) -> None:
    host = machine.build(1)
    folder = Path(host.root, "usr/local/bin")
    folder.mkdir(parents=True, exist_ok=True)
    Path(host.root, above).chmod(0o2775)  # root:staff, as of Debian 11
    machine.refreshed()
    (folder / "nvidia-smi").touch()
    (folder / "another").touch()
    assert ensure.read(machine.config, machine.state) is not None


@pytest.mark.parametrize("whose", ["file", "directory"])
def test_what_others_could_replace_no_container_gets(machine: Machine, whose: str) -> None:
    host = machine.build(1)
    path = Path(host.root, "usr/local/bin/nvidia-imex-ctl")
    tree.write(str(path), "a program")
    os.chown(path if whose == "file" else path.parent, 1000, 1000)
    snapshot = machine.refreshed()
    assert not [entry for each in snapshot["files"].values() for entry in each if entry["path"].endswith("imex-ctl")]
    assert [note for note in snapshot["notes"] if note.startswith("/usr/local/bin/nvidia-imex-ctl is left out: ")]
