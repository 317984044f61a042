"""What explain says is what a real create does, on a simulated host, and why, for a snapshot."""

from __future__ import annotations

import copy
import json
import posix
import subprocess
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e.witness import settings
from gpushim.create import ahead
from gpushim.decision import memory
from gpushim.explain.explain import build_spec, explain
from gpushim.ground.errors import BUNDLE, CONFIG, INVENTORY, NOT_FOUND, REQUEST
from gpushim.oci import edits
from gpushim.oci.edits import Edit
from unit.gpuhook.sandbox import forked
from unit.gpushim.decision import inventories
from unit.gpushim.explain.explanations import DEVICES, asked, shape
from unit.gpushim.explain.explanations import known as known

TOP = Path(__file__).parents[4]


NODES = [env for env, *_ in inventories.NODE_CASES]
FILES = [env for env, *_ in inventories.FILE_CASES]
FILES += [[f"NVIDIA_DRIVER_CAPABILITIES={names}"] for names, *_ in inventories.CAPABILITY_CASES]
REFUSED = [[f"{DEVICES}=0,{item}"] for item in ("7", "GPU-99999999", "2:5", "evil.com/gpu=0")]
REFUSED += [[f"{DEVICES}=0", entry] for entry in ("NVIDIA_DRIVER_CAPABILITIES=x", "NVIDIA_REQUIRE_CUDA=cuda>=99")]


def told(report: dict[str, Any]) -> list[Edit]:
    return [Edit(edit["kind"], edit["value"]) for edit in report["edits"]]


@pytest.mark.parametrize(
    ("env", "path", "words"),
    [
        ([f"{DEVICES}=0"], "/dev/nvidia1", 'GPU 0, asked for as "0"'),
        ([f"{DEVICES}=all"], "/dev/nvidia2", 'GPU 1, asked for as "all"'),
        ([f"{DEVICES}=2:0"], "/dev/nvidia0", 'MIG instance 2:0, asked for as "2:0"'),
        ([f"{DEVICES}=0"], "/dev/nvidia-uvm", "CUDA needs it: capability compute"),
        ([f"{DEVICES}=0", "NVIDIA_DRIVER_CAPABILITIES=display"], "/glx", "capability display brings graphics"),
        (
            [f"{DEVICES}=0", "NVIDIA_DRIVER_CAPABILITIES=video"],
            inventories.LIBRARY["path"],
            "capability video loads it",
        ),
        ([f"{DEVICES}=0", "NVIDIA_GDS=enabled"], "/etc/cufile.json", "feature gds: NVIDIA_GDS=enabled"),
        ([f"{DEVICES}=0", "NVIDIA_DRIVER_CAPABILITIES=all"], "/dev/dri/card1", "DRM node of GPU 0"),
        ([f"{DEVICES}=0", "NVIDIA_DRIVER_CAPABILITIES=all"], "/32/glx", "capability graphics, with compat32"),
        ([f"{DEVICES}=0", "NVIDIA_IMEX_CHANNELS=3"], "/dev/nvidia-caps-imex-channels/channel3", "IMEX channel 3"),
    ],
)
def test_reasons(known: dict[str, Any], env: list[str], path: str, words: str) -> None:
    whys = [
        edit["why"]
        for edit in explain(shape(env))["edits"]
        if edit["kind"] in ("node", "mount") and path in (edit["value"].get("path"), edit["value"].get("destination"))
    ]
    assert len(whys) == 1
    assert words in whys[0]


def test_a_group_has_the_nodes_of_this_container_alone_as_its_reason(known: dict[str, Any]) -> None:
    report = explain(shape([f"{DEVICES}=0", "NVIDIA_DRIVER_CAPABILITIES=graphics"]))
    assert [edit["why"] for edit in report["edits"] if edit["kind"] == "gid"] == ["group of /dev/dri/card1"]


def test_cdi_devices_are_told_with_their_file(known: dict[str, Any], tmp_path: Path) -> None:
    known["policy"] = inventories.with_specs(tmp_path)["policy"]
    report = explain(shape([f"{DEVICES}=0,vendor.com/net=a"]))
    assert report["cdi"] == [{"name": "vendor.com/net=a", "file": f"{tmp_path}/a.json"}]
    whys = {
        edit["kind"]: edit["why"] for edit in report["edits"] if edit["value"] in (("NET", "a"), ("c", 1, 3, "rwm"))
    }
    assert whys == {"env": "CDI device vendor.com/net=a", "rule": "CDI device vendor.com/net=a"}
    assert all(edit["why"] for edit in report["edits"])


@pytest.mark.parametrize("spec", inventories.FOREIGN_ONLY)
def test_devices_of_others_alone_have_reasons_too(known: dict[str, Any], tmp_path: Path, spec: Any) -> None:
    known.update(
        policy=inventories.with_specs(tmp_path)["policy"], error={"sentence": "no driver", "code": INVENTORY}
    )
    report = explain({**spec, "root": {"path": "/r"}})
    assert report["refusal"] is None
    assert {edit["why"] for edit in report["edits"]} == {
        "stops later hooks from injecting anything",
        "CDI device vendor.com/net=a",
    }


@pytest.fixture
def limited(known: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """That host with a driver and cgroups that keep limits of GPU memory, and an administrator who bounds them."""
    known["driver"]["version"] = "615.71"
    requests = {**known["policy"]["requests"], "memory-limit-most": "8Gi"}
    known["policy"] = {**known["policy"], "requests": requests}
    (tmp_path / "controllers").touch()
    monkeypatch.setattr(memory, "CONTROLLERS", str(tmp_path / "controllers"))
    return known


MOST = "[requests] memory-limit-most"


def test_a_limit_of_memory_and_who_asked_for_more(limited: dict[str, Any]) -> None:
    report = explain(shape([f"{DEVICES}=0,1", "GPUSHIM_MEMORY_LIMIT=0=30Gi,1=2Gi"]))
    most, own = {"limit": 8 << 30, "by": MOST}, "env GPUSHIM_MEMORY_LIMIT"
    assert report["limits"] == [
        {"device": "0", **most, "also": [{"limit": 30 << 30, "by": own}]},
        {"device": "1", "limit": 2 << 30, "by": own, "also": [most]},
    ]
    assert asked(report, "GPUSHIM_MEMORY_LIMIT") == [("config.json", "limits the memory of GPUs")]
    assert [limit["by"] for limit in explain(shape([f"{DEVICES}=0"]))["limits"]] == [MOST]


def test_a_limit_by_annotation_or_by_root_is_looked_at(limited: dict[str, Any], tmp_path: Path) -> None:
    source = f"{tmp_path}/state/limits/{inventories.UUIDS[0]}={1 << 30}"
    spec = build_spec([f"{DEVICES}=0"], True, {"gpushim/memory-limit": "2Gi"}, [(source, "/run/a")])
    report = explain(spec)
    for what in ("annotation gpushim/memory-limit", "mount /run/a"):
        assert asked(report, what) == [("config.json", "limits the memory of GPUs")]
    assert [limit["limit"] for limit in report["limits"]] == [1 << 30]


def test_a_limit_counts_where_a_cdi_spec_has_given_the_gpus(known: dict[str, Any]) -> None:
    """By the hook of that spec; where nobody asks for a GPU it does nothing, nor where the policy forbids it."""
    limit, effects = "GPUSHIM_MEMORY_LIMIT=8Gi", ("limits the memory of GPUs", "does nothing: there is no request")
    for env, effect in (([f"{DEVICES}=void", limit], effects[0]), ([limit], effects[1])):
        report = explain(shape(env, privileged=False))
        assert asked(report, "GPUSHIM_MEMORY_LIMIT") == [("config.json", effect)]
        assert "MEMORY" not in report["nothing"]
    known["policy"]["requests"]["accept-env-when-unprivileged"] = False
    ((_, effect),) = asked(explain(shape([f"{DEVICES}=void", limit], privileged=False)), "GPUSHIM_MEMORY_LIMIT")
    assert effect != effects[0]


@pytest.mark.parametrize("missing", ["the driver 535.183.01 keeps none", "is not cgroup v2 alone"])
def test_a_limit_that_this_host_cannot_keep(limited: dict[str, Any], missing: str, tmp_path: Path) -> None:
    if "driver" in missing:
        limited["driver"]["version"] = "535.183.01"
    else:
        (tmp_path / "controllers").unlink()
    report = explain(shape([f"{DEVICES}=0"]))
    assert missing in report["refusal"]["sentence"]
    assert (report["limits"], report["refusal"]["exit_code"]) == ([], INVENTORY)
    limited["policy"]["requests"]["memory-limits"] = "wanted"
    report = explain(shape([f"{DEVICES}=0"]))
    assert report["refusal"] is None
    assert ([missing in sentence for sentence in report["ignored"]], report["limits"]) == ([True], [])


def test_who_said_so(known: dict[str, Any]) -> None:
    env = [f"{DEVICES}=1", f"{DEVICES}=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_GDS=yes"]
    report = explain(shape(env), origins={DEVICES: "image x"})
    assert asked(report, DEVICES) == [
        ("image x", "overridden below"),
        ("image x", "names the devices"),
    ]
    assert asked(report, "NVIDIA_DRIVER_CAPABILITIES") == [("default", "gives compute, utility")]
    assert asked(report, "NVIDIA_REQUIRE_CUDA") == [("config.json", "a condition")]
    assert asked(report, "NVIDIA_GDS") == [("config.json", 'does nothing: only "enabled" counts')]
    assert asked(report, "CAP_SYS_ADMIN") == [("process.capabilities", "counts as privileged")]
    assert report["requirements"] == [{"variable": "NVIDIA_REQUIRE_CUDA", "expression": "cuda>=12.0"}]


def test_equal_ones_stand_once_each_with_its_source(known: dict[str, Any]) -> None:
    env = [f"{DEVICES}=0", f"{DEVICES}=void", "NVIDIA_GDS=x", f"{DEVICES}=void"]
    report = explain(shape(env), origins={f"{DEVICES}=0": "image x", DEVICES: "CDI", "NVIDIA_GDS": "image y"})
    assert asked(report, DEVICES) == [
        ("image x", "overridden below"),
        ("CDI", "says void: whoever set it so has given the container what it gets"),
    ]
    assert [row["value"] for row in report["asked"] if row["what"] == DEVICES] == ["0", "void"]


@pytest.mark.parametrize(("runtime", "words"), [("", "none of /usr/bin/nope is an exec"), ("/nope/runc", "is gone")])
def test_without_a_low_level_runtime_it_is_refused(known: dict[str, Any], runtime: str, words: str) -> None:
    """As a create is; a container of Docker's own runtime that calls the hook needs none of ours."""
    known["runtime"] = runtime
    known["policy"]["runtime"]["low-level"] = ["/usr/bin/nope"]
    report = explain(shape([f"{DEVICES}=0"]))
    assert (report["refusal"]["exit_code"], report["edits"]) == (NOT_FOUND, [])
    assert words in report["refusal"]["sentence"]
    assert explain(shape([f"{DEVICES}=0"]), by_hook=True)["refusal"] is None
    assert explain(shape([]))["refusal"] is None


def test_names_and_values_of_others_are_bounded(known: dict[str, Any]) -> None:
    report = explain(shape([f"{DEVICES}=0", f"NVIDIA_{'X' * 5000}={'y' * 5000}"]))
    assert max(len(text) for row in report["asked"] for text in row.values()) < 300


def test_capabilities_that_the_configuration_gives(known: dict[str, Any]) -> None:
    known["policy"]["requests"]["default-capabilities"] = ["utility"]
    found = asked(explain(shape([f"{DEVICES}=0"])), "NVIDIA_DRIVER_CAPABILITIES")
    assert found == [("[requests] default-capabilities", "gives utility")]


def test_what_is_there_already(known: dict[str, Any]) -> None:
    spec = shape([f"{DEVICES}=0"])
    edits.apply(copy.deepcopy(told(explain(spec))), spec)
    assert {edit["there"] for edit in explain(spec)["edits"]} == {True}


def test_a_conflict_in_config_json_is_a_refusal(known: dict[str, Any]) -> None:
    spec = shape([f"{DEVICES}=0"])
    spec["linux"] = {"devices": [{"path": "/dev/nvidia1", "type": "c", "major": 1, "minor": 3}]}
    refusal = explain(spec)["refusal"]
    assert refusal["exit_code"] == BUNDLE
    assert "already has /dev/nvidia1" in refusal["sentence"]


@pytest.mark.parametrize("spec", [[], {"process": {"env": [1]}}, {"mounts": 3}, {"annotations": []}])
def test_a_config_json_of_wrong_types(known: dict[str, Any], spec: Any) -> None:
    assert explain(spec)["refusal"]["exit_code"] == BUNDLE


def test_a_wrong_configuration_harms_only_who_asks(
    known: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toml = tmp_path / "config.toml"
    toml.write_text("x = 1\n")
    monkeypatch.setitem(posix.environ, b"GPUSHIM_CONFIG", bytes(toml))
    assert explain(shape([]))["refusal"] is None
    assert explain(shape([f"{DEVICES}=0"]))["refusal"]["exit_code"] == CONFIG


def test_the_spec_stays_as_it_is(known: dict[str, Any]) -> None:
    spec = shape([f"{DEVICES}=0"])
    before = copy.deepcopy(spec)
    explain(spec)
    assert spec == before


class Real:
    """A simulated host like that of inventories.py, and bundles for its runtime."""

    def __init__(self, work: Path) -> None:
        mig = {2: ["3g.20gb"]}
        cache = str(TOP / ".cache" / "fakehost")
        self.host = fakehost.build(str(work / "host"), 3, mig=mig, imex=4, drm=True, mps=True, compile_cache=cache)
        self.env = settings(work, self.host.root, "/bin/true")
        self.state = Path(self.env["GPUSHIM_STATE"])
        self.bundle = work / "bundle"
        self.bundle.mkdir()

    def write(self, env: list[str]) -> Any:
        spec = json.loads((TOP / "tests/data/docker-privileged-config.json").read_text())
        spec["process"]["env"] += env
        (self.bundle / "config.json").write_text(json.dumps(spec))
        return spec

    def create(self) -> subprocess.CompletedProcess[str]:
        command = [str(TOP / "bin/gpushim-runtime"), "create", "--bundle", str(self.bundle), "x"]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    return Real(tmp_path_factory.mktemp("real"))


@pytest.fixture
def here(real: Real, monkeypatch: pytest.MonkeyPatch) -> Real:
    for name, value in real.env.items():
        monkeypatch.setitem(posix.environ, name.encode(), value.encode())
    return real


@pytest.mark.slow
@pytest.mark.parametrize("env", [*NODES, *([f"{DEVICES}=0", *env] for env in FILES), *REFUSED, []], ids=str)
def test_a_real_create_does_exactly_that(here: Real, env: list[str]) -> None:
    spec = here.write(env)
    report = forked(lambda: explain(spec, str(here.bundle)))
    done = here.create()
    refusal = report["refusal"]
    assert done.returncode == (refusal["exit_code"] if refusal else 0), done.stderr
    assert done.stderr == (f"gpushim: {refusal['sentence']}\n" if refusal else "")
    planned = told(report)
    for edit in planned:
        if edit.kind == "hook":
            edit.value = ahead.through_shell(edit.value)
    assert edits.apply(planned, spec) == bool(env and not refusal)
    assert json.loads((here.bundle / "config.json").read_text()) == json.loads(json.dumps(spec))
    assert all(edit["why"] for edit in report["edits"])


@pytest.mark.slow
def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Real(tmp_path)
    for name, value in host.env.items():
        monkeypatch.setitem(posix.environ, name.encode(), value.encode())
    spec = host.write([f"{DEVICES}=0"])
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    assert forked(lambda: explain(spec, str(host.bundle)))["refusal"] is None
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    report = forked(lambda: explain(host.write([f"{DEVICES}=9"]), str(host.bundle)))
    assert report["refusal"]["exit_code"] == REQUEST
