"""Which container holds which GPU, from state directories and processes that the test makes up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushim.containers import holders, names, runtime_state
from gpushim.engines.processes import running
from gpushim.ground import seen
from unit.gpushim.containers.machines import Machine, given
from unit.gpushim.decision import inventories

CAPS = inventories.CAPS


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_runc_and_crun(machine: Machine) -> None:
    machine.runc("a", given("/dev/nvidiactl", "/dev/nvidia1"), machine.process())
    machine.crun("b", given("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia2"), machine.process())
    machine.runc("c", given("/dev/nvidiactl"), machine.process())
    machine.runc("d", {}, machine.process())
    assert machine.held() == {"a": (["0"], "spec"), "b": (["0", "1"], "spec")}


def test_mig_instances_are_held_and_not_the_gpu_that_has_them(machine: Machine) -> None:
    machine.runc("a", given("/dev/nvidia0", CAPS + "12", CAPS + "13"), machine.process())
    machine.runc("b", given("/dev/nvidia0", CAPS + "12"), machine.process())
    assert machine.held() == {"a": (["2:0"], "spec")}


def test_what_the_hook_alone_has_bound(machine: Machine) -> None:
    lines = [
        "30 29 0:5 /nvidia1 /dev/nvidia1 rw - devtmpfs dev rw",
        "31 29 0:5 /null /dev/nvidia2 rw - devtmpfs dev rw",
    ]
    machine.runc("a", {}, machine.process(mounts="\n".join(lines)))
    machine.runc("b", given("/dev/nvidia2"), machine.process(mounts=lines[0]))
    assert machine.held() == {"a": (["0"], "hook"), "b": (["0", "1"], "spec and hook")}


BOUND = "1 2 0:5 /nvidia1 /dev/nvidia1 rw - devtmpfs udev rw\n"
NODE = {"type": ord("c"), "major": 195, "minor": 1, "path": "/dev/nvidia1"}


@pytest.mark.parametrize(
    ("config", "how"),
    [
        ({"devices": [NODE]}, "spec"),
        ({"devices": [], "mounts": [{"destination": "/dev/nvidia1"}]}, "spec"),
        ({"devices": [{**NODE, "minor": 9}, {**NODE, "type": "c"}, 3]}, "hook"),
        ({"devices": 3, "mounts": {}}, "hook"),
        ({}, "mount"),
    ],
)
def test_a_rootless_engines_bundle_is_out_of_sight(machine: Machine, config: Any, how: str) -> None:
    """It lies in the engine's mount namespace; runc's state has what it was, and the nodes are always mounts."""
    config = {"labels": ["bundle=/nowhere", "nerdctl/name=web"], **config}
    pid = machine.process(mounts=BOUND)
    machine.state("a", "state.json", init_process_pid=pid, init_process_start=5, config=config)
    assert machine.held() == {"a": (["0"], how)}
    assert machine.found()[0]["name"] == ("web" if "devices" in config else "")


@pytest.mark.parametrize("copied", [True, False])
def test_cruns_copy_of_config_json(machine: Machine, copied: bool) -> None:
    pid = machine.process(mounts=BOUND)
    machine.state("a", "status", pid=pid, bundle="/nowhere", **{"process-start-time": 5})
    if copied:
        (machine.states / "a/config.json").write_text(json.dumps(given("/dev/nvidia1")))
    assert machine.held() == {"a": (["0"], "spec" if copied else "mount")}


@pytest.mark.parametrize("name", ["\r", "\x0c", "\u2028"])
def test_a_mount_whose_name_looks_like_a_line(machine: Machine, name: str) -> None:
    """The kernel escapes only blanks, newlines and backslashes: proc(5)."""
    forged = f"30 29 0:5 / /x{name}31 29 0:5 /nvidia1 /dev/nvidia1 rw - tmpfs x rw"
    machine.runc("a", {}, machine.process(mounts=forged))
    assert machine.held() == {}


def test_another_process_with_the_number(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the number between one look and the next; what it has is not the container's."""
    pid, other = machine.process(), machine.process(mounts="30 29 0:5 /nvidia1 /dev/nvidia1 rw - devtmpfs dev rw")
    lives = runtime_state._is_alive

    def then_ends(state: dict[str, Any], process: str) -> bool:
        said = lives(state, process)
        (machine.proc / str(pid)).rename(machine.proc / "ended")
        (machine.proc / str(other)).rename(machine.proc / str(pid))
        return said

    monkeypatch.setattr(runtime_state, "_is_alive", then_ends)
    machine.runc("a", {}, pid)
    assert machine.held() == {}


def test_nodes_of_a_user_namespace_are_mounts(machine: Machine) -> None:
    machine.runc("a", {"mounts": [{"destination": "/dev/nvidia1", "source": "/dev/nvidia1"}]}, machine.process())
    assert machine.held() == {"a": (["0"], "spec")}


def test_who_has_ended_holds_nothing(machine: Machine) -> None:
    spec = given("/dev/nvidia1")
    machine.runc("gone", spec, 99)
    machine.runc("another", spec, machine.process(start=6))
    machine.runc("zombie", spec, machine.process(state="Z"))
    machine.runc("stopped", spec, 0)
    assert machine.held() == {}


CONTAINERD = {
    "io.kubernetes.cri.sandbox-namespace": "ns",
    "io.kubernetes.cri.sandbox-name": "pod",
    "io.kubernetes.cri.container-name": "c",
}
CRIO = {"io.container.manager": "cri-o", "io.kubernetes.cri-o.Name": "k8s_c_pod_ns_u_0"}
KUBELETS = {
    "io.container.manager": "cri-o",
    "io.kubernetes.pod.namespace": "ns",
    "io.kubernetes.pod.name": "pod",
    "io.kubernetes.container.name": "c",
}


@pytest.mark.parametrize(
    ("annotations", "engine", "name"),
    [
        ({}, "runc or crun", ""),
        ({"io.container.manager": "libpod"}, "podman", ""),
        ({"io.kubernetes.cri-o.TTY": "false", "io.container.manager": "libpod"}, "podman", ""),
        ({"io.kubernetes.cri-o.SandboxID": "a", "io.podman.annotations.autoremove": "TRUE"}, "podman", ""),
        ({"io.container.manager": "cri-o", "io.kubernetes.cri-o.TTY": "false"}, "cri-o", ""),
        ({"io.container.manager": 3}, "runc or crun", ""),
        (CONTAINERD, "containerd (CRI)", "ns/pod/c"),
        ({**CONTAINERD, "io.kubernetes.cri-o.Name": "k8s_x_y_z_u_0"}, "containerd (CRI)", "ns/pod/c"),
        (CRIO, "cri-o", "ns/pod/c"),
        ({**CRIO, **CONTAINERD, "io.kubernetes.cri.sandbox-name": "other"}, "cri-o", "ns/pod/c"),
        ({**CRIO, "io.podman.annotations.x": "its pod's author says so"}, "cri-o", "ns/pod/c"),
        (KUBELETS, "cri-o", "ns/pod/c"),
        ({"io.container.manager": "cri-o", "io.kubernetes.cri-o.Name": "k8s_pod_ns_u_0"}, "cri-o", "ns/pod"),
        ({**CONTAINERD, "io.container.manager": "libpod"}, "podman", ""),
        ({"nerdctl/name": "web"}, "nerdctl", "web"),
    ],
)
def test_engine_and_name(machine: Machine, annotations: dict[str, str], engine: str, name: str) -> None:
    machine.runc("a", given("/dev/nvidia1", annotations=annotations), machine.process())
    (holder,) = machine.found()
    assert (holder["engine"], holders.called(holder)) == (engine, name)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"config": 3}', '{"init_process_pid": "x"}', '{"config": {"labels": 5}}', "[" * 200000]
)
def test_odd_states_are_nobodys(machine: Machine, text: str) -> None:
    machine.runc("a", given("/dev/nvidia1"), machine.process())
    (machine.states / "b").mkdir()
    (machine.states / "b" / "state.json").write_text(text)
    assert list(machine.held()) == ["a"]


@pytest.mark.parametrize(
    "spec",
    [
        [],
        {"linux": []},
        {"linux": {"devices": [3, {}]}, "mounts": {}, "annotations": 3},
        {"linux": {"devices": [{"type": "c", "major": [], "minor": {}}]}},
        {"mounts": [{"destination": {}}]},
    ],
)
def test_odd_specs_hold_nothing(machine: Machine, spec: Any) -> None:
    machine.runc("a", spec, machine.process())
    assert machine.held() == {}


def test_a_directory_that_cannot_be_read_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> list[str]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(seen, "listed", refuse)
    found, notes = holders.holders(inventories.snapshot(), ["/run/x"], str(machine.proc))
    assert (found, notes) == ([], ["/run/x cannot be read (Input/output error), so containers there are not listed"])


def test_a_process_that_this_user_may_not_look_at_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(runtime_state.Reader, "mounts", refuse)
    machine.runc("a", given("/dev/nvidia1"), machine.process())
    found, (note,) = holders.holders(inventories.snapshot(), [str(machine.states)], str(machine.proc))
    assert ([each["devices"] for each in found], f"/proc/{machine.pid}" in note) == ([["0"]], True)


def test_all_gpus_of_wsl_are_one_node() -> None:
    inventory = inventories.snapshot(platform="wsl", nodes={"/dev/dxg": [10, 63, 0o666, 0, 0]})
    assert holders.devices({"/dev/dxg"}, inventory) == ["0", "1", "2"]
    assert holders.devices(set(), inventory) == []


def test_where_dockerd_says_that_it_keeps_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "runtime-runc/moby").mkdir(parents=True)
    (tmp_path / "daemon.json").write_text(json.dumps({"exec-root": f"{tmp_path}/two"}))
    argv = ("dockerd", "--exec-root", f"{tmp_path}/one")
    daemon = running.Engine("dockerd", 1, argv=argv, config=f"{tmp_path}/daemon.json")
    monkeypatch.setattr(running, "find", lambda: [daemon])
    monkeypatch.setattr(holders, "STATES", ())
    inventory = inventories.snapshot()
    looked: list[str] = []

    def look(folder: str, *_: list[str]) -> list[str]:
        looked.append(folder)
        return []

    monkeypatch.setattr(runtime_state, "listing", look)
    assert holders.holders(inventory) == ([], [])
    assert looked == [f"{tmp_path}/{name}/runtime-runc/moby" for name in ("one", "two")]


@pytest.mark.parametrize("kind", ["FIFO", "link", "device"])
def test_a_state_that_a_user_made_to_hang_us(tmp_path: Path, kind: str) -> None:
    """Users keep states below /run/user; root's `gpushim ps` reads them."""
    path = tmp_path / "states" / "c" / "state.json"
    path.parent.mkdir(parents=True)
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/etc/shadow")
    found, notes = holders.holders(inventories.snapshot(), [str(tmp_path / "states")])
    assert found == []
    assert [note.startswith(f"{path} cannot be read") for note in notes] == [True]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for states: a user's runtime directory."""
    monkeypatch.setattr(holders, "STATES", ())
    monkeypatch.setattr(holders, "USERS", str(tmp_path / "*"))
    monkeypatch.setattr(running, "find", list)
    (tmp_path / "1000").mkdir()
    return tmp_path / "1000"


def test_of_a_users_states_no_more_is_read_than_the_allowance(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 16 MiB can have any number of names."""
    monkeypatch.setattr(runtime_state, "ALLOWANCE", 5 * runtime_state.LOOK)
    for number in range(9):
        (user / "runc" / str(number)).mkdir(parents=True)
    looked: list[str] = []

    def opened(path: str, _: int) -> int:
        looked.append(path)
        return os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(runtime_state, "_open_regular", opened)
    _, notes = holders.holders(inventories.snapshot())
    assert len(looked) < 9
    assert notes == [f"{user}/runc has more than is read of one user's states, so not all there is listed"]


def test_links_of_a_users_make_no_more_places(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2000 links to a directory of 2000 are four million paths."""
    monkeypatch.setattr(holders, "DIRECTORIES", 10)
    (user / "docker").mkdir()
    for number in range(20):
        (user / "docker" / "x" / str(number)).mkdir(parents=True)
        (user / "docker" / f"runtime-{number}").symlink_to("x")
    asked: list[str] = []

    def real(path: str) -> str:
        asked.append(path)
        return path

    monkeypatch.setattr(os.path, "realpath", real)
    holders.holders(inventories.snapshot())
    assert len(asked) == 10


def test_what_a_user_says_is_marked_as_that_users(user: Path, machine: Machine) -> None:
    """Anybody can call a container of theirs kube-system/etcd, and name any process for it."""
    machine.states = user / "runc"
    machine.runc("a", given("/dev/nvidia1", annotations={"io.kubernetes.cri.x": "y"}), machine.process())
    (found,), _ = holders.holders(inventories.snapshot(), proc=str(machine.proc))
    assert found["engine"] == "containerd (CRI) of user 1000"


@pytest.mark.parametrize("more", [{"io.container.manager": "libpod"}, {**CRIO, "io.container.manager": "cri-o"}])
def test_annotations_of_other_engines_count_for_nothing_in_containerd_s_directory(more: dict[str, str]) -> None:
    """A pod's author may add them where pod_annotations of containerd lets them pass."""
    there = holders.Container("a", "containerd", {}, "", None)  # type: ignore[arg-type]
    assert there.engine({**CONTAINERD, **more}) == "containerd (CRI)"
    assert there.engine(more) == "containerd"


HOSTILE = {
    "lists": lambda: "[" + "[]," * (4 << 18) + "[]]",
    "names": lambda: json.dumps({str(number): 0 for number in range(1 << 18)}),
}
COST = """
import sys, time
sys.path[:0] = {paths}
from gpushim.containers import holders
from gpushim.engines.processes import running
holders.STATES, holders.USERS, running.find = (), sys.argv[1], list
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before, began = peak(), time.process_time()
list(holders.containers([]))
print(peak() - before, time.process_time() - began)
"""


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_one_user_has_costs_little(user: Path, kind: str) -> None:
    folder = user / "runc/one"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(HOSTILE[kind]())
    code = COST.format(paths=[path for path in sys.path if path])
    words = [sys.executable, "-c", code, str(user)]
    kib, seconds = map(float, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
    assert kib < 48 << 10
    assert seconds < 2


def test_many_states_that_name_one_process_with_many_mounts(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them costs what is read, and none more than is left."""
    read: list[int] = []

    def setting(path: str, limit: int) -> bytes:
        read.append(limit)
        return b"1 2 0:3 / /dev/x rw - tmpfs none rw\n" * 10000

    monkeypatch.setattr(runtime_state, "read_proc", setting)
    reader = runtime_state.Reader([], [], {"u": 1 << 20}, "u", names.Names())
    while not reader.spent:
        reader.mounts("/proc/1")
    assert len(read) == 3
    assert read[0] == 1 << 20 > read[1] > read[2] > 0


def test_of_a_users_names_no_more_are_looked_at_than_containers_have(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "NAMES", 5)
    for number in range(20):
        (user / f"runc/{number}").mkdir(parents=True)
        (user / f"docker/runtime-{number}/moby").mkdir(parents=True)
    looked: list[str] = []
    monkeypatch.setattr(runtime_state.Reader, "json", lambda self, path: looked.append(path))
    assert list(holders.containers([])) == []
    assert len(looked) == 5 * len(runtime_state.FILES)
    assert len(holders._expand(f"{user}/docker/runtime-*/*")) == 5
