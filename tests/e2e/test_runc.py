"""The real runc, and crun, behind the shim: what a container gets, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.bundles import Bundle
from e2e.expect import CONTROL_NODES, GPU_MAJOR, INSIDE, probe, refuses, sees_exactly, sees_nothing
from e2e.runchosts import MAPPED, PURE_V1_PREFIX
from e2e.runchosts import mig_host as mig_host
from e2e.runchosts import open_directory as open_directory
from e2e.views import CRUN
from e2e.witness import settings
from fakehost import Host

NODES = "cd /dev; for node in nvidia*; do echo $node $( (: <>$node) 2>&1 ); done"


@pytest.fixture
def busybox(busybox_tree: Path, tmp_path: Path, gpushim_env: dict[str, str]) -> Bundle:
    """A bundle with a root file system that has no loader."""
    root = shutil.copytree(busybox_tree, tmp_path / "root", symlinks=True)
    return Bundle(tmp_path / "bundle", root, gpushim_env)


REQUESTS = [
    ("0,2", [0, 2]),
    ("2,0,2", [0, 2]),
    ("all", [0, 1, 2]),
    ("0-1", [0, 1]),
    ("{0.uuid}", [0]),
    ("{1.uuid:.12}", [1]),
    ("{2.pci}", [2]),
    ("{0.nvml_bus_id},1", [0, 1]),
    ("nvidia.com/gpu=1", [1]),
]


@pytest.mark.parametrize(("request_", "indices"), REQUESTS, ids=[text for text, _ in REQUESTS])
def test_run_gives_the_gpus_asked_for(bundle: Bundle, gpu_host: Host, request_: str, indices: list[int]) -> None:
    wanted = request_.format(*gpu_host.gpus)
    report = bundle.look(gpu_host, indices, f"NVIDIA_VISIBLE_DEVICES={wanted}")
    sees_exactly(report, gpu_host, indices)
    assert json.loads(report)["env"]["NVIDIA_VISIBLE_DEVICES"] == wanted


def test_none_gives_the_driver_without_a_gpu(bundle: Bundle, gpu_host: Host) -> None:
    report = json.loads(bundle.look(gpu_host, [], "NVIDIA_VISIBLE_DEVICES=none"))
    assert report["nodes"] == dict.fromkeys(CONTROL_NODES, "ENXIO")
    assert report["made"] == {f"{GPU_MAJOR}:{gpu.minor}": "EPERM" for gpu in gpu_host.gpus}
    assert set(report["libraries"].values()) == {"loads"}
    assert report["uuids"] == []


def test_utility_alone_brings_no_cuda(bundle: Bundle, gpu_host: Host) -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=utility"]
    report = json.loads(bundle.look(gpu_host, [1], *env))
    assert set(report["nodes"]) == {"/dev/nvidiactl", f"/dev/nvidia{gpu_host.gpus[1].minor}"}
    assert report["libraries"]["libnvidia-ml.so.1"] == "loads"
    assert "cannot open shared object file" in report["libraries"]["libcuda.so.1"]
    assert "libcuda" not in report["ldconfig"]
    assert gpu_host.gpus[1].uuid in report["nvidia-smi"]


def test_create_start_and_delete(bundle: Bundle, gpu_host: Host) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2", args=["sleep", "1000"])
    with bundle.created():
        assert bundle.state() == "created"
        bundle.call("start", bundle.id)
        assert bundle.state() == "running"
        sees_exactly(bundle.call("exec", bundle.id, *probe(gpu_host, [0, 2])).stdout, gpu_host, [0, 2])
    assert "does not exist" in bundle.call("state", bundle.id, check=False).stderr


def test_a_second_create_changes_nothing(bundle: Bundle, gpu_host: Host) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", args=["sleep", "1000"])
    with bundle.created():
        first, status = bundle.config.read_bytes(), bundle.config.stat()
    with bundle.created():
        assert bundle.config.read_bytes() == first
        assert bundle.config.stat().st_ino == status.st_ino
        bundle.call("start", bundle.id)
        sees_exactly(bundle.call("exec", bundle.id, *probe(gpu_host, [1])).stdout, gpu_host, [1])


@pytest.mark.parametrize("env", [[], ["NVIDIA_VISIBLE_DEVICES=void"], ["NVIDIA_DRIVER_CAPABILITIES=all"]])
def test_without_a_request_nothing_is_touched(bundle: Bundle, gpu_host: Host, env: list[str]) -> None:
    bundle.ask(*env, args=probe(gpu_host, []))
    content, before = bundle.config.read_bytes(), bundle.config.stat()
    sees_nothing(bundle.run().stdout)
    after = bundle.config.stat()
    assert bundle.config.read_bytes() == content
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_an_unknown_gpu_is_refused(bundle: Bundle, gpu_host: Host) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=7", args=["true"])
    done = bundle.run(check=False)
    assert done.returncode == 10
    refuses(done.stderr, gpu_host, "7")
    assert bundle.logged()["msg"] == done.stderr.rstrip("\n")
    assert bundle.logged()["level"] == "error"


def test_an_unmet_requirement_is_refused_in_known_words(bundle: Bundle) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.3", args=["true"])
    done = bundle.run(check=False)
    words = "unsatisfied condition: cuda>=12.3, please update your driver to a newer version"
    assert done.returncode == 11
    assert words in done.stderr
    assert words in bundle.logged()["msg"]


def test_the_command_may_be_one_of_the_drivers(bundle: Bundle, gpu_host: Host) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0", args=["nvidia-smi", "-L"])
    assert gpu_host.gpus[0].uuid in bundle.run().stdout


def test_a_read_only_root(bundle: Bundle, gpu_host: Host) -> None:
    root = {"path": str(bundle.rootfs), "readonly": True}
    report = bundle.look(gpu_host, [1], "NVIDIA_VISIBLE_DEVICES=1", "TMPDIR=/dev", root=root)
    sees_exactly(report, gpu_host, [1])


def test_relative_paths(bundle: Bundle, gpu_host: Host) -> None:
    root = {"path": os.path.relpath(bundle.rootfs, bundle.directory)}
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", args=probe(gpu_host, [1]), root=root)
    done = bundle.call("run", "-b", bundle.directory.name, bundle.id, cwd=bundle.directory.parent)
    sees_exactly(done.stdout, gpu_host, [1])
    bundle.ask("NVIDIA_VISIBLE_DEVICES=2", args=probe(gpu_host, [2]), root=root)
    sees_exactly(bundle.call("run", bundle.id, cwd=bundle.directory).stdout, gpu_host, [2])


def test_an_image_without_a_loader(busybox: Bundle, gpu_host: Host) -> None:
    busybox.ask("NVIDIA_VISIBLE_DEVICES=0", args=["sh", "-c", NODES])
    lines = busybox.run().stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        *sorted(["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl", f"nvidia{gpu_host.gpus[0].minor}"])
    ]
    assert all("No such device or address" in line for line in lines), lines


def test_the_log_says_what_a_container_got(bundle: Bundle, gpu_host: Host) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=2,0", args=["true"])
    bundle.run()
    log = Path(bundle.env["GPUSHIM_CONFIG"]).with_name("gpushim.log")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (line,) = [line for line in lines if line.get("container") == bundle.id]
    assert line["request"] == "env NVIDIA_VISIBLE_DEVICES=2,0"
    assert line["gpus"] == [gpu_host.gpus[2].uuid, gpu_host.gpus[0].uuid]


@pytest.mark.parametrize("form", ["0:1", "{.uuid}"])
def test_a_mig_instance(debian_root: Path, tmp_path: Path, mig_host: Host, form: str) -> None:
    parent, other = mig_host.gpus
    left_out, mig = parent.mig
    bundle = Bundle(tmp_path / "bundle", debian_root, settings(tmp_path, mig_host.root))
    report = json.loads(bundle.look(mig_host, [0], f"NVIDIA_VISIBLE_DEVICES={form.format(mig)}"))
    caps = (fakehost.gi_cap(parent.minor, mig.gi), fakehost.ci_cap(parent.minor, mig.gi, mig.ci))
    nodes = [*CONTROL_NODES, f"/dev/nvidia{parent.minor}", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)]
    assert report["nodes"] == dict.fromkeys(sorted(nodes), "ENXIO")
    assert report["made"] == {f"{GPU_MAJOR}:{other.minor}": "EPERM"}
    assert mig.uuid in report["nvidia-smi"]
    assert left_out.uuid not in report["nvidia-smi"]


def test_a_user_namespace(
    debian_tree: Path, open_directory: Path, gpushim_env: dict[str, str], gpu_host: Host
) -> None:
    with trees.overlay(debian_tree, open_directory) as root:
        # Places for mounts are made by the namespace's root, as the owner that engines give an image there.
        subprocess.run(
            ["/usr/bin/find", root, "-type", "d", "-exec", "/bin/chown", f"{MAPPED}:{MAPPED}", "{}", "+"], check=True
        )
        bundle = Bundle(open_directory / "bundle", root, gpushim_env)
        mappings = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
        linux = {**bundle.plain["linux"], "uidMappings": mappings, "gidMappings": mappings}
        linux["namespaces"] = [*linux["namespaces"], {"type": "user"}]
        bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2", args=["python3", INSIDE], linux=linux)
        report = json.loads(bundle.run().stdout)
    # Nobody makes nodes there, so the probe was not told to try.
    report["made"] = {f"{GPU_MAJOR}:{gpu_host.gpus[1].minor}": "EPERM"}
    sees_exactly(json.dumps(report), gpu_host, [0, 2])


@pytest.mark.parametrize(
    ("mode", "maps", "opens"),
    [
        (0o660, [{"containerID": 0, "hostID": MAPPED, "size": 65536}], False),
        (0o666, [{"containerID": 0, "hostID": MAPPED, "size": 65536}], True),
        (
            0o660,
            [{"containerID": 0, "hostID": MAPPED, "size": 65536}, {"containerID": 65536, "hostID": 44, "size": 1}],
            True,
        ),
    ],
    ids=["neither", "mode 0666", "its group mapped"],
)
def test_nodes_of_a_group_in_a_user_namespace(
    debian_tree: Path, open_directory: Path, mode: int, maps: list[dict[str, int]], opens: bool
) -> None:
    """What the log names as the two ways to nodes that are not for everybody."""
    cache = str(trees.TOP / ".cache" / "fakehost")
    root = str(open_directory / "host")
    fakehost.build(root, 1, node_mode=mode, node_gid=44, compile_cache=cache)
    with trees.overlay(debian_tree, open_directory) as rootfs:
        chown = ["/usr/bin/find", str(rootfs), "-type", "d", "-exec", "/bin/chown", f"{MAPPED}:{MAPPED}", "{}", "+"]
        subprocess.run(chown, check=True)
        bundle = Bundle(open_directory / "bundle", rootfs, settings(open_directory, root))
        uids = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
        linux = {**bundle.plain["linux"], "uidMappings": uids, "gidMappings": maps}
        linux["namespaces"] = [*linux["namespaces"], {"type": "user"}]
        bundle.ask("NVIDIA_VISIBLE_DEVICES=all", args=["sh", "-c", ": <>/dev/nvidiactl"], linux=linux)
        done = bundle.run(check=False)
    # The simulated node has no driver behind it.
    assert ("No such device or address" if opens else "Permission denied") in done.stderr
    log = (open_directory / "gpushim.log").read_text()
    assert ("group 44, which alone may open /dev/nvidiactl" in log) != opens


def test_crun(debian_root: Path, tmp_path: Path, gpu_host: Host) -> None:
    bundle = Bundle(tmp_path / "bundle", debian_root, settings(tmp_path, gpu_host.root, CRUN), PURE_V1_PREFIX)
    assert bundle.call("--version").stdout.startswith("crun ")
    sees_exactly(bundle.look(gpu_host, [0, 2], "NVIDIA_VISIBLE_DEVICES=0,2"), gpu_host, [0, 2])
