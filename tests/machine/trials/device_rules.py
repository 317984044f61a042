"""What is tried on the emulated machine: which nodes open, whoever applies device rules again.

No driver stands behind the nodes: one that the device rules let through opens with ENXIO, and with EPERM if they
do not.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable

from machine.trials.rows import case, end, run

GIVEN, OTHER = "No such device or address", "Operation not permitted"
SERVICE = "gpushim-refresh.service"
WAIT = "mknod /dev/other c 195 {other}; exec sleep 1000000"
LOOK = "for node in nvidia{given} nvidiactl other; do head -c1 /dev/$node; done"
ENTER = 'echo 0 >"/sys/fs/cgroup$1/cgroup.procs"; shift; for node; do head -c1 "$node"; done'
MOBY = ("/usr/sbin/runc", "--root", "/run/docker/runtime-runc/moby")
BARE = ("/usr/bin/gpushim-runtime", "--root", "/run/bare", "--systemd-cgroup")
BUNDLE = "/srv/bundle"


class Trial:
    """The cases so far, and the containers that run."""

    def __init__(self) -> None:
        self.containers: dict[str, Callable[..., str]] = {}
        self.pids: dict[str, int] = {}
        with open("/srv/gpus.txt") as file:
            self.given, self.other = re.findall(r"/dev/nvidia(\d+)", file.read())

    def docker(self, name: str, *options: str) -> None:
        """Start a container of Docker's."""
        script = WAIT.format(other=self.other)
        said = run(
            "docker", "run", "--detach", f"--name={name}", "--network=none", *options, "box", "sh", "-c", script
        )
        case(f"{name}: starts with {' '.join(options)}", len(said.strip()) == 64, said)
        self.containers[name] = lambda *words: run("docker", "exec", name, *words)

    def bare(self) -> None:
        """Start a container of the shim's without an engine."""
        os.mkdir(BUNDLE)
        run("runc", "spec", "--bundle", BUNDLE)
        with open(f"{BUNDLE}/config.json") as file:
            spec = json.load(file)
        spec["root"]["path"] = "/srv/rootfs"
        spec["process"] |= {"terminal": False, "args": ["sh", "-c", WAIT.format(other=self.other)]}
        spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=0"]
        spec["process"]["capabilities"] = {each: ["CAP_MKNOD"] for each in ("bounding", "effective", "permitted")}
        spec["linux"]["cgroupsPath"] = "system.slice:gpushim:bare"
        spec["root"]["readonly"] = False
        with open(f"{BUNDLE}/config.json", "w") as file:
            json.dump(spec, file)
        said = run("sh", "-c", f"{' '.join(BARE)} run --detach --bundle {BUNDLE} bare </dev/null >/run/bare.log 2>&1")
        with open("/run/bare.log") as file:
            case("bare: starts", not said, said + file.read())
        self.containers["bare"] = lambda *words: run(*BARE, "exec", "bare", *words)

    def opens(self, event: str, *, inside: bool = False) -> None:
        """Check for every container that its GPU's nodes open and the other GPU's does not.

        Args:
            event: what happened just now.
            inside: let a process of the container look, which takes the engine seconds; else one of the machine
                does that enters the container's cgroup, which is what the rules are for.
        """
        for name, execute in self.containers.items():
            if inside:
                said = execute("sh", "-c", LOOK.format(given=self.given))
            else:
                nodes = [
                    f"/srv/gpus/dev/{node}" for node in (f"nvidia{self.given}", "nvidiactl", f"nvidia{self.other}")
                ]
                said = run("sh", "-c", ENTER, "sh", self.cgroup(name), *nodes)
            answers = [line.rpartition(": ")[2] for line in said.splitlines() if line.startswith("head: ")]
            case(f"{name}: {event}", answers == [GIVEN, GIVEN, OTHER], said)

    def cgroup(self, name: str) -> str:
        """Return the path of a container's cgroup."""
        if name not in self.pids:
            bare = name == "bare"
            words = (*BARE, "state", name) if bare else ("docker", "inspect", "--format={{.State.Pid}}", name)
            said = run(*words)
            self.pids[name] = json.loads(said)["pid"] if bare else int(said)
        with open(f"/proc/{self.pids[name]}/cgroup") as file:
            return file.read().strip().removeprefix("0::")


def boot(trial: Trial) -> None:
    """What the boot has done, and the units."""
    with open("/proc/uptime") as file:
        uptime = file.read().split()[0]
    with open("/proc/mounts") as file:
        mounts = [line.split()[2] for line in file if "cgroup" in line]
    case(f"boot: systemd, pure cgroup v2 (up {uptime} s)", mounts == ["cgroup2"], str(mounts))
    watching = (
        *("gpushim-refresh.path", "gpushim-refresh-cdi.path", "gpushim-refresh.timer"),
        "gpushim-refresh.socket",
    )
    state = run("systemctl", "is-active", *watching)
    said = state + run("systemctl", "status", "--no-pager", *watching)
    case("boot: path units, timer and socket are active", state.split() == ["active"] * 4, said)
    for _ in range(100):
        if os.path.exists("/run/gpushim/inventory.json"):
            break
        time.sleep(0.2)
    while run("systemctl", "is-active", SERVICE).startswith("activating"):
        time.sleep(0.2)
    shown = run("systemctl", "show", SERVICE, "--property=Result,ExecMainStatus,ConditionResult")
    passed = set(shown.split()) == {"Result=success", "ExecMainStatus=0", "ConditionResult=yes"}
    passed = passed and all(map(os.path.exists, ("/run/gpushim/inventory.json", "/run/cdi/nvidia.com-gpu.json")))
    log = run("journalctl", "--unit", SERVICE, "--output=cat")
    case("boot: the driver's module appeared, and the refresh ran", passed, shown + log)
    names = ("refresh.service", "refresh-again.service", "refresh.path", "refresh-cdi.path", "refresh.timer")
    units = [f"/usr/lib/systemd/system/gpushim-{name}" for name in names]
    said = run("systemd-analyze", "verify", "--man=no", *units)
    case("units: systemd-analyze verify", not said, said)
    said = run("udevadm", "verify", "--no-style", "/usr/lib/udev/rules.d/60-gpushim.rules")
    case("units: udevadm verify", "[status" not in said, said)
    said = run("systemctl", "start", SERVICE)
    case(f"units: systemctl start {SERVICE}", not said, said)


def update(trial: Trial) -> None:
    """Change the containers' limits."""
    names = [name for name in trial.containers if name != "bare"]
    said = run("docker", "update", "--cpus=0.9", *names)
    case("docker update --cpus", said.split() == names, said)
    trial.opens("after docker update --cpus")
    ids = run("docker", "inspect", "--format={{.Id}}", *names).split()
    said = "".join(run(*MOBY, "update", "--cpu-share=512", each) for each in ids)
    said += run(*BARE, "update", "--cpu-share=512", "bare")
    case("runc update", not said, said)
    trial.opens("after runc update")
    units = [*(f"docker-{each}.scope" for each in ids), "gpushim-bare.scope"]
    said = "".join(run("systemctl", "set-property", "--runtime", unit, "TasksMax=500") for unit in units)
    case("systemctl set-property", not said, said)
    trial.opens("after systemctl set-property")


def started() -> Trial:
    """Look at the boot, and start a container in each way; its GPU's nodes open, and nvidia-smi lists it."""
    trial = Trial()
    boot(trial)
    said = run("docker", "import", "/srv/rootfs.tar", "box")
    case("docker import", said.startswith("sha256:"), said)
    said = run("docker", "info", "--format={{.CgroupDriver}} {{.CgroupVersion}} {{.LiveRestoreEnabled}}")
    case("docker: the systemd cgroup driver, live-restore", said == "systemd 2 true\n", said)
    trial.docker("shim", "--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=0")
    trial.docker("hook", "--gpus=device=0")
    trial.docker("cdi", "--device=nvidia.com/gpu=0")
    trial.bare()
    trial.opens("after the start", inside=True)
    libraries = f"LD_LIBRARY_PATH=/srv/gpus/usr/lib/{os.uname().machine}-linux-gnu"
    outside = run("env", libraries, "/srv/gpus/usr/bin/nvidia-smi", "-L")
    for name, execute in trial.containers.items():
        said = execute("nvidia-smi", "-L")
        case(f"{name}: nvidia-smi -L", said.splitlines() == outside.splitlines()[:1], said + outside)
    return trial


def again(trial: Trial) -> None:
    """Have device rules applied again in every way."""
    said = run("systemctl", "daemon-reload")
    case("systemctl daemon-reload", not said, said)
    trial.opens("after systemctl daemon-reload")
    update(trial)
    said = run("systemctl", "restart", "docker.service")
    case("systemctl restart docker", not said, said)
    trial.opens("after the restart of dockerd")
    run("systemctl", "daemon-reload")
    trial.opens("after that and another daemon-reload", inside=True)
    script = f"mknod /dev/other c 195 {trial.given}; head -c1 /dev/other"
    said = run("docker", "run", "--rm", "--network=none", "--runtime=nvidia", "box", "sh", "-c", script)
    case("no request, no GPU", OTHER in said, said)


def main() -> None:
    """Try everything."""
    again(started())
    end()


if __name__ == "__main__":
    main()
