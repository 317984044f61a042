"""Run one target: `python -m fuzz.harness TARGET (--seconds N | --runs N)`.

A target is a module in targets/ with `one(data: bytes)`, which raises only on a real failure, and `seeds()`, which
it begins with. Atheris changes those guided by the coverage of gpushim's code; a target with VALUES has JSON, which
is changed as a tree too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import random
import resource
import signal
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator

from fuzz import jsontree

HERE = Path(__file__).parent
REGRESSIONS = HERE / "regressions"
SECONDS = 1.0  # of processor time for one input
MEMORY = 256 << 20  # bytes beyond what the process has when it begins
LENGTH = 4096  # bytes of an input, if its target says nothing else


class TooSlowError(BaseException):
    """One input took longer than SECONDS; nothing of the code under test may catch it."""


def names() -> list[str]:
    """List the targets."""
    return sorted(path.stem for path in (HERE / "targets").glob("[a-z]*.py"))


def target(name: str) -> Any:
    """Import a target."""
    return importlib.import_module(f"fuzz.targets.{name}")


def regressions(name: str) -> list[Path]:
    """List the inputs that once failed."""
    return sorted((REGRESSIONS / name).glob("*"))


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Bound the memory of the block."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def timed(one: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return `one` with a limit on its processor time, which a busy machine does not change."""

    def too_slow(*_: Any) -> None:
        raise TooSlowError(f"more than {SECONDS} s of processor time")

    def call(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            one(data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    signal.signal(signal.SIGVTALRM, too_slow)
    return call


def fuzz(name: str, limit: list[str], found: Path) -> None:
    """Let atheris look for inputs on which a target raises; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["gpushim", "gpuhook"]):
        module = target(name)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        changed = jsontree.changed(data, random.Random(seed), module.VALUES) if seed % 4 else None
        return bytes(atheris.Mutate(data, size)) if changed is None else changed[:size]

    with tempfile.TemporaryDirectory() as corpus:
        for data in [*module.seeds(), *(path.read_bytes() for path in regressions(name))]:
            (Path(corpus) / hashlib.sha256(data).hexdigest()).write_bytes(data)
        words = [*limit, "-seed=1", "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]
        words += [f"-max_len={getattr(module, 'LENGTH', LENGTH)}", f"-artifact_prefix={found}/"]
        options = {"custom_mutator": mutate} if hasattr(module, "VALUES") else {}
        atheris.Setup([name, *words, corpus], timed(module.one), enable_python_coverage=True, **options)
        with bounded():
            atheris.Fuzz()


def main() -> None:
    """Run as a process; exits with something else than 0 after a finding."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=names())
    parser.add_argument("--runs", type=int, default=-1)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--found", type=Path, help="where inputs go that fail")
    given = parser.parse_args()
    found = given.found or REGRESSIONS / given.target
    found.mkdir(parents=True, exist_ok=True)
    print(f"fuzz: {given.target}", flush=True)
    fuzz(given.target, [f"-runs={given.runs}", f"-max_total_time={given.seconds}"], found)


if __name__ == "__main__":
    main()
