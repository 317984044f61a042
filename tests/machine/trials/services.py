"""The driver's services, of which containers get sockets: nvidia-persistenced, MPS; and a driver in a container."""

from __future__ import annotations

import os
from pathlib import Path

from machine.trials.looks import CDI, DOCKER, SELINUX, SHIM, container
from machine.trials.rows import case, note, run, sh, until

HOST = "/srv/gpus"
REACH = "--volume=/usr/local/bin/reach:/reach"
CONFIG = Path("/etc/gpushim/config.toml")
PERSISTENCED = f"{HOST}/run/nvidia-persistenced/socket"
GROUP = "/run/gpushim/mps/gpu"
SHARING = '{"version": "v1", "sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 4}]}}}'
# What the driver's container does: a driver below its root, its kernel's files, and itself where the host finds it.
DRIVER = f"""
cp -a {HOST}/usr/. /usr; cp -a {HOST}/etc/. /etc; cp -a {HOST}/dev/nvidia* /dev
mkdir -p /run/nvidia/driver
mount -o bind {HOST}/sys /sys && mount -o bind {HOST}/proc /proc && mount -o rbind / /run/nvidia/driver
echo mounted; exec sleep 1000000
"""


class Settings:
    """config.toml with more or other lines for a block, which every refresh and create goes by."""

    def __init__(self, text: str) -> None:
        self.text, self.before = text, CONFIG.read_text()

    def __enter__(self) -> str:
        CONFIG.write_text(self.text)
        return run("gpushim", "refresh")

    def __exit__(self, *_: object) -> None:
        CONFIG.write_text(self.before)
        run("gpushim", "refresh")


def persistenced() -> None:
    """Its socket is of another service's domain, which no container may connect to under SELinux; it starts."""
    program = f"{HOST}/usr/bin/nvidia-persistenced"
    sh(
        'rm "$1" "$2"; cp /usr/local/bin/reach "$1"; restorecon "$1"',
        program,
        PERSISTENCED,
    )
    run("systemd-run", "--unit=persistenced", program, "-l", PERSISTENCED)
    until(lambda: os.path.exists(PERSISTENCED))
    note("its domain", sh('ps -eo label,args | grep "[n]vidia-persistenced -l"; ls -Z "$1"', PERSISTENCED))
    said = run(*SHIM, REACH, "box", "/reach", "/run/nvidia-persistenced/socket")
    if SELINUX:
        case("nvidia-persistenced's socket: there, and closed by the policy", "Permission denied" in said, said)
    else:
        case("nvidia-persistenced's socket is reached", "reached: /" in said, said)
    run("systemctl", "stop", "persistenced")


def mps() -> None:
    """A group's unit, and a daemon of the host's own."""
    sharing = Path("/etc/gpushim/device-plugin.yaml")
    sharing.write_text(SHARING)
    with Settings(CONFIG.read_text() + f'\n[device-plugin]\nconfig-file = "{sharing}"\n') as said:
        said += run("systemctl", "start", "gpushim-mps@gpu.service")
        state = run("systemctl", "is-active", "gpushim-mps@gpu.service")
        said += run("journalctl", "--output=cat", "--unit=gpushim-mps@gpu", "--no-pager")
        case("MPS's unit serves", state.strip() == "active", said)
        note("its labels", sh(f"ls -dZ {GROUP} {GROUP}/*; ls -Z {GROUP}/pipe; ps -eo label,args | grep '[m]ps'"))
        pipe, shm = f"--volume={GROUP}/pipe:/mps:ro", f"--volume={GROUP}/private/shm:/dev/shm"
        script = "/reach /mps/control; echo x >/dev/shm/x && cat /dev/shm/x"
        said = run(*SHIM, REACH, pipe, shm, "box", "sh", "-c", script)
        case("MPS's unit: a container reaches the daemon", "reached: /mps" in said, said)
        case("MPS's unit: a container writes to its shared memory", "\nx\n" in said, said)
        run("systemctl", "stop", "gpushim-mps@gpu.service")
    pipe = f"{HOST}/run/nvidia-mps"
    run("mkdir", "-p", pipe)
    daemon = ["/usr/local/bin/reach", "-l", f"{pipe}/control"]
    if SELINUX:  # as configuration.md has it; from here spc_t is reached through a domain of engines alone
        run("chcon", "-t", "container_file_t", pipe)
        daemon = [
            "--property=SELinuxContext=system_u:system_r:container_runtime_t:s0",
            "runcon",
            "-t",
            "spc_t",
            *daemon,
        ]
    run("systemd-run", "--unit=mps", *daemon)
    until(lambda: os.path.exists(f"{pipe}/control"))
    with Settings(CONFIG.read_text() + "\n[mps]\nenabled = true\n"):
        said = run(*SHIM, REACH, "box", "sh", "-c", "/reach $CUDA_MPS_PIPE_DIRECTORY/control")
        case("[mps]: a container reaches the host's daemon", "reached: /" in said, said)
    run("systemctl", "stop", "mps")


def driver_container() -> None:
    """A driver that a privileged container brings, below /run/nvidia/driver."""
    binds = ("--volume=/run/nvidia:/run/nvidia:shared", f"--volume={HOST}:{HOST}:ro")
    run("mkdir", "-p", "/run/nvidia/driver")
    # Else its files have categories that no other container has; the GPU operator asks for this level, too.
    shared = (
        ("--privileged", "--security-opt=label=type:spc_t", "--security-opt=label=level:s0")
        if SELINUX
        else ("--privileged",)
    )
    said = run("docker", "run", "--detach", "--name=driver", *shared, *binds, "box", "sh", "-c", DRIVER)
    until(lambda: os.path.exists("/run/nvidia/driver/usr/bin/nvidia-smi"))
    text = CONFIG.read_text().replace(f'root = "{HOST}"', 'root = "/run/nvidia/driver"')
    with Settings(text) as why:
        said += run("docker", "logs", "driver") + why + sh("ls -Zd /run/nvidia/driver/usr/bin/nvidia-smi")
        note("the driver's container", said)
        container("driver container: docker shim", *SHIM)
        container("driver container: docker cdi", *DOCKER, CDI)
    run("docker", "rm", "--force", "driver")
    run("umount", "-R", "/run/nvidia/driver")
