"""The machines that can be booted, by name: what each has, and which trial runs on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machine import kernels, policies
from machine.processors import AMD64, ARM64, Processor

BASE = (
    *("busybox-static", "systemd", "systemd-sysv", "dbus", "udev", "kmod"),
    *("containerd", "docker-cli", "docker.io", "runc"),
    *("dash", "grep", "libpython3-stdlib", "python3-minimal"),  # all that the shim and the hook need
    *("base-files", "base-passwd", "coreutils", "libc-bin", "mount", "procps", "sed", "tar", "util-linux"),
)
PLUGIN = ("python3-grpcio", "python3-prometheus-client")  # that the device plugin and the trial need
CONFINED = (
    *BASE,
    *("podman", "crun", "conmon", "netavark", "catatonit", "uidmap", "golang-github-containers-common"),
    *("policycoreutils", "selinux-utils", "apparmor", "findutils", "passwd", "libsqlite3-0"),
    *PLUGIN,
)
ENGINES = (*BASE, "podman", "crun", "conmon", "netavark", "catatonit", "golang-github-containers-common", *PLUGIN)
ARM64_PACKAGES = (
    *BASE,
    *("dpkg", "init-system-helpers", "perl-base", "mawk", "diffutils", "findutils"),  # for packages' scripts
    *("python3", "python3-yaml", *PLUGIN),  # that ours depend on
)
# Without a limit of the kernel's log, that has all denials; `audit=1`, or there is none before the first audit rule.
AUDIT = "audit=1 audit_backlog_limit=8192 log_buf_len=8M sysctl.kernel.printk_ratelimit=0"
# Debian's kernel has no selinux=1: this list chooses.
LSM = "lsm=landlock,lockdown,yama,integrity,{name},bpf"


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        trial: a module of trials/.
        policy: returns the directory of its SELinux policy, and raises as `policies.of_a_host` does.
        boots: how often it is started, its trial once in each.
        own_kernel: returns the file of another kernel than Debian's.
        driver: version of the simulated driver.
    """

    shows: str
    trial: str
    kernel: str
    packages: tuple[str, ...] = CONFINED
    policy: Callable[[], Path] | None = None
    disk: str = "3G"
    processor: Processor = AMD64
    boots: int = 1
    own_kernel: Callable[[], Path] | None = None
    driver: str = "535.183.01"

    @property
    def is_node(self) -> bool:
        """Whether it has a kubelet, and the device plugin's package."""
        return {*PLUGIN} <= {*self.packages} and self.processor is AMD64


def _selinux(shows: str, trial: str, policy: Callable[[], Path]) -> Machine:
    kernel = f"{LSM.format(name='selinux')} enforcing=1 {AUDIT}"
    return Machine(f"SELinux enforcing, with {shows}", trial, kernel, policy=policy)


MACHINES = {
    "machine": Machine(
        "a GPU stays when device rules are applied again", "device_rules", "selinux=0 apparmor=0", BASE, disk="1500M"
    ),
    "selinux": _selinux(
        f"the policy of a host of Red Hat's, a copy in ${policies.VARIABLE}", "confined", policies.of_a_host
    ),
    "selinux-debian": _selinux("Debian's policy", "debian_policy", policies.of_debian),
    "boots": Machine(
        "containers that start with the machine have their GPUs", "boots", "selinux=0 apparmor=0", boots=2
    ),
    "memory": Machine(
        "limits of GPU memory, kept by the kernel's controller dmem",
        "memory",
        "gpu_memory.gpus=0000:07:00.0,0000:0f:00.0",
        ENGINES,
        own_kernel=kernels.with_dmem,
        driver="615.71",
    ),
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
