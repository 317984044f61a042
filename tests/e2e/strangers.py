"""Processes of strangers that call themselves engines, beside a host's /etc that the tests may change.

The stage is a mount and a PID namespace with an overlay on /etc, in which root's commands, the processes of the user
nobody and the containers of the real Podman run: no other gpushim of this machine, maybe a vulnerable one, sees them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import scratch
from e2e import leftovers
from e2e.engines import SYSTEM_PATH, Done, run
from e2e.hostile_places import Place
from e2e.podman import podman
from e2e.witness import RUNC

NOBODY = 65534
SECONDS = 20.0
SOURCE = Path(__file__).with_name("stranger.c")
STAGE = """
mkdir "$1/upper" "$1/work"
mount -t proc proc /proc
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc
mkdir -p /etc/docker /etc/containerd /usr/local/bin
mount -t tmpfs -o mode=755 none /usr/local/bin # where configure makes links
echo ready
trap '' CHLD # the kernel reaps what containers leave behind
exec cat
"""


@dataclass
class Stage:
    """Where strangers and root meet.

    Attributes:
        folder: of the stranger, who may write there.
        victim: a directory of root's, empty.
        marker: the file that the stranger's program makes, here or below a container's root.
        place: the gpushim that root calls.
        prefix: command that enters the stage.
    """

    folder: Path
    victim: Path
    marker: Path
    place: Place
    prefix: tuple[str, ...]

    @property
    def program(self) -> Path:
        """The stranger's program."""
        return self.folder / "program"

    def gpushim(self, *words: str) -> Done:
        """Let root call gpushim; whether it succeeds is not the point."""
        environment = {"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **self.place.env}
        return run([*self.prefix, str(self.place.top / "bin/gpushim"), *words], check=False, env=environment)

    def gone(self) -> list[str]:
        """List what of the stranger's has come about: the marker, here or in a root, and files of root's."""
        markers = [self.marker, Path(f"{self.folder}/rootfs{self.marker}")]
        return [str(path) for path in [*markers, *self.victim.iterdir()] if path.exists()]

    @contextlib.contextmanager
    def user(self, *argv: str, program: Path | str = "") -> Iterator[None]:
        """Run a process of nobody's, whatever its command line says.

        Args:
            argv: its command line.
            program: that it executes; the stranger's own by default.
        """
        words = [*self.prefix, "/usr/bin/setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        script = 'exec -a "$1" "$0" "${@:2}"'
        words += ["/usr/bin/bash", "-c", script, str(program or self.program), *argv]
        with running(words, argv):
            yield

    @contextlib.contextmanager
    def root(self, *argv: str, program: Path | str) -> Iterator[None]:
        """Run a process of root's."""
        words = [*self.prefix, "/usr/bin/bash", "-c", 'exec -a "$1" "$0" "${@:2}"', str(program), *argv]
        with running(words, argv):
            yield

    @contextlib.contextmanager
    def rooted(self, *argv: str, rootfs: Path) -> Iterator[None]:
        """Run a process of root's in a mount namespace and a root directory of its own, without a cgroup."""
        with running([*self.prefix, *pivoted(rootfs), *argv], argv):
            yield

    @contextlib.contextmanager
    def container(self, *argv: str, user: int, rootfs: Path) -> Iterator[None]:
        """Run a container of Podman's with the host's PID namespace.

        Args:
            argv: its command line.
            user: that it runs as.
            rootfs: whose files are root's, as an image's are.
        """
        with leftovers.state() as state, podman(state, None, Path(RUNC), self.prefix) as engine:
            words = engine.command(
                *("run", "--pid=host", f"--user={user}", "--env=STRANGER", "--network=none", "--pids-limit=0"),
                *(f"--cgroup-parent=/{state.name}", "--rootfs", str(rootfs), *argv),
            )
            with running(words, argv, {**engine.env}):
                yield
                engine.podman("rm", "--all", "--force", "--time=0")


def pivoted(rootfs: Path) -> list[str]:
    """Return the words before a command that runs it in a root file system of its own."""
    script = 'mount --rbind "$1" "$1"; cd "$1"; mkdir -p old; pivot_root . old; shift; exec "$@"'
    return ["/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-euc", script, "sh", str(rootfs)]


@contextlib.contextmanager
def running(words: list[str], argv: tuple[str, ...], env: dict[str, str] | None = None) -> Iterator[None]:
    """Run a command until some process has a command line, and kill it behind the block."""
    token = secrets.token_hex(8)
    environment = {**(env or {"PATH": SYSTEM_PATH}), "STRANGER": token}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        try:
            wanted, end = b"".join(os.fsencode(word) + b"\0" for word in argv), time.monotonic() + SECONDS
            while not having(wanted, token):
                assert child.poll() is None, f"{words} ended with {child.returncode}"
                assert time.monotonic() < end, f"{words} does not start"
                time.sleep(0.05)
            yield
        finally:
            child.kill()
            for pid in having(wanted, token):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)


def having(command: bytes, token: str) -> list[int]:
    """List the processes that have this command line, and the variable STRANGER with this value."""
    wanted = f"STRANGER={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and (entry / "cmdline").read_bytes() == command
                and wanted in (entry / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def stage(place: Place) -> Iterator[Stage]:
    """Set the stage.

    Args:
        place: the gpushim that root shall call.
    """
    with tempfile.TemporaryDirectory(dir=scratch.top()) as name:
        top = Path(name)
        top.chmod(0o755)
        folder, victim, marker = top / "stranger", top / "victim", top / "marks" / "marker"
        for directory in (folder, victim, marker.parent):
            directory.mkdir()
        marker.parent.chmod(0o777)
        command = ["/usr/bin/gcc", "-Wall", "-Werror", "-static", f'-DMARKER="{marker}"', str(SOURCE)]
        subprocess.run([*command, "-o", f"{folder}/program"], check=True)
        os.chown(folder, NOBODY, NOBODY)
        words = ["/usr/bin/unshare", "--mount", "--propagation=private", "--pid", "--kill-child"]
        words += ["/bin/sh", "-euc", STAGE, "sh", name]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            try:
                namespaces = f"/proc/{holder.pid}/ns"
                enter = (f"--mount={namespaces}/mnt", f"--pid={namespaces}/pid_for_children")
                yield Stage(folder, victim, marker, place, ("/usr/bin/nsenter", *enter, "--"))
            finally:
                holder.stdin.close()


def image(stage: Stage, *names: str) -> Path:
    """Make a container's root filesystem, which is root's: the stranger's program under names of engines."""
    root = stage.folder / "rootfs"
    for directory in ("usr/bin", "etc", "proc", "sys", "dev", "tmp", "run"):
        (root / directory).mkdir(parents=True)
    Path(f"{root}{stage.marker.parent}").mkdir(parents=True)
    Path(f"{root}{stage.marker.parent}").chmod(0o777)
    for name in names:
        shutil.copy(stage.program, root / "usr/bin" / name)
    return root
