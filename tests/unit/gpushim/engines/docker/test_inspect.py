"""What docker inspect says, turned into what Docker would write into config.json; the clients are scripts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushim.cdi import specs as cdi_specs
from gpushim.engines.docker import dockerd as daemon
from gpushim.engines.docker import inspect
from gpushim.engines.processes import programs, running
from gpushim.explain import explain
from gpushim.ground.errors import NOT_FOUND, GpushimError

SCRIPT = """#!{python} -I
import json, sys
answers = json.load(open({answers!r}))
answer = answers.get(" ".join(sys.argv[1:]))
if answer is None:
    sys.exit("Error: No such object: " + sys.argv[-1])
print(json.dumps(answer))
"""
DEVICES = "NVIDIA_VISIBLE_DEVICES"
NAME = "nvidia.com/gpu=2"
IMAGE = {"Config": {"Env": ["PATH=/bin", f"{DEVICES}=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.0"]}}
OURS = {"runc": {"path": "runc"}, "nvidia": {"path": "/usr/bin/gpushim-runtime"}}


class Engine:
    """A docker (or podman) that knows what the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def knows(
        self, container: Any = None, image: Any = IMAGE, info: Any = None, program: str = "docker"
    ) -> inspect.Found:
        said = {"ID": "asked", **(info or {"Runtimes": OURS, "ServerVersion": "27.3.1"})}
        answers: dict[str, Any] = {"info --format {{json .}}": said}
        if container is not None:
            answers["inspect --type container x"] = [{"Image": "sha256:1", **container}]
        if image is not None:
            answers["inspect --type image sha256:1"] = [image]
            answers["inspect --type image x"] = [image]
        setting = self.folder / f"{program}.json"
        setting.write_text(json.dumps(answers))
        script = self.folder / program
        script.write_text(SCRIPT.format(python=sys.executable, answers=str(setting)))
        script.chmod(0o755)
        return inspect.inspect("x")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(programs, "DIRECTORIES", (str(tmp_path),))
    return Engine(tmp_path)


def rows(found: inspect.Found) -> list[tuple[str, str]]:
    report = explain.explain(found.spec, "", found.origins)
    return [(row["from"], row["effect"]) for row in report["asked"] if row["what"] == DEVICES]


def container(env: list[str], **host: Any) -> dict[str, Any]:
    return {"Config": {"Env": env, "Image": "cuda:12"}, "HostConfig": {"Runtime": "nvidia", **host}}


def test_an_image(engine: Engine) -> None:
    found = engine.knows()
    assert found.spec["process"]["env"] == IMAGE["Config"]["Env"]
    assert found.origins[DEVICES] == "image x"


def test_who_set_a_variable(engine: Engine) -> None:
    env = ["PATH=/bin", f"{DEVICES}=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_GDS=enabled"]
    origins = engine.knows(container(env)).origins
    assert origins[DEVICES] == "container (docker run --env), instead of the image's all"
    assert origins["NVIDIA_REQUIRE_CUDA"] == "image cuda:12"
    assert origins["NVIDIA_GDS"] == "container (docker run --env)"
    assert engine.knows(container(env), None).origins[DEVICES] == "container or its image, which is gone"


@pytest.mark.parametrize(
    ("members", "privileged"),
    [
        ({}, False),
        ({"Privileged": True}, True),
        ({"CapAdd": ["CAP_SYS_ADMIN"]}, True),
        ({"CapAdd": ["sys_admin"]}, True),
        ({"CapAdd": ["ALL"]}, True),
        ({"CapAdd": ["ALL"], "CapDrop": ["SYS_ADMIN"]}, False),
        ({"CapAdd": ["NET_ADMIN"], "CapDrop": None}, False),
        ({"Privileged": True, "IDMappings": {"UidMap": ["0:100000:65536"], "GidMap": []}}, False),
    ],
)
def test_privileges(engine: Engine, members: Any, privileged: bool) -> None:
    bounding = engine.knows(container([], **members)).spec["process"]["capabilities"]["bounding"]
    assert bounding == (["CAP_SYS_ADMIN"] if privileged else [])


@pytest.mark.parametrize(
    ("request_", "version", "env"),
    [
        ({"Count": -1, "Capabilities": [["gpu"]]}, "20.10", [f"{DEVICES}=all"]),
        ({"Count": 2, "Capabilities": [["gpu"]]}, "20.10", [f"{DEVICES}=0,1"]),
        ({"DeviceIDs": ["0", "GPU-1"], "Capabilities": [["gpu"]]}, "20.10", [f"{DEVICES}=0,GPU-1"]),
        ({"Count": 0, "Capabilities": [["gpu"]]}, "20.10", []),
        ({"Count": 0, "Capabilities": [["gpu"]]}, "27.3.1", [f"{DEVICES}=void"]),
        (
            {"Driver": "nvidia", "Count": -1, "Capabilities": [["tpu"], ["gpu", "nvidia", "video", "utility"]]},
            "20.10",
            [f"{DEVICES}=all", "NVIDIA_DRIVER_CAPABILITIES=video,utility"],
        ),
    ],
)
def test_what_docker_makes_of_gpus(engine: Engine, request_: Any, version: str, env: list[str]) -> None:
    info = {"Runtimes": OURS, "ServerVersion": version}
    found = engine.knows(container(["A=b"], DeviceRequests=[request_]), info=info)
    assert found.spec["process"]["env"] == ["A=b", *env]
    assert {found.origins[entry] for entry in env} <= {"docker run --gpus"}


@pytest.fixture
def dockerd(engine: Engine, engines: list[Any], monkeypatch: pytest.MonkeyPatch) -> running.Engine:
    """The dockerd that is asked, whose PATH has nothing but the client; an older one runs beside it."""
    monkeypatch.setattr(daemon, "info", lambda each, seconds: {"ID": "asked" if each.pid == 1 else "another"})
    engines.append(running.Engine("dockerd", 2, uid=os.geteuid()))
    found = running.Engine(
        "dockerd", 1, config=f"{engine.folder}/daemon.json", environ={"PATH": str(engine.folder)}, uid=os.geteuid()
    )
    engines.append(found)
    return found


def hook(engine: Engine, name: str) -> None:
    (engine.folder / name).write_text("")
    (engine.folder / name).chmod(0o755)


ALL = {"Count": -1, "Capabilities": [["gpu"]]}


@pytest.mark.parametrize(
    ("on_path", "request_", "version", "by_cdi"),
    [
        (["nvidia-cdi-hook"], ALL, "29.7.2", True),
        (["nvidia-cdi-hook"], ALL, "29.1.5", False),
        (["nvidia-cdi-hook", "nvidia-container-runtime-hook"], ALL, "29.7.2", False),  # no spec has the device
        (["nvidia-container-runtime-hook"], ALL, "29.7.2", False),
        (["nvidia-cdi-hook"], {**ALL, "Driver": "nvidia.runtime-hook"}, "29.7.2", False),
        ([], {**ALL, "Driver": "nvidia.cdi"}, "29.7.2", True),
    ],
)
def test_what_docker_29_makes_of_gpus(
    engine: Engine, dockerd: running.Engine, on_path: list[str], request_: Any, version: str, by_cdi: bool
) -> None:
    for name in on_path:
        hook(engine, name)
    info = {"Runtimes": OURS, "ServerVersion": version, "CDISpecDirs": [str(engine.folder)]}
    found = engine.knows(container(["A=b"], DeviceRequests=[request_]), info=info)
    assert ("injects the CDI device nvidia.com/gpu=all" in "".join(found.notes)) is by_cdi
    assert (f"{DEVICES}=all" in found.spec["process"]["env"]) is not by_cdi


@pytest.mark.parametrize("others", [[], [running.Engine("dockerd", 2)]])
@pytest.mark.parametrize("there", [True, False])
def test_a_dockerd_that_is_not_seen_has_the_path_of_a_service(
    engine: Engine, engines: list[Any], monkeypatch: pytest.MonkeyPatch, others: list[running.Engine], there: bool
) -> None:
    """As for an ordinary user, in another mount namespace, or on another machine: its answer tells the devices."""
    engines.extend(others)  # one that does not answer
    monkeypatch.setattr(daemon, "PATH", str(engine.folder))
    if there:
        hook(engine, "nvidia-cdi-hook")
    info = {"Runtimes": OURS, "ServerVersion": "29.7.2", "CDISpecDirs": [str(engine.folder / "none")]}
    known = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=1"}]}
    request_ = {"DeviceIDs": ["1"], "Capabilities": [["gpu"]]}
    notes = engine.knows(container([], DeviceRequests=[request_]), info={**info, **known}).notes
    assert inspect.UNSEEN in notes
    seen = "docker itself injects the CDI device nvidia.com/gpu=1, by a spec that is not seen here"
    assert (seen in notes) is there


def test_no_gpus_are_nothing_in_docker_29(engine: Engine) -> None:
    """The image's variable counts, as if nobody had said --gpus."""
    info = {"Runtimes": OURS, "ServerVersion": "29.7.2"}
    request_ = {"Count": 0, "Capabilities": [["gpu"]]}
    found = engine.knows(container([f"{DEVICES}=all"], DeviceRequests=[request_]), info=info)
    assert (found.spec["process"]["env"], found.origins[DEVICES]) == ([f"{DEVICES}=all"], "image cuda:12")
    assert "--gpus 0 sets nothing" in "".join(found.notes)


@pytest.mark.parametrize(
    ("mine", "before"),
    [
        ("all", [("image cuda:12", "overridden below")]),
        ("0", [("container (docker run --env), instead of the image's all", "overridden below")]),
        ("1", []),
    ],
)
def test_which_counts_of_several_that_set_a_variable(engine: Engine, mine: str, before: list[Any]) -> None:
    request_ = {"DeviceIDs": ["1"], "Capabilities": [["gpu"]]}
    info = {"Runtimes": OURS, "ServerVersion": "28.5.2"}
    found = engine.knows(container([f"{DEVICES}={mine}"], DeviceRequests=[request_]), info=info)
    assert found.spec["process"]["env"][-1] == f"{DEVICES}=1"
    assert rows(found) == [*before, ("docker run --gpus", "names the devices")]


@pytest.mark.parametrize(
    ("request_", "note", "last"),
    [
        ({"DeviceIDs": [""]}, "has an empty id, of which Docker makes no GPU", f"{DEVICES}="),
        ({"DeviceIDs": ["", ""]}, "", f"{DEVICES}=,"),
        ({"Count": 0}, "a reservation of Compose without count and device_ids", f"{DEVICES}=all"),
        ({"Count": 1}, "", f"{DEVICES}=0"),
    ],
)
def test_a_request_of_which_docker_makes_no_gpu(engine: Engine, request_: Any, note: str, last: str) -> None:
    made = container([f"{DEVICES}=all"], DeviceRequests=[{**request_, "Capabilities": [["gpu"]]}])
    found = engine.knows(made, info={"Runtimes": OURS, "ServerVersion": "26.1.0"})
    assert (note in "".join(found.notes), found.spec["process"]["env"][-1]) == (True, last)


@pytest.mark.parametrize("command", [["podman", "create", "img"], ["podman", "run", "--device", NAME, "img"]])
@pytest.mark.parametrize("labels", [None, {}, {inspect.COMPOSE: "web"}])
def test_podman_drops_what_compose_reserves(engine: Engine, labels: Any, command: list[str]) -> None:
    made = {"ImageName": "img", **container([])}
    made["Config"].update({"Labels": labels, "CreateCommand": command})
    notes = "".join(engine.knows(made, program="podman").notes)
    assert ("Podman drops what Compose reserves" in notes) == (bool(labels) and "--device" not in command)


@pytest.mark.parametrize("written", [True, False])
def test_a_runtime_by_type_is_what_daemon_json_says(engine: Engine, dockerd: running.Engine, written: bool) -> None:
    entry = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/usr/bin/gpushim-runtime"}}
    entries = {"nvidia": entry} if written else {}
    Path(dockerd.config).write_text(json.dumps({"runtimes": entries}))
    notes = engine.knows(container([f"{DEVICES}=0"]), info={"Runtimes": {"nvidia": {}}}).notes
    assert ("NO GPU" in "".join(notes)) is not written


def test_a_runtime_that_nobody_tells_is_not_called_foreign(engine: Engine) -> None:
    (note,) = engine.knows(container([f"{DEVICES}=0"]), info={"Runtimes": {"nvidia": {}}}).notes
    assert note == "docker does not show which program its runtime nvidia is; root can see it"


def test_requests_that_are_not_for_us(engine: Engine) -> None:
    requests = [{"Driver": "cdi", "DeviceIDs": ["a.com/b=c"]}, {"Driver": "amd", "Capabilities": [["gpu"]]}]
    found = engine.knows(container([], DeviceRequests=requests))
    assert found.spec["process"]["env"] == []
    assert [note for note in found.notes if "docker itself injects the CDI device a.com/b=c, and will refuse" in note]
    assert [note for note in found.notes if "refuses --gpus with driver amd" in note]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"Runtime": "runc"}, "NO GPU; what stands here is what it would get with --runtime=nvidia"),
        (
            {"Runtime": "runc", "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]},
            "hook that --gpus brings",
        ),
        ({"Runtime": "nvidia"}, ""),
    ],
)
def test_the_runtime_decides(engine: Engine, members: Any, words: str) -> None:
    found = engine.knows(container([f"{DEVICES}=0"], **members))
    notes = found.notes
    assert found.by_hook == ("hook" in words)
    assert words in "".join(notes)
    assert bool(notes) == bool(words)


def test_mounts_and_annotations(engine: Engine) -> None:
    mounts = [{"Type": "bind", "Source": "/dev/null", "Destination": "/var/run/nvidia-container-devices/0"}]
    found = engine.knows({**container([], Annotations={"cdi.k8s.io/x": "a.com/b=c"}), "Mounts": mounts})
    assert found.spec["annotations"] == {"cdi.k8s.io/x": "a.com/b=c"}
    assert found.spec["mounts"][0]["source"] == "/dev/null"
    assert found.origins["/var/run/nvidia-container-devices/0"] == "container (docker run)"


def test_annotations_of_an_images_manifest(engine: Engine) -> None:
    """Podman copies them, and tells them among the container's own."""
    image = {**IMAGE, "Annotations": {"cdi.k8s.io/x": "a.com/b=c"}}
    assert engine.knows(image=image, program="podman").origins["cdi.k8s.io/x"] == "image x"
    made = container([])
    made["Config"]["Annotations"] = {"cdi.k8s.io/x": "a.com/b=c", "cdi.k8s.io/y": "a.com/b=d"}
    found = engine.knows(made, image, program="podman")
    assert found.spec["annotations"] == made["Config"]["Annotations"]
    assert found.origins["cdi.k8s.io/x"] == "image cuda:12"
    assert found.origins["cdi.k8s.io/y"] == "container (podman run)"


def test_podman_when_docker_does_not_know_it(engine: Engine) -> None:
    with pytest.raises(GpushimError, match="no container or image x"):
        engine.knows(image=None)
    found = engine.knows({**container([f"{DEVICES}=0"]), "BoundingCaps": ["CAP_SYS_ADMIN"]}, program="podman")
    assert found.spec["process"]["capabilities"]["bounding"] == ["CAP_SYS_ADMIN"]
    assert "podman run --env" in found.origins[DEVICES]


def test_no_engine(engine: Engine) -> None:
    with pytest.raises(GpushimError) as caught:
        inspect.inspect("x")
    assert caught.value.exit_code == NOT_FOUND


def test_odd_members_are_none(engine: Engine) -> None:
    found = engine.knows({"Config": 3, "HostConfig": [], "Mounts": [3]}, {"Config": []}, {"Runtimes": 3})
    assert (found.spec["process"]["env"], found.spec["mounts"], found.notes) == ([], [], [])


@pytest.mark.parametrize("answer", [{}, [], [3]])
def test_odd_answers_are_none(engine: Engine, answer: Any) -> None:
    setting = engine.folder / "answers.json"
    setting.write_text(json.dumps({"inspect --type container x": answer}))
    (engine.folder / "docker").write_text(SCRIPT.format(python=sys.executable, answers=str(setting)))
    (engine.folder / "docker").chmod(0o755)
    with pytest.raises(GpushimError, match="no container or image x"):
        inspect.inspect("x")


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A directory of CDI specs, as `gpushim refresh` writes them."""
    folder = tmp_path / "cdi"
    folder.mkdir()
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": {"env": [f"{DEVICES}=void"]}}
    node = {"containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}
    (folder / "a.json").write_text(json.dumps({**document, "devices": [{"name": "2", **node}]}))
    return folder


@pytest.mark.parametrize("env", [[], [f"{DEVICES}=all"]])
@pytest.mark.parametrize("runtime", ["nvidia", "runc"])
def test_docker_injects_and_gpushim_adds_nothing(engine: Engine, specs: Path, runtime: str, env: list[str]) -> None:
    requests = [{"Driver": "cdi", "DeviceIDs": [NAME]}]
    info = {"Runtimes": OURS, "ServerVersion": "28.2.2", "CDISpecDirs": [str(specs)]}
    found = engine.knows(container(env, Runtime=runtime, DeviceRequests=requests), info=info)
    report = explain.explain(found.spec, "", found.origins)
    assert f"docker itself injects the CDI device {NAME}, as {specs}/a.json says" in found.notes
    assert not [note for note in found.notes if "NO GPU" in note]
    assert report["nothing"] == f"{DEVICES} says void: whoever set it so has given the container what it gets"
    *before, last = [row for row in report["asked"] if row["what"] == DEVICES]
    assert ["container" in row["from"] or "image" in row["from"] for row in before] == [True for _ in env]
    assert last["from"].startswith(f"CDI device {NAME} of {specs}/a.json")
    assert (report["edits"], report["refusal"]) == ([], None)


def test_podmans_own_words_stand_once(engine: Engine, specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes what the devices' specs say into the variables of the container that it tells."""
    monkeypatch.setattr(cdi_specs, "DIRECTORIES", (str(specs),))
    made = {**container([f"{DEVICES}=void"]), "ImageName": "img"}
    made["Config"]["CreateCommand"] = ["podman", "run", "--device", NAME, "img"]
    found = engine.knows(made, program="podman")
    report = explain.explain(found.spec, "", found.origins)
    (row,) = [row for row in report["asked"] if row["what"] == DEVICES]
    assert row["from"] == f"CDI device {NAME} of {specs}/a.json"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["podman", "run", "--device", NAME, "img", "sh"], [NAME]),
        (["podman", "run", f"--device={NAME}", "--device", NAME, "img"], [NAME]),
        (["podman", "run", "--device", "/dev/fuse", "img"], []),
        (["podman", "run", "img", "prog", "--device", NAME], []),
        (["podman", "run", "--device"], []),
        ("podman", []),
        (None, []),
    ],
)
def test_podman_tells_them_in_its_command_line(words: Any, names: list[str]) -> None:
    assert inspect.podmans({"ImageName": "img", "Config": {"CreateCommand": words}}) == names


@pytest.mark.parametrize(
    ("data", "running", "rootfs"),
    [
        ({"MergedDir": "/m", "UpperDir": "/u", "LowerDir": "/l1:/l2"}, True, "/m"),
        ({"MergedDir": "/m", "UpperDir": "/u", "LowerDir": "/l1:/l2"}, False, ""),
        ({"UpperDir": "/u", "LowerDir": "/l1"}, True, ""),
        ({"UpperDir": "/u"}, False, "/u"),
        ({"UpperDir": 3}, False, ""),
        ({"UpperDir": "relative"}, False, ""),
        (None, True, ""),
        (3, [], ""),
    ],
)
def test_the_directory_of_a_rootfs(data: Any, running: bool, rootfs: str) -> None:
    assert inspect.rootfs({"GraphDriver": {"Data": data}, "State": {"Running": running}}) == rootfs
