"""The hook alone under the real runc and crun, held against the same container through the shim."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import trees
from e2e.bundles import Bundle
from e2e.cdihooks import run
from e2e.expect import CONTROL_NODES, GPU_MAJOR, INSIDE, probe, sees_exactly
from e2e.hostile_places import Place
from e2e.standalone import LOOK, NAMES, alone, volume
from e2e.trees import TOP
from e2e.views import CRUN, view
from fakehost import Host

MAPPED = 100000  # the user of the host that is root in a user namespace


@pytest.fixture
def pair(debian_tree: Path, tmp_path: Path, gpushim_env: dict[str, str]) -> Iterator[tuple[Bundle, Bundle]]:
    """Two bundles with equal root file systems."""
    for way in ("shim", "hook"):
        (tmp_path / way).mkdir()
    with trees.overlay(debian_tree, tmp_path / "shim") as one, trees.overlay(debian_tree, tmp_path / "hook") as two:
        yield Bundle(tmp_path / "bundle1", one, gpushim_env), Bundle(tmp_path / "bundle2", two, gpushim_env)


@pytest.mark.parametrize("name", NAMES)
def test_the_gpus_asked_for(bundle: Bundle, gpu_host: Host, name: str) -> None:
    alone(bundle, "NVIDIA_VISIBLE_DEVICES=0,2", args=probe(gpu_host, [0, 2]), name=name)
    sees_exactly(run(bundle).stdout, gpu_host, [0, 2])


@pytest.mark.parametrize("capabilities", ["compute,utility", "utility", "all"])
def test_the_same_as_through_the_shim(pair: tuple[Bundle, Bundle], gpu_host: Host, capabilities: str) -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=0,2", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    pair[0].ask(*env, args=["python3", "-c", LOOK])
    alone(pair[1], *env, args=["python3", "-c", LOOK])
    shim, hook = json.loads(pair[0].run().stdout), json.loads(run(pair[1]).stdout)
    for part in ("nodes", "links", "files", "rules"):
        assert shim[part] == hook[part]
    assert f"c {GPU_MAJOR}:{gpu_host.gpus[0].minor} rw\n" in hook["rules"]
    # What runc makes with mknod, a hook can only bind.
    nodes = {path for path in hook["nodes"] if "nvidia" in path}
    assert {path for path in hook["mounts"] if path in nodes} == nodes
    assert all(hook["mounts"][path][1:] == ["ro,nosuid,noexec,relatime", "-"] for path in nodes)
    assert shim["mounts"].keys() == hook["mounts"].keys() - nodes
    ours = [path for path in shim["mounts"] if "nvidia" in path or "libcuda" in path]
    assert len(ours) > 5
    assert [shim["mounts"][path] for path in ours] == [hook["mounts"][path] for path in ours]


def test_crun(debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host) -> None:
    with view("v1") as prefix:
        bundle = Bundle(tmp_path / "bundle", debian_root, gpushim_env, prefix)
        alone(bundle, "NVIDIA_VISIBLE_DEVICES=1", args=probe(gpu_host, [1]))
        sees_exactly(run(bundle, CRUN).stdout, gpu_host, [1])


def test_a_container_without_a_cgroup(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], place: Place
) -> None:
    """T-CGROUP: as with Podman's --cgroups=disabled. What the hook changed there was the engine's, and others'."""
    with view("v1") as prefix:
        engine = f"/sys/fs/cgroup/devices/gpushim-engine-{os.getpid()}"
        subprocess.run([*prefix, "/bin/mkdir", engine], check=True)
        crun = tmp_path / "crun"
        crun.write_text(
            f"#!/bin/sh\necho 'c {GPU_MAJOR}:* rwm' >{engine}/devices.deny\necho $$ >{engine}/cgroup.procs\n"
            f'exec {CRUN} --cgroup-manager=disabled "$@"\n'
        )
        crun.chmod(0o755)
        bundle = Bundle(tmp_path / "bundle", debian_root, gpushim_env, prefix)
        linux = {key: value for key, value in bundle.plain["linux"].items() if key != "resources"}
        alone(bundle, "NVIDIA_VISIBLE_DEVICES=1", args=["true"], top=place.top, linux=linux)
        try:
            done = run(bundle, str(crun), check=False)
            rules = subprocess.run([*prefix, "/bin/cat", f"{engine}/devices.list"], check=True, capture_output=True)
        finally:
            subprocess.run([*prefix, "/bin/rmdir", engine], check=True)
    assert "(exit code: 16)" in done.stderr
    assert (
        "the container has no cgroup of its own"
        in Path(gpushim_env["GPUSHIM_CONFIG"]).with_name("gpushim.log").read_text()
    )
    assert str(GPU_MAJOR).encode() not in rules.stdout


def test_a_user_namespace(debian_tree: Path, gpushim_env: dict[str, str], gpu_host: Host, tmp_path: Path) -> None:
    for above in [tmp_path, *tmp_path.parents[:3]]:
        above.chmod(above.stat().st_mode | 0o055)  # the namespace's root must come in
    with trees.overlay(debian_tree, tmp_path) as root:
        chown = ["/usr/bin/find", str(root), "-type", "d", "-exec", "/bin/chown", f"{MAPPED}:{MAPPED}", "{}", "+"]
        subprocess.run(chown, check=True)
        bundle = Bundle(tmp_path / "bundle", root, gpushim_env)
        mappings = [{"containerID": 0, "hostID": MAPPED, "size": 65536}]
        linux = {**bundle.plain["linux"], "uidMappings": mappings, "gidMappings": mappings}
        linux["namespaces"] = [*linux["namespaces"], {"type": "user"}]
        alone(bundle, "NVIDIA_VISIBLE_DEVICES=0,2", args=["python3", INSIDE], linux=linux)
        report = json.loads(run(bundle).stdout)
    report["made"] = {f"{GPU_MAJOR}:{gpu_host.gpus[1].minor}": "EPERM"}  # nobody makes nodes there
    sees_exactly(json.dumps(report), gpu_host, [0, 2])


@pytest.mark.parametrize("propagation", ["private", "rprivate", "slave", "rslave", "shared", "rshared", None])
def test_nothing_is_mounted_on_the_host(bundle: Bundle, gpu_host: Host, propagation: str | None) -> None:
    script = (
        'mount --make-rshared /; cat /proc/self/mountinfo >"$0/before"; "$@"; cat /proc/self/mountinfo >"$0/after"'
    )
    bundle.prefix = ("/usr/bin/unshare", "--mount", "/bin/sh", "-ec", script, str(bundle.directory))
    linux = {**bundle.plain["linux"], "rootfsPropagation": propagation} if propagation else bundle.plain["linux"]
    alone(bundle, "NVIDIA_VISIBLE_DEVICES=0", args=probe(gpu_host, [0]), linux=linux)
    sees_exactly(run(bundle).stdout, gpu_host, [0])
    before, after = (
        # Mounts of others go when their directories go, in every namespace.
        [line for line in (bundle.directory / name).read_text().splitlines() if str(bundle.directory.parent) in line]
        for name in ("before", "after")
    )
    assert before == after


def test_volumes_that_have_everything_already(bundle: Bundle, gpu_host: Host) -> None:
    """`-v /dev:/dev` and `-v /usr/lib/x86_64-linux-gnu:...` of the very host."""
    for place in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        assert os.path.lexists(gpu_host.node(place))
    node = f"/dev/nvidia{gpu_host.gpus[0].minor}"
    mounts = [volume(Path(gpu_host.node(path[5:])), path) for path in (*CONTROL_NODES, node)]
    alone(bundle, "NVIDIA_VISIBLE_DEVICES=0", args=probe(gpu_host, [0]), mounts=[*bundle.plain["mounts"], *mounts])
    sees_exactly(run(bundle).stdout, gpu_host, [0])


@pytest.mark.parametrize("place", ["/dev", "/usr/bin"])
def test_a_volume_is_never_written(bundle: Bundle, tmp_path: Path, place: str) -> None:
    (tmp_path / "volume").mkdir()
    mounts = [*bundle.plain["mounts"], volume(tmp_path / "volume", place)]
    # Only what runc itself makes in a /dev must be there before: its links and nodes are not looked at.
    alone(bundle, "NVIDIA_VISIBLE_DEVICES=0", args=["true"], mounts=mounts)
    done = run(bundle, check=False)
    assert done.returncode
    assert "is on a volume" in done.stderr
    assert not list((tmp_path / "volume").glob("nvidia*"))


def test_a_refusal_stops_the_container_with_its_sentence(bundle: Bundle, gpu_host: Host) -> None:
    alone(bundle, "NVIDIA_VISIBLE_DEVICES=7", args=["true"])
    done = run(bundle, check=False)
    assert done.returncode
    assert gpu_host.gpus[0].uuid in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("where", ["/proc/sys/kernel/core_pattern", "/proc/1/attr/current"])
def test_a_library_that_is_a_link_to_a_file_of_the_kernels(
    bundle: Bundle, gpu_host: Host, where: str, place: Place
) -> None:
    """T-KERNEL: the driver's library was mounted on the container's procfs."""
    (bundle.rootfs / gpu_host.libdir / f"libcuda.so.{gpu_host.driver}").symlink_to(where)
    alone(bundle, "NVIDIA_VISIBLE_DEVICES=0", args=["true"], top=place.top)
    done = run(bundle, check=False)
    assert "a file system of the kernel's" in done.stderr


def test_a_large_state_of_a_container_that_asks_for_nothing(bundle: Bundle) -> None:
    alone(bundle, args=["true"], annotations={"org.example": "x" * (2 << 20)})
    assert run(bundle).returncode == 0


def test_without_a_request_nothing_happens(bundle: Bundle) -> None:
    alone(bundle, args=["sh", "-c", "ls /dev; cat /proc/self/mountinfo"])
    assert "nvidia" not in run(bundle).stdout


def test_after_the_shim_it_does_nothing(bundle: Bundle, gpu_host: Host) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2", args=probe(gpu_host, [0, 2]))
    bundle.run()
    spec = bundle.spec
    spec["hooks"]["prestart"].insert(0, {"path": str(TOP / "bin" / NAMES[1]), "args": [NAMES[1], "prestart"]})
    bundle.config.write_text(json.dumps(spec))
    # Without GPUSHIM_CONFIG it would refuse: this host has no GPU.
    sees_exactly(run(bundle).stdout, gpu_host, [0, 2])
