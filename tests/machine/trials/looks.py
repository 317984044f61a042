"""What a GPU container shows of itself, and the cases that are made of it. No driver is behind the nodes: ENXIO."""

from __future__ import annotations

import re

from machine.trials.rows import case, run

with open("/srv/gpus.txt") as _file:
    GIVEN, OTHER = re.findall(r"/dev/nvidia(\d+) (\S+)", _file.read())
with open("/sys/kernel/security/lsm") as _file:
    SELINUX = "selinux" in _file.read()
OPENS = "No such device or address"
LOOK = (
    "for each in /dev/nvidia[0-9]* /dev/nvidiactl; do head -c1 $each; done; nvidia-smi -L; "
    "cat /proc/driver/nvidia/params; "
    "for each in /proc/driver/nvidia/gpus/*/information; do echo $each; done; cat /proc/self/attr/current"
)
ENV = "--env=NVIDIA_VISIBLE_DEVICES=0"
DOCKER = ("docker", "run", "--rm", "--network=none")
PODMAN = ("podman", "run", "--rm", "--network=none")
SHIM = (*DOCKER, "--runtime=nvidia", ENV)
CDI = "--device=nvidia.com/gpu=0"
BOOLEAN = "container_use_xserver_devices"


def allowed(said: str) -> bool:
    """Return whether the GPU's nodes open, and nvidia-smi lists the GPU."""
    return said.count(OPENS) == 2 and "GPU 0: " in said


def looked(
    name: str,
    said: str,
    *,
    confined: bool = True,
    given: tuple[str, str] = GIVEN,
    other: tuple[str, str] = OTHER,
) -> None:
    """Judge what LOOK said in a container with one GPU.

    Args:
        name: of the case.
        said: by LOOK.
        confined: whether its engine confines it.
        given: the GPU's number and address, and `other` those of the other one.
    """
    opens = allowed(said) and f"/dev/nvidia{given[0]}:" in said
    case(f"{name}: nodes open, nvidia-smi works", opens, said)
    if confined:
        case(f"{name}: confined", ":container_t:" in said or "(enforce)" in said, said)
    alone = given[1] in said and other[1] not in said
    case(f"{name}: parameters of the driver and its GPU alone", "ModifyDeviceFiles: 0" in said and alone, said)


def closed(name: str, said: str) -> None:
    """Judge what LOOK said in a container that may not open the nodes that it has."""
    case(f"{name}, without {BOOLEAN}: nodes stay closed", ":container_t:" in said and not allowed(said), said)


def container(name: str, *words: str) -> None:
    """Run a GPU container, and look."""
    looked(name, run(*words, "box", "sh", "-c", LOOK))


def boolean(value: str) -> None:
    """Let containers open the host's nodes of GPUs, or not."""
    run("setsebool", BOOLEAN, value)


def types(*paths: str) -> dict[str, str]:
    """Return the SELinux types of files that are there, by path."""
    rows = [line.split() for line in run("ls", "-dZ", *paths).splitlines()]
    return {row[1]: row[0].split(":")[2] for row in rows if len(row) == 2 and row[0].count(":") > 2}
