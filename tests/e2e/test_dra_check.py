"""gpushim-dra-driver --check: what it says and how it ends, and that it changes nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from e2e.dranode import DRIVER, PROGRAM, driver, env, folder, host, name
from e2e.engines import SYSTEM_PATH
from e2e.leftovers import until
from e2e.nogrpc import WITHOUT_GRPC
from e2e.plugins import ROOTS, environment
from e2e.trees import TOP
from fakehost import Host

__all__ = ["env", "folder", "host"]
KUBECONFIG = """
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1"}}}}]
users: [{{name: u, user: {user}}}]
"""


UNKNOWN = "whether another driver has this one's name is not known"


def run(env: dict[str, str], folder: Path, by: Sequence[str] = ()) -> tuple[int, str]:
    """Run it, or have another program run it; return its exit code, and what it says."""
    words = [*by, str(PROGRAM), "--check", f"--kubelet-dir={folder}"]
    done = subprocess.run(words, env=environment(env), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def check(env: dict[str, str], folder: Path, code: int = 0) -> str:
    """Run it; return what it says, if it ends so."""
    found = run(env, folder)
    assert found[0] == code, found[1]
    return found[1]


def everything(*folders: Path) -> dict[str, tuple[int, int]]:
    """Return what there is, with identities and times."""
    paths = (os.path.join(base, one) for folder in folders for base, _, names in os.walk(folder) for one in names)
    return {path: (os.lstat(path).st_ino, os.lstat(path).st_mtime_ns) for path in paths}


def test_what_would_be_offered(env: dict[str, str], folder: Path, host: Host) -> None:
    before = everything(folder)
    said = check(env, folder)
    assert "gpu.nvidia.com: 4 of 4 can be given out, in 1 ResourceSlices\n" in said
    for uuid in (host.gpus[1].uuid, host.gpus[0].mig[0].uuid):
        assert name(uuid) in said
    assert f"note: there is no {folder}/plugins_registry, which kubelet makes when it starts" in said
    assert everything(folder) == before


def test_who_has_what(env: dict[str, str], folder: Path, host: Host) -> None:
    gpu, mig = host.gpus[1].uuid, host.gpus[0].mig[0].uuid
    with driver(folder, env) as one:
        one.allocate("a", name(gpu), name(mig))
        assert not isinstance(one.prepare("a")["a"], str)
        rows = {row.split()[0]: row for row in check(env, folder).splitlines() if row.startswith(("gpu-", "mig-"))}
    assert {uuid for uuid, row in rows.items() if "claim d/c-a" in row} == {name(gpu), name(mig)}


def test_an_unhealthy_gpu(env: dict[str, str], folder: Path, host: Host) -> None:
    """While the driver runs and after its end; its log has that, too."""
    sick, last = host.gpus[1], {"xid": 0.0}

    def found() -> bool:
        if time.monotonic() - last["xid"] > 5:  # an NVML that has just begun hears none of before
            host.xid(sick.index, 79)
            last["xid"] = time.monotonic()
        said = check(env, folder)
        return "gpu.nvidia.com: 3 of 4 can be given out" in said and any(
            row.startswith(name(sick.uuid)) and "XID 79" in row for row in said.splitlines()
        )

    with driver(folder, env) as one:
        assert until(found, 30)
        assert until(lambda: f"{sick.uuid} of gpu.nvidia.com is unhealthy: XID 79" in one.log.read_text(), 10)
    assert found()


@pytest.mark.parametrize("user", [None, "{exec: {command: /bin/true}}"])
def test_a_kubeconfig_that_the_driver_does_not_take(env: dict[str, str], folder: Path, user: str | None) -> None:
    path, config = folder / "kubeconfig", Path(env["GPUSHIM_CONFIG"])
    config.write_text(f'{config.read_text()}\n[device-plugin]\nkubeconfig = "{path}"\n')
    if user:
        path.write_text(KUBECONFIG.format(user=user))
        path.chmod(0o600)
    said = check(env, folder, code=15)
    assert (f"the kubeconfig {path} cannot be used: it has exec; " if user else f"{path} cannot be read: No") in said


def test_a_gpu_that_the_spec_lacks(env: dict[str, str], folder: Path, host: Host) -> None:
    spec, gone = Path(env["GPUSHIM_STATE"], "cdi/nvidia.com-gpu.json"), host.gpus[1].uuid
    text = spec.read_text()
    spec.write_text(text.replace(f'"{gone}"', '"other"'))
    said = check(env, folder, code=1)
    assert "gpu.nvidia.com: 3 of 4 can be given out" in said
    assert f"does not have, such as {gone}: under [cdi]" in said


def test_another_driver_of_the_name(env: dict[str, str], folder: Path) -> None:
    """Ours that runs is none; it says to who has no grpcio, as on a node of the chart, whether there is one."""
    assert UNKNOWN in run(env, folder, WITHOUT_GRPC)[1]
    with driver(folder, env):
        check(env, folder)
        assert UNKNOWN not in run(env, folder, WITHOUT_GRPC)[1]
        with rival(folder) as path:
            named = f"listens at {path}, so gpushim gives out no"
            for by in ((), WITHOUT_GRPC):
                assert until(lambda by=by: run(env, folder, by)[0] == 1, 30)  # type: ignore[misc]
                assert named in run(env, folder, by)[1]
    check(env, folder)


@contextlib.contextmanager
def rival(folder: Path) -> Iterator[Path]:
    """Run another driver of the name; yield its socket in kubelet's registry."""
    words = [sys.executable, "-m", "e2e.dradriver", str(folder), DRIVER, "pool", "gpu-0", "x/y=z"]
    paths = f"{ROOTS}:{TOP / 'tests'}"
    with subprocess.Popen(words, env={"PATH": SYSTEM_PATH, "PYTHONPATH": paths}) as theirs:
        try:
            path = folder / f"plugins_registry/{DRIVER}-reg.sock"
            assert until(path.exists, 30)
            yield path
        finally:
            theirs.kill()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ('exclude = ["x"]', 15, "x"),
        ('exclude = ["0", "1", "2"]', 0, "nothing is offered: this host has no GPU to give out to claims"),
        ("x = 1", 15, "x"),
    ],
)
def test_how_it_ends(env: dict[str, str], folder: Path, line: str, code: int, said: str) -> None:
    config = Path(env["GPUSHIM_CONFIG"])
    config.write_text(f"{config.read_text()}\n[device-plugin]\n{line}\n")
    assert said in check(env, folder, code=code)


def test_flags_that_a_driver_needs_are_not_needed(env: dict[str, str]) -> None:
    done = subprocess.run([str(PROGRAM)], env=environment(env), capture_output=True, text=True, check=False)
    assert (done.returncode, "Missing option '--socket'" in done.stderr) == (2, True)
