"""What a runtime must make of Kubernetes' allocations, second part: what else a pod says, and what happens to it.

The cases' names are from the same list as those in test_kubernetes.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e import engines, test_features
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
from e2e.expect import probe, sees_by_cdi, sees_exactly, sees_nothing
from e2e.test_features import seen
from e2e.test_runc import mig_host as mig_host
from e2e.trees import TOP
from fakehost import Host
from gpushim.ground.errors import REQUEST

CHANNELS = "nvidia-caps-imex-channels/channel"
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

host = test_features.host
features = test_features.bundle


@pytest.mark.parametrize(
    ("env", "nodes"),
    [
        (["NVIDIA_GDRCOPY=enabled"], ["gdrdrv"]),
        (["NVIDIA_MOFED=enabled"], ["infiniband/rdma_cm", "infiniband/uverbs0"]),
        (["NVIDIA_GDS=enabled"], ["nvidia-fs0", "nvidia-fs1", "cufile", "data"]),
        (["NVIDIA_GDS=1", "NVIDIA_MOFED=true", "NVIDIA_GDRCOPY=ENABLED"], []),
        ([f"{DEVICES}=none", "NVIDIA_GDRCOPY=enabled"], []),
        ([f"{DEVICES}=", "NVIDIA_GDRCOPY=enabled"], []),
    ],
)
def test_r_gated(features: Bundle, env: list[str], nodes: list[str]) -> None:
    assert seen(features, *env) == nodes


def test_r_gated_missing(gpu_host: Host, bundle: Bundle) -> None:
    answer = envvar(*uuids(gpu_host, 1), NVIDIA_GDS="enabled", NVIDIA_MOFED="enabled", NVIDIA_GDRCOPY="enabled")
    sees_exactly(look(bundle, answer, gpu_host, [1]), gpu_host, [1])


@pytest.mark.parametrize(("value", "nodes"), [("0", [CHANNELS + "0"]), ("all", [])])
def test_r_imex(features: Bundle, value: str, nodes: list[str]) -> None:
    assert seen(features, f"NVIDIA_IMEX_CHANNELS={value}") == nodes


def test_r_imex_missing(features: Bundle) -> None:
    with pytest.raises(AssertionError, match="asks for the IMEX channel 7, but there is no"):
        seen(features, "NVIDIA_IMEX_CHANNELS=7")


def test_r_imex_switched_off(host: Host, debian_root: Path, tmp_path: Path) -> None:
    off = on(host, debian_root, tmp_path, requests="ignore-imex-channel-requests = true")
    assert seen(off, "NVIDIA_IMEX_CHANNELS=0") == []


@pytest.mark.parametrize("capabilities", ["compute,utility", "utility", "compute"])
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
    mounts = bundle.spec["mounts"]
    assert mounts[: len(before["mounts"])] == before["mounts"]
    assert f"CUDA_MPS_PIPE_DIRECTORY={PIPES}" in bundle.spec["process"]["env"]
    sockets = {
        mount["destination"]: "ro" in mount["options"] for mount in mounts if "/socket" in mount["destination"]
    }
    assert sockets == ({"/run/nvidia-persistenced/socket": True} if "utility" in capabilities else {})


def test_r_plugin_self(bundle: Bundle, gpu_host: Host) -> None:
    sees_exactly(look(bundle, Answer(), gpu_host, [0, 1, 2], image={DEVICES: "all"}), gpu_host, [0, 1, 2])


def test_r_plugin_self_without_a_request(bundle: Bundle, gpu_host: Host) -> None:
    write(bundle, Answer(), probe(gpu_host, []))
    sees_nothing(untouched(bundle))


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


def test_r_noreq(bundle: Bundle, gpu_host: Host) -> None:
    """The hazard that the pages name: nobody asked for a GPU, and the image's own variable counts."""
    sees_exactly(look(bundle, Answer(), gpu_host, [0, 1, 2], image=CUDA), gpu_host, [0, 1, 2])


def test_r_noreq_closed(gpu_host: Host, debian_root: Path, tmp_path: Path) -> None:
    policy = "accept-env-when-unprivileged = false\naccept-volume-mounts = true"
    bundle = on(gpu_host, debian_root, tmp_path, requests=policy)
    for image in (CUDA, {"CUDA_VERSION": "8.0"}):
        write(bundle, Answer(), probe(gpu_host, []), image=image)
        sees_nothing(untouched(bundle))
        assert "[requests] accept-env-when-unprivileged is false" in logged(bundle)["ignored"][0]
    # What the plugin says still counts.
    sees_exactly(look(bundle, volume_mounts(*uuids(gpu_host, 1)), gpu_host, [1], image=CUDA), gpu_host, [1])


@pytest.mark.parametrize("others", [[], ["init", "sidecar"]], ids=["alone", "several"])
def test_r_init_restart(bundle: Bundle, gpu_host: Host, tmp_path: Path, others: list[str]) -> None:
    """Containers of a pod may share one answer; a restarted one gets its own again."""
    answer = envvar(*uuids(gpu_host, 0, 2))
    answer.devices = device_specs(gpu_host, [0, 2])
    for name in others:
        one = Bundle(tmp_path / name, bundle.rootfs, bundle.env)
        sees_exactly(look(one, answer, gpu_host, [0, 2]), gpu_host, [0, 2])
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


@pytest.mark.parametrize("way", [envvar, volume_mounts])
def test_r_gone(debian_root: Path, tmp_path: Path, way: Callable[..., Answer]) -> None:
    host = built(tmp_path, 3)
    bundle = on(host, debian_root, tmp_path, requests="accept-volume-mounts = true")
    answer = way(*uuids(host, 1, 2))
    sees_exactly(look(bundle, answer, host, [1, 2]), host, [1, 2])
    gone = host.gpus[2].uuid
    host = built(tmp_path, 2)
    assert gone in refused(bundle, answer, REQUEST)
    sees_exactly(look(bundle, way(*uuids(host, 1)), host, [1]), host, [1])


@pytest.mark.parametrize("how", ["elsewhere", "in the same place"])
def test_r_gone_mig(debian_root: Path, tmp_path: Path, how: str) -> None:
    host = built(tmp_path, 1, mig={0: ["3g.20gb"]})
    bundle = on(host, debian_root, tmp_path)
    answer, gone = envvar(host.gpus[0].mig[0].uuid), host.gpus[0].mig[0].uuid
    assert gone in json.loads(look(bundle, answer, host, [0]))["nvidia-smi"]
    if how == "elsewhere":
        host.set_mig(0, ["2g.10gb", "2g.10gb"])
    else:  # nothing but NVML tells the new one from the old
        host.set_mig(0, [(host.gpus[0].mig[0].gi, 0, "3g.20gb", "MIG-5b5bf95f-4b5c-4ac5-b7f4-1f7a2bb0a001")])
        engines.run(
            [str(TOP / "bin" / "gpushim"), "refresh", "--force"], env={"PATH": engines.SYSTEM_PATH, **bundle.env}
        )
    assert gone in refused(bundle, answer, REQUEST)


@pytest.fixture
def with_specs(gpu_host: Host, debian_root: Path, tmp_path: Path) -> Bundle:
    """A bundle whose shim looks for specs in cdi/ and then in state/cdi/, as in /etc/cdi and then /var/run/cdi."""
    for name in ("cdi", "state/cdi"):
        (tmp_path / name).mkdir(parents=True)
    return on(gpu_host, debian_root, tmp_path)


def test_r_stalecdi(with_specs: Bundle, gpu_host: Host, cdi_dir: Path, tmp_path: Path) -> None:
    """The spec is written again between Allocate and create."""
    path, spec = tmp_path / "cdi/plugin.json", plugin_spec(cdi_dir, gpu_host)
    answer = cdi_annotations(*uuids(gpu_host, 1))
    path.write_text(
        json.dumps(
            {**spec, "devices": [each for each in spec["devices"] if gpu_host.gpus[1].uuid not in each["name"]]}
        )
    )
    assert f'has the device "{KIND}={gpu_host.gpus[1].uuid}"' in refused(with_specs, answer, REQUEST)
    path.write_text(json.dumps(spec))
    sees_by_cdi(look(with_specs, answer, gpu_host, [1]), gpu_host, [1])


def test_r_stalecdi_beside_a_bad_one(with_specs: Bundle, gpu_host: Host, cdi_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "cdi/plugin.json").write_text(json.dumps(plugin_spec(cdi_dir, gpu_host)))
    (tmp_path / "cdi/bad.json").write_text('{"kind": "' + KIND)
    (tmp_path / "cdi/loop.json").symlink_to("loop.json")
    (tmp_path / "state/cdi/bad.yaml").write_text(f"kind: {KIND}\ndevices: [")
    sees_by_cdi(look(with_specs, cdi_annotations(*uuids(gpu_host, 1)), gpu_host, [1]), gpu_host, [1])


@pytest.mark.parametrize("right", ["cdi", "state/cdi"])
def test_r_stalecdi_in_two_directories(
    with_specs: Bundle, gpu_host: Host, cdi_dir: Path, tmp_path: Path, right: str
) -> None:
    spec = plugin_spec(cdi_dir, gpu_host)
    swapped = json.loads(json.dumps(spec))
    first, second, _ = swapped["devices"]
    first["name"], second["name"] = second["name"], first["name"]
    for name in ("cdi", "state/cdi"):
        (tmp_path / name / "plugin.json").write_text(json.dumps(spec if name == right else swapped))
    given = 0 if right == "state/cdi" else 1
    report = look(with_specs, cdi_annotations(spec["devices"][0]["name"]), gpu_host, [given])
    sees_by_cdi(report, gpu_host, [given])
