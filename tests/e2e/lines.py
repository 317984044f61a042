"""The lines of pages, run one after the other on a machine as somebody types them.

Out of scope: which lines a page has (pages.py), and the machine.
"""

from __future__ import annotations

import re

from e2e.installed import Machine

# What a line becomes on a machine without systemd, whose cgroups others share.
REWRITTEN = (
    ("podman run ", "podman run --cgroup-parent=/{cgroup} "),
    ("docker.io/library/debian:latest", "docker.io/library/debian:local"),
)


def do(machine: Machine, line: str) -> str:
    """Run a line of a page; returns what it printed."""
    restart = re.fullmatch(r"systemctl restart (docker|containerd)", line)
    if restart:
        machine.restart(restart[1])
        return ""
    for old, new in REWRITTEN:
        line = line.replace(old, new.format(cgroup=machine.state.name))
    # The doctor's 1 is a warning.
    done = machine.run(line, check=False)
    fine = (0, 1) if line.startswith("gpushim doctor") else (0,)
    assert done.returncode in fine, (line, done.stdout, done.stderr)
    return done.stdout


def gpus(machine: Machine, line: str) -> list[int]:
    """The GPUs that a line asks for in one of the ways in which it may ask."""
    found = re.search(r"(?:VISIBLE_DEVICES=|gpu=|--gpus '?\"?(?:device=)?)([0-9,]+|all)", line)
    assert found is not None, line
    return [gpu.index for gpu in machine.host.gpus] if found[1] == "all" else [int(i) for i in found[1].split(",")]


def uuids(output: str) -> list[str]:
    """The GPUs of which nvidia-smi -L told."""
    return re.findall(r"GPU-[0-9a-f-]+", output)


def work_through(machine: Machine, lines: list[str], starts: int) -> None:
    """Run lines; `starts` of them run nvidia-smi in a container, which must see what is asked for."""
    seen = 0
    for line in lines:
        output = do(machine, line)
        if line.endswith("nvidia-smi -L"):
            seen += 1
            assert uuids(output) == [machine.host.gpus[index].uuid for index in gpus(machine, line)], (line, output)
        elif line.endswith("--verify"):
            assert "verified" in output, (line, output)
    assert seen == starts
