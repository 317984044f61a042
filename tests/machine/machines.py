"""The machines that can be booted, by name: what each has, and which trial runs on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from e2e import trees
from machine.processors import AMD64, ARM64, Processor

BESIDE = trees.TOP.parent / "shared" / "selinux"
BASE = (
    *("busybox-static", "systemd", "systemd-sysv", "dbus", "udev", "kmod"),
    *("containerd", "docker-cli", "docker.io", "runc"),
    *("dash", "grep", "libpython3-stdlib", "python3-minimal"),  # all that the shim and the hook need
    *("base-files", "base-passwd", "coreutils", "libc-bin", "mount", "procps", "sed", "tar", "util-linux"),
)
CONFINED = (
    *BASE,
    *("podman", "crun", "conmon", "netavark", "catatonit", "uidmap", "golang-github-containers-common"),
    *("policycoreutils", "selinux-utils", "apparmor", "findutils", "passwd", "libsqlite3-0"),
    *("python3-grpcio", "python3-prometheus-client"),  # of the device plugin and the trial
)
ARM64_PACKAGES = (
    *BASE,
    *("dpkg", "init-system-helpers", "perl-base", "mawk", "diffutils", "findutils"),  # for packages' scripts
    *("python3", "python3-yaml", "python3-grpcio", "python3-prometheus-client"),  # that ours depend on
)
# Without a limit of the kernel's log, that has all denials; `audit=1`, or there is none before the first audit rule.
AUDIT = "audit=1 audit_backlog_limit=8192 log_buf_len=8M sysctl.kernel.printk_ratelimit=0"
# Debian's kernel has no selinux=1: this list chooses.
LSM = "lsm=landlock,lockdown,yama,integrity,{name},bpf"


@dataclass(frozen=True)
class Machine:
    """A machine: its trial is a module of trials/, its policy an archive of $GPUSHIM_SELINUX.

    The trial runs once in each of `boots`.
    """

    shows: str
    trial: str
    kernel: str
    packages: tuple[str, ...] = CONFINED
    policy: str = ""
    disk: str = "3G"
    processor: Processor = AMD64
    boots: int = 1

    def archive(self) -> Path | None:
        """Return where its policy is; nothing if it has none.

        Raises:
            FileNotFoundError: it has one that is not there, with a sentence that says what is wanted.
        """
        if not self.policy:
            return None
        found = Path(os.environ.get("GPUSHIM_SELINUX") or BESIDE) / f"{self.policy}.tar.xz"
        if not found.is_file():
            why = "an archive of etc/selinux and usr/share/containers/selinux; GPUSHIM_SELINUX names its directory"
            raise FileNotFoundError(f"there is no {found}, {why}")
        return found


def _selinux(version: int) -> Machine:
    kernel = f"{LSM.format(name='selinux')} enforcing=1 {AUDIT}"
    shows = f"SELinux enforcing, with the policy and container-selinux of RHEL {version}"
    return Machine(shows, "confined", kernel, policy=f"policy-c{version}s")


MACHINES = {
    "machine": Machine(
        "a GPU stays when device rules are applied again", "device_rules", "selinux=0 apparmor=0", BASE, disk="1500M"
    ),
    "boots": Machine(
        "containers that start with the machine have their GPUs", "boots", "selinux=0 apparmor=0", boots=2
    ),
    "selinux-9": _selinux(9),
    "selinux-10": _selinux(10),
    "apparmor": Machine(
        "AppArmor, with the profiles of Docker, Podman and containerd",
        "confined",
        f"{LSM.format(name='apparmor')} {AUDIT}",
    ),
    "arm64": Machine(
        "packages, nodes, the loader's cache, the device plugin, a Grace-Hopper and a Jetson on aarch64",
        "arm64",
        "selinux=0 apparmor=0",
        ARM64_PACKAGES,
        processor=ARM64,
    ),
}
