"""No command locks what others could hold: strace tells what each locks, and nobody else can open one of them."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from e2e.engines import SYSTEM_PATH
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host

GPUSHIM = [str(TOP / "bin/gpushim")]
CALLS = "trace=openat,flock,fcntl"
LOCKED = re.compile(r"(?:flock|fcntl)\(\d+<(?P<path>/[^>]+)>(?:\(deleted\))?, (?:LOCK_[ES]|F_SETLK|F_OFD_SETLK)")
MADE = re.compile(r"openat\(.*O_EXCL.*, 0600\) += \d+<(?P<path>[^>]+)>")
COMMANDS = {
    "refresh": ["refresh", "--force"],
    "refresh of a create": ["refresh"],
    "configure": ["configure", "docker", "--files-only", "--config", "DAEMON"],
    "configure --remove": ["configure", "docker", "--files-only", "--config", "DAEMON", "--remove"],
    "doctor": ["doctor"],
    "cdi generate": ["cdi", "generate", "--output", "SPEC"],
    "list": ["list"],
    "ps": ["ps"],
}
LOCKS = {"refresh", "refresh of a create", "configure", "configure --remove", "cdi generate"}


@pytest.fixture(scope="module")
def place(gpu_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a configuration that makes each command lock all that it can."""
    place = tmp_path_factory.mktemp("locks")
    settings(place, gpu_host.root)
    (place / "daemon.json").write_text("{}\n")
    return place


def locked(place: Path, words: list[str]) -> tuple[set[str], set[str]]:
    """Run a command; return the paths that it or a child locks, and those that others can open."""
    names = {"DAEMON": str(place / "daemon.json"), "SPEC": str(place / "spec.json")}
    env = {"PATH": SYSTEM_PATH, "GPUSHIM_CONFIG": f"{place}/config.toml", "GPUSHIM_STATE": f"{place}/state"}
    trace = place / "trace"
    command = ["/usr/bin/strace", "-f", "-y", "-qq", "-e", "signal=none", "-e", CALLS, "-o", str(trace), *GPUSHIM]
    subprocess.run(
        [*command, *(names.get(word, word) for word in words)], env=env, capture_output=True, timeout=120, check=False
    )
    text = trace.read_text()
    found = {match["path"] for match in LOCKED.finditer(text)}
    private = {match["path"] for match in MADE.finditer(text)}  # temporary: locked before its mode is another
    return found, {path for path in found - private if not os.path.lexists(path) or _others_open(path)}


def _others_open(path: str) -> bool:
    status = os.lstat(path)
    return status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode) or bool(status.st_mode & 0o077)


@pytest.mark.parametrize("name", COMMANDS)
def test_nobody_else_can_open_what_a_command_locks(name: str, place: Path) -> None:
    found, others = locked(place, COMMANDS[name])
    assert not others
    assert bool(found) or name not in LOCKS, "the test sees no lock"
