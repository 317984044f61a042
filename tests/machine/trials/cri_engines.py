"""containerd and CRI-O, asked by their CRI as kubelet does; SELinux is on in their settings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from e2e import cri
from machine.trials.kubelet import IMAGE
from machine.trials.looks import LOOK, SELINUX, boolean, closed, looked
from machine.trials.rows import case, note, run

REQUEST, DEVICE = {"NVIDIA_VISIBLE_DEVICES": "0"}, ("nvidia.com/gpu=0",)
WAIT = [
    "/usr/bin/sh",
    "-c",
    "trap exit TERM; sleep 1000000 & wait",
]  # the first process ignores what it does not trap
LOGS = Path("/var/log/pods/trial")
CONTAINERD, CRIO = Path("/run/containerd/containerd.sock"), Path("/run/crio/crio.sock")


@contextlib.contextmanager
def connected(socket: Path) -> Iterator[cri.Client]:
    """Connect to an engine for the block."""
    LOGS.mkdir(parents=True, exist_ok=True)
    client = cri.Client(socket, LOGS)
    try:
        yield client
    finally:
        client.close()


def seen(client: cri.Client, handler: str, image: str, env: dict[str, str], devices: tuple[str, ...]) -> str:
    """Return what LOOK says in a container of a pod of its own; or why there is none."""
    try:
        pod = client.run_pod(handler)
        container = client.create(pod, image, WAIT, env=env, cdi=devices)
        client.start(container)
        return client.execute(container, "/usr/bin/sh", "-c", f"({LOOK}) 2>&1; true")
    except cri.RefusedError as error:
        return f"[{error}]"


def containerd() -> None:
    """containerd, as `gpushim configure` sets it up."""
    said = run("ctr", "--namespace=k8s.io", "images", "import", "/srv/box.tar")
    said += run("gpushim", "configure", "containerd", "--cdi", "--restart")
    case("gpushim configure containerd", "[status" not in said, said)
    with connected(CONTAINERD) as client:
        looked("containerd, handler nvidia", seen(client, "nvidia", IMAGE, REQUEST, ()))
        looked("containerd, CDI", seen(client, "", IMAGE, {}, DEVICE))


def crio() -> None:
    """CRI-O, as `gpushim configure` sets it up: a handler, CDI, and its hooks directory."""
    if not os.path.exists("/usr/bin/crio"):
        note("crio", "skipped: the machine was made without one, as GPUSHIM_TEST_PROGRAMS names none")
        return
    if not SELINUX and "AppArmorEnabled:  true" not in run("crio", "version"):
        note("crio", "skipped: this one is built without AppArmor")
        return
    said = run("podman", "tag", "box", "localhost/box:local") + run("systemctl", "start", "crio.service")
    said += run("gpushim", "configure", "crio", "--restart")
    case("gpushim configure crio", "[status" not in said, said)
    image = "localhost/box:local"
    with connected(CRIO) as client:
        looked("crio, handler nvidia", seen(client, "nvidia", image, REQUEST, ()))
        looked("crio, CDI", seen(client, "", image, {}, DEVICE))
    said = run("gpushim", "configure", "crio", "--remove") + run(
        "gpushim", "configure", "crio", "--hooks", "--restart"
    )
    case("gpushim configure crio --hooks", "[status" not in said, said)
    with connected(CRIO) as client:
        if SELINUX:
            closed("crio, hooks.d", seen(client, "", image, REQUEST, ()))
            boolean("on")
        looked("crio, hooks.d", seen(client, "", image, REQUEST, ()))
    if SELINUX:
        boolean("off")
    said = run("gpushim", "configure", "crio", "--remove", "--hooks") + run("systemctl", "stop", "crio.service")
    case("gpushim configure crio --remove --hooks", "[status" not in said, said)
