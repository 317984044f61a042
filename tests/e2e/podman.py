"""Podman with private state, whose containers get their GPUs from an OCI hook alone; it has no daemon."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e import leftovers
from e2e.engines import SYSTEM_PATH, Done, run
from e2e.trees import TOP

PODMAN = "/usr/bin/podman"
# Podman raises limits by itself, which needs a capability that containers lack.
CONTAINERS_CONF = '[containers]\ndefault_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]\n'
STORAGE_CONF = """[storage]
driver = "overlay"
graphroot = "{state}/root"
rootless_storage_path = "{state}/root"
runroot = "{state}/run"
[storage.options]
additionalimagestores = {images}
[storage.options.overlay]
ignore_chown_errors = "true"
"""


@dataclass
class Podman:
    """Podman as one user calls it."""

    state: Path
    runtime: Path
    prefix: tuple[str, ...]

    @property
    def env(self) -> dict[str, str]:
        """Its whole environment; a user's own settings lie in the home directory."""
        return {
            "PATH": SYSTEM_PATH,
            "HOME": f"{self.state}/home",
            "XDG_RUNTIME_DIR": f"{self.state}/user",
            "CONTAINERS_CONF": f"{self.state}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{self.state}/storage.conf",
        }

    def command(self, *args: str) -> list[str]:
        """Return the command line of a call."""
        ways = [f"--tmpdir={self.state}/tmp", f"--runtime={self.runtime}", f"--hooks-dir={self.state}/hooks"]
        ways += ["--cgroup-manager=cgroupfs", "--events-backend=file"]
        return [*self.prefix, PODMAN, *ways, *args]

    def podman(self, *args: str, check: bool = True) -> Done:
        """Call it."""
        return run(self.command(*args), check=check, env=self.env)

    def run(self, *args: str, check: bool = True) -> Done:
        """Call `podman run`; args are its options, then image and command."""
        # Root's containers get a cgroup of the engine's own; the view "v2" has no controller that counts processes.
        places = ["--network=none", f"--cgroup-parent=/{self.state.name}", "--pids-limit=0"]
        return self.podman("run", *places, *args, check=check)

    def stop(self) -> None:
        """Remove all containers, and end the process that holds an ordinary user's namespaces between two calls."""
        gone = self.podman("rm", "--all", "--force", "--time=0", check=False)
        pause = self.state / "tmp" / "pause.pid"
        if pause.exists():
            holder = Path("/proc", pause.read_text().strip())
            os.kill(int(holder.name), signal.SIGKILL)  # it takes no other
            pause.unlink()
            leftovers.until(lambda: not holder.exists(), leftovers.STOP_SECONDS)
        # The processes that watch over containers stay a moment longer.
        leftovers.until(lambda: not leftovers.processes(self.state), leftovers.STOP_SECONDS)
        assert gone.returncode == 0, gone.stderr


def write_hook(state: Path, program: Path, env: dict[str, str]) -> None:
    """Put our file into Podman's hooks directory.

    Args:
        state: of Podman.
        program: the hook's path here.
        env: what the file lets the hook see besides PATH, for Podman passes nothing else on.
    """
    form = json.loads((TOP / "hook" / "oci-hooks.d" / "99-gpushim.json").read_text())
    form["hook"]["path"] = str(program)
    form["hook"]["env"] += [f"{name}={value}" for name, value in env.items()]
    (state / "hooks" / "99-gpushim.json").write_text(json.dumps(form))


def store(directory: Path, archive: Path, prefix: tuple[str, ...] = ()) -> Path:
    """Load an image archive into an image store that any Podman here can share.

    Args:
        directory: to make.
        archive: of the image.
        prefix: command that executes Podman.

    Returns:
        directory.
    """
    with _client(directory, prefix) as command:
        run([*command, "load", "--quiet", f"--input={archive}"])
    return directory


def tag(directory: Path, name: str, other: str) -> None:
    """Give an image of a store another name, too; nothing is done if there is no such image.

    Args:
        directory: from `store`.
        name: of the image.
        other: name that it is to have.
    """
    with _client(directory, ()) as command:
        if run([*command, "image", "exists", name], check=False).returncode == 0:
            run([*command, "tag", name, other])


@contextlib.contextmanager
def _client(directory: Path, prefix: tuple[str, ...]) -> Iterator[list[str]]:
    # Podman takes no run root whose path has more than 50 characters.
    with tempfile.TemporaryDirectory(prefix="podman-", dir="/tmp") as scratch:
        places = f"--root={directory}", f"--runroot={scratch}/run", f"--tmpdir={scratch}/tmp"
        yield [*prefix, PODMAN, *places, "--storage-driver=overlay"]
    shutil.rmtree(directory / "libpod", ignore_errors=True)  # which would want the same run root the next time


@contextlib.contextmanager
def podman(state: Path, images: Path | None, runtime: Path, prefix: tuple[str, ...] = ()) -> Iterator[Podman]:
    """Set Podman up, and remove its containers afterwards.

    Args:
        state: directory from `leftovers.state`.
        images: directory from `store`, or none.
        runtime: the low-level one.
        prefix: command that executes Podman, such as one that enters a namespace.

    Yields:
        Podman, with an empty hooks directory.
    """
    for name in ("home", "user", "hooks"):
        (state / name).mkdir(mode=0o700)
    (state / "containers.conf").write_text(CONTAINERS_CONF)
    (state / "storage.conf").write_text(STORAGE_CONF.format(state=state, images=[str(images)] if images else []))
    engine = Podman(state, runtime, prefix)
    try:
        yield engine
    finally:
        engine.stop()
