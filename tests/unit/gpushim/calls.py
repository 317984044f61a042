"""Call the launcher as a process, in front of a runtime that records how it was called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest

from e2e import recorder

TOP = Path(__file__).parents[3]
LAUNCHER = TOP / "bin" / "gpushim-runtime"
LOOKS_LIKE_A_REQUEST = 'X "NVIDIA_VISIBLE_DEVICES=0"'  # not JSON: Python, if it is reached, says so and where
SHELLS = {"dash": ["/bin/dash"], "bash": ["/bin/bash", "--posix"], "busybox": ["/bin/busybox", "ash"]}


class Call(NamedTuple):
    rc: int
    stderr: str
    record: Any  # what the low-level runtime saw, or None if it was not reached


def tell(state: Path, runtime: Path, config: Path | None = None, words: str = "") -> None:
    """Write what a refresh tells the launcher: the runtime, the configuration that was read, words of it."""
    (state / "triggers").write_text(words)
    (state / "runtime").write_text(f"{runtime}\n")
    (state / "config").unlink(missing_ok=True)
    if config:
        (state / "config").symlink_to(config.resolve())
        shutil.copystat(config, state / "runtime")


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorder.build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def call(tmp_path: Path, runtime: Path) -> Callable[..., Call]:
    """A function that runs the launcher in tmp_path/cwd, where bundles wait in `.`, A, create and `a "b'\\nc`."""
    state = tmp_path / "st ate"
    state.mkdir()
    tell(state, runtime)
    for bundle in (".", "A", "create", "-b", "a \"b'\nc", "--"):
        (tmp_path / "cwd" / bundle).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cwd" / bundle / "config.json").write_text(LOOKS_LIKE_A_REQUEST)

    def run(*args: str, env: dict[str, str] | None = None, before: tuple[str, ...] = (), **options: Any) -> Call:
        record = tmp_path / "record.json"
        record.unlink(missing_ok=True)
        full = {"GPUSHIM_STATE": str(state), "GPUSHIM_CONFIG": str(tmp_path / "config.toml"), "RECORD": str(record)}
        options = {"cwd": tmp_path / "cwd", "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        words = [*before, str(LAUNCHER), *args]
        done = subprocess.run(words, env={**full, **(env or {})}, text=True, timeout=20, check=False, **options)
        return Call(done.returncode, done.stderr or "", recorder.read(record) if record.exists() else None)

    return run
