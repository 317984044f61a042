"""A trial's rows: a line per case, PASS or FAIL. Below it what the kernel's security module denied meanwhile."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable

LAST = "END"  # what a trial prints when it came to its end
SECONDS = 240.0
# Domains whose denials are of gpushim, engines and containers, or of what a trial starts; others are of the system's.
OURS = re.compile(
    r"scontext=\S+:(container\w*|kubelet_t|spc_t|unconfined_service_t|initrc_t|udev_t|gpushim\w*):|apparmor="
)
NOISE = ("module_request",)  # a node without a driver; with one, the kernel asks for no module
VOLATILE = re.compile(r"^\[[^]]*\] |audit: type=\d+ |audit\([^)]*\): *|\b(pid|ino)=\d+ ?")

_begun, _seen, _failed = time.monotonic(), 0, 0


def run(*words: str, timeout: float = SECONDS) -> str:
    """Run a command; returns all it says, and its status if that is not 0."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"[{error}]"
    return (done.stdout + done.stderr).replace("\0", "") + (f"[status {done.returncode}]" if done.returncode else "")


def sh(script: str, *args: str) -> str:
    """Run a script; returns what `run` does."""
    return run("/bin/sh", "-c", script, "sh", *args)


def until(true: Callable[[], bool], seconds: float = 120) -> bool:
    """Wait for something; returns whether it came."""
    end = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.3)
    return found


def case(name: str, passed: bool, evidence: str = "") -> bool:
    """Print how a case ended; returns the same."""
    global _begun, _failed
    now = time.monotonic()
    _failed += not passed
    said = "" if passed else f": {evidence!r}"
    print(f"{'PASS' if passed else 'FAIL'} {name} ({now - _begun:.1f} s){said}", flush=True)
    _begun = now
    for line in denials():
        print(f"     {line}", flush=True)
    return passed


def note(name: str, said: str) -> None:
    """Print what a case showed that is for others to decide."""
    print(f"NOTE {name}: {said!r}", flush=True)


def denials() -> list[str]:
    """Return what was denied since the last call, each once."""
    global _seen
    lines = [line for line in run("dmesg").splitlines() if "avc:  denied" in line or 'apparmor="DENIED"' in line]
    new, _seen = lines[_seen:], len(lines)
    short = [VOLATILE.sub("", line) for line in new if OURS.search(line)]
    return [line for line in dict.fromkeys(short) if not any(word in line for word in NOISE)]


def end() -> None:
    """Print the log, if a case failed, and that the trial came to its end."""
    if _failed:
        print(run("tail", "-n", "50", "/var/log/gpushim.log"))
    print(LAST, flush=True)
