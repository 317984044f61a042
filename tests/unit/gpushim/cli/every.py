"""Every command of `gpushim`, and how tests run each of them on one simulated host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from gpushim.cli import main
from unit.gpushim.cli import streamed
from unit.gpushim.inventory.machine import Machine

REPOSITORY = Path(__file__).resolve().parents[4]
# The doctor tells of engines that run, and other tests start and stop some meanwhile.
ALONE = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc"] if os.geteuid() == 0 else []


@dataclass(frozen=True)
class Way:
    """How a command is called.

    Attributes:
        words: the command line.
        json: whether it has --format=json.
    """

    words: Callable[[Machine], list[str]]
    json: bool = True


def engine(name: str) -> Way:
    runtime = f"--runtime-path={REPOSITORY}/bin/gpushim-runtime"
    return Way(lambda m: ["configure", name, f"--config={m.folder}/engine/{name}", runtime, "--dry-run"])


def spec(machine: Machine) -> str:
    return f"{machine.state}/cdi/nvidia.com-gpu.json"


WAYS = {
    "cdi generate": Way(lambda _: ["cdi", "generate"]),
    "cdi list": Way(lambda m: ["cdi", "list", f"--spec-dir={m.state}/cdi"]),
    "cdi transform root": Way(
        lambda m: ["cdi", "transform", "root", "--from=/a", "--to=/b", f"--input={spec(m)}"], json=False
    ),
    "cdi validate": Way(lambda m: ["cdi", "validate", f"{m.folder}/none.json", spec(m), "-"]),
    "completion": Way(lambda _: ["completion", "bash"], json=False),
    "config check": Way(lambda _: ["config", "check"], json=False),
    "config path": Way(lambda _: ["config", "path"], json=False),
    "config show": Way(lambda _: ["config", "show"]),
    "configure containerd": engine("containerd"),
    "configure crio": engine("crio"),
    "configure docker": engine("docker"),
    "configure podman": engine("podman"),
    # No plugin listens; test_device_plugin.py has one.
    "device-plugin release": Way(lambda _: ["device-plugin", "release"], json=False),
    "device-plugin status": Way(lambda _: ["device-plugin", "status"], json=False),
    "device-plugin take": Way(lambda _: ["device-plugin", "take"], json=False),
    "doctor": Way(lambda _: ["doctor", "docker", "--all"]),
    "explain": Way(lambda _: ["explain", "--env=NVIDIA_VISIBLE_DEVICES=all", "--env=NVIDIA_DRIVER_CAPABILITIES=all"]),
    "info": Way(lambda _: ["info", "--files"]),
    "labels": Way(lambda _: ["labels"]),
    "list": Way(lambda _: ["list"]),
    "migrate": Way(lambda m: ["migrate", f"--from={m.folder}/theirs.toml"]),
    "mig apply": Way(lambda m: ["mig", "apply", f"{m.folder}/mig.yaml"], json=False),
    "mig plan": Way(lambda m: ["mig", "plan", f"{m.folder}/mig.yaml"]),
    "mig show": Way(lambda _: ["mig", "show"]),
    "ps": Way(lambda m: ["ps", f"--state={m.folder}/states"]),
    "refresh": Way(lambda _: ["refresh"]),
    "system create-dev-char-links": Way(lambda _: ["system", "create-dev-char-links", "--dry-run"]),
    "system create-device-nodes": Way(lambda _: ["system", "create-device-nodes", "--dry-run"]),
}
# Further forms of these, which the streams' tests run too.
MORE = {
    "list, CSV": Way(lambda _: ["list", "--format=csv"], json=False),
    "help": Way(lambda _: ["--help"], json=False),
    "a command's help": Way(lambda _: ["list", "--help"], json=False),
    "version": Way(lambda _: ["--version"], json=False),
    "no command": Way(lambda _: ["nosuch"], json=False),
    "explain, stdin": Way(lambda _: ["explain", "-"]),
}


def names(command: click.Command = main, path: str = "") -> Iterator[str]:
    """The names of all commands, as WAYS has them."""
    if not isinstance(command, click.Group):
        yield path.strip()
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from names(found, f"{path} {name}")


def run(machine: Machine, way: str, lines: list[list[str]]) -> list[tuple[int, str, str]]:
    """Run command lines with the streams that streamed.WAYS names."""
    environment = {
        "GPUSHIM_CONFIG": machine.config,
        "GPUSHIM_STATE": machine.state,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(
        [*ALONE, sys.executable, "-B", streamed.__file__, way, json.dumps(lines)],
        env=environment, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return [tuple(each) for each in json.loads(done.stdout)]


def host(folder: Path) -> Machine:
    """Make a simulated host, listed, with NVIDIA's settings, and a container that has a GPU, of a living process."""
    machine = Machine(folder)
    machine.build(2, f'[log]\nfile = "{folder}/gpushim.log"\n[cdi]\nspec-dirs = ["{folder}/state/cdi"]\n')
    nodes = machine.refreshed()["nodes"]
    devices = [{"path": path, "type": "c", "major": node[0], "minor": node[1]} for path, node in nodes.items()]
    bundle, state = folder / "bundle", folder / "states" / ("0123456789abcdef" * 4)
    labels = [f"bundle={bundle}"]
    written = {
        "theirs.toml": "[nvidia-container-cli]\nroot = '/run/nvidia/driver'\nldconfig = '@/run/nvidia/ldconfig'\n",
        "mig.yaml": "version: v1\nmig-configs: {none: [{devices: all, mig-enabled: false}]}\n",
        "bundle/config.json": json.dumps({"linux": {"devices": devices}}),
        f"states/{state.name}/state.json": json.dumps(
            {"init_process_pid": 1 if ALONE else os.getpid(), "config": {"labels": labels}}
        ),
    }
    for name, text in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return machine
