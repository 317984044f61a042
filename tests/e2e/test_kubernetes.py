"""What a runtime must make of Kubernetes' allocations: variables, mounts, annotations; the shim before the real runc.

Here is what a device plugin's answer brings into config.json and nobody else does; what the requests in it mean is in
unit/gpushim/oci, and that they count with runc in test_runc.py, test_features.py and test_cdi_in.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from e2e.allocated import (
    DEVICES,
    KIND,
    Answer,
    built,
    cdi_annotations,
    device_specs,
    envvar,
    logged,
    look,
    on,
    plugin_spec,
    privileged,
    refused,
    untouched,
    uuids,
    volume_mounts,
    write,
)
from e2e.bundles import Bundle
from e2e.expect import CONTROL_NODES, GPU_MAJOR, MODESET_NODE, probe, sees_by_cdi, sees_exactly, sees_nothing
from e2e.runchosts import PURE_V1_PREFIX
from e2e.runchosts import mig_host as mig_host
from e2e.views import view
from e2e.witness import RUNC
from fakehost import Host
from gpushim.ground.errors import BUNDLE, REQUEST

BY_MOUNTS = "accept-volume-mounts = true"
OPERATOR = "nvidia.cdi.k8s.io/"
# What images of CUDA say about themselves.
CUDA = {
    "CUDA_VERSION": "12.2.2",
    DEVICES: "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_REQUIRE_CUDA": "cuda>=12.2",
}
PIPES = "/mps/nvidia.com/gpu/pipe"
PROGRAMS = ["/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-server"]
TALK = """
cat $CUDA_MPS_PIPE_DIRECTORY/control; echo pipe >$CUDA_MPS_PIPE_DIRECTORY/said; echo shm >/dev/shm/said
ls /tmp/nvidia-mps /usr/bin/nvidia-cuda-mps* 2>/dev/null
true
"""


@pytest.fixture
def by_mounts(gpu_host: Host, debian_root: Path, tmp_path: Path) -> Bundle:
    """One where device-list mounts count."""
    return on(gpu_host, debian_root, tmp_path, requests=BY_MOUNTS)


@pytest.mark.parametrize(
    ("form", "source"), [("{}", "/dev/null"), ("cdi/nvidia.com/gpu/{}", "/dev/../dev//null")], ids=["uuid", "cdi"]
)
def test_r_vol(by_mounts: Bundle, gpu_host: Host, form: str, source: str) -> None:
    names = [form.format(uuid) for uuid in uuids(gpu_host, 0, 2)]
    report = look(by_mounts, volume_mounts(*names, source=source), gpu_host, [0, 2])
    sees_exactly(report, gpu_host, [0, 2])
    # What the variable said was no device; whoever looks in the container finds which it has.
    assert sorted(json.loads(report)["env"][DEVICES].split(",")) == sorted(uuids(gpu_host, 0, 2))


def test_r_vol_of_foreign_kind(by_mounts: Bundle, gpu_host: Host, cdi_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/plugin.json").write_text(json.dumps(plugin_spec(cdi_dir, gpu_host)))
    report = look(by_mounts, volume_mounts(f"cdi/{KIND}/{gpu_host.gpus[1].uuid}"), gpu_host, [1])
    sees_by_cdi(report, gpu_host, [1])


def test_r_vol_prec(by_mounts: Bundle, gpu_host: Host) -> None:
    answer = volume_mounts(*uuids(gpu_host, 1))
    sees_exactly(look(by_mounts, answer, gpu_host, [1], pod={DEVICES: "all"}), gpu_host, [1])


def test_r_ann(gpu_host: Host, debian_root: Path, tmp_path: Path) -> None:
    bundle = on(gpu_host, debian_root, tmp_path, cdi=f'annotation-prefixes = ["cdi.k8s.io/", "{OPERATOR}"]')
    names = {"cdi.k8s.io/b": "nvidia.com/gpu=0", OPERATOR + "a": f"nvidia.com/gpu={gpu_host.gpus[2].uuid}"}
    report = look(bundle, Answer(annotations=names), gpu_host, [0, 2])
    sees_exactly(report, gpu_host, [0, 2])
    assert json.loads(report)["env"][DEVICES] == ",".join(uuids(gpu_host, 0, 2))  # keys in order
    both = Answer(annotations={OPERATOR + "a": "nvidia.com/gpu=1,nvidia.com/gpu=2"}, envs={DEVICES: "0"})
    sees_exactly(look(bundle, both, gpu_host, [1, 2]), gpu_host, [1, 2])


@pytest.mark.parametrize("engine", ["did it", "knows another prefix"])
def test_r_ann_untouched(bundle: Bundle, gpu_host: Host, engine: str) -> None:
    if engine == "did it":
        answer = cdi_annotations(*uuids(gpu_host, 0))
        answer.envs[DEVICES] = "void"  # by the edits that every spec has
        answer.devices = device_specs(gpu_host, [0])
    else:
        answer = cdi_annotations(*uuids(gpu_host, 0), prefix=OPERATOR)
    write(bundle, answer, ["python3", "-c", "import glob; print(*glob.glob('/dev/nvidia*'))"])
    assert untouched(bundle).split() == list(answer.devices)


def test_r_ann_k8s(gpu_host: Host, debian_root: Path, cdi_dir: Path, tmp_path: Path) -> None:
    bundle = on(gpu_host, debian_root, tmp_path)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/k8s.device-plugin.nvidia.com-gpu.json").write_text(json.dumps(plugin_spec(cdi_dir, gpu_host)))
    edits = {"env": ["CARD=yes"], "deviceNodes": [{"path": "/dev/card0", "hostPath": "/dev/full"}]}
    card: dict[str, Any] = {"cdiVersion": "0.5.0", "kind": "vendor.com/card"}
    card["devices"] = [{"name": "a", "containerEdits": edits}]
    (tmp_path / "cdi/vendor.json").write_text(json.dumps(card))
    report = look(bundle, cdi_annotations(*uuids(gpu_host, 0, 2)), gpu_host, [0, 2])
    sees_by_cdi(report, gpu_host, [0, 2])
    assert json.loads(report)["env"][DEVICES] == "void"
    write(
        bundle, Answer(annotations={"cdi.k8s.io/x": "vendor.com/card=a"}), ["sh", "-c", "echo $CARD; ls /dev/card0"]
    )
    assert bundle.run().stdout == "yes\n/dev/card0\n"


@pytest.mark.parametrize("control", [[], ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]])
def test_r_specs(bundle: Bundle, gpu_host: Host, control: list[str]) -> None:
    answer = envvar(*uuids(gpu_host, 1))
    answer.devices = device_specs(gpu_host, [1], *control)
    report = look(bundle, answer, gpu_host, [1])
    (sees_by_cdi if control else sees_exactly)(report, gpu_host, [1])
    linux = bundle.spec["linux"]
    paths = [device["path"] for device in linux["devices"]]
    assert sorted(paths) == sorted({*answer.devices, *CONTROL_NODES, *([MODESET_NODE] if control else [])})
    allowed = [(rule["major"], rule["minor"]) for rule in linux["resources"]["devices"] if rule["allow"]]
    assert len(allowed) == len(set(allowed)) == len(paths)


def test_r_specs_of_another_device(bundle: Bundle, gpu_host: Host) -> None:
    """The plugin and the host do not agree which GPU a node is: no container gets a wrong one in silence."""
    answer = envvar(*uuids(gpu_host, 1))
    answer.devices = {f"/dev/nvidia{gpu_host.gpus[1].minor}": gpu_host.node(f"nvidia{gpu_host.gpus[0].minor}")}
    wrong = f"{GPU_MAJOR}:{gpu_host.gpus[0].minor} instead of {GPU_MAJOR}:{gpu_host.gpus[1].minor}"
    assert f"as device {wrong}" in refused(bundle, answer, BUNDLE)


@pytest.mark.parametrize(("apart", "specs"), [(False, False), (True, True)])
def test_r_devroot(debian_root: Path, tmp_path: Path, apart: bool, specs: bool) -> None:
    """A driver container: its nodes are below the driver's root, or in a /dev of the host's."""
    host = built(tmp_path, 2, dev_root=str(tmp_path / "nodes") if apart else None)
    assert Path(host.root, "dev/nvidiactl").exists() != apart
    bundle = on(host, debian_root, tmp_path)
    config = Path(bundle.env["GPUSHIM_CONFIG"])
    config.write_text(config.read_text().replace(f'dev-root = "{host.root}"', f'dev-root = "{host.dev_root}"'))
    answer = envvar(host.gpus[1].uuid)
    if specs:
        answer.devices = device_specs(host, [1], "nvidiactl", "nvidia-uvm")
    sees_exactly(look(bundle, answer, host, [1]), host, [1])


@pytest.mark.parametrize("capabilities", ["utility", "compute"])
def test_r_mps(debian_root: Path, tmp_path: Path, capabilities: str) -> None:
    """The daemon is the plugin's: its mounts stay as they are, and the directory of the host's own stays out."""
    host = built(tmp_path, 1, mps=True)
    bundle = on(host, debian_root, tmp_path)
    for name in ("pipe", "shm"):
        (tmp_path / name).mkdir()
    (tmp_path / "pipe/control").write_text("daemon\n")
    # An engine leaves its own /dev/shm out where the container brings one.
    bundle.plain["mounts"] = [mount for mount in bundle.plain["mounts"] if mount["destination"] != "/dev/shm"]
    answer = envvar(host.gpus[0].uuid, CUDA_MPS_PIPE_DIRECTORY=PIPES)
    answer.mounts = {PIPES: str(tmp_path / "pipe"), "/dev/shm": str(tmp_path / "shm")}
    write(bundle, answer, ["sh", "-c", TALK], pod={"NVIDIA_DRIVER_CAPABILITIES": capabilities})
    before = bundle.spec
    assert bundle.run().stdout.splitlines() == ["daemon", *(PROGRAMS if "compute" in capabilities else [])]
    assert [(tmp_path / name / "said").read_text() for name in ("pipe", "shm")] == ["pipe\n", "shm\n"]
    assert bundle.spec["mounts"][: len(before["mounts"])] == before["mounts"]
    assert f"CUDA_MPS_PIPE_DIRECTORY={PIPES}" in bundle.spec["process"]["env"]


@pytest.mark.parametrize(("what", "cap"), [("CONFIG", 1), ("MONITOR", 2)])
def test_r_plugin_self_mig(debian_root: Path, tmp_path: Path, mig_host: Host, what: str, cap: int) -> None:
    bundle, node = on(mig_host, debian_root, tmp_path), f"/dev/nvidia-caps/nvidia-cap{cap}"
    variable = f"NVIDIA_MIG_{what}_DEVICES"
    answer = envvar("all", **{variable: "all"})
    assert f"{variable} needs a container with CAP_SYS_ADMIN" in refused(bundle, answer, REQUEST)
    report = json.loads(look(privileged(bundle), answer, mig_host, [0, 1]))
    assert report["nodes"][node] == "ENXIO"
    del answer.envs[variable]
    assert node not in json.loads(look(bundle, answer, mig_host, [0, 1]))["nodes"]


def test_r_noreq_closed(gpu_host: Host, debian_root: Path, tmp_path: Path) -> None:
    policy = "accept-env-when-unprivileged = false\naccept-volume-mounts = true"
    bundle = on(gpu_host, debian_root, tmp_path, requests=policy)
    for image in (CUDA, {"CUDA_VERSION": "8.0"}):
        write(bundle, Answer(), probe(gpu_host, []), image=image)
        sees_nothing(untouched(bundle))
        assert "[requests] accept-env-when-unprivileged is false" in logged(bundle)["ignored"][0]
    # What the plugin says still counts.
    sees_exactly(look(bundle, volume_mounts(*uuids(gpu_host, 1)), gpu_host, [1], image=CUDA), gpu_host, [1])


def test_r_init_restart(bundle: Bundle, gpu_host: Host) -> None:
    """A restarted container gets its own again."""
    answer = envvar(*uuids(gpu_host, 0, 2))
    answer.devices = device_specs(gpu_host, [0, 2])
    write(bundle, answer, ["sleep", "1000"])
    with bundle.created():
        first, inode = bundle.config.read_bytes(), bundle.config.stat().st_ino
    with bundle.created():  # the same bundle again
        assert (bundle.config.read_bytes(), bundle.config.stat().st_ino) == (first, inode)
        bundle.call("start", bundle.id)
        sees_exactly(bundle.call("exec", bundle.id, *probe(gpu_host, [0, 2])).stdout, gpu_host, [0, 2])
    write(bundle, answer, ["sleep", "1000"])
    with bundle.created():  # a bundle made again
        assert bundle.config.read_bytes() == first


def test_r_gone(debian_root: Path, tmp_path: Path) -> None:
    host = built(tmp_path, 3)
    bundle = on(host, debian_root, tmp_path, requests=BY_MOUNTS)
    answer = volume_mounts(*uuids(host, 1, 2))
    sees_exactly(look(bundle, answer, host, [1, 2]), host, [1, 2])
    gone = host.gpus[2].uuid
    host = built(tmp_path, 2)
    assert gone in refused(bundle, answer, REQUEST)
    sees_exactly(look(bundle, volume_mounts(*uuids(host, 1)), host, [1]), host, [1])


@pytest.mark.parametrize("right", ["cdi", "state/cdi"])
def test_r_stalecdi_in_two_directories(
    gpu_host: Host, debian_root: Path, cdi_dir: Path, tmp_path: Path, right: str
) -> None:
    """The shim looks for specs in cdi/ and then in state/cdi/, as in /etc/cdi and then /var/run/cdi."""
    spec = plugin_spec(cdi_dir, gpu_host)
    swapped = json.loads(json.dumps(spec))
    first, second, _ = swapped["devices"]
    first["name"], second["name"] = second["name"], first["name"]
    for name in ("cdi", "state/cdi"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "plugin.json").write_text(json.dumps(spec if name == right else swapped))
    given = 0 if right == "state/cdi" else 1
    report = look(on(gpu_host, debian_root, tmp_path), cdi_annotations(spec["devices"][0]["name"]), gpu_host, [given])
    sees_by_cdi(report, gpu_host, [given])


@pytest.mark.parametrize(("layout", "resources"), [("hybrid", {"cpu": {"shares": 512}}), ("v2", {})])
def test_r_cgroup(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, layout: str, resources: object
) -> None:
    """CPUManager and the vertical autoscaler change running containers, which is `runc update`."""
    change = tmp_path / "resources.json"
    change.write_text(json.dumps(resources))
    with view(layout) as prefix:
        bundle = Bundle(tmp_path / "bundle", debian_root, gpushim_env, prefix)
        write(bundle, envvar(*uuids(gpu_host, 0, 2)), ["sleep", "1000"])
        with bundle.created():
            bundle.call("start", bundle.id)
            bundle.call("update", "--resources", str(change), bundle.id)
            output = bundle.call("exec", bundle.id, *probe(gpu_host, [0, 2])).stdout
    sees_exactly(output, gpu_host, [0, 2])


@pytest.mark.parametrize(
    ("names", "first"),
    [(["crun", "runc"], "crun"), (["crun-is-not-here", "runc"], "runc")],
)
def test_r_crio(debian_root: Path, tmp_path: Path, gpu_host: Host, names: list[str], first: str) -> None:
    """conmon's words, but for a systemd that is not here; crun needs a cgroup layout that runc knows too."""
    bundle = on(gpu_host, debian_root, tmp_path)
    bundle.prefix = PURE_V1_PREFIX
    config = Path(bundle.env["GPUSHIM_CONFIG"])
    config.write_text(config.read_text().replace(json.dumps([RUNC]), json.dumps(names)))
    assert bundle.call("--version").stdout.startswith(f"{first} ")
    write(bundle, envvar(*uuids(gpu_host, 1)), ["sleep", "1000"])
    pid = bundle.directory / "pid"
    bundle.call("--log-format=json", "create", "--bundle", str(bundle.directory), "--pid-file", str(pid), bundle.id)
    try:
        assert os.path.exists(f"/proc/{pid.read_text()}")
        bundle.call("start", bundle.id)
        sees_exactly(bundle.call("exec", bundle.id, *probe(gpu_host, [1])).stdout, gpu_host, [1])
    finally:
        bundle.call("delete", "--force", bundle.id)
