"""What NVIDIA's device plugin answers when kubelet allocates a container's GPUs, and the bundle that comes of it.

An answer has no CDI names here: an engine resolves them by itself (test_chroot_cri.py).
Kubelet and the engine are played here: the image's variables, then the plugin's, then the pod's, each once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fakehost
from e2e.bundles import Bundle
from e2e.cdihooks import hooks
from e2e.expect import probe
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from fakehost import Host

DEVICES = "NVIDIA_VISIBLE_DEVICES"
FOLDER = "/var/run/nvidia-container-devices"
KIND = "k8s.device-plugin.nvidia.com/gpu"
ANNOTATION = "nvidia-device-plugin_5b5bf95f-4b5c-4ac5-b7f4-1f7a2bb0a001"


@dataclass
class Answer:
    """A ContainerAllocateResponse; mounts and devices are paths on the host by their paths in the container."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


def envvar(*ids: str, **more: str) -> Answer:
    """The strategy that is the plugin's default."""
    return Answer(envs={DEVICES: ",".join(ids), **more})


def volume_mounts(*ids: str, source: str = "/dev/null") -> Answer:
    """The strategy that pods' own variables cannot override."""
    return Answer(envs={DEVICES: FOLDER}, mounts={f"{FOLDER}/{name}": source for name in ids})


def cdi_annotations(*ids: str, prefix: str = "cdi.k8s.io/") -> Answer:
    """The strategy for engines that know CDI by annotations."""
    return Answer(annotations={prefix + ANNOTATION: ",".join(f"{KIND}={name}" for name in ids)})


def device_specs(host: Host, indices: Sequence[int], *control: str) -> dict[str, str]:
    """What passDeviceSpecs adds to an answer: these GPUs' nodes and these others."""
    names = [*(f"nvidia{host.gpus[index].minor}" for index in indices), *control]
    return {f"/dev/{name}": host.node(name) for name in names}


def built(folder: Path, gpus: Any, **options: Any) -> Host:
    """Build a host of a test's own."""
    return fakehost.build(str(folder / "host"), gpus, compile_cache=str(TOP / ".cache" / "fakehost"), **options)


def write(
    bundle: Bundle, answer: Answer, args: list[str], *, image: Mapping[str, str] = {}, pod: Mapping[str, str] = {}
) -> None:
    """Write config.json for a container with this answer, as an engine does.

    Args:
        bundle: whose config.json it is.
        answer: the plugin's.
        args: the container's command.
        image: variables of the image.
        pod: variables of the pod's manifest.
    """
    env = {**image, **answer.envs, **pod}
    linux = json.loads(json.dumps(bundle.plain["linux"]))
    for path, source in answer.devices.items():
        status = os.stat(source)
        same = {"type": "c", "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
        linux.setdefault("devices", []).append({"path": path, **same, "fileMode": 0o666, "uid": 0, "gid": 0})
        linux["resources"]["devices"].append({"allow": True, **same, "access": "rw"})
    mounts = [
        {"destination": path, "type": "bind", "source": source, "options": ["rbind", "rprivate", "rw"]}
        for path, source in answer.mounts.items()
    ]
    members: dict[str, Any] = {"mounts": [*bundle.plain["mounts"], *mounts], "annotations": answer.annotations}
    bundle.ask(*(f"{name}={value}" for name, value in env.items()), args=args, linux=linux, **members)


def look(bundle: Bundle, answer: Answer, host: Host, indices: list[int], **env: Mapping[str, str]) -> str:
    """Run a container with this answer that looks for the host's GPUs; returns its report."""
    write(bundle, answer, probe(host, indices), **env)
    return bundle.run().stdout


def refused(bundle: Bundle, answer: Answer, code: int, **env: Mapping[str, str]) -> str:
    """Run a container that must be refused; returns the sentence, which kubelet finds in the runtime's log."""
    write(bundle, answer, ["true"], **env)
    before = bundle.config.read_bytes()
    done = bundle.run(check=False)
    assert (done.returncode, bundle.config.read_bytes()) == (code, before), done.stderr
    line = bundle.logged()
    assert (line["level"], line["msg"]) == ("error", done.stderr.rstrip("\n"))
    return str(line["msg"])


def untouched(bundle: Bundle) -> str:
    """Run a container whose config.json must stay as it is, the same file; returns what it says."""
    content, before = bundle.config.read_bytes(), bundle.config.stat()
    said = bundle.run().stdout
    after = bundle.config.stat()
    assert bundle.config.read_bytes() == content
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    return said


def on(host: Host, rootfs: Path, folder: Path, low_level: str = RUNC, **tables: str) -> Bundle:
    """Make a bundle with settings of its own; tables are lines of configuration by the name of their section."""
    env = settings(folder, host.root, low_level)
    config = Path(env["GPUSHIM_CONFIG"])
    text = config.read_text()
    for name, lines in tables.items():
        head, _, rest = text.partition(f"[{name}]\n")
        text = f"{head}[{name}]\n{lines}\n{rest}"
    config.write_text(text)
    return Bundle(folder / "bundle", rootfs, env)


def privileged(bundle: Bundle) -> Bundle:
    """Let the container have what `privileged: true` of a pod gives, as far as the shim looks."""
    capabilities = bundle.plain["process"]["capabilities"]
    capabilities["bounding"] = [*capabilities["bounding"], "CAP_SYS_ADMIN"]
    return bundle


def uuids(host: Host, *indices: int) -> list[str]:
    """Name GPUs as a plugin does."""
    return [host.gpus[index].uuid for index in indices]


def logged(bundle: Bundle) -> Any:
    """Return the last line of gpushim's own log, which must be about this container."""
    log = Path(bundle.env["GPUSHIM_CONFIG"]).with_name("gpushim.log")
    line = json.loads(log.read_text().splitlines()[-1])
    assert line["container"] == bundle.id
    return line


def plugin_spec(cdi_dir: Path, host: Host, program: str = "nvidia-ctk") -> dict[str, Any]:
    """Make the plugin's own CDI spec of ours: UUIDs for names, and the hooks of NVIDIA's tools.

    Args:
        cdi_dir: directory with the spec of our own.
        host: the simulated host.
        program: whose hooks they are, nvidia-ctk or nvidia-cdi-hook.
    """
    (ours,) = cdi_dir.glob("*.json")
    spec: dict[str, Any] = json.loads(ours.read_text())
    spec["kind"] = KIND
    spec["devices"] = [device for device in spec["devices"] if device["name"].startswith("GPU-")]
    args = [word for hook in spec["containerEdits"]["hooks"] for word in hook["args"]]
    mounted = [pair.split("::") for word, pair in zip(args, args[1:]) if word in ("--mount", "--socket")]
    mounted = [(source, path) for source, path in mounted if os.path.exists(source)]  # of services, those that run
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]  # theirs leaves mounts to the engine
    spec["containerEdits"]["mounts"] = [
        {"hostPath": source, "containerPath": path, "options": options} for source, path in mounted
    ]
    theirs = hooks(host, program)["createContainer"]
    theirs[2]["args"].append("--option-of-tomorrow=yes")
    spec["containerEdits"]["hooks"] = [{"hookName": "createContainer", **hook} for hook in [*theirs[:4], theirs[-1]]]
    return spec
