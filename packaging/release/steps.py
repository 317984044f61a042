"""Programs that a release calls, and how it says that one has failed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # where Debian's own programs stand first
# What of the caller's environment counts: gpg's, a proxy for what is fetched, packages that are bundled.
KEPT = ("GNUPGHOME", "GPG_TTY", "GPUSHIM_BUNDLED", "HOME", "TMPDIR")


class ReleaseError(Exception):
    """The release cannot be made; the text says why."""


def say(sentence: str) -> None:
    """Tell what happens."""
    print(f"release: {sentence}", flush=True)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of all programs."""
    found = {name: value for name, value in os.environ.items() if name in KEPT or name.lower().endswith("_proxy")}
    return {**found, "PATH": PATH, "LC_ALL": "C.UTF-8", "TZ": "UTC0", **more}


def run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a program; return what it prints.

    Args:
        words: the program and its arguments.
        cwd: its directory.
        env: variables, beside those of all programs.

    Raises:
        ReleaseError: it fails, or is not there.
    """
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise ReleaseError(f"there is no {command[0]}; tools/setup.sh release installs it") from None
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise ReleaseError(f"{' '.join(command)} failed ({done.returncode}):\n{said}")
    return done.stdout.decode(errors="replace")


def digest(file: Path) -> str:
    """Return a file's SHA-256 in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
