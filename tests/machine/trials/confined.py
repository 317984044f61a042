"""What is tried on a machine that confines containers: SELinux, enforcing, or AppArmor.

Under SELinux nothing is labelled and no boolean is set but where a case says so: what a user meets after the
installation of the packages.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable

from machine.trials import cri_engines, kubernetes, services
from machine.trials.looks import (
    CDI,
    DOCKER,
    ENV,
    GIVEN,
    LOOK,
    OTHER,
    PODMAN,
    SELINUX,
    SHIM,
    boolean,
    closed,
    container,
    looked,
    types,
)  # fmt: skip
from machine.trials.rows import case, end, note, run, sh, until

SERVICE, BOOT = "gpushim-refresh.service", "gpushim-refresh-boot.service"
SNAPSHOT, SPEC = "/run/gpushim/inventory.json", "/run/cdi/nvidia.com-gpu.json"
STATE = ("/run/gpushim", SNAPSHOT, "/run/gpushim/params", "/run/cdi", SPEC, "/var/log/gpushim.log")
# All that packages, refreshes and creates make.
EVERYTHING = (
    *("/etc/gpushim", "/etc/cdi", "/run/gpushim", "/run/cdi", "/var/log/gpushim.log", "/var/lib/gpushim"),
    *("/usr/bin", "/usr/lib/gpushim", "/usr/share/gpushim", "/srv/gpus"),
)
# But for what is a file system of its own on a real host.
RELABEL = ("restorecon", "-R", "-e", "/srv/gpus/proc", "-e", "/srv/gpus/sys")
# Of the state: the boot, a create, an administrator or a package, and the chart's privileged pod.
MAKERS = (
    ("systemctl", "start", SERVICE),
    (*SHIM, "box", "true"),
    ("gpushim", "refresh"),
    (*DOCKER, "--privileged", "--pid=host", "box", "nsenter", "-t1", "-m", "/usr/bin/gpushim", "refresh"),
)
HOOKS = (*PODMAN, ENV)
GPUS = (*DOCKER, "--gpus=device=0")
USER = (
    *("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "env", "HOME=/home/joe"),
    *("XDG_RUNTIME_DIR=/run/user/1000", "podman", "--cgroup-manager=cgroupfs", "--events-backend=file"),
    "--storage-driver=vfs",
)
MAKE_USER = """
echo joe:x:1000:1000::/home/joe:/bin/sh >>/etc/passwd
echo joe:x:1000: >>/etc/group
echo joe:100000:65536 | tee /etc/subuid >/etc/subgid
mkdir -p /home/joe /run/user/1000
chown 1000:1000 /home/joe /run/user/1000
chmod 644 /srv/rootfs.tar
restorecon -RF /home /run/user
# Where a rootless engine finds the nodes that it mounts: here they are in the simulated host's /dev alone.
cp -a /srv/gpus/dev/nvidia* /dev
restorecon -R /dev
"""


def settled() -> str:
    """Wait for the boot's refresh; returns what it said."""
    until(lambda: os.path.exists(SNAPSHOT))
    until(lambda: not run("systemctl", "is-active", SERVICE).startswith("activating"), 200)
    return run("systemctl", "show", SERVICE, "--property=Result,ExecMainStatus") + run(
        *("journalctl", "--unit", SERVICE, "--unit", BOOT, "--output=cat", "--no-pager")
    )


def prepared() -> None:
    """The boot, the driver's files in /proc, and images."""
    said = sh("cat /sys/kernel/security/lsm /proc/1/attr/current; getenforce")
    case("boot: confined", "Enforcing" in said if SELINUX else "apparmor" in said, said)
    said = settled()
    case("boot: the refresh ran", "Result=success" in said and os.path.exists(SPEC), said)
    domain = re.search(r"^\S+_t:s0.*$|^unconfined$", said, re.M)
    note("the refresh's domain", domain[0] if domain else "")
    module = f"/usr/lib/modules/{os.uname().release}/nvproc.ko"
    said = run("insmod", module, f"gpus={GIVEN[1]},{OTHER[1]}") + run("gpushim", "refresh")
    case("a refresh with the driver's /proc", os.path.exists("/run/gpushim/params"), said)
    for engine in ("docker", "podman"):
        said = run(engine, "import", "/srv/rootfs.tar", "box")
        case(f"{engine} import", "[status" not in said, said)


def engines() -> None:
    """Docker and Podman of root, each way that gives a container a GPU."""
    if SELINUX:
        for engine in (DOCKER, PODMAN):
            said = run(*engine, "--volume=/srv/gpus.txt:/host", "box", "cat", "/host")
            case(f"{engine[0]}: a file of the host stays closed", "Permission denied" in said, said)
    container("docker shim", *SHIM)
    container("docker shim, user 1000, read-only", *SHIM, "--user=1000", "--read-only", "--cap-drop=ALL")
    container("docker cdi", *DOCKER, CDI)
    said = run("gpushim", "configure", "podman")
    case("gpushim configure podman", "[status" not in said, said)
    container("podman shim", *PODMAN, "--runtime=nvidia", ENV)
    container("podman cdi", *PODMAN, CDI)
    hooks()


def hooks() -> None:
    """The hook alone, which mounts the host's nodes: a boolean of the policy's lets containers open them."""
    said = run("gpushim", "configure", "podman", "--hooks")
    case("gpushim configure podman --hooks", "[status" not in said, said)
    if SELINUX:
        for name, words in (("docker hook", GPUS), ("podman hook", HOOKS)):
            closed(name, run(*words, "box", "sh", "-c", LOOK))
        doctor("off", "container_use_xserver_devices")
        boolean("on")
        doctor("on", "")
    container("docker hook", *GPUS)
    container("podman hook", *HOOKS)
    said = run("gpushim", "configure", "podman", "--remove", "--hooks")
    case("gpushim configure podman --remove --hooks", "[status" not in said, said)
    if SELINUX:
        boolean("off")


def doctor(value: str, named: str) -> None:
    """Ask the doctor about SELinux."""
    said = [line for line in run("gpushim", "doctor", "--all").splitlines() if "SELinux" in line]
    case(f"doctor, boolean {value}", bool(said) and named in "".join(said), repr(said))
    note("doctor", "\n".join(said))


def rootless() -> None:
    """Podman of a user, by CDI: it mounts the host's nodes."""
    note("a user", sh(MAKE_USER))
    said = sh('cd / && exec "$@"', *USER, "import", "-q", "/srv/rootfs.tar", "box")
    case("rootless podman: import", "sha256:" in said, said)
    words = ("sh", "-c", 'cd / && exec "$@"', "sh", *USER, "run", "--rm", "--network=none", "--cgroups=disabled")
    if SELINUX:
        closed("rootless podman cdi", run(*words, CDI, "box", "sh", "-c", LOOK))
        boolean("on")
    # AppArmor's profiles are root's to load, so a user's Podman has none.
    looked("rootless podman cdi", run(*words, CDI, "box", "sh", "-c", LOOK), confined=SELINUX)
    if SELINUX:
        boolean("off")


def state() -> None:
    """Whoever made the state, containers can read it, and a relabelling changes nothing."""
    if not SELINUX:
        return
    run("systemctl", "stop", "gpushim-refresh.path", "gpushim-refresh-cdi.path", "gpushim-refresh.timer")
    found = []
    for maker in MAKERS:
        run("rm", "-rf", "/run/gpushim", "/run/cdi", "/var/log/gpushim.log")
        said = run(*maker) + run(*SHIM, "box", "cat", "/proc/driver/nvidia/params")
        found.append(types(*STATE))
        case(f"parameters can be read, made by {' '.join(maker)}", "ModifyDeviceFiles: 0" in said, said)
    same = bool(found[0]) and all(each == found[0] for each in found)
    case("labels of the state are the same, whoever made it", same, repr(found))
    note("labels", repr(found[0]))
    said = run(*RELABEL, "-nv", *(path for path in EVERYTHING if os.path.exists(path)))
    case("labels are those of the policy: restorecon -R would change nothing", "Would" not in said, said[:4000])


def relabelled() -> None:
    """All of gpushim's files and the driver's after restorecon -R."""
    if not SELINUX:
        return
    said = run("gpushim", "refresh") + run(*RELABEL, "-Fv", *(path for path in EVERYTHING if os.path.exists(path)))
    note("restorecon", said[:2000])
    container("docker shim, after restorecon -R of everything", *SHIM)
    container("docker cdi, after restorecon -R of everything", *DOCKER, CDI)


PARTS: dict[str, Callable[[], None]] = {
    "engines": engines,
    "containerd": cri_engines.containerd,
    "crio": cri_engines.crio,
    "rootless": rootless,
    "persistenced": services.persistenced,
    "mps": services.mps,
    "driver-container": services.driver_container,
    "kubernetes": kubernetes.kubernetes,
    "state": state,
    "relabelled": relabelled,
}


def main() -> None:
    """Try everything, or the parts that are named."""
    prepared()
    for name in sys.argv[1:] or PARTS:
        try:
            PARTS[name]()
        except Exception:  # the others are tried all the same
            case(f"{name} comes to its end", False, traceback.format_exc())
    said = run("journalctl", "--priority=warning", "--output=cat", "--unit=gpushim*", "--no-pager")
    note("the journal's warnings of gpushim", said[:2000])
    end()


if __name__ == "__main__":
    main()
