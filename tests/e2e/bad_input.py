"""Bad input for gpushim's commands, called as executables in front of a runtime that records how it was called.

`Scene.answers` holds what must be true of every call, whatever its input: it ends, in bounded memory, with a
documented exit code; a refusal is one printable sentence on stderr and in runc's --log; config.json is the old one
or a complete new one that has everything of the old one; nothing else is left in the bundle; and a runtime that is
reached sees what it would see if the engine had executed it. docs/testing.md lists these inputs.
Out of scope: faults of the kernel's answers (test_fault*.py), and what a hostile image is after (hostile.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from e2e import recorder
from e2e.trees import TOP
from e2e.witness import settings
from fakehost import Host

# The commands under test: of the checkout, or installed ones.
BIN = Path(os.environ.get("GPUSHIM_TEST_BIN") or TOP / "bin")
CONFIG = TOP / "tests" / "data" / "docker-config.json"
ALL = "NVIDIA_VISIBLE_DEVICES=all"
CALL_SECONDS = 30.0
MEMORY = 2 << 30  # bytes of address space; what runs on hosts is below a tenth of that but for huge files
SENTENCE = 1500  # characters
CODES = {0, *map(int, re.findall(r"^\| `(\d+)` \|", (TOP / "docs/errors.md").read_text(), re.MULTILINE))}
OURS = ("NVIDIA_VISIBLE_DEVICES=", "CUDA_MPS_PIPE_DIRECTORY=")  # variables that a create sets


class Outcome(NamedTuple):
    """What came of a call."""

    code: int
    stderr: str
    record: Any  # what the low-level runtime saw, or None if it was not reached


class Scene:
    """A bundle, a configuration and a state for a simulated host.

    Args:
        work: empty directory.
        host: to be served.
        low: the recorder.
    """

    def __init__(self, work: Path, host: Host, low: Path) -> None:
        self.work, self.host, self.low = work, host, low
        self.env = settings(work, host.root, str(low))
        self.state, self.toml = Path(self.env["GPUSHIM_STATE"]), Path(self.env["GPUSHIM_CONFIG"])
        self.bundle, self.log, self.record = work / "bundle", work / "log.json", work / "record.json"
        self.config, self.rootfs = self.bundle / "config.json", work / "rootfs"
        self.bundle.mkdir()
        self.rootfs.mkdir()
        self.plain = json.loads(CONFIG.read_text())
        self.plain["root"] = {"path": str(self.rootfs)}

    def ask(self, *env: str, **members: Any) -> None:
        """Write config.json as Docker does, with these variables behind the image's and other members replaced."""
        spec = {**self.plain, **members}
        if env:
            spec["process"] = {**spec["process"], "env": [*spec["process"]["env"], *env]}
        self.config.write_text(json.dumps(spec))

    def renew(self) -> Scene:
        """Leave nothing in the bundle but an ordinary GPU container's config.json."""
        shutil.rmtree(self.bundle)
        self.bundle.mkdir()
        self.ask(ALL)
        return self

    def tell(self, *tables: str) -> None:
        """Add lines to config.toml."""
        self.toml.write_text("\n".join([self.toml.read_text(), *tables]) + "\n")

    def call(self, *command: object, env: dict[str, str] | None = None, script: str = "", **options: Any) -> Outcome:
        """Call a program with the scene's variables, a deadline and bounded memory.

        Args:
            command: to be called.
            env: further variables.
            script: of a shell in a mount namespace of its own, which then executes the command.
            options: of subprocess.run.
        """
        self.record.unlink(missing_ok=True)
        variables = {**self.env, "RECORD": str(self.record), "PWD": os.getcwd(), "LANG": "de_DE.UTF-8", **(env or {})}
        if script:
            shell = (
                "/usr/bin/unshare",
                "--mount",
                "--propagation=private",
                "/bin/bash",
                "-ec",
                f'{script}\nexec "$@"',
            )
            command = (*shell, "sh", *command)
        options = {"stdin": subprocess.DEVNULL, "preexec_fn": confine, "restore_signals": False, **options}
        if not {"stdout", "stderr"} & {*options}:
            options["capture_output"] = True
        words = [word if isinstance(word, bytes) else str(word) for word in command]
        done = subprocess.run(words, env=variables, timeout=CALL_SECONDS, check=False, **options)
        record = recorder.read(self.record) if self.record.exists() else None
        return Outcome(done.returncode, (done.stderr or b"").decode(), record)

    def words(self, *words: object) -> list[object]:
        """Return runc's arguments: a create of the bundle unless others are given."""
        return ["--log", self.log, "--log-format", "json", *(words or ("create", "--bundle", self.bundle, "x1"))]

    def answers(self, *codes: int, args: tuple[object, ...] = (), **options: Any) -> Outcome:
        """Call the runtime, assert all that holds for any input and that it ends with one of these codes."""
        words, before, names = self.words(*args), content(self.config), listing(self.bundle)
        self.log.unlink(missing_ok=True)
        done = self.call(BIN / "gpushim-runtime", *words, **options)
        assert done.code in codes, done
        if done.code:
            refused(done)
            assert json.loads(self.log.read_text().splitlines()[-1])["msg"] == done.stderr.rstrip("\n")
        else:
            assert done.stderr == ""
            assert seen(done) == seen(self.call(self.low, *words, **options))
        assert listing(self.bundle) == names
        complete(before, content(self.config))
        return done

    def untouched(self, **options: Any) -> None:
        """Assert that the runtime is reached with the very config.json that is there."""
        before = self.config.lstat()
        self.answers(0, **options)
        after = self.config.lstat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)

    @property
    def spec(self) -> Any:
        """What config.json says now."""
        return json.loads(self.config.read_bytes())

    @property
    def nodes(self) -> list[str]:
        """The GPUs' nodes in config.json, which none has been given unless the shim did."""
        paths = [device["path"] for device in self.spec["linux"].get("devices") or ()]
        return sorted(path for path in paths if re.fullmatch(r"/dev/nvidia\d+", path))

    def hook(self, *words: object, state: bytes = b"", **options: Any) -> Outcome:
        """Call the hook with a container's state on stdin, and assert that it says at most one sentence."""
        with (self.work / "state.json").open("w+b") as file:
            file.write(state)
            file.seek(0)
            done = self.call(BIN / "gpushim-hook", *words, **{"stdin": file, **options})
        assert done.code in CODES
        if done.code:
            refused(done, "gpushim-hook: ")
        else:
            assert done.stderr == ""
        return done


def ready(work: Path, host: Host) -> Scene:
    """Return a scene with a recorder, whose state is up to date."""
    (work / "scene").mkdir()
    scene = Scene(work / "scene", host, recorder.build(work))
    scene.ask(ALL)
    scene.answers(0)
    return scene


def confine() -> None:
    """Set in a child what must come through: umask, ignored and blocked signals; and the bound on memory."""
    os.umask(0o027)
    recorder.ignore_only(signal.SIGUSR1, signal.SIGPIPE)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR2])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def refused(done: Outcome, who: str = "gpushim: ") -> None:
    """Assert that a call was refused in one sentence, and nothing else happened."""
    assert done.code in CODES, done
    assert done.record is None
    assert done.stderr.startswith(who), done
    assert done.stderr.count("\n") == 1, done
    assert done.stderr[:-1].isprintable(), done
    assert len(done.stderr) <= SENTENCE, len(done.stderr)
    assert not any(word in done.stderr for word in ("Traceback", "internal error", "Error(")), done


def seen(done: Outcome) -> dict[str, Any]:
    """What of the record must be the same with the shim and without; the order of variables is nobody's."""
    anybody = {"pid": None, "SigQ": None, "argv": done.record["argv"][1:], "env": sorted(done.record["env"])}
    return {**done.record, **anybody}


def content(path: Path) -> bytes | None:
    """Read a file if it is one that can be read to its end."""
    return path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 28 else None


def listing(path: Path) -> list[str]:
    """Name what is in a bundle, if it is there, but for what a create keeps for the next one."""
    return sorted({*os.listdir(path)} - {"config.json.gpushim"}) if path.is_dir() else []


def complete(before: bytes | None, after: bytes | None) -> None:
    """Assert that a config.json is the old one, or a new one with all of the old one in it."""
    if before != after:
        assert before is not None
        assert after is not None
        within(parsed(before), parsed(after), ())


def parsed(text: bytes) -> Any:
    """Parse JSON with its numbers as they are written."""
    return json.loads(text, parse_int=lambda number: f"#{number}", parse_float=lambda number: f"#{number}")


def within(old: Any, new: Any, path: tuple[str, ...]) -> None:
    """Assert that an edited value has everything that was there, in its order."""
    if isinstance(old, dict):
        assert [key for key in new if key in old] == [*old], path
        for key, value in old.items():
            within(value, new[key], (*path, key))
    elif isinstance(old, list):
        if path == ("process", "env"):
            old, new = ([entry for entry in env if not str(entry).startswith(OURS)] for env in (old, new))
        if path[:1] == ("hooks",):  # those that would inject the GPUs once more make room
            old = [hook for hook in old if "nvidia-container" not in str(hook) and "gpushim" not in str(hook)]
        assert len(old) <= len(new), path
        for one, other in zip(old, new):
            within(one, other, path)
    else:
        assert old is None or old == new, path


@contextlib.contextmanager
def mounted(kind: str, place: Path, options: str, source: str = "none") -> Iterator[None]:
    """Mount a file system on a directory for the block."""
    subprocess.run(["/usr/bin/mount", "-t", kind, "-o", options, source, str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["/usr/bin/umount", "--lazy", str(place)], check=True)


@contextlib.contextmanager
def flagged(flag: str, path: Path) -> Iterator[None]:
    """Give a file an attribute of chattr(1) for the block."""
    subprocess.run(["/usr/bin/chattr", f"+{flag}", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["/usr/bin/chattr", f"-{flag}", str(path)], check=True)
