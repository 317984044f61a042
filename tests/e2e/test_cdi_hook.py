"""The hooks of a CDI spec that NVIDIA's tools made, run by the real runc and crun, with our program in their place.

Nodes and mounts of the config.json are those of such a spec; what the hooks do to the container is all that makes its
loader find the driver. Hostile images are in test_cdi_hook_hostile.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.bundles import Bundle
from e2e.cdihooks import BY_PATH, LIBS, NAMES, hooks, injected, is_complete, look, params_hook
from e2e.trees import TOP
from e2e.views import CRUN, view
from e2e.witness import RUNC
from fakehost import Host
from gpushim.oci.edits import hook_args
from unit.gpuhook.notes import libcuda

NO_SYSCALLS = Path(__file__).with_name("nosyscalls.py")


@pytest.mark.parametrize("stage", ["createContainer", "createRuntime", "prestart"])
@pytest.mark.parametrize("name", NAMES)
def test_runc(bundle: Bundle, gpu_host: Host, tmp_path: Path, name: str, stage: str) -> None:
    members = injected(bundle, gpu_host, "0,2", tmp_path / "plan")
    bundle.ask(args=["true"], hooks=hooks(gpu_host, name, stage=stage), **members)
    is_complete(look(bundle), gpu_host, [0, 2])


@pytest.mark.parametrize("stage", ["createContainer", "prestart"])
def test_crun(debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, stage: str) -> None:
    with view("v1") as prefix:
        bundle = Bundle(tmp_path / "bundle", debian_root, gpushim_env, prefix)
        members = injected(bundle, gpu_host, "1", tmp_path / "plan")
        bundle.ask(args=["true"], hooks=hooks(gpu_host, stage=stage), **members)
        is_complete(look(bundle, CRUN), gpu_host, [1])


@pytest.mark.parametrize("stage", ["createRuntime", "prestart"])
@pytest.mark.parametrize("runtime", [RUNC, CRUN])
def test_our_own_hook_of_a_cdi_spec(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, runtime: str, stage: str
) -> None:
    """It knows neither the rootfs nor the GPUs, and the standalone hook leaves the container to it."""
    with view("hybrid" if runtime == RUNC else "v1") as prefix:
        bundle = Bundle(tmp_path / "bundle", debian_root, gpushim_env, prefix)
        members = injected(bundle, gpu_host, "1", tmp_path / "plan")
        words = iter(hook_args(bundle.spec["hooks"]["prestart"][-1])[1:])
        pairs = [pair for pair in zip(words, words) if pair[0] in ("--lib", "--link", "--driver", "--cuda", "--log")]
        pairs += [("--gpu", f"{gpu.minor}=0000:0{gpu.index}:00.0") for gpu in gpu_host.gpus]
        pairs += [("--empty", str(tmp_path)), ("--node-link", f"../card1::{BY_PATH}")]
        pairs.append(("--lib", f"libEGL_nvidia.so.0={LIBS}/libEGL_nvidia.so.0"))
        args = ["gpushim-hook", stage, *(word for pair in pairs for word in pair)]
        ours = {"path": str(TOP / "bin/gpushim-hook"), "args": args, "env": ["PATH=/usr/bin"]}
        alone = {
            "path": str(TOP / "bin/nvidia-container-runtime-hook"),
            "args": ["nvidia-container-runtime-hook", stage],
        }
        mode = hooks(gpu_host, stage=stage)[stage][-2]
        bundle.ask(args=["true"], hooks={stage: [ours, {**alone, "env": ["PATH=/usr/bin"]}, mode]}, **members)
        is_complete(look(bundle, runtime), gpu_host, [1])


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_without_openat2_and_the_new_mount_calls(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, error: str
) -> None:
    prefix = (sys.executable, str(NO_SYSCALLS), error)
    bundle = Bundle(tmp_path / "bundle", debian_root, gpushim_env, prefix)
    members = injected(bundle, gpu_host, "0,2", tmp_path / "plan")
    bundle.ask(args=["true"], hooks=hooks(gpu_host, path=params_hook(tmp_path)), **members)
    seen = look(bundle)
    is_complete(seen, gpu_host, [0, 2])
    assert "/dev/gpu" in seen["drivers"]


@pytest.mark.parametrize("kind", ["pid", "user"])
def test_other_namespaces(
    debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, kind: str
) -> None:
    """The host's processes, as with --pid=host; or a user namespace."""
    bundle = Bundle(tmp_path / "bundle", debian_root, gpushim_env)
    members = injected(bundle, gpu_host, "1", tmp_path / "plan")
    linux = members["linux"]
    if kind == "pid":
        linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "pid"]
    else:
        for above in [tmp_path, *tmp_path.parents[:3]]:
            above.chmod(above.stat().st_mode | 0o055)  # the namespace's root must come in
        chown = ["/usr/bin/find", str(debian_root), "-type", "d", "-exec", "/bin/chown", "100000:100000", "{}", "+"]
        subprocess.run(chown, check=True)
        mappings = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        linux.update(uidMappings=mappings, gidMappings=mappings)
        linux["namespaces"].append({"type": "user"})
        card = {"destination": "/dev/dri/card1", "source": gpu_host.node("nvidiactl"), "type": "bind"}
        linux["devices"] = []  # nobody makes nodes there
        members["mounts"].append({**card, "options": ["bind"]})
        node = f"/dev/nvidia{gpu_host.gpus[1].minor}"
        members["mounts"].append({**card, "options": ["bind"], "destination": node, "source": gpu_host.root + node})
    bundle.ask(args=["true"], hooks=hooks(gpu_host), **members)
    is_complete(look(bundle), gpu_host, [1])


@pytest.mark.parametrize("stage", ["createContainer", "prestart"])
def test_the_parameters_are_covered(bundle: Bundle, gpu_host: Host, tmp_path: Path, stage: str) -> None:
    before = Path("/proc/tty/drivers").read_text()
    assert "/dev/tty " in before
    members = injected(bundle, gpu_host, "0", tmp_path / "plan")
    twice = {name: entries * 2 for name, entries in hooks(gpu_host, path=params_hook(tmp_path), stage=stage).items()}
    bundle.ask(args=["true"], hooks=twice, **members)
    seen = look(bundle)
    is_complete(seen, gpu_host, [0])
    assert seen["drivers"] == before.replace("/dev/tty ", "/dev/gpu ")
    assert [place for place in seen["mounts"] if place.startswith("/proc/tty")] == ["/proc/tty/drivers"]
    assert Path("/proc/tty/drivers").read_text() == before


def test_the_images_newer_cuda_comes_first(bundle: Bundle, gpu_host: Host, tmp_path: Path) -> None:
    folder = bundle.rootfs / "usr/local/cuda/compat"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.990.1").write_bytes(libcuda(Driver=[int(gpu_host.driver.split(".")[0])]))
    (folder / "libcuda.so.1").symlink_to("libcuda.so.990.1")
    members = injected(bundle, gpu_host, "0", tmp_path / "plan")
    bundle.ask(args=["true"], hooks=hooks(gpu_host), **members)
    seen = look(bundle)
    assert seen["loads"]["libcuda.so.1"] == "/usr/local/cuda/compat/libcuda.so.990.1"
    assert seen["loads"]["libnvidia-ml.so.1"] == f"{LIBS}/libnvidia-ml.so.{gpu_host.driver}"
    assert seen["conf"]["00-gpushim-compat.conf"] == "/usr/local/cuda/compat\n"
    subprocess.run(["/usr/sbin/chroot", str(bundle.rootfs), "/sbin/ldconfig"], check=True, env={})
    assert look(bundle)["loads"] == seen["loads"]
