"""An ordinary user of an installed machine, whose Docker its own scripts start, as Debian has them.

The machine has no systemd, so the user starts what dockerd-rootless-setuptool.sh says. rootlesskit makes the engine's
namespaces, in which /etc and /run are tmpfs with a link for each name.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from e2e import engines, installed, leftovers
from e2e.engines import Done
from e2e.installed import Machine

NAME, UID, HOME, RUN = "alice", 1000, "/home/alice", "/home/alice/run"
# The scripts want the client beside themselves.
PATH = f"{HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The arguments: a directory for what an overlay cannot hold, the simulated host's nodes.
SETUP = f"""
echo {NAME}:x:{UID}:{UID}::{HOME}:/bin/sh >>/etc/passwd
echo {NAME}:x:{UID}: >>/etc/group
for file in /etc/subuid /etc/subgid; do echo {NAME}:100000:65536 >$file; done
chmod 755 "$1"
mkdir -p "$1/home" {HOME}
mount --bind "$1/home" {HOME}
mount -t tmpfs none /tmp
mkdir -m 700 {RUN}
mkdir -p {HOME}/.config/docker {HOME}/bin
ln -s /usr/bin/docker /usr/share/docker.io/contrib/* {HOME}/bin
printf '%s' "$3" >{HOME}/.config/docker/daemon.json
chown -R {UID}:{UID} {HOME}
mount -t overlay -o "lowerdir=$2:/dev" overlay /dev
"""
# Without a network of its own and rules for it, which the tests' machine need not have.
DAEMON = json.dumps(
    {
        "bridge": "none",
        "features": {"cdi": True},
        "ip6tables": False,
        "runtimes": {"nvidia": {"path": "/usr/bin/gpushim-runtime"}},
    }
)
SETUPTOOL = "dockerd-rootless-setuptool.sh install --force --skip-iptables"


@dataclass
class User:
    """The user, on the machine."""

    machine: Machine

    def command(self, line: str) -> list[str]:
        """Return a command that executes a line of shell as this user."""
        env = [
            f"HOME={HOME}",
            f"XDG_RUNTIME_DIR={RUN}",
            f"PATH={PATH}",
            f"USER={NAME}",
            f"DOCKER_HOST=unix://{RUN}/docker.sock",
        ]
        ids = ["/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        return [*self.machine.prefix, *ids, "/usr/bin/env", "-i", *env, "/bin/sh", "-c", f"cd; {line}"]

    def run(self, line: str, *, check: bool = True) -> Done:
        """Run a line of shell as this user."""
        return engines.run(self.command(line), check=check)


@contextlib.contextmanager
def docker(user: User) -> Iterator[None]:
    """Have the user's dockerd for the block, as the setup tool says that it is started."""
    said = user.run(SETUPTOOL).stdout
    (line,) = (line for line in said.splitlines() if line.startswith("PATH=") and "dockerd-rootless.sh" in line)
    log, nothing = user.machine.state / "rootless.log", subprocess.DEVNULL
    with log.open("ab") as output:
        process = subprocess.Popen(user.command(f"exec env {line}"), stdin=nothing, stdout=output, stderr=output)

    def answers() -> bool:
        return process.poll() is not None or user.run("docker version", check=False).returncode == 0

    try:
        assert leftovers.until(answers, engines.READY_SECONDS), engines.tail(log)
        assert process.poll() is None, engines.tail(log)
        yield
    finally:
        user.run(f"kill $(cat {shlex.quote(RUN)}/docker.pid)", check=False)
        process.wait(engines.CALL_SECONDS)


@contextlib.contextmanager
def user(suite: str = "rootless", view: str = "v1", *, lower: str = "") -> Iterator[User]:
    """Set a machine with such a user up, whose GPUs are listed; the arguments are those of installed.machine."""
    with installed.machine(suite, view, lower=lower) as machine:
        setup = ["/bin/sh", "-euc", SETUP, "sh", str(machine.state), f"{machine.host.root}/dev", DAEMON]
        subprocess.run([*machine.prefix, *setup], check=True)
        machine.run("gpushim refresh")
        yield User(machine)
