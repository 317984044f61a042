"""Code in hostile images under the real runc: no process of the host runs it, led there by variables or by names.

T-23266 and T-0136 are named for CVEs, P-1 to P-9 for the ways in which Python software repeats such things: PATH in a
first line, the working directory on sys.path, variables, names of programs, imports and name services inside an
image, helpers that its loader starts, paths looked up twice, open files.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e import recorder
from e2e.hostile import LIBS, Trap, snapshot
from e2e.hostile_code import PROGRAMS, VARIABLES, arm
from e2e.hostile_code import marker as marker
from e2e.hostile_places import Place, checkout
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host


@pytest.mark.parametrize(("value", "names"), VARIABLES.items(), ids=VARIABLES.keys())
def test_no_variable_reaches_a_process_of_the_host(
    trap: Trap, gpu_host: Host, marker: Path, value: str, names: list[str]
) -> None:
    """T-23266, P-1, P-3."""
    env = [f"{name}={value}" for name in names]
    trap.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["/busybox", "env"])
    with trap.harmless(gpu_host):
        done = trap.run()
    assert not marker.exists()
    assert done.returncode == 0, done.stderr
    assert set(env) <= set(done.stdout.splitlines())


def test_an_engine_that_gives_its_hooks_no_environment(trap: Trap, gpu_host: Host, marker: Path) -> None:
    """T-23266: some runtimes run such a hook with the container's."""
    env = [f"{name}={value}" for value, names in VARIABLES.items() for name in names if "PRELOAD" in name]
    trap.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["/busybox", "ls", "/dev"])
    spec = trap.bundle.spec
    for hook in spec["hooks"]["prestart"]:
        del hook["env"]
    trap.bundle.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["/busybox", "ls", "/dev"], hooks=spec["hooks"])
    with trap.harmless(gpu_host):
        done = trap.run()
    assert f"nvidia{gpu_host.gpus[0].minor}" in done.stdout.split(), done.stderr
    assert not marker.exists()


def test_each_hook_has_a_path_and_an_environment_of_its_own(trap: Trap, gpu_host: Host) -> None:
    """T-23266: in the one stage that runs in the host's namespaces, whoever writes config.json once more."""
    trap.ask("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", args=["/busybox", "true"])
    done = trap.run()
    assert done.returncode == 0, done.stderr
    (stage,) = trap.bundle.spec["hooks"].items()
    assert stage[0] == "prestart"
    for hook in stage[1]:
        assert hook["path"].startswith("/")
        assert any(entry.startswith("PATH=/usr/") for entry in hook.get("env", []))
        covers = [args for word, args in zip(hook["args"], hook["args"][1:]) if word == "--cover"]
        assert all(text.startswith(trap.bundle.env["GPUSHIM_STATE"] + "/") for text in covers), "T-31133"


def test_a_hook_of_a_cdi_spec_without_an_environment(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host
) -> None:
    """T-23266: such a hook runs inside, where some runtimes give it the image's."""
    specs = Path(gpushim_env["GPUSHIM_CONFIG"]).with_name("cdi")
    a_cdi_hook_gets_no_variable(Trap(tmp_path, debian_root, gpushim_env), specs)


def a_cdi_hook_gets_no_variable(trap: Trap, specs: Path) -> None:
    """Let a spec bring a createContainer hook, and an image what would take it over."""
    arm(trap.root, trap.work / "owned")
    hook = {"hookName": "createContainer", "path": "/nowhere/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "noop"]}
    device = {"name": "a", "containerEdits": {"hooks": [hook]}}
    specs.mkdir(exist_ok=True)
    spec = specs / "hooked.json"
    spec.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "hooked.com/card", "devices": [device]}))
    trap.ask(
        "NVIDIA_VISIBLE_DEVICES=hooked.com/card=a", "LD_PRELOAD=/proc/self/cwd/poc.so", args=["/busybox", "true"]
    )
    done = trap.run()
    spec.unlink()
    assert done.returncode == 0, done.stderr
    assert not (trap.work / "owned").exists()


def test_the_engines_variables_lead_nowhere(trap: Trap, gpu_host: Host, marker: Path) -> None:
    """P-1, P-3: not those of the shim, and not those that a hook without an environment gets."""
    trap.ask("NVIDIA_VISIBLE_DEVICES=0", args=["/busybox", "ls", "/dev"])
    spec = trap.bundle.spec
    for hook in spec["hooks"]["prestart"]:
        del hook["env"]
    trap.bundle.config.write_text(json.dumps(spec))
    done = trap.run(env={**trap.bundle.env, "PATH": f"{trap.root}/traps", "PYTHONPATH": str(trap.root)})
    assert not marker.exists()
    assert f"nvidia{gpu_host.gpus[0].minor}" in done.stdout.split(), done.stderr


def test_the_traps_would_work(trap: Trap, marker: Path) -> None:
    for entry in ("LD_PRELOAD=/proc/self/cwd/poc.so", "LD_AUDIT=/proc/self/cwd/poc.so", "PYTHONPATH=/proc/self/cwd"):
        name, _, value = entry.partition("=")
        subprocess.run(["/usr/bin/python3", "-c", "import trap"], env={name: value}, cwd=trap.root, check=False)
        assert marker.exists(), entry
        marker.unlink()


def test_the_working_directory_may_be_the_image(trap: Trap, gpu_host: Host, marker: Path) -> None:
    """P-2."""
    trap.ask("NVIDIA_VISIBLE_DEVICES=1", args=["/busybox", "ls", "/dev"])
    with trap.harmless(gpu_host):
        done = trap.run(cwd=trap.root)
    assert not marker.exists()
    assert f"nvidia{gpu_host.gpus[1].minor}" in done.stdout.split()


def test_programs_and_libraries_of_the_image(trap: Trap, gpu_host: Host, marker: Path) -> None:
    """T-0136, P-4 to P-7: an ldconfig, shells, a Python, and libraries of the loader and the name services."""
    # Who runs one with the image for its root leaves a word there; a shell of the image's would run itself.
    script = b"#!/bin/busybox sh\n/bin/busybox touch /inside\n" + (trap.root / "traps/sh").read_bytes()
    shutil.copy2("/bin/busybox", trap.root / "usr/bin/busybox")
    for folder, name in itertools.product(("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin"), PROGRAMS):
        trap.write(f"{folder}/{name}", script)
        (trap.root / folder / name).chmod(0o755)
    for name in ("libnss_files.so.2", "libc.so.6", "libffi.so.8", "gconv/UTF-16.so", "ld-linux-x86-64.so.2"):
        trap.write(f"{LIBS}/{name}", (trap.root / "poc.so").read_bytes())
    for path in Path(os.path.realpath("/usr/lib/python3.11")).glob("*.py"):
        trap.write(str(path)[1:], (trap.root / "os.py").read_bytes())
    trap.look("NVIDIA_VISIBLE_DEVICES=all")
    with trap.harmless(gpu_host):
        done = trap.run()
    assert not marker.exists()
    assert not (trap.root / "inside").exists()
    trap.saw_nothing(done, gpu_host)


def test_open_files_of_the_engine(trap: Trap, gpu_host: Host) -> None:
    """P-9: the container has none of them, whoever forgot to close them (saw_nothing looks at its own)."""
    roots = [os.open("/", os.O_RDONLY) for _ in range(20)]
    trap.look("NVIDIA_VISIBLE_DEVICES=all")
    with trap.harmless(gpu_host):
        done = trap.run(pass_fds=roots)
    for root in roots:
        os.close(root)
    trap.saw_nothing(done, gpu_host)


def test_nothing_is_written_beside_the_programs(trap: Trap, gpu_host: Host) -> None:
    """P-13: nor compiled."""
    if trap.place.top == TOP:
        trap.place = dataclasses.replace(trap.place, top=checkout(trap.work / "top"))
    trap.ask("NVIDIA_VISIBLE_DEVICES=all", args=["/busybox", "true"])
    before = snapshot(str(trap.place.top))
    done = trap.run()
    assert done.returncode == 0, done.stderr
    assert snapshot(str(trap.place.top)) == before


def test_runc_gets_no_open_file_of_ours(trap: Trap, gpu_host: Host) -> None:
    """T-21626, P-9: those that the engine left open, and no other."""
    trap.place = Place(settings(trap.work, gpu_host.root, str(recorder.build(trap.work))), top=trap.place.top)
    trap.way, trap.creates, trap.bundle.env = "shim", False, trap.place.env
    trap.ask("NVIDIA_VISIBLE_DEVICES=0", args=["true"])
    given = os.open("/", os.O_RDONLY)
    done = trap.run(pass_fds=[given], env={**trap.bundle.env, "RECORD": str(trap.work / "record")})
    os.close(given)
    assert done.returncode == 0, done.stderr
    assert trap.bundle.spec["hooks"]["prestart"]
    assert set(recorder.read(trap.work / "record")["fds"]) == {0, 1, 2, given}


@pytest.mark.parametrize(
    "name", ["bin/gpushim-hook", "shim/gpushim/launcher", "bin/gpushim", "bin/gpushim-device-plugin"]
)
def test_no_program_finds_its_interpreter_by_a_name(name: str) -> None:
    """P-1."""
    words = (TOP / name).read_bytes().splitlines()[0].split()
    assert words[0].startswith(b"#!/")
    assert not words[0].endswith(b"/env")


@pytest.mark.parametrize("flags", [["-B"], ["-S"], ["-E"]])
def test_the_hook_refuses_a_python_that_listens_to_its_caller(flags: list[str]) -> None:
    """P-2, P-3."""
    command = ["/usr/bin/python3", *flags, str(TOP / "bin/gpushim-hook"), "prestart"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode
    assert "caller's environment" in done.stderr


FORBIDDEN = ("subprocess", "os", "pathlib", "shutil", "tempfile", "glob", "pwd", "grp", "socket", "locale")
STARTS = ("exec", "spawn", "posix_spawn", "fork", "system", "popen")


@pytest.mark.parametrize("path", sorted((TOP / "hook/gpuhook").glob("*.py")), ids=lambda path: path.name)
def test_the_hook_starts_nothing_and_uses_no_path_twice(path: Path) -> None:
    """T-0135, P-4, P-6, P-8: not by what it imports, nor by what it calls; a limit alone starts a child, for NVML."""
    forbidden = {*FORBIDDEN} - ({"subprocess"} if path.name == "cgroup_limits.py" else set())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & forbidden
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in forbidden
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "posix":
            assert not node.attr.startswith(STARTS)
