"""What bench/ measures on: simulated hosts, bundles, root filesystems with large loader caches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable

import fakehost

TOP = Path(__file__).resolve().parents[1]
STUB = TOP / "shim" / "gpushim" / "create" / "stub.py"
RUNTIME = str(TOP / "bin" / "gpushim-runtime")
HOOK = str(TOP / "bin" / "gpushim-hook")
RUNC = "/usr/sbin/runc"
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
SPEC = (TOP / "tests" / "data" / "docker-config.json").read_text()
SERVICE = 1000  # the user whom nvidia-persistenced's packages let it run as
SEVEN = ["1g.10gb"] * 7

Prepare = Callable[[], object]


def settings(
    work: Path, name: str, gpus: int, low: str, mig: bool = False, bound: int | None = None
) -> dict[str, str]:
    """Build a simulated host and return an environment in which gpushim serves it, its snapshot taken.

    Of `bound` GPUs alone sysfs tells.
    """
    host = fakehost.build(str(work / name / "driver"), gpus, mig=dict.fromkeys(range(gpus), SEVEN) if mig else None)
    for gpu in host.gpus[gpus if bound is None else bound :]:
        os.unlink(f"{host.root}/sys/bus/pci/drivers/nvidia/{gpu.pci}")
    for path in ("run/nvidia-persistenced", "run/nvidia-persistenced/socket"):
        os.chown(f"{host.root}/{path}", SERVICE, SERVICE)
    config, state = work / name / "config.toml", work / name / "state"
    config.write_text(f'[driver]\nroot = "{host.root}"\n[runtime]\nlow-level = ["{low}"]\n[log]\nfile = ""\n')
    env = {**ENV, "GPUSHIM_CONFIG": str(config), "GPUSHIM_STATE": str(state)}
    refresh(env)
    return env


def refresh(env: dict[str, str]) -> None:
    """Take the snapshot of a host."""
    subprocess.run(["/usr/bin/python3", "-IB", STUB, "refresh"], env=env, check=True, stderr=subprocess.DEVNULL)


def asking(devices: str | None, capabilities: str = "") -> str:
    """Return Docker's config.json of a container that asks for these devices."""
    words = [f"NVIDIA_VISIBLE_DEVICES={devices}"] if devices else []
    words += [f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"] if capabilities else []
    return SPEC.replace('"PATH=', "".join(json.dumps(word) + "," for word in words) + '"PATH=', 1)


def padded(content: str, size: int) -> str:
    """Return a config.json with an annotation that makes it this large."""
    spec = json.loads(content)
    spec.setdefault("annotations", {})["padding"] = "x" * (size - len(content))
    return json.dumps(spec, separators=(",", ":"))


def stub_bundle(work: Path, name: str, content: str) -> tuple[list[str], Prepare]:
    """Make a bundle; return the arguments of its create, as dockerd's containerd gives them, and how to renew it."""
    bundle = work / "bundles" / name
    bundle.mkdir(parents=True)
    arguments = ["--root", "/r", "--log", str(bundle / "log.json"), "--log-format", "json", "create"]
    return [*arguments, "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), "x"], writer(bundle, content)


def writer(bundle: Path, content: str) -> Prepare:
    """Return what puts a bundle's config.json back."""
    return lambda: (bundle / "config.json").write_text(content)


def edited(bundle: Path, spec: dict[str, Any], env: dict[str, str]) -> Any:
    """Have the shim edit a bundle's config.json (with the stub as runtime) and return what it became."""
    (bundle / "config.json").write_text(json.dumps(spec))
    subprocess.run([RUNTIME, "create", "--bundle", bundle, "x"], env=env, check=True)
    return json.loads((bundle / "config.json").read_text())


def busybox_root(root: Path) -> None:
    """Make a root filesystem of one static program."""
    (root / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/true")


def libraries(root: Path, entries: int) -> Path:
    """Add many libraries to a root and the cache that the real ldconfig writes; return their directory."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    for path in (folder, root / "etc", root / "lib64"):
        path.mkdir(parents=True)
    source = root.parent / "empty.c"
    source.write_text("")
    for number in range(entries):
        library = folder / f"lib{number * 7919 % 100003:05d}.so.{number % 9}"
        if number == 0:
            soname = f"-Wl,-soname,{library.name}"
            subprocess.run(["/usr/bin/gcc", "-shared", "-nostdlib", soname, "-o", library, source], check=True)
            first = library
        else:  # ldconfig takes a name that differs from the SONAME too, as long as it looks like a library's
            library.write_bytes(first.read_bytes().replace(first.name.encode(), library.name.encode()))
    (root / "etc/ld.so.conf").write_text("/usr/lib/x86_64-linux-gnu\n")
    (root / "lib64/ld-linux-x86-64.so.2").touch()
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True, stderr=subprocess.DEVNULL)
    return folder


def restorer(root: Path, folder: Path | None) -> Prepare:
    """Return what takes back what runc and the hook do to a root: what is beside its libraries, and in its /etc."""
    if folder is None:
        return lambda: None
    pristine, known = root.parent / "etc", {*os.listdir(folder)}
    shutil.copytree(root / "etc", pristine)

    def restore() -> None:
        for entry in os.scandir(folder):
            if entry.name not in known and not entry.is_dir(follow_symlinks=False):
                os.unlink(entry)
        shutil.rmtree(root / "etc")
        shutil.copytree(pristine, root / "etc")

    return restore


def container(bundle: Path, variables: list[str], root: Path) -> dict[str, Any]:
    """Return runc's own example spec for /bin/true, without a network namespace, which costs more than the rest."""
    bundle.mkdir(parents=True)
    subprocess.run([RUNC, "spec", "--bundle", bundle], check=True)
    spec: dict[str, Any] = json.loads((bundle / "config.json").read_text())
    spec["root"]["path"] = str(root)
    spec["root"]["readonly"] = False
    spec["process"].update(terminal=False, args=["/bin/true"])
    spec["process"]["env"] += variables
    spec["linux"]["namespaces"] = [ns for ns in spec["linux"]["namespaces"] if ns["type"] != "network"]
    return spec
