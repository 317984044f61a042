"""The program's command line, against a simulated host."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import fakehost
from gpuplugin import cli
from gpuplugin.cli import build_command
from gpuplugin.settings import flags
from unit.gpuplugin.kubelet.registrar import driver

TOP = Path(__file__).parents[3]
PROGRAM = TOP / "bin/gpushim-device-plugin"
VOLUME = "[requests]\naccept-volume-mounts = true\n"


class Node:
    """A host with gpushim's settings for it.

    Args:
        folder: for all of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "config.toml"
        (folder / "grpc.py").write_text("raise ImportError('not here')")

    def build(self, gpus: Any, more: str = "") -> None:
        fakehost.build(str(self.folder / "host"), gpus)
        cdi = f'[cdi]\nspec-dirs = ["{self.folder}/cdi"]\noutput-directory = "{self.folder}/cdi"\n'
        self.config.write_text(f'[driver]\nroot = "{self.folder}/host"\n{cdi}{more}')

    def run(self, *words: str, code: int = 0, program: Path = PROGRAM, **env: str) -> str:
        """Run a program without grpcio, which --check and --explain need not have; return all that it says."""
        variables = {"GPUSHIM_CONFIG": str(self.config), "GPUSHIM_STATE": f"{self.folder}/state"}
        done = subprocess.run(
            [sys.executable, "-B", str(program), *words],
            capture_output=True, text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder), **variables, **env},
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A host with two GPUs, whose snapshot is made once for all tests."""
    node = Node(tmp_path_factory.mktemp("two"))
    node.build(2)
    return node


def test_check_says_what_would_be_registered(node: Node) -> None:
    node.build([{}, {"mig": [(1, 0, "3g.20gb")]}, {}], '[device-plugin]\nmig-strategy = "mixed"\nexclude = ["2"]\n')
    said = node.run("--check", "-gds-enabled", MPS_ROOT="/run/mps")
    assert "note: MPS_ROOT is accepted without effect: pipes of MPS are in /run/gpushim/mps" in said
    assert said.count("note: a container that asks for two of nvidia.com/gpu, nvidia.com/mig-3g.20gb gets") == 1
    assert re.search(r"^nvidia.com/gpu: 1 of 1 can be given out\nDEVICE .*\nGPU-\S+ +0 ", said, re.M)
    assert re.search(r"^nvidia.com/mig-3g.20gb: 1 of 1 can be given out\nDEVICE .*\nMIG-\S+ +1:0 ", said, re.M)
    assert "get their devices by envvar; devices are named by UUID." in said
    assert "note: left out by exclude or on-demand: 2\n" in said
    assert "Every container gets gds, too." in said


@pytest.mark.parametrize(("fronts", "notes"), [('["dra"]', 1), ('["device-plugin", "dra"]', 0)])
def test_check_says_that_a_node_of_claims_alone_registers_no_resource(node: Node, fronts: str, notes: int) -> None:
    node.build(1, f"[device-plugin]\nfronts = {fronts}\n")
    assert node.run("--check").count("note: fronts has no device-plugin, so kubelet has none of this") == notes


def test_check_without_a_driver_ends_with_the_code_of_a_create(node: Node) -> None:
    node.build(1)
    (node.folder / "host/proc/driver/nvidia/version").unlink()
    said = node.run("--check", "--mps-root=/m", code=12)
    assert said.startswith("note: --mps-root is accepted without effect")
    assert "gpushim-device-plugin: no NVIDIA driver is loaded" in said


def test_check_says_why_a_strategy_does_not_fit(node: Node) -> None:
    node.build([{}, {"mig": [(1, 0, "3g.20gb")]}])
    said = node.run("--check", code=12, MIG_STRATEGY="single")
    assert "mig-strategy is single, but GPU 0 is not in MIG mode while others are" in said


def test_check_says_why_devices_cannot_be_told_by_cdi(node: Node) -> None:
    node.build(1)
    with node.config.open("a") as file:
        file.write("write-spec = false\n")
    for words in (["--check"], ["--explain=gpu=1"]):
        said = node.run(*words, "--device-list-strategy=envvar,cdi-cri", code=15)
        assert "write-spec under [cdi] is false" in said
    assert "get their devices by envvar;" in node.run("--check")


def test_check_changes_nothing_but_the_snapshot(node: Node) -> None:
    def times() -> dict[Path, int]:
        return {path: path.lstat().st_mtime_ns for path in node.folder.rglob("*")}

    node.build(1)
    node.run("--check")
    assert (node.folder / "state/inventory.json").exists()
    before = times()
    node.run("--check", f"--kubelet-dir={node.folder}/kubelet")
    node.run("--explain=gpu=1")
    assert times() == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--mig-strategy=x"], 15, "gpushim-device-plugin: --mig-strategy is 'x', not one of none, single, mixed"),
        (["--config-file=/none"], 15, "/none cannot be read: No such file or directory"),
        (["--mig-stratgy=x"], 2, "No such option"),
        ([], 1, "grpcio cannot be used (not here); install python3-grpcio"),
    ],
)
def test_what_ends_it(two: Node, words: list[str], code: int, said: str) -> None:
    assert said in two.run(*words, code=code)


def test_explain_says_what_two_resources_bring(node: Node) -> None:
    node.build([{}, {"mig": [(1, 0, "3g.20gb")]}], VOLUME + '[device-plugin]\nmig-strategy = "mixed"\n')
    words = ["--explain=gpu=1", "--explain=nvidia.com/mig-3g.20gb=1", "--format=json"]
    found = json.loads(node.run(*words))
    assert [each["resource"] for each in found["answers"]] == ["nvidia.com/gpu", "nvidia.com/mig-3g.20gb"]
    assert [each["means"] for each in found["container"]["devices"]] == ["GPU 0"]  # the first variable counts
    both = json.loads(node.run(*words, DEVICE_LIST_STRATEGY="volume-mounts"))
    assert sorted(each["means"][:3] for each in both["container"]["devices"]) == ["GPU", "MIG"]
    by_cdi = json.loads(node.run(*words, DEVICE_LIST_STRATEGY="cdi-cri"))
    assert by_cdi["container"] is None
    assert [each["file"] for each in by_cdi["cdi"]] == [f"{node.folder}/cdi/nvidia.com-gpu.json"] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--explain=gpux=1"], "this node has no nvidia.com/gpux; it has nvidia.com/gpu; write"),
        (["--explain=gpu=3"], "a container asks for 3 of nvidia.com/gpu, of which 2 can be given out"),
        (["--explain=gpu"], "a container asks for 0 of nvidia.com/gpu"),
        (["--explain=gpu=GPU-1"], "nvidia.com/gpu has no device GPU-1; it has GPU-"),
        (["--explain=gpu=1", "--device-list-strategy=volume-mounts"], "accept-volume-mounts is false"),
    ],
)
def test_explain_says_why_a_container_is_refused(two: Node, words: list[str], said: str) -> None:
    assert said in two.run(*words, code=10)


def test_gpushim_explain_asks_the_plugin(two: Node) -> None:
    said = two.run("explain", "--kubernetes", "gpu=2", program=TOP / "bin/gpushim")
    assert re.search(r"nvidia.com/gpu +GPU-\S+, GPU-\S+\n", said)
    assert said.count("/dev/nvidia0") + said.count("/dev/nvidia1") >= 2


MIXED: Any = [
    {"mig": [(1, 0, "3g.20gb"), (2, 0, "3g.20gb")], "fabric": "00112233-4455-6677-8899-aabbccddeeff 7"},
    {"pci_class": "0x030000", "brand": "nvidiavws"},
]


def test_labels_are_the_hosts(node: Node) -> None:
    node.build(MIXED)
    lines = node.run("--labels", "--mig-strategy=mixed").splitlines()
    true = {
        "gpu.count=2", "gpu.memory=40960", "gpu.mode=unknown", "vgpu.present=true", "mig.capable=true",
        "gpu.clique=00112233-4455-6677-8899-aabbccddeeff.7", "mig-3g.20gb.count=2", "mig-3g.20gb.memory=20480",
        "mig-3g.20gb.multiprocessors=42", "mig-3g.20gb.slices.gi=3", "mig-3g.20gb.slices.ci=3",
        "mig-3g.20gb.engines.copy=3", "mig-3g.20gb.engines.ofa=0", "gpu.product=NVIDIA-A100-SXM4-40GB",
    }  # fmt: skip
    assert {f"nvidia.com/{line}" for line in true} - {*lines} == set()


def test_gpushim_labels_asks_the_plugin(two: Node) -> None:
    said = two.run("labels", "--format=json", program=TOP / "bin/gpushim", GFD_NO_TIMESTAMP="true")
    lines = two.run("--labels", "--labels-no-timestamp").splitlines()
    assert [f"{name}={value}" for name, value in json.loads(said).items()] == lines
    assert "nvidia.com/gpu.count=2" in lines


def test_labels_have_how_far_the_mig_layout_is(two: Node, tmp_path: Path) -> None:
    (tmp_path / "layout").write_text("day")
    assert "nvidia.com/mig.config.state=pending" in two.run("--labels", f"--mig-layout-file={tmp_path}/layout")


def test_labels_say_why_there_are_none(node: Node) -> None:
    node.build(1)
    assert "note: no labels of GPUs: no GPU is given out" in node.run("--labels", "--exclude=0")
    (node.folder / "host/proc/driver/nvidia/version").unlink()
    assert "note: no labels of GPUs: no NVIDIA driver is loaded" in node.run("--labels")


@pytest.mark.parametrize(("there", "times"), [(False, 1), (True, 0)])
def test_check_says_where_no_kubelet_is(two: Node, tmp_path: Path, there: bool, times: int) -> None:
    (tmp_path / "device-plugins").mkdir()
    if there:
        (tmp_path / "device-plugins/kubelet.sock").touch()
    said = two.run("--check", f"--kubelet-dir={tmp_path}")
    assert said.count(f"note: kubelet does not listen at {tmp_path}/device-plugins/kubelet.sock, and") == times


THEN = {"refuse": "gives out none that the other may give", "serve": "two pods may get one GPU"}


@pytest.mark.parametrize("word", ["check", "labels"])
@pytest.mark.parametrize("value", THEN)
def test_said(node: Node, word: str, value: str) -> None:  # a short name, for the socket's path
    node.build(1)
    (node.folder / "grpc.py").unlink()
    words = (f"--{word}", f"--kubelet-dir={node.folder}", f"--other-givers={value}")

    async def said() -> str:
        async with driver(path):
            return await asyncio.to_thread(node.run, *words)

    with tempfile.TemporaryDirectory(prefix="kd") as short:  # for the socket's path
        (node.folder / "plugins_registry").symlink_to(short)
        path = Path(short, "a.sock")
        text = f"the DRA driver gpu.nvidia.com, which listens at {node.folder}/plugins_registry/a.sock, gives out"
        assert text not in node.run(*words)
        told = asyncio.run(said())
    assert f"note: {text} this node's GPUs, too: " in told
    assert THEN[value] in told


def test_check_says_that_what_is_shared_is_not_there(two: Node) -> None:
    file = two.folder / "sharing.yaml"
    file.write_text("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}, {name: gup, replicas: 2}]}}")
    said = two.run("--check", f"--config-file={file}")
    assert said.count("is to be shared") == 1
    assert "note: nvidia.com/gup is to be shared, and this node has no such resource; it has nvidia.com/gpu" in said


@pytest.mark.parametrize(("memory", "times"), [("", 0), (", memory: 2Gi", 1)])
def test_check_says_who_enforces_memory(two: Node, memory: str, times: int) -> None:
    """A simulated driver is older than limits of the kernel."""
    file = two.folder / "sharing.yaml"
    file.write_text(f"sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 2{memory}}}]}}}}")
    said = two.run("--check", f"--config-file={file}")
    assert said.count("note: the driver keeps no limit of GPU memory") == times
    assert said.count("2048 MiB for each where the kernel enforces it") == times


def test_each_option_has_help_and_its_default() -> None:
    for option in build_command().params:
        record = option.get_help_record(build_command().make_context("x", []))
        if record and "--help" not in record[0]:
            assert re.match(r"[A-Z].*[.)\]]$|kubelet", record[1]), record


def test_flags_as_a_go_program_takes_them() -> None:
    words = ["-mig-strategy=single", "--pass-device-specs", "--gds-enabled=false", "-mofed-enabled", "x", "-h", "--"]
    assert flags.spell_flags(words) == [
        "--mig-strategy=single", "--pass-device-specs=true", "--gds-enabled=false", "--mofed-enabled=true",
        "x", "-h", "--",
    ]  # fmt: skip


def sharing(node: Node, text: str) -> str:
    """Write a file of NVIDIA's form; return the flag that names it."""
    file = node.folder / "groups.yaml"
    file.write_text(f"version: v1\nsharing: {text}\n")
    return f"--config-file={file}"


def test_check_says_how_each_resource_is_shared(two: Node) -> None:
    row = "{name: gpu, devices: [0], replicas: 2, rename: gpu.dev, distinct: true, policy: packed}"
    said = two.run("--check", sharing(two, f"{{timeSlicing: {{resources: [{row}]}}}}"))
    assert "nvidia.com/gpu.dev here, and pods ask for that; NVIDIA's plugin drops rename" in said
    assert "what devices does not name stays whole, and nvidia.com/gpu; NVIDIA's plugin drops devices" in said
    assert "nvidia.com/gpu.dev: 2 of 2 can be given out\nshared: 0 by time-slicing, 2 of each; a" in said
    assert "at most (distinct); packed\n" in said
    assert "nvidia.com/gpu: 1 of 1 can be given out\nDEVICE" in said


def test_check_says_what_limits_a_slice_of_mps_has(two: Node) -> None:
    row = "{name: gpu, devices: [1], slices: [{name: half, memory: 1Gi, threads: 50, count: 2}]}"
    said = two.run("--check", sharing(two, f"{{mps: {{resources: [{row}]}}}}"))
    limits = "1024 MiB and 50 % of the threads for a process, which the container is told and may override"
    assert f"shared: 1 by MPS (gpushim-mps@gpu.service), {limits}, 2 of each; a container gets one" in said
    assert "nvidia.com/half: 0 of 2 can be given out" in said
    assert "a container that asks for nvidia.com/half and for another resource" in said


def test_explain_says_how_what_a_container_gets_is_shared(two: Node) -> None:
    flag = sharing(two, "{timeSlicing: {resources: [{name: gpu, replicas: 2, distinct: true}]}}")
    said = two.run("--explain=gpu=2", flag)
    assert "shared: 0, 1 by time-slicing, 2 of each; a container gets one of each at most (distinct)" in said
    assert "::" not in said.partition("The container's configuration gets:")[2]
    assert "each on another GPU or MIG instance (distinct is true)" in two.run("--explain=gpu=3", flag, code=10)


def test_a_process_1_ends_by_sigterm_before_the_daemon_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives process 1 no signal that it does not handle: kubelet would wait, and kill it."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr("sys.argv", ["gpushim-device-plugin", "--version"])
    monkeypatch.setattr("os._exit", sys.exit)
    try:
        with pytest.raises(SystemExit):
            cli.main()
        assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
