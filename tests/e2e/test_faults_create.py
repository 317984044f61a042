"""A create that is killed, or refused by the kernel, at any of its system calls.

The bundle's config.json is the old or the new one, whole; nothing lies beside it but, after a kill, the new file
under its first name; the next create of the same bundle gives what a clean one gives.
"""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e import recorder
from e2e.engines import SYSTEM_PATH
from e2e.faults import KILL, Call, Done, calls, shorten, some, split, strike, tree
from e2e.leftovers import until
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from fakehost import Host
from gpushim.ground.errors import BUNDLE, INVENTORY, NOT_EXECUTABLE, NOT_FOUND
from sample import LONG

RUNTIME = TOP / "bin" / "gpushim-runtime"
ERRORS = ("ENOSPC", "EIO", "EMFILE", "ENFILE", "ENOMEM", "EDQUOT", "EINTR", "EROFS", "EACCES")
FAILING = ("openat", "read", "getdents64", "write", "fchown", "fchmod", "fsync", "renameat", "execve")
WRITTEN = ("fsync", "close")
CODES = (INVENTORY, BUNDLE, NOT_EXECUTABLE, NOT_FOUND)
OWNER = (12, 34)
COPY = "config.json.gpushim"
NEW = f"{COPY}-"


class Lab:
    """A bundle that asks for all GPUs, and gpushim-runtime with the recorder for its runc.

    Args:
        work: empty directory.
        host: the simulated host.
    """

    def __init__(self, work: Path, host: Host) -> None:
        self.bundle, self.record, self.log = work / "bundle", work / "record", work / "log"
        self.bundle.mkdir()
        self.env = settings(work, host.root, str(recorder.build(work))) | {
            "PATH": SYSTEM_PATH,
            "RECORD": str(self.record),
        }
        subprocess.run([TOP / "bin" / "gpushim", "refresh"], env=self.env, check=True, capture_output=True)
        subprocess.run([RUNC, "spec", "--bundle", self.bundle], check=True)
        self.config = self.bundle / "config.json"
        spec = json.loads(self.config.read_text())
        spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
        self.plain = json.dumps(spec).encode()
        self.command = [str(RUNTIME), "--log", str(self.log), "create", "--bundle", str(self.bundle), "x"]
        self.lay()
        made = calls(self.command, env=self.env)
        last = max(index for index, call in enumerate(made) if call.name == "execve")
        start, ours = split(made[: last + 1], TOP / "shim/gpushim/create/stub.py")
        imports, work_calls = split(ours, self.bundle)
        self.reads = [call for call in start if call.name == "read" and call.words.startswith("0, ")]
        own = (self.env["GPUSHIM_STATE"], self.env["GPUSHIM_CONFIG"], "/proc/")
        self.opens = [call for call in start if call.name == "openat" and call.words.split('"')[1].startswith(own)]
        self.made = [*some(start, 20), *some(imports, 5), *work_calls[:-1]]
        # Of what is closed, only what was written can fail.
        self.failing = [
            call for last, call in pairwise(work_calls) if call.name in FAILING or (last.name, call.name) == WRITTEN
        ]
        self.done = tree(self.bundle)
        assert self.config.read_bytes() != self.plain

    def lay(self) -> None:
        """Put the bundle back as the engine wrote it."""
        for path in self.bundle.iterdir():
            path.unlink()
        self.config.write_bytes(self.plain)
        self.config.chmod(0o640)
        os.chown(self.config, *OWNER)
        self.record.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)  # or the launcher writes no note into it, and the calls are fewer by that
        self.before = tree(self.bundle)

    def run(self, **options: Any) -> Done:
        """Create the container."""
        options = {"env": self.env, **options}
        return subprocess.run(self.command, check=False, capture_output=True, text=True, timeout=60, **options)

    def strike(self, call: Call, what: str) -> Done | None:
        """Create the container with a fault at a call."""
        self.lay()
        return strike(self.command, call, what, env=self.env)

    def sound(self, done: Done) -> None:
        """Assert that the container was made with all that it asks for, or that nothing has changed."""
        assert tree(self.bundle) == (self.before if done.returncode else self.done)
        assert self.record.exists() == (not done.returncode)

    def refused(self, done: Done) -> None:
        """Assert that it was refused in one sentence."""
        self.sound(done)
        (line,) = done.stderr.splitlines()
        assert line.startswith("gpushim: ")
        assert "internal error" not in line
        assert done.returncode in CODES

    def works(self) -> None:
        """Assert that the next create gives what a clean one gives; only a killed one's file may lie beside it."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        assert {name: what for name, what in tree(self.bundle).items() if not name.startswith(NEW)} == self.done


@pytest.fixture(scope="module")
def lab(gpu_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A bundle that is to be struck."""
    return Lab(tmp_path_factory.mktemp("lab"), gpu_host)


def test_killed_at_any_call(lab: Lab) -> None:
    seen: list[object] = [lab.before, lab.done]
    killed = 0
    for call in lab.made:
        killed += lab.strike(call, KILL) is not None
        left = {NEW if name.startswith(NEW) else name: what for name, what in tree(lab.bundle).items()}
        assert left["config.json"] in (lab.before["config.json"], lab.done["config.json"]), call
        assert left.keys() <= {"config.json", COPY, NEW}, call
        if left not in seen:
            seen.append(left)
            lab.works()
    assert len(seen) > 4
    assert killed > 0.9 * len(lab.made)


@pytest.mark.parametrize("fault", ["retval=0", "error=EIO"])
def test_launchers_own_files_end_early(lab: Lab, fault: str) -> None:
    runtime = next(index for index, call in enumerate(lab.reads) if call.words.startswith(r'0, "\n"'))
    for call in [*some(lab.reads[:runtime], 9), *some(lab.reads[runtime:], 60)]:
        done = lab.strike(call, fault)
        assert done is not None
        assert done.returncode == 0, (call, done.stderr)
        lab.sound(done)


@pytest.mark.parametrize("error", ["EACCES", "EMFILE", "ENOENT"])
def test_launchers_own_files_cannot_be_opened(lab: Lab, error: str) -> None:
    """Those of the dynamic loader, which has no way to go on, are not the launcher's."""
    assert lab.opens
    for call in lab.opens:
        done = lab.strike(call, f"error={error}")
        assert done is not None
        assert done.returncode == 0, (call, done.stderr)
        lab.sound(done)


@pytest.mark.parametrize("first", range(len(ERRORS)) if LONG else (0, 5))
def test_refused_by_the_kernel_at_any_call(lab: Lab, first: int) -> None:
    """Each call with two of the errors; GPUSHIM_LONG=1 tries each with each."""
    codes = []
    for index, call in enumerate(lab.failing):
        done = lab.strike(call, f"error={ERRORS[(first + index) % len(ERRORS)]}")
        if done is not None:
            codes.append(done.returncode)
            lab.refused(done) if done.returncode else lab.sound(done)
    lab.works()
    assert len(codes) > 0.9 * len(lab.failing)
    assert BUNDLE in codes


@pytest.mark.parametrize("end", ["exit 2", "exit 3", "kill -9 $$"])
def test_a_search_that_fails_finds_nothing_out(lab: Lab, tmp_path: Path, end: str) -> None:
    lab.lay()
    (tmp_path / "grep").write_text(f"#!/bin/sh\n{end}\n")
    (tmp_path / "grep").chmod(0o755)
    script = 'mount --bind "$0" /usr/bin/grep && exec "$@"'
    before = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", script, str(tmp_path / "grep")]
    done = subprocess.run([*before, *lab.command], env=lab.env, check=True, text=True)
    lab.sound(done)


@pytest.mark.parametrize("error", ["EBUSY", "EXDEV", "EPERM"])
def test_a_config_json_that_cannot_be_replaced(lab: Lab, error: str) -> None:
    done = lab.strike(Call("renameat", 1, ""), f"error={error}")
    assert done is not None
    assert done.returncode == BUNDLE
    lab.refused(done)
    lab.works()


def test_short_writes(lab: Lab, tmp_path: Path) -> None:
    lab.lay()
    done = lab.run(env=lab.env | {"LD_PRELOAD": str(shorten(tmp_path))})
    assert done.returncode == 0, done.stderr
    lab.sound(done)


def test_a_power_cut_finds_the_old_file_or_the_whole_new_one(lab: Lab) -> None:
    # The directory is not synced: whichever name a power cut leaves, the file that has it is whole.
    names = [call.name for call in lab.made if call.name in ("write", "fchmod", "fchown", "fsync", "renameat")]
    assert names[:2] == ["write", "renameat"]  # what is kept counts only if it fits, so it need not be whole
    assert names[2:7] == ["write", "fchown", "fchmod", "fsync", "renameat"]


def test_killed_while_it_waits_for_a_refresh(lab: Lab) -> None:
    lab.lay()
    snapshot = Path(lab.env["GPUSHIM_STATE"]) / "inventory.json"
    snapshot.unlink()
    create = subprocess.Popen(lab.command, env=lab.env)
    children = Path(f"/proc/{create.pid}/task/{create.pid}/children")
    assert until(lambda: b"refresh" in b"".join(map(commandline, children.read_text().split())), 20)
    create.kill()
    create.wait()
    assert tree(lab.bundle) == lab.before
    assert until(snapshot.exists, 20)  # the child ends what it has begun
    lab.works()


def commandline(pid: str) -> bytes:
    """Return which program a process is, if it is still there."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
