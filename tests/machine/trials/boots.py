"""Containers that start with the machine: each way of an engine to do so, and a GPU by CDI in each.

The first boot sets them up and ends like a power cut; the second looks at them.
"""

from __future__ import annotations

import re
from pathlib import Path

from machine.trials.rows import case, end, note, run, sh, until

DONE = Path("/var/lib/first-boot")
UNIT = "gpushim-refresh-boot.service"
CDI, GPUS = "--device=nvidia.com/gpu=0", "--gpus=device=0"
STAYS = ("--network=none", "box", "sleep", "1000000")
# As docs/cdi.md has them, but for the seconds: the processor is emulated.
ORDERED = f"""[Unit]
After={UNIT}
[Container]
ContainerName=quadlet
Image=localhost/box
Network=none
AddDevice=nvidia.com/gpu=0
Exec=sleep 1000000
[Install]
WantedBy=multi-user.target
"""
WAITS = "ExecStartPre=/usr/bin/timeout 900 sh -c 'until [ -e /run/cdi/nvidia.com-gpu.json ]; do sleep 0.2; done'"
# It has no order among units, as those of a user's manager have none; it begins before the driver is listed.
UNORDERED = f"""[Unit]
DefaultDependencies=no
After=local-fs.target
[Service]
TimeoutStartSec=infinity
{WAITS}
ExecStart=/usr/bin/touch /run/waited
[Install]
WantedBy=sysinit.target
"""
LOG = "journalctl --boot --no-pager --output=cat -u $1 -u 'gpushim-*' | grep -v 'exec command' | tail -n 40"
RUNNING = {
    "docker --restart=always --device": ("docker", "cdi"),
    "docker --restart=always --gpus": ("docker", "gpus"),
    "podman --restart=always --device": ("podman", "cdi"),
    "a quadlet": ("podman", "quadlet"),
}
# It starts such containers before it knows CDI: moby's, whatever the order of units.
TOO_EARLY = "could not select device driver"


def first() -> None:
    """Set up what is to start with the machine."""
    run("docker", "import", "/srv/rootfs.tar", "box")
    run("podman", "import", "/srv/rootfs.tar", "box")
    for engine, name, option in (("docker", "cdi", CDI), ("docker", "gpus", GPUS), ("podman", "cdi", CDI)):
        said = run(engine, "run", "--detach", f"--name={name}", "--restart=always", option, *STAYS)
        case(f"{engine}: starts with {option}", re.fullmatch("[0-9a-f]{64}\n", said) is not None, said)
    Path("/etc/containers/systemd").mkdir(parents=True, exist_ok=True)
    Path("/etc/containers/systemd/quadlet.container").write_text(ORDERED)
    Path("/etc/systemd/system/unordered.service").write_text(UNORDERED)
    said = run("systemctl", "enable", "podman-restart.service", "unordered.service")
    case("the units are enabled", "[status" not in said, said)
    DONE.touch()


def second() -> None:
    """Look at what has started with the machine."""
    note("docker", run("docker", "version", "--format={{.Server.Version}}"))
    said = run("systemctl", "show", UNIT, "--property=Result,ExecMainStatus")
    case("the list was made before engines", "Result=success" in said and Path("/run/cdi").is_dir(), said)
    for name, (engine, container) in RUNNING.items():
        if container == "cdi" and TOO_EARLY in sh(LOG, engine):
            note(f"{name}: is lost in the start of Docker itself", sh(LOG, engine))
            continue
        looked = until(lambda: "GPU 0" in run(engine, "exec", container, "nvidia-smi", "-L"), 60)  # noqa: B023
        case(f"{name}: has its GPU after a boot", looked, run(engine, "ps", "--all") + sh(LOG, engine))
    said = run("systemctl", "status", "unordered.service")
    case("a unit that waits has found the spec", Path("/run/waited").exists(), said)


def main() -> None:
    """Do what this boot is for."""
    if DONE.exists():
        second()
        end()
    else:
        first()


if __name__ == "__main__":
    main()
