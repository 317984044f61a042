"""CDI devices of any vendor through the shim: plain runc, Docker's environment, containerd's annotations."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import cri, trees
from e2e.bundles import Bundle
from e2e.engines import Containerd, Docker
from e2e.expect import GPU_MAJOR
from e2e.runchosts import MAPPED, PURE_V1_PREFIX
from e2e.runchosts import open_directory as open_directory
from e2e.trees import TOP
from e2e.views import CRUN
from e2e.witness import RUNC, settings
from fakehost import Host

NVD = "NVIDIA_VISIBLE_DEVICES"
VOID = f"{NVD}=void"
# What a container has of the devices below: its variables, the node, the mount, a GPU's node.
LOOK = """
import glob, json, os, stat
def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return True
    except OSError as error:
        return error.errno == 6  # ENXIO: allowed, and no driver behind it
facts = {path: os.stat(path) for path in glob.glob("/dev/card*") + glob.glob("/dev/nvidia[0-9]*")}
nodes = {path: [os.major(fact.st_rdev), os.minor(fact.st_rdev), opens(path)] for path, fact in facts.items()}
text = open("/opt/vendor/text").read() if os.path.exists("/opt/vendor/text") else None
env = {name: value for name, value in os.environ.items() if name.startswith(("VENDOR", "NVIDIA_VIS"))}
print(json.dumps({"env": env, "nodes": nodes, "text": text, "groups": os.getgroups()}))
"""
LOOKING = ["python3", "-c", LOOK]
Writer = Callable[[str, Any], Path]


@pytest.fixture
def write(gpushim_env: dict[str, str]) -> Iterator[Writer]:
    """Writes a spec file into the first of the shim's spec directories; gone afterwards."""
    directory = Path(gpushim_env["GPUSHIM_CONFIG"]).parent / "cdi"
    directory.mkdir(exist_ok=True)
    written = []

    def write(name: str, document: Any) -> Path:
        path = directory / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        written.append(path)
        return path

    yield write
    for path in written:
        path.unlink()


@pytest.fixture
def vendor(write: Writer, tmp_path: Path) -> Path:
    """The spec of vendor.com/card=a and =b: node, mount, variables, group and a hook that leaves its word."""
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "text").write_text("of the host")
    # It reads its stdin to the end: crun before 1.17 dies of SIGPIPE otherwise, if it writes later.
    (tmp_path / "hook").write_text(f'#!/bin/sh\necho "$PATH $*" >>{tmp_path}/said\nexec cat >/dev/null\n')
    (tmp_path / "hook").chmod(0o755)
    hook = {"hookName": "createRuntime", "path": str(tmp_path / "hook"), "args": ["hook", "a"]}
    mount = {"hostPath": str(tmp_path / "vendor"), "containerPath": "/opt/vendor", "options": ["ro", "rbind"]}
    devices = [
        {
            "name": name,
            "containerEdits": {
                "env": [f"VENDOR_DEVICE={name}", f"VENDOR_{name}=1"],
                "deviceNodes": [{"path": f"/dev/card{name}", "hostPath": "/dev/full"}],
            },
        }
        for name in "ab"
    ]
    common = {"env": ["VENDOR=yes"], "mounts": [mount], "hooks": [hook], "additionalGids": [77]}
    document = {"cdiVersion": "0.7.0", "kind": "vendor.com/card", "devices": devices, "containerEdits": common}
    return write("vendor-card.json", document)


def look(bundle: Bundle, *env: str, **members: Any) -> Any:
    bundle.ask(*env, args=LOOKING, **members)
    return json.loads(bundle.run().stdout)


def has_a_card(seen: Any, *names: str) -> None:
    """Assert that a container has these cards, with what they share."""
    assert seen["text"] == "of the host"
    assert 77 in seen["groups"]
    cards = {path: fact for path, fact in seen["nodes"].items() if "card" in path}
    # Writing to /dev/full fails; opening it does not.
    assert cards == {f"/dev/card{name}": [1, 7, True] for name in names}
    assert {name: seen["env"][f"VENDOR_{name}"] for name in names} == dict.fromkeys(names, "1")
    assert (seen["env"]["VENDOR"], seen["env"]["VENDOR_DEVICE"]) == ("yes", names[-1])


@pytest.mark.parametrize("names", ["a", "ab", "ba"])
def test_devices_of_another_vendor_alone(bundle: Bundle, vendor: Path, tmp_path: Path, names: str) -> None:
    seen = look(bundle, NVD + "=" + ",".join(f"vendor.com/card={name}" for name in names))
    has_a_card(seen, *names)
    assert seen["env"][NVD] == "void"
    assert set(seen["nodes"]) == {f"/dev/card{name}" for name in names}
    # Once, with a PATH although the spec gives the hook no environment.
    assert (tmp_path / "said").read_text() == "/usr/sbin:/usr/bin:/sbin:/bin a\n"


@pytest.mark.parametrize("wanted", ["0,vendor.com/card=a", "vendor.com/card=a,nvidia.com/gpu=0"])
def test_gpus_and_devices_of_another_vendor(bundle: Bundle, vendor: Path, gpu_host: Host, wanted: str) -> None:
    seen = look(bundle, f"{NVD}={wanted}")
    has_a_card(seen, "a")
    minor = gpu_host.gpus[0].minor
    assert {path: fact for path, fact in seen["nodes"].items() if "nvidia" in path} == {
        f"/dev/nvidia{minor}": [GPU_MAJOR, minor, True]
    }
    assert seen["env"][NVD] == wanted


def test_an_annotation_names_devices(bundle: Bundle, vendor: Path) -> None:
    has_a_card(look(bundle, annotations={"cdi.k8s.io/plugin": "vendor.com/card=b"}), "b")


def test_a_yaml_spec(bundle: Bundle, write: Writer) -> None:
    write(
        "yaml.yaml",
        "cdiVersion: 0.5.0\nkind: yaml.com/card\ndevices:\n- name: '0'\n  containerEdits:\n"
        "    deviceNodes:\n    - path: /dev/card0\n      hostPath: /dev/full\n      permissions: rw\n"
        "    env: [VENDOR=yaml]\n",
    )
    seen = look(bundle, f"{NVD}=yaml.com/card=0")
    assert (seen["nodes"], seen["env"]["VENDOR"]) == ({"/dev/card0": [1, 7, True]}, "yaml")


def simple(kind: str, **edits: Any) -> dict[str, Any]:
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": "a", "containerEdits": edits or {"env": ["A=1"]}}],
    }


def test_an_nvidia_like_spec_runs_its_hooks_through_ours(bundle: Bundle, write: Writer) -> None:
    env = ["NVIDIA_CTK_DEBUG=false"]
    link = ["create-symlinks", "--link", "/opt/text::/opt/link"]
    hooks = [
        {
            "hookName": "createContainer",
            "path": "/nowhere/nvidia-cdi-hook",
            "args": ["nvidia-cdi-hook", *link],
            "env": env,
        },
        {
            "hookName": "createContainer",
            "path": "/nowhere/nvidia-ctk",
            "args": ["nvidia-ctk", "hook", "noop"],
            "env": env,
        },
    ]
    spec = simple("k8s.device-plugin.nvidia.com/gpu", env=[VOID], hooks=hooks)
    write("nvidia.json", spec)
    bundle.ask(f"{NVD}=k8s.device-plugin.nvidia.com/gpu=a", args=["readlink", "/opt/link"])
    assert bundle.run().stdout == "/opt/text\n"
    assert {hook["path"] for hook in bundle.spec["hooks"]["createContainer"]} == {f"{TOP}/bin/nvidia-cdi-hook"}
    assert VOID in bundle.spec["process"]["env"]


def test_the_hook_alone_says_what_is_needed(bundle: Bundle, vendor: Path) -> None:
    variables = [f"{key}={value}" for key, value in bundle.env.items()]
    name = "nvidia-container-runtime-hook"
    hook = {"path": str(TOP / "bin" / name), "args": [name, "prestart"], "env": ["PATH=/usr/bin", *variables]}
    bundle.ask(f"{NVD}=0,vendor.com/card=a", args=["true"], hooks={"prestart": [hook]})
    command = [RUNC, f"--root={bundle.directory}/plain", "run", "--bundle", str(bundle.directory), bundle.id]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "asks for vendor.com/card=a, but devices of CDI specs need gpushim-runtime, or an engine" in done.stderr


def test_crun(debian_root: Path, tmp_path: Path, gpu_host: Host, vendor: Path) -> None:
    bundle = Bundle(tmp_path / "bundle", debian_root, settings(tmp_path, gpu_host.root, CRUN), PURE_V1_PREFIX)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / vendor.name).write_text(vendor.read_text())
    has_a_card(look(bundle, f"{NVD}=0,vendor.com/card=a"), "a")


def test_in_a_user_namespace(debian_tree: Path, open_directory: Path, write: Writer, gpushim_env: Any) -> None:
    write("userns.json", simple("userns.com/card", deviceNodes=[{"path": "/dev/carda", "hostPath": "/dev/full"}]))
    with trees.overlay(debian_tree, open_directory) as root:
        owner = ["/bin/chown", f"{MAPPED}:{MAPPED}", "{}", "+"]
        subprocess.run(["/usr/bin/find", root, "-type", "d", "-exec", *owner], check=True)
        bundle = Bundle(open_directory / "bundle", root, gpushim_env)
        mappings = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
        linux = {**bundle.plain["linux"], "uidMappings": mappings, "gidMappings": mappings}
        linux["namespaces"] = [*linux["namespaces"], {"type": "user"}]
        assert look(bundle, f"{NVD}=userns.com/card=a", linux=linux)["nodes"] == {"/dev/carda": [1, 7, True]}


@pytest.mark.parametrize("wanted", ["vendor.com/card=a", "1,vendor.com/card=a"])
def test_docker(docker: Docker, vendor: Path, gpu_host: Host, wanted: str) -> None:
    options = ["--rm", "--network=none", "--runtime=nvidia", f"--env={NVD}={wanted}", "--env=VENDOR=mine"]
    seen = json.loads(docker.docker("run", *options, "debian:local", *LOOKING).stdout)
    has_a_card(seen, "a")
    gpus = {f"/dev/nvidia{gpu_host.gpus[1].minor}"} if wanted.startswith("1,") else set()
    assert {path for path in seen["nodes"] if "nvidia" in path} == gpus


def test_docker_shows_the_refusal(docker: Docker, vendor: Path) -> None:
    options = ["--rm", "--network=none", "--runtime=nvidia", f"--env={NVD}=vendor.com/card=z"]
    done = docker.docker("run", *options, "debian:local", "true", check=False)
    assert done.returncode != 0
    assert 'has the device "vendor.com/card=z"; gpushim cdi list' in done.stderr


def test_containerd_cri(containerd: Containerd, vendor: Path) -> None:
    with containerd.cri() as client:
        pod = client.run_pod("nvidia")
        names = {"cdi.k8s.io/plugin_1": "vendor.com/card=b,vendor.com/card=a"}
        container = client.create(pod, "docker.io/library/debian:local", LOOKING, annotations=names)
        client.start(container)
        has_a_card(json.loads(client.output(container)), "b", "a")
        unknown = {"cdi.k8s.io/plugin_1": "vendor.com/card=z"}
        refused = client.create(pod, "docker.io/library/debian:local", ["true"], annotations=unknown)
        with pytest.raises(cri.RefusedError) as caught:
            client.start(refused)
        assert 'has the device "vendor.com/card=z"' in str(caught.value)
