"""What strangers' containers may take, with real runc and real Podman: each of these attacks was shown to work once.

The table of authorization, cell by cell, is unit/gpushim/oci/test_authorization's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
import scratch
from e2e import features, leftovers, trees
from e2e.allocated import on
from e2e.archives import NAME, archive
from e2e.bundles import Bundle
from e2e.hostile_places import Place
from e2e.podman import podman
from e2e.runchosts import MAPPED
from fakehost import Host

NVD = "NVIDIA_VISIBLE_DEVICES"
NOBODY = 65534
NODES = ["sh", "-c", "ls /dev | grep nvidia; true"]
BY_MOUNT = {
    "source": "/dev/null",
    "destination": "/var/run/nvidia-container-devices/0",
    "type": "bind",
    "options": ["bind"],
}
# As doctor and the documentation say it; `multi-tenant` is the same in one word.
SWITCHES = "accept-env-when-unprivileged = false\naccept-annotations-when-unprivileged = false"
MULTI_TENANT = 'profile = "multi-tenant"'
CLAIM = "k8s.gpu.example.com/claim"
# Changes the mode of a file in a directory that it has open, as its owner may; says when it has begun.
LOOP = """
import itertools, os, sys
os.setgid(65534)
os.setuid(65534)
for turn in itertools.count():
    os.chmod("control", 0o600 | turn % 64, dir_fd=int(sys.argv[1]))
    turn or print("begun", flush=True)
"""


def bundle(place: Place, host: Host, tree: Path, tmp_path: Path, **tables: str) -> Bundle:
    """Make a bundle with settings of its own."""
    root = shutil.copytree(tree, tmp_path / "root", symlinks=True)
    one = on(host, root, tmp_path, **tables)
    one.runtime = place.top / "bin" / "gpushim-runtime"
    return one


def logged(directory: Path) -> str:
    """Return what the log of GPU containers has."""
    log = directory / "gpushim.log"
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("policy", [SWITCHES, MULTI_TENANT], ids=["switches", "profile"])
def test_the_annotations_of_an_images_manifest(
    place: Place, gpu_host: Host, busybox_tree: Path, tmp_path: Path, policy: str
) -> None:
    """Podman copies them into config.json, where they asked for all GPUs whatever the policy said of variables."""
    one = bundle(place, gpu_host, busybox_tree, tmp_path, requests=policy)
    front = tmp_path / "front"
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in one.env.items())
    front.write_text(f'#!/bin/sh\n{exports}\nexec {one.runtime} "$@"\n')
    front.chmod(0o755)
    with leftovers.state() as state, podman(state, None, front) as engine:
        engine.podman("load", "--quiet", f"--input={archive(busybox_tree, tmp_path / 'image')}")
        assert engine.run("--rm", NAME, *NODES).stdout == ""
    assert "annotations (cdi.k8s.io/image) name no device while the container is unprivileged" in logged(tmp_path)


@contextlib.contextmanager
def changing(directory: Path) -> Iterator[None]:
    """Let user nobody change the mode of a file of theirs, again and again, for the block."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    words = ["/usr/bin/python3", "-IBSc", LOOP, str(fd)]
    with subprocess.Popen(words, pass_fds=[fd], stdout=subprocess.PIPE) as process:
        os.close(fd)
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        try:
            yield
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    "mps", ["", 'pipe-directory = "/tmp/nvidia-mps"', 'enabled = true\npipe-directory = "/tmp/nvidia-mps"'],
    ids=["default", "CUDA's directory", "enabled"],
)  # fmt: skip
def test_a_users_directory_stops_nobody(place: Place, busybox_tree: Path, tmp_path: Path, mps: str) -> None:
    """Any user can make /tmp/nvidia-mps; it was looked at for each create, which gave up when it kept changing."""
    host = fakehost.build(str(tmp_path / "host"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    pipes = Path(host.root + "/tmp/nvidia-mps")
    pipes.parent.chmod(0o1777)
    pipes.mkdir()
    os.mkfifo(pipes / "control")
    for path in (pipes, pipes / "control"):
        os.chown(path, NOBODY, NOBODY)
    one = bundle(place, host, busybox_tree, tmp_path, mps=mps)
    ends, snapshots = [], set()
    with changing(pipes):
        for _ in range(6):
            one.ask(f"{NVD}=0", args=["ls", "/tmp"])
            done = one.run(check=False)
            ends.append((done.returncode, done.stdout, done.stderr))
            snapshots.add((tmp_path / "state/inventory.json").stat().st_mtime_ns)
    assert (ends, len(snapshots)) == ([(0, "", "")] * 6, 1)  # and the host was not looked at again
    said = "users other than root can write to /tmp; start the daemon with CUDA_MPS_PIPE_DIRECTORY=DIR"
    assert (said in logged(tmp_path)) is ("enabled" in mps)


FEATURES = [f"NVIDIA_{name}=enabled" for name in ("GDS", "MOFED", "GDRCOPY", "NVSWITCH")]


@pytest.mark.parametrize(
    "policy", [SWITCHES + "\naccept-volume-mounts = true", MULTI_TENANT], ids=["switches", "profile"]
)
def test_variables_widen_nothing_where_they_are_forbidden(
    place: Place, busybox_tree: Path, tmp_path: Path, policy: str
) -> None:
    """The GPU comes by a mount, as a device plugin gives it; the image's variables brought its neighbours too."""
    host = fakehost.build(
        str(tmp_path / "host"), 2, imex=3, mps=True, compile_cache=str(trees.TOP / ".cache/fakehost")
    )
    for name, (major, minor) in features.NODES.items():
        fakehost.tree.make_node(host.node(name), major, minor, 0o666, 0, 0)
    one = bundle(place, host, busybox_tree, tmp_path, requests=policy)
    env = [*FEATURES, "NVIDIA_IMEX_CHANNELS=0", "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"]
    look = ["sh", "-c", features.LIST + "ls -d /dev/nvidia? /run/nvidia-mps 2>/dev/null"]
    one.ask(*env, args=look, mounts=[*one.plain["mounts"], BY_MOUNT])
    assert one.run(check=False).stdout == f"/dev/nvidia{host.gpus[0].minor}\n"
    ignored = json.loads(logged(tmp_path).splitlines()[-1])["ignored"]
    assert [sentence.split()[0] for sentence in ignored] == [
        "NVIDIA_IMEX_CHANNELS", *(entry.partition("=")[0] for entry in FEATURES), "CUDA_MPS_PIPE_DIRECTORY",
    ]  # fmt: skip


def claims(folder: Path) -> None:
    """Write what drivers of Kubernetes' DRA write: a device for each claim, of which its pod alone is told."""
    (folder / "cdi").mkdir()
    for name, node in (("secret-of-a", "/dev/full"), ("secret-of-b", "/dev/zero")):
        device = {"name": name, "containerEdits": {"deviceNodes": [{"path": node, "hostPath": node}]}}
        spec = {"cdiVersion": "0.5.0", "kind": CLAIM, "devices": [device]}
        (folder / f"cdi/claim-{name}.json").write_text(json.dumps(spec))


def test_others_devices_are_not_told(place: Place, gpu_host: Host, busybox_tree: Path, tmp_path: Path) -> None:
    """A refusal listed them, and the next container could name one."""
    one = bundle(place, gpu_host, busybox_tree, tmp_path)
    claims(tmp_path)
    for name in (f"{CLAIM}=guess", "example.com/other=guess"):
        one.ask(f"{NVD}={name}", args=["true"])
        done = one.run(check=False)
        assert done.returncode == 10
        assert "gpushim cdi list shows what there is" in done.stderr
        assert "secret" not in done.stderr + one.log.read_text()


@pytest.mark.parametrize("way", ["variable", "annotation", "mount"])
def test_others_devices_are_not_given(
    place: Place, gpu_host: Host, busybox_tree: Path, tmp_path: Path, way: str
) -> None:
    """By default a container may name no device of another kind than this host's GPUs."""
    one = bundle(place, gpu_host, busybox_tree, tmp_path, requests="accept-volume-mounts = true")
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace('foreign-kinds = ["*"]\n', ""))
    claims(tmp_path)
    name = f"{CLAIM}=secret-of-b"
    mount = {**BY_MOUNT, "destination": f"/var/run/nvidia-container-devices/cdi/{CLAIM}/secret-of-b"}
    env = [f"{NVD}={name}"] if way == "variable" else []
    members = {"annotations": {"cdi.k8s.io/x": name}} if way == "annotation" else {}
    more = [mount] if way == "mount" else []
    one.ask(*env, args=["true"], **members, mounts=[*one.plain["mounts"], *more])
    done = one.run(check=False)
    assert done.returncode == 10
    assert f"[cdi] foreign-kinds does not have {CLAIM}; add it there, or let the engine do CDI" in done.stderr


def test_neighbours_gpus_are_not_told(place: Place, gpu_host: Host, busybox_tree: Path, tmp_path: Path) -> None:
    """Among strangers a refusal does not say which GPUs there are."""
    policy = f"{MULTI_TENANT}\naccept-env-when-unprivileged = true"
    one = bundle(place, gpu_host, busybox_tree, tmp_path, requests=policy)
    for name in ("7", "0:5", "GPU-00000000"):
        one.ask(f"{NVD}={name}", args=["true"])
        done = one.run(check=False)
        assert done.returncode == 10
        assert "which this host does not have; use one that it has" in done.stderr
        assert not [gpu for gpu in gpu_host.gpus if gpu.uuid in done.stderr]


def test_power_over_a_user_namespace_of_its_own(
    place: Place, gpu_host: Host, busybox_tree: Path, tmp_path: Path
) -> None:
    """CAP_SYS_ADMIN there is anybody's to have, and counted as if it were the host's."""
    requests = "accept-env-when-unprivileged = false"
    with tempfile.TemporaryDirectory(dir=scratch.top()) as name:
        Path(name).chmod(0o755)
        one = bundle(place, gpu_host, busybox_tree, Path(name), requests=requests)
        subprocess.run(["/bin/chown", "-R", f"{MAPPED}:{MAPPED}", f"{name}/root"], check=True)
        mappings = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
        linux = {**one.plain["linux"], "uidMappings": mappings, "gidMappings": mappings}
        linux["namespaces"] = [*linux["namespaces"], {"type": "user"}]
        one.plain["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
        one.ask(f"{NVD}=all", args=NODES, linux=linux)
        assert one.run().stdout == ""
        assert "accept-env-when-unprivileged is false" in logged(Path(name))
        one.ask(f"{NVD}=0", args=NODES)
        assert "nvidiactl" in one.run().stdout
