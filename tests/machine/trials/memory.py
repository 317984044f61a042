"""Limits of GPU memory on a kernel that keeps them: in force at the first instruction, whoever makes the container.

/dev/gpu-memory0 stands for the driver: what is written to it is taken of GPU 0's memory, which has 1 GiB.
"""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path

from machine.trials import kubelet
from machine.trials.rows import case, end, note, run, sh, until

MIB = 1 << 20
LIMIT = "--env=GPUSHIM_MEMORY_LIMIT=512Mi"
NODE = "--device=/dev/gpu-memory0"
REGION = re.compile(r"nvidia/0000:07:00\.0/vidmem (\S+)")
# The container's first process: its own limit, then more memory than it may have.
FIRST = (
    "cat /sys/fs/cgroup/dmem.max; exec 3>/dev/gpu-memory0; echo {0} >&3 && echo taken; echo {0} >&3 || echo refused"
)
LOOK = FIRST.format(300 * MIB)
STAY = f"exec 3>/dev/gpu-memory0; echo {200 * MIB} >&3 && echo taken; sleep 1000000"
CHILD = (
    "echo nvidia/0000:07:00.0/vidmem max >/sys/fs/cgroup/dmem.max; "
    f"mkdir /sys/fs/cgroup/own && echo 0 >/sys/fs/cgroup/own/cgroup.procs; {LOOK}"
)
DOCKER = {
    "gpushim-runtime": ("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=0"),
    "the hook alone": ("--gpus=device=0",),
    "CDI": ("--device=nvidia.com/gpu=0",),
}
# A privileged container, which has the node, is in no cgroup namespace.
POD = f"IFS=: read a b own </proc/self/cgroup; {LOOK}; exec sleep 1000000".replace(
    "/sys/fs/cgroup/", "/sys/fs/cgroup$own/"
)
SHARE, PLUGIN = "nvidia.com/gpu.half", "gpushim-device-plugin.service"
SHARES = """version: v1
sharing:
  timeSlicing:
    resources:
    - {name: gpu, devices: [0], rename: gpu.half, replicas: 2, memory: 384Mi}
"""
BUNDLE = Path("/srv/bundle")
JOE = Path("/home/joe")  # a user of no privilege, uid 1000
USER = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
DELEGATED = "/sys/fs/cgroup/users/joe"  # as systemd has one for a user's engine, below one of root's
MAKE_USER = f"""
mkdir -p {JOE}/bundle {DELEGATED}/start
cp -a /srv/rootfs {JOE}/rootfs
chown -R 1000:1000 {JOE}
chown 1000 {DELEGATED} {DELEGATED}/cgroup.procs {DELEGATED}/cgroup.subtree_control
chown 1000 {DELEGATED}/start {DELEGATED}/start/cgroup.procs
echo +dmem >/sys/fs/cgroup/cgroup.subtree_control
"""


def kept(said: str, size: int = 512 * MIB) -> bool:
    """Return whether a container had this limit, and was held to it."""
    return REGION.findall(said) == [str(size)] and "taken" in said and "refused" in said


def docker(*words: str) -> str:
    """Run a container that is removed afterwards; returns what it says."""
    return run("docker", "run", "--rm", "--network=none", NODE, *words)


def by_docker() -> None:
    """Each way in which Docker makes a container."""
    run("docker", "import", "/srv/rootfs.tar", "box")
    for name, options in DOCKER.items():
        said = docker(*options, LIMIT, "box", "sh", "-c", LOOK)
        case(f"docker, {name}: the limit stands", kept(said), said)
    said = docker("--privileged", "--cgroupns=private", *DOCKER["gpushim-runtime"], LIMIT, "box", "sh", "-c", CHILD)
    case("docker: a container that may write its cgroup has the limit, and a cgroup below, too", kept(said), said)
    said = docker("--gpus=device=0", "box", "sh", "-c", LOOK)
    case("docker: without a limit there is none", REGION.findall(said) == ["max"] and "refused" not in said, said)


def by_podman() -> None:
    """Podman, with both low-level runtimes."""
    run("podman", "import", "/srv/rootfs.tar", "box")
    for runtime in ("crun", "runc"):
        words = ("podman", f"--runtime={runtime}", "run", "--rm", "--network=none", NODE)
        said = run(*words, "--device=nvidia.com/gpu=0", LIMIT, "box", "sh", "-c", LOOK)
        case(f"podman, {runtime}, CDI: the limit stands", kept(said), said)


def bare() -> None:
    """A low-level runtime without an engine, its cgroup by systemd and by the file system."""
    for name, words, path in (
        ("systemd", ["--systemd-cgroup"], "system.slice:gpushim:bare"),
        ("cgroupfs", [], "/gpushim/bare"),
    ):
        run("rm", "-rf", str(BUNDLE))
        BUNDLE.mkdir()
        run("runc", "spec", "--bundle", str(BUNDLE))
        spec = json.loads((BUNDLE / "config.json").read_text())
        spec["root"] = {"path": "/srv/rootfs"}
        spec["process"] |= {"terminal": False, "args": ["sh", "-c", LOOK], "user": {"uid": 0, "gid": 0}}
        spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=512Mi"]
        facts = os.stat("/dev/gpu-memory0")
        node = {"type": "c", "major": os.major(facts.st_rdev), "minor": os.minor(facts.st_rdev)}
        spec["linux"]["devices"] = [{"path": "/dev/gpu-memory0", "fileMode": 0o666, **node}]
        spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rw", **node})
        spec["linux"]["cgroupsPath"] = path
        (BUNDLE / "config.json").write_text(json.dumps(spec))
        said = run("gpushim-runtime", "--root=/run/bare", *words, "run", "--bundle", str(BUNDLE), f"bare-{name}")
        case(f"gpushim-runtime alone, {name}: the limit stands", kept(said), said)


def rootless() -> None:
    """A user's runc, in a cgroup that root has delegated: whose parents must have the controller."""
    said = sh(MAKE_USER) + run(*USER, "runc", "spec", "--rootless", "--bundle", str(JOE / "bundle"))
    config = JOE / "bundle/config.json"
    spec = json.loads(config.read_text())
    spec["root"] = {"path": str(JOE / "rootfs")}
    spec["process"] |= {"terminal": False, "args": ["sh", "-c", LOOK]}
    spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=0", "GPUSHIM_MEMORY_LIMIT=512Mi"]
    node = {"destination": "/dev/gpu-memory0", "source": "/dev/gpu-memory0", "type": "bind", "options": ["bind"]}
    spec["mounts"].append(node)
    spec["linux"]["cgroupsPath"] = f"{DELEGATED.removeprefix('/sys/fs/cgroup')}/box"
    words = (*USER, "gpushim-runtime", f"--root={JOE}/run", "run", "--bundle", str(JOE / "bundle"), "box")
    for name, command in (("without", "true"), ("with", "echo +dmem >/sys/fs/cgroup/users/cgroup.subtree_control")):
        config.write_text(json.dumps(spec))
        said += sh(command) + sh(f'echo $$ >{DELEGATED}/start/cgroup.procs; cd /; exec "$@"', *words)
        refused = "cannot be written to /sys/fs/cgroup/users/cgroup.subtree_control: no permission" in said
        passed = kept(said) if name == "with" else refused and "taken" not in said
        case(f"rootless runc, a parent {name} the controller", passed, said)
        said = ""


def beside_others() -> None:
    """Two containers on one GPU, and what happens to a limit while its container runs."""
    for name, limit in (("one", "256Mi"), ("two", "512Mi")):
        words = ("--detach", f"--name={name}", "--network=none", NODE, "--gpus=device=0")
        run("docker", "run", *words, f"--env=GPUSHIM_MEMORY_LIMIT={limit}", "box", "sh", "-c", STAY)
    said = sh("cat /sys/fs/cgroup/system.slice/docker-*.scope/dmem.current /sys/fs/cgroup/system.slice/dmem.current")
    sizes = [int(size) for size in REGION.findall(said)]
    case("two on one GPU: each has its own, and the sum is theirs", sizes == [200 * MIB, 200 * MIB, 400 * MIB], said)
    said = run("gpushim", "ps")
    case("gpushim ps shows both", all(f"0: 200 of {size} MiB" in said for size in (256, 512)), said)
    more = f"exec 3>/dev/gpu-memory0; echo {100 * MIB} >&3 && echo taken || echo refused"
    answers = [run("docker", "exec", name, "sh", "-c", more) for name in ("one", "two")]
    taken = ["taken" in answer for answer in answers]
    case("the one at its limit is refused, the other unharmed", taken == [False, True], str(answers))
    for event, command in (
        ("docker update", "docker update --memory=512m --memory-swap=512m one"),
        ("daemon-reload", "systemctl daemon-reload"),
        ("docker restart", "docker restart --time=0 one"),
    ):
        done = sh(command)
        said = sh("cat /sys/fs/cgroup/system.slice/docker-$(docker inspect --format={{.Id}} one).scope/dmem.max")
        case(f"{event}: the limit stands", REGION.findall(said) == [str(256 * MIB)], done + said)
    run("docker", "rm", "--force", "one", "two")


def _has_answered(pod: str) -> bool:
    return "refused" in kubelet.read_log(pod)


def by_kubelet() -> None:
    """Two pods, each with a share of GPU 0 that has a limit; a static one needs no API server."""
    if not kubelet.PROGRAM.exists():
        note("kubelet", "skipped: tools/setup.sh test builds a kubelet")
        return
    Path("/etc/gpushim/device-plugin.yaml").write_text(SHARES)
    with Path("/etc/gpushim/config.toml").open("a") as config:
        config.write('\n[device-plugin]\nconfig-file = "/etc/gpushim/device-plugin.yaml"\n')
    up, said = kubelet.start(("box",))
    said += run("systemctl", "start", PLUGIN)
    up = up and until(lambda: len(kubelet.list_devices(SHARE)) == 2, 120)
    case("kubelet has two shares of GPU 0", up, said + kubelet.journal() + run("journalctl", f"--unit={PLUGIN}"))
    for name in ("one", "two"):
        privileged = {"securityContext": {"privileged": True}}  # it has the node of the memory's stand-in
        spec = {"containers": [kubelet.container(POD, SHARE) | privileged], "hostNetwork": True}
        # While the emulated NVML starts, nothing is given out, and a pod that is refused is refused for good.
        for number in range(5):
            kubelet.make_pod(f"{name}{number}", spec)
            if until(partial(_has_answered, f"{name}{number}"), 90):
                break
            (kubelet.MANIFESTS / f"{name}{number}.json").unlink()
        said = kubelet.read_log(f"{name}{number}")
        evidence = sh(f"journalctl --unit=kubelet --output=cat --no-pager | grep {name}[0-9]-node | tail -n 20")
        case(f"kubelet: the limit of the pod {name}'s share stands", kept(said, 384 * MIB), said + evidence)
    run("systemctl", "stop", PLUGIN, "kubelet.service")


def main() -> None:
    """Try all of it."""
    said = run("gpushim", "refresh")
    case("the GPUs are listed", Path("/run/gpushim/inventory.json").exists(), said)
    for part in (by_docker, beside_others, bare, rootless, by_podman, by_kubelet):
        part()
    end()


if __name__ == "__main__":
    main()
