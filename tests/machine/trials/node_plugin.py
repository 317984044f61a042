"""The device plugin, before a kubelet of the unit tests: the package's unit, and the image under Docker."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from machine.trials.rows import case, run
from unit.gpuplugin.kubelet.fake import Kubelet, until

KUBELET = "/var/lib/kubelet"
RESOURCE = "nvidia.com/gpu"
SECONDS = 120.0  # until the plugin is there; its processor is emulated
FOLDERS = {
    f"{KUBELET}/device-plugins": "",
    f"{KUBELET}/pod-resources": ":ro",
    f"{KUBELET}/plugins_registry": ":ro",
    "/run/gpushim": "",
    "/var/lib/gpushim/device-plugin": "",
    "/etc/gpushim": ":ro",
    "/var/run/cdi": ":ro",
}
# As the chart's DaemonSet has it.
POD = (
    *("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=all-usable", "--env=NVIDIA_DRIVER_CAPABILITIES=utility"),
    *("--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "--network=none"),
    *(f"--volume={folder}:{folder}{end}" for folder, end in FOLDERS.items()),
)
COMPILED = "import grpc._cython.cygrpc, yaml, prometheus_client, platform; print(platform.machine())"


async def served(name: str, start: tuple[str, ...], stop: tuple[str, ...]) -> None:
    """Start the plugin, take both GPUs' names from it, ask for one, and stop it."""
    kubelet = Kubelet(Path(KUBELET, "device-plugins"))
    await kubelet.start()
    said = await asyncio.to_thread(run, *start)
    try:
        await until(lambda: len(kubelet.well().get(RESOURCE, [])) == 2, SECONDS)
    except AssertionError:
        case(f"{name}: two healthy GPUs are offered", False, said + repr(kubelet.lists) + _log(stop))
        return
    ids = kubelet.well()[RESOURCE]
    case(f"{name}: two healthy GPUs are offered", all(each.startswith("GPU-") for each in ids), repr(ids))
    answer: dict[str, Any] = await kubelet.allocate(RESOURCE, ids[0])
    given = repr(answer)
    case(f"{name}: Allocate names the GPU", ids[0] in given and ids[1] not in given, given)
    await asyncio.to_thread(run, *stop)
    await kubelet.stop()


def _log(stop: tuple[str, ...]) -> str:
    if stop[0] == "docker":
        return run("docker", "logs", stop[-1])
    return run("journalctl", "--output=cat", "--unit", stop[-1])


def plugin() -> None:
    """The plugin of the package and of the image."""
    for folder in FOLDERS:
        os.makedirs(folder, exist_ok=True)
    unit = "gpushim-device-plugin.service"
    asyncio.run(served("plugin of the package", ("systemctl", "start", unit), ("systemctl", "stop", unit)))
    said = run("docker", "load", "--input=/srv/image.tar")
    image = said.rpartition(" ")[2].strip()
    case("image: docker load", said.startswith("Loaded image") and "gpushim:" in image, said)
    said = run("docker", "image", "inspect", "--format={{.Architecture}}", image)
    case("image: of arm64", said == "arm64\n", said)
    python = ("docker", "run", "--rm", "--network=none", "--entrypoint=/usr/bin/python3", image, "-c", COMPILED)
    said = run(*python)
    case("image: Python, grpc, PyYAML, prometheus-client", said == "aarch64\n", said)
    for program in ("gpushim-device-plugin", "gpushim-dra-driver", "gpushim-node", "gpushim"):
        words = ("docker", "run", "--rm", "--network=none", f"--entrypoint=/usr/bin/{program}", image)
        said = run(*words, "--version")
        case(f"image: {program} --version", said.startswith(program) and "[status" not in said, said)
    start = ("docker", "run", "--detach", "--name=plugin", *POD, image)
    asyncio.run(served("plugin of the image", start, ("docker", "rm", "--force", "plugin")))
