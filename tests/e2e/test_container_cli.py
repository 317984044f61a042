"""nvidia-container-cli: under `ctr run --gpus`, and as enroot and Apptainer call it in a container's namespaces."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from e2e.bundles import Bundle
from e2e.engines import CTR, SYSTEM_PATH, Containerd, Done, run
from e2e.expect import INSIDE, PROBE, probe, sees_exactly, sees_nothing
from e2e.trees import TOP
from e2e.witness import RUNC
from fakehost import Host

CLI = str(TOP / "bin" / "nvidia-container-cli")
MOUNT = f"--mount=type=bind,src={PROBE},dst={INSIDE},options=rbind:ro"
IMAGE = "docker.io/library/debian:local"
NUMBERS = itertools.count()
# `ctr --gpus` always asks for `display` too.
MODESET = '"/dev/nvidia-modeset"'


def ctr(engine: Containerd, env: dict[str, str], *args: str, check: bool = True) -> Done:
    """Run a container by the plain runc; ctr finds nvidia-container-cli on its PATH."""
    private = [f"--runc-root={engine.state}/runc", f"--fifo-dir={engine.state}/fifo", f"--runc-binary={RUNC}"]
    command = [CTR, f"--address={engine.socket}", "run", "--rm", *private, MOUNT, *args]
    return run(command, check=check, env={"PATH": f"{TOP}/bin:{SYSTEM_PATH}", **env})


@pytest.fixture
def name() -> str:
    """An id that no other container had."""
    return f"ctr-gpus-{next(NUMBERS)}"


def without_modeset(output: str) -> str:
    assert f'{MODESET}: "ENXIO"' in output
    return output.replace(f'{MODESET}: "ENXIO", ', "").replace(f', {MODESET}: "ENXIO"', "")


@pytest.mark.parametrize(("words", "indices"), [(["--gpus=0"], [0]), (["--gpus=0", "--gpus=2"], [0, 2])])
def test_ctr_gives_the_gpus_asked_for(
    containerd: Containerd,
    gpushim_env: dict[str, str],
    gpu_host: Host,
    name: str,
    words: list[str],
    indices: list[int],
) -> None:
    done = ctr(containerd, gpushim_env, *words, IMAGE, name, *probe(gpu_host, indices))
    sees_exactly(without_modeset(done.stdout), gpu_host, indices)


def test_ctr_without_gpus(containerd: Containerd, gpushim_env: dict[str, str], gpu_host: Host, name: str) -> None:
    sees_nothing(ctr(containerd, gpushim_env, IMAGE, name, *probe(gpu_host, [])).stdout)


def test_ctr_shows_a_refusal(containerd: Containerd, gpushim_env: dict[str, str], gpu_host: Host, name: str) -> None:
    done = ctr(containerd, gpushim_env, "--gpus=7", IMAGE, name, "true", check=False)
    assert done.returncode
    assert "nvidia-container-cli: device error: " in done.stderr
    assert gpu_host.gpus[0].uuid in done.stderr


def hooked(bundle: Bundle, *options: str) -> dict[str, object]:
    """The hook that calls it as NVIDIA's does: the container's process comes from the state on stdin."""
    script = 'pid=$(sed "s/.*\\"pid\\":\\([0-9]*\\).*/\\1/"); exec "$0" --load-kmods configure "$@" --pid=$pid '
    words = ["sh", "-c", script + str(bundle.rootfs), CLI, *options]
    env = ["PATH=/usr/bin:/bin", *(f"{key}={value}" for key, value in bundle.env.items())]
    return {"prestart": [{"path": "/bin/sh", "args": words, "env": env}]}


def plain(bundle: Bundle, check: bool = True) -> Done:
    command = [RUNC, f"--root={bundle.directory}/plain", "run", "--bundle", str(bundle.directory), bundle.id]
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60)


def test_the_call_of_nvidias_hook(bundle: Bundle, gpu_host: Host) -> None:
    options = ["--ldconfig=@/sbin/ldconfig.real", "--cuda-compat-mode=ldconfig", "--device=0,2"]
    options += ["--compute", "--utility", "--require=cuda>=9.0 brand=tesla"]
    bundle.ask(args=probe(gpu_host, [0, 2]), hooks=hooked(bundle, *options))
    sees_exactly(plain(bundle).stdout, gpu_host, [0, 2])


def test_no_cgroups_leaves_the_rules(bundle: Bundle, gpu_host: Host) -> None:
    look = ["sh", "-c", "ls /dev; cat /sys/fs/cgroup/devices/devices.list"]
    bundle.ask(args=look, hooks=hooked(bundle, "--device=0", "--utility", "--no-cgroups"))
    said = plain(bundle).stdout.split("\n")
    assert {"nvidiactl", f"nvidia{gpu_host.gpus[0].minor}"} <= set(said)
    assert "nvidia-uvm" not in said
    assert not [line for line in said if line.startswith("c 195:")]


def test_a_condition_that_does_not_hold(bundle: Bundle) -> None:
    bundle.ask(args=["true"], hooks=hooked(bundle, "--device=0", "--require=cuda>=99.0"))
    done = plain(bundle, check=False)
    assert done.returncode
    assert "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=99.0, please update" in done.stderr


ALONE = """
mount --bind "$1" "$1"; cd "$1"; mount -t tmpfs dev dev; mount --rbind /proc proc
touch dev/null; mount --bind /dev/null dev/null
"$0" --user configure --no-cgroups --ldconfig=@/sbin/ldconfig --device=0 --compute --utility "$1"
ls dev; LD_LIBRARY_PATH=/none chroot . nvidia-smi -L; chroot . ldconfig -p | grep libcuda
"""


def test_in_the_containers_own_namespaces(debian_root: Path, gpu_host: Host, gpushim_env: dict[str, str]) -> None:
    """As enroot and Apptainer do: no --pid, in a user and a mount namespace."""
    enter = ["/usr/bin/unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"]
    command = [*enter, "/bin/sh", "-euc", ALONE, CLI, str(debian_root)]
    before = Path("/proc/self/mountinfo").read_text().count(str(debian_root))
    done = run(command, env={"PATH": SYSTEM_PATH, **gpushim_env})
    assert {"nvidiactl", "nvidia-uvm", f"nvidia{gpu_host.gpus[0].minor}"} <= set(done.stdout.split("\n"))
    assert f"nvidia{gpu_host.gpus[1].minor}\n" not in done.stdout
    assert gpu_host.gpus[0].uuid in done.stdout
    assert "libcuda.so.1 " in done.stdout
    assert Path("/proc/self/mountinfo").read_text().count(str(debian_root)) == before


def test_the_hosts_namespace_is_left_alone(tmp_path: Path, gpushim_env: dict[str, str]) -> None:
    command = [CLI, "configure", "--no-cgroups", "--device=0", str(tmp_path)]
    done = run(command, check=False, env={"PATH": SYSTEM_PATH, **gpushim_env})
    assert done.returncode == 1
    assert done.stderr.startswith("nvidia-container-cli: mount error: this is the host's mount namespace")
    assert not os.listdir(tmp_path)


def shown(env: dict[str, str], *words: str) -> list[str]:
    return run([CLI, *words], env={"PATH": SYSTEM_PATH, **env}).stdout.splitlines()


def test_info_of_the_host(gpu_host: Host, gpushim_env: dict[str, str]) -> None:
    lines = shown(gpushim_env, "--load-kmods", "info")
    assert lines[0] == f"NVRM version:   {gpu_host.driver}"
    assert [line[16:] for line in lines if line.startswith("GPU UUID: ")] == [gpu.uuid for gpu in gpu_host.gpus]
    labels = ["Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture"]
    assert [line.partition(":")[0] for line in lines[3:10]] == labels
    assert lines[2] == lines[10] == ""
    head, _, empty, names, *rows = shown(gpushim_env, "info", "--csv")
    assert (head, empty, names) == ("NVRM version,CUDA version", "", ",".join(labels))
    assert [row.split(",")[4] for row in rows] == [gpu.uuid for gpu in gpu_host.gpus]


def test_list_of_the_host(gpu_host: Host, gpushim_env: dict[str, str]) -> None:
    lines = shown(gpushim_env, "list")
    gpus = [f"/dev/nvidia{gpu.minor}" for gpu in gpu_host.gpus]
    driver = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]
    assert lines[: 4 + len(gpus)] == [*driver, *gpus]
    rest = lines[4 + len(gpus) :]
    kinds = [
        next(word for word in ("/bin/", "/i386-", ".so.", "/socket", "/firmware/") if word in line) for line in rest
    ]
    assert list(dict.fromkeys(kinds)) == ["/bin/", ".so.", "/i386-", "/socket", "/firmware/"]
    assert all(os.path.exists(f"{gpu_host.root}{line}") for line in lines)
    parts = [line for option in ("-dall", "-b", "-l", "-i", "-f") for line in shown(gpushim_env, "list", option)]
    assert sorted(parts) == sorted(line for line in lines if "/i386-" not in line)
