"""Names of containers: from the files of Docker and Podman, and from annotations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpushim.containers import holders, names, runtime_state
from gpushim.engines.processes import running
from unit.gpushim.containers.machines import Machine, given
from unit.gpushim.decision import inventories

ID = "0123456789abcdef" * 4


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host with nothing of this one's engines."""
    monkeypatch.setattr(names, "DOCKER_ROOT", f"{tmp_path}/docker")
    monkeypatch.setattr(names, "PODMAN_RUN", f"{tmp_path}/run")
    monkeypatch.setattr(holders, "USERS", "/none")
    monkeypatch.setattr(running, "find", list)
    return Machine(tmp_path)


def write(path: Path, what: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(what))


def named(machine: Machine, states: str = "moby", **annotations: str) -> tuple[str, str]:
    """Return name and engine of a container of a state directory."""
    machine.states = machine.folder / states
    machine.runc(ID, given("/dev/nvidia1", annotations=annotations), machine.process())
    (found,) = machine.found()
    return found["name"], found["engine"]


@pytest.mark.parametrize("root", ["docker", "docker/100000.100000"])
def test_docker(machine: Machine, root: str) -> None:
    write(
        machine.folder / root / f"containers/{ID}/config.v2.json", {"Name": "/web", "Config": {"Env": ["A=secret"]}}
    )
    assert named(machine) == ("web", "docker")


def test_docker_elsewhere(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = machine.folder
    write(folder / "daemon.json", {"data-root": f"{folder}/data"})
    write(folder / f"data/containers/{ID}/config.v2.json", {"Name": "/web"})
    daemon = running.Engine("dockerd", 1, config=f"{folder}/daemon.json")
    monkeypatch.setattr(running, "find", lambda: [daemon])
    assert named(machine) == ("web", "docker")


@pytest.mark.parametrize("what", [None, [], {"Name": 3}, {"Name": ""}, {}])
def test_docker_that_does_not_tell(machine: Machine, what: Any) -> None:
    """And whoever may run containers may give them any annotation."""
    write(machine.folder / f"docker/containers/{ID}/config.v2.json", what)
    assert named(machine, **{"io.kubernetes.cri.container-name": "etcd"}) == ("", "docker")


@pytest.mark.parametrize("place", ["storage/overlay-containers/", "run/overlay-containers/volatile-"])
def test_podman(machine: Machine, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    write(
        machine.folder / f"{place}containers.json", [{"id": "x", "names": ["other"]}, {"id": ID, "names": ["web"]}, 3]
    )
    bundle = machine.folder / f"storage/overlay-containers/{ID}/userdata"
    bundle.mkdir(parents=True)
    write(bundle / "config.json", given("/dev/nvidia1", annotations={"io.podman.x": "y"}))
    monkeypatch.setattr(machine, "bundle", lambda *_: str(bundle))
    assert named(machine, "runc") == ("web", "podman")


@pytest.mark.parametrize("what", [None, {}, [{"id": ID}], [{"id": ID, "names": "web"}], ["x"]])
def test_podman_that_does_not_tell(what: Any) -> None:
    assert names.Names().of_podman(ID, f"/s/overlay-containers/{ID}/userdata", "", lambda _: what) == ""


@pytest.mark.parametrize("bundle", ["", "/s/overlay-containers/other/userdata", f"/s/x/{ID}/userdata", f"/{ID}"])
def test_what_is_no_bundle_of_podmans(bundle: str) -> None:
    def fail(path: str) -> None:
        raise AssertionError(path)

    assert names.Names().of_podman(ID, bundle, "", fail) == ""


@pytest.mark.parametrize("name", ["", "k8s", "k8s_a_b", "k8s_c_pod_ns_u_0_x", "c_pod_ns_u_0_x"])
def test_a_name_that_is_not_crios(name: str) -> None:
    assert names.pod({names.CRIO: name}, "cri-o") == names.Pod()


def test_a_users_docker_is_below_that_users_home() -> None:
    roots = names.users_docker_root(f"/run/user/{os.getuid()}")
    assert roots == [os.path.expanduser(f"~{'root' if not os.getuid() else ''}/.local/share/docker")]
    assert names.users_docker_root("/run/user/x") == []


def test_names_are_looked_up_within_a_users_allowance(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = runtime_state.Reader([], [], left := {"u": runtime_state.ALLOWANCE}, "u", names.Names())
    write(machine.folder / "x.json", ["x" * 9000])
    reader.json(f"{machine.folder}/x.json")
    assert left["u"] < runtime_state.ALLOWANCE - 9000


@pytest.fixture
def opened(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all files that are read, from now on, and the processes that are listed."""
    paths: list[str] = []
    regular = runtime_state._open_regular

    def opens(path: str, flags: int) -> int:
        paths.append(path)
        return regular(path, flags)

    def finds() -> list[running.Engine]:
        paths.append("/proc")
        return []

    monkeypatch.setattr(runtime_state, "_open_regular", opens)
    monkeypatch.setattr(running, "find", finds)
    return paths


@pytest.mark.parametrize("states", ["moby", "runc"])
def test_who_has_no_gpu_is_not_asked_for_a_name(machine: Machine, opened: list[str], states: str) -> None:
    machine.states = machine.folder / states
    machine.runc(ID, given("/dev/nvidiactl"), machine.process())
    assert machine.found() == []
    assert [path.rpartition("/")[2] for path in opened] == ["state.json", "config.json"]


def test_what_tells_of_many_containers_is_read_once(
    machine: Machine, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of all containers, for each of them, is a square."""
    storage = machine.folder / "storage/overlay-containers"
    ids = [f"{number:064x}" for number in range(20)]
    write(storage / "containers.json", [{"id": each, "names": [f"n{each}"]} for each in ids[5:]])
    monkeypatch.setattr(machine, "bundle", lambda name, _: f"{storage}/{name}/userdata")
    for each in ids:
        write(storage / each / "userdata/config.json", given("/dev/nvidia1"))
        machine.runc(each, {}, machine.process())
    assert {each["id"]: each["name"] for each in machine.found()} == {
        each: f"n{each}" if each in ids[5:] else "" for each in ids
    }
    assert len([path for path in opened if path.endswith("containers.json")]) == 2


def test_dockerds_are_looked_for_once(machine: Machine, opened: list[str]) -> None:
    for states in ("a/moby", "b/moby"):
        machine.states = machine.folder / states
        machine.runc(f"{states[0]}{ID}", given("/dev/nvidia1"), machine.process())
    places = [f"{machine.folder}/{states}" for states in ("a/moby", "b/moby")]
    found, _ = holders.holders(inventories.snapshot(), places, str(machine.proc))
    assert len(found) == 2
    assert opened.count("/proc") == 1


@pytest.mark.parametrize("key", ["exec-root", "data-root"])
def test_directories_are_those_of_the_daemons_own_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    argv = ("dockerd", f"--{key}=/one")
    daemon = running.Engine("dockerd", 1, argv=argv, root=str(tmp_path), config="/daemon.json")
    write(tmp_path / "daemon.json", {key: "/two"})
    monkeypatch.setattr(running, "find", lambda: [daemon])
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert names.Names().directories(key) == [f"{tmp_path}/one", f"{tmp_path}/two"]
