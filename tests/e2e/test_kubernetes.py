"""What a runtime must make of Kubernetes' allocations: variables, mounts, annotations; the shim before the real runc.

Each case has its name from the list R-ENV-UUID to R-USERNS; test_kubernetes_pods.py and test_kubernetes_cri.py have
the others.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e.allocated import (
    DEVICES,
    FOLDER,
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
from e2e.test_runc import mig_host as mig_host
from fakehost import Host
from gpushim.ground.errors import BUNDLE, REQUEST

BY_MOUNTS = "accept-volume-mounts = true"
NOT_BY_ENV = "accept-env-when-unprivileged = false"
OPERATOR = "nvidia.cdi.k8s.io/"


@pytest.fixture
def by_mounts(gpu_host: Host, debian_root: Path, tmp_path: Path) -> Bundle:
    """One where device-list mounts count."""
    return on(gpu_host, debian_root, tmp_path, requests=BY_MOUNTS)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_r_env_uuid(bundle: Bundle, gpu_host: Host, index: int) -> None:
    sees_exactly(look(bundle, envvar(*uuids(gpu_host, index)), gpu_host, [index]), gpu_host, [index])


@pytest.mark.parametrize(
    ("wanted", "given"),
    [("{0.uuid},{2.uuid}", [0, 2]), ("{2.uuid},{0.uuid},{2.uuid}", [2, 0]), ("0,1", [0, 1]), ("2,2", [2])],
)
def test_r_env_list(bundle: Bundle, gpu_host: Host, wanted: str, given: list[int]) -> None:
    value = wanted.format(*gpu_host.gpus)
    report = look(bundle, envvar(value), gpu_host, sorted(given))
    sees_exactly(report, gpu_host, sorted(given))
    assert json.loads(report)["env"][DEVICES] == value
    assert logged(bundle)["gpus"] == uuids(gpu_host, *given)


@pytest.mark.parametrize("form", ["0:1", "{mig.uuid}", "MIG-{gpu.uuid}/{mig.gi}/{mig.ci}"])
def test_r_env_list_mig(debian_root: Path, tmp_path: Path, mig_host: Host, form: str) -> None:
    parent, (other, mig) = mig_host.gpus[0], mig_host.gpus[0].mig
    report = json.loads(
        look(on(mig_host, debian_root, tmp_path), envvar(form.format(gpu=parent, mig=mig)), mig_host, [0])
    )
    caps = (fakehost.gi_cap(parent.minor, mig.gi), fakehost.ci_cap(parent.minor, mig.gi, mig.ci))
    nodes = [*CONTROL_NODES, f"/dev/nvidia{parent.minor}", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)]
    assert report["nodes"] == dict.fromkeys(sorted(nodes), "ENXIO")
    assert mig.uuid in report["nvidia-smi"]
    assert other.uuid not in report["nvidia-smi"]


@pytest.mark.parametrize("env", [{DEVICES: ""}, {}, {DEVICES: "void"}], ids=["empty", "unset", "void"])
def test_r_env_empty(bundle: Bundle, gpu_host: Host, env: dict[str, str]) -> None:
    write(bundle, Answer(envs=env), probe(gpu_host, []))
    sees_nothing(untouched(bundle))


def test_r_env_empty_none(bundle: Bundle, gpu_host: Host) -> None:
    report = json.loads(look(bundle, envvar("none"), gpu_host, []))
    assert report["nodes"] == dict.fromkeys(CONTROL_NODES, "ENXIO")
    assert set(report["made"].values()) == {"EPERM"}
    assert (set(report["libraries"].values()), report["uuids"]) == ({"loads"}, [])


def test_r_env_empty_all(bundle: Bundle, gpu_host: Host) -> None:
    sees_exactly(look(bundle, envvar("all"), gpu_host, [0, 1, 2]), gpu_host, [0, 1, 2])


@pytest.mark.parametrize(
    ("values", "indices"), [(["{0.uuid}", "{1.uuid}"], [1]), (["all", "{2.uuid}"], [2]), (["0", "1", "0,1"], [0, 1])]
)
def test_r_env_dup(bundle: Bundle, gpu_host: Host, values: list[str], indices: list[int]) -> None:
    """An engine that does not tidy up leaves the image's, the plugin's and the pod's one after the other."""
    wanted = [value.format(*gpu_host.gpus) for value in values]
    report = bundle.look(gpu_host, indices, *(f"{DEVICES}={value}" for value in wanted))
    sees_exactly(report, gpu_host, indices)
    assert json.loads(report)["env"][DEVICES] == wanted[-1]
    assert [entry for entry in bundle.spec["process"]["env"] if DEVICES in entry] == [f"{DEVICES}={wanted[-1]}"]


def test_r_env_dup_of_image_and_plugin(bundle: Bundle, gpu_host: Host) -> None:
    report = look(bundle, envvar(*uuids(gpu_host, 1)), gpu_host, [1], image={DEVICES: "all"})
    sees_exactly(report, gpu_host, [1])


def test_r_env_unpriv(gpu_host: Host, debian_root: Path, tmp_path: Path) -> None:
    bundle = on(gpu_host, debian_root, tmp_path, requests=NOT_BY_ENV)
    write(bundle, envvar(*uuids(gpu_host, 0)), probe(gpu_host, []))
    sees_nothing(untouched(bundle))
    line = logged(bundle)
    assert (line["level"], line["msg"]) == ("warning", "no GPU")
    assert "[requests] accept-env-when-unprivileged is false" in line["ignored"][0]
    sees_exactly(look(privileged(bundle), envvar(*uuids(gpu_host, 0)), gpu_host, [0]), gpu_host, [0])


@pytest.mark.parametrize("source", ["/dev/null", "/dev/../dev//null"])
@pytest.mark.parametrize("form", ["{}", "cdi/nvidia.com/gpu/{}", "cdi/nvidia.com/gpu={}"])
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


def test_r_vol_not_accepted(bundle: Bundle, gpu_host: Host) -> None:
    said = refused(bundle, volume_mounts(*uuids(gpu_host, 0)), REQUEST)
    assert f"mounts below {FOLDER} name the devices, but [requests] accept-volume-mounts is false" in said


@pytest.mark.parametrize("source", ["/dev/zero", "/etc/hostname"])
def test_r_vol_of_other_source(by_mounts: Bundle, gpu_host: Host, source: str) -> None:
    said = refused(by_mounts, volume_mounts(*uuids(gpu_host, 0), source=source), REQUEST)
    assert "but no mount below it names one" in said


def test_r_vol_imex(busybox_tree: Path, tmp_path: Path) -> None:
    host = built(tmp_path, 2, imex=2)
    root = shutil.copytree(busybox_tree, tmp_path / "root", symlinks=True)
    bundle = on(host, root, tmp_path, requests=BY_MOUNTS)
    write(
        bundle,
        volume_mounts(host.gpus[1].uuid, "imex/1"),
        ["sh", "-c", "cd /dev; ls -d nvidia[0-9]* nvidia-*/channel*"],
    )
    said = bundle.run().stdout.split()
    assert said == ["nvidia-caps-imex-channels/channel1", f"nvidia{host.gpus[1].minor}"]
    # A channel alone asks for no GPU.
    only = volume_mounts("imex/1")
    del only.envs[DEVICES]
    write(bundle, only, ["sh", "-c", "ls -d /dev/nvidia* || echo nothing"])
    assert untouched(bundle) == "nothing\n"


@pytest.mark.parametrize("value", ["all", "{0.uuid},{2.uuid}", "7", "none"])
def test_r_vol_prec(by_mounts: Bundle, gpu_host: Host, value: str) -> None:
    pod = {DEVICES: value.format(*gpu_host.gpus)}
    sees_exactly(look(by_mounts, volume_mounts(*uuids(gpu_host, 1)), gpu_host, [1], pod=pod), gpu_host, [1])


@pytest.mark.parametrize("prefix", ["cdi.k8s.io/", OPERATOR])
def test_r_ann(gpu_host: Host, debian_root: Path, tmp_path: Path, prefix: str) -> None:
    bundle = on(gpu_host, debian_root, tmp_path, cdi=f'annotation-prefixes = ["cdi.k8s.io/", "{OPERATOR}"]')
    names = {prefix + "b": "nvidia.com/gpu=0", prefix + "a": f"nvidia.com/gpu={gpu_host.gpus[2].uuid}"}
    report = look(bundle, Answer(annotations=names), gpu_host, [0, 2])
    sees_exactly(report, gpu_host, [0, 2])
    assert json.loads(report)["env"][DEVICES] == ",".join(uuids(gpu_host, 2, 0))  # keys in order
    both = Answer(annotations={prefix + "a": "nvidia.com/gpu=1,nvidia.com/gpu=2"}, envs={DEVICES: "0"})
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


@pytest.mark.parametrize("specs", [False, True])
@pytest.mark.parametrize("apart", [False, True])
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


@pytest.mark.parametrize("way", [envvar, volume_mounts, cdi_annotations, "annotation of our own kind"])
def test_r_share(by_mounts: Bundle, gpu_host: Host, way: Any) -> None:
    replica = f"{gpu_host.gpus[0].uuid}::1"
    own = Answer(annotations={"cdi.k8s.io/x": f"nvidia.com/gpu={replica}"})
    said = refused(by_mounts, own if isinstance(way, str) else way(replica), REQUEST)
    assert replica in said
    if way is not cdi_annotations:  # else it is a device of a spec that nobody has
        assert 'name the device without "::"' in said
