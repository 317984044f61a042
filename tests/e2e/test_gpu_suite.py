"""tests/gpu runs where there is no GPU too: with a simulated one all but the computing, else a sentence."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.witness import RUNC

RUN = trees.TOP / "tests" / "gpu" / "run"
CASES = 9
READ_ONLY = """
for mount in $(awk '$2 ~ "^/sys/fs/cgroup/" { print $2 }' /proc/mounts); do mount -o remount,bind,ro "$mount"; done
exec "$@" --simulated --rounds=1
"""
# Take out of config.json what the word in its place names, and become runc.
WITHOUT = """#!/usr/bin/python3 -IS
import json, os, sys
words = sys.argv[1:]
if "--bundle" in words:
    path = words[words.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        spec = json.load(file)
    {change}
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv("/usr/sbin/runc", ["/usr/sbin/runc", *words])
"""
RULES = 'spec["linux"]["resources"]["devices"]'
OPEN = {"allow": True, "access": "rwm"}
# By the case that fails: what a runtime gets wrong. Any but the first that opens all nodes starts with a GPU.
BROKEN = {
    "ld.so.cache and loader have the libraries": 'spec.pop("hooks", None)',
    "a GPU that was not asked for is refused": f'if "hooks" in spec: {RULES}.append({OPEN})',
    "nvidia-smi -L, all": 'spec["process"]["args"] = ["/usr/bin/true"] + spec["process"]["args"][1:]',
}


def suite(*options: str) -> tuple[int, str]:
    """Run the suite; returns its status and all that it says."""
    done = subprocess.run([RUN, *options], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def failed(said: str) -> list[str]:
    """The names of the cases that failed."""
    return re.findall(r"^FAIL  (.*?)  +\d", said, re.MULTILINE)


def test_all_cases_pass_on_a_simulated_host(gpu_host: fakehost.Host) -> None:
    status, said = suite(f"--driver-root={gpu_host.root}", "--simulated", "--rounds=1")
    assert (status, failed(said), said.count("PASS  ")) == (0, [], CASES), said
    assert [name for name in ("plain runc", "gpushim, no request", "gpushim, all GPUs") if name in said] != []
    assert "EPERM with NVIDIA_VISIBLE_DEVICES=0, ENXIO with its UUID" in said


def test_without_cgroups_what_cannot_be_seen_is_named(gpu_host: fakehost.Host) -> None:
    """As in many containers: those of runc then start with an option that does without, and refuse nothing."""
    done = subprocess.run(
        ["/usr/bin/unshare", "--mount", "/bin/sh", "-euc", READ_ONLY, "sh", RUN, f"--driver-root={gpu_host.root}"],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "----  a GPU that was not asked for is refused" in said, said
    assert "0 cases failed, 1 could not be seen on this machine" in said


def test_one_gpu_is_refused_without_a_request(tmp_path: Path) -> None:
    host = fakehost.build(str(tmp_path / "root"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    status, said = suite(f"--driver-root={host.root}", "--simulated", "--rounds=1")
    assert "EPERM with NVIDIA_VISIBLE_DEVICES=void, ENXIO with its UUID" in said
    assert status == 0, said


@pytest.mark.parametrize("case", BROKEN)
def test_a_fault_fails_its_case(case: str, gpu_host: fakehost.Host, tmp_path: Path) -> None:
    runtime = tmp_path / "runc"
    runtime.write_text(WITHOUT.format(change=BROKEN[case]))
    runtime.chmod(0o755)
    status, said = suite(f"--driver-root={gpu_host.root}", "--simulated", "--rounds=1", f"--runc={runtime}")
    assert case in failed(said), said
    assert status == 1, said


def test_computing_is_not_taken_for_granted(gpu_host: fakehost.Host) -> None:
    """Without --simulated the simulated driver, which computes nothing, fails what computes and nothing else."""
    status, said = suite(f"--driver-root={gpu_host.root}", "--rounds=1")
    cases = ["a CUDA kernel computes on every GPU", "a client of MPS meets its limit of memory"]
    assert (status, failed(said)) == (1, cases), said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "has no NVIDIA driver, or --driver-root must say where"),
        (["--driver-root=/nowhere"], "there is no libnvidia-ml.so below /nowhere"),
        (["--driver-root={root}", "--dev-root=/nowhere"], "/nowhere/dev/nvidiactl: this machine has no NVIDIA GPU"),
        (["--driver-root={root}", "--runc=/nowhere"], "there is no runc: install it"),
        (["--driver-root={root}", "--runc=/bin/false"], "/bin/false --version: status 1"),
    ],
)
def test_what_is_missing_is_said(options: list[str], sentence: str, gpu_host: fakehost.Host) -> None:
    status, said = suite(*(option.format(root=gpu_host.root) for option in options))
    assert status == 2
    assert sentence in said
    assert "Traceback" not in said


def test_nvidia_smi_without_a_gpu(tmp_path: Path) -> None:
    host = fakehost.build(str(tmp_path / "root"), 1, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    host.behave(fail=999)
    status, said = suite(f"--driver-root={host.root}", "--simulated")
    assert status == 2
    assert "nvidia-smi finds no GPU" in said


def test_runc_is_carried(tmp_path: Path) -> None:
    """What tests/gpu/carry packs has all that the machine's C library does not bring."""
    checkout = tmp_path / "checkout"
    (checkout / "tests/gpu").mkdir(parents=True)
    (checkout / "vendor").mkdir()
    shutil.copy(RUN.with_name("carry"), checkout / "tests/gpu")
    subprocess.run([checkout / "tests/gpu/carry"], check=True, stdout=subprocess.DEVNULL)
    carried = checkout / ".gpu-carry"
    needed = subprocess.run(["/usr/bin/ldd", RUNC], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"(\S+) => /", needed):
        assert (carried / name).is_file() or name == "libc.so.6", name
    assert (carried / "runc").read_bytes() == Path(RUNC).read_bytes()


@pytest.fixture(scope="module")
def computing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a libcuda.so.1 that computes on the processor."""
    directory = tmp_path_factory.mktemp("cuda")
    source = str(Path(__file__).with_name("cpucuda.c"))
    command = ["/usr/bin/gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", source]
    subprocess.run([*command, "-o", str(directory / "libcuda.so.1")], check=True)
    return directory


@pytest.mark.parametrize(
    ("env", "status", "sentence"),
    [
        ({}, 0, "2 GPUs; first; second\n"),
        ({"WRONG": "1"}, 1, "1 of 262144 sums are wrong\n"),
        ({"FAIL": "cuMemAlloc_v2"}, 1, "cuMemAlloc_v2: CUDA error 999\n"),
    ],
)
def test_the_program_passes_and_checks_its_numbers(
    env: dict[str, str], status: int, sentence: str, computing: Path
) -> None:
    done = subprocess.run(
        ["/usr/bin/python3", RUN.with_name("inside.py"), "add"],
        env={"LD_LIBRARY_PATH": str(computing), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (status, sentence)
