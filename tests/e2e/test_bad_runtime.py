"""Bad low-level runtimes, and signals."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import recorder
from e2e.bad_input import ALL, BIN, Scene, listing
from fakehost import Host
from unit.gpuhook.sandbox import until

RUNTIME = BIN / "gpushim-runtime"


@pytest.fixture
def scene(gpu_host: Host, low: Path, tmp_path: Path) -> Scene:
    """A scene with a runtime of its own, which a refresh has seen."""
    (tmp_path / "scene").mkdir()
    scene = Scene(tmp_path / "scene", gpu_host, Path(shutil.copy(low, tmp_path / "low")))
    scene.ask(ALL)
    scene.answers(0)
    scene.ask(ALL)
    return scene


def link_to_us(path: Path) -> None:
    """Let the low-level runtime be gpushim-runtime."""
    path.symlink_to(RUNTIME)


def chain_to_us(path: Path) -> None:
    """The same by way of other links."""
    (path.parent / "runc").symlink_to(RUNTIME)
    path.symlink_to("runc")


def garbage(path: Path) -> None:
    """Write an executable that is none."""
    path.write_bytes(b"\x7fELF" + b"\xff" * 99)
    path.chmod(0o755)


def orphan(path: Path) -> None:
    """Write a script that nothing can read."""
    path.write_text("#!/nowhere/sh\n")
    path.chmod(0o755)


BAD: dict[str, tuple[Callable[[Path], object], int]] = {
    "missing": (lambda path: None, 127),
    "not executable": (lambda path: path.touch(0o644), 127),
    "directory": (lambda path: path.mkdir(0o755), 127),
    "dangling link": (lambda path: path.symlink_to("nowhere"), 127),
    "link to itself": (lambda path: path.symlink_to(path.name), 127),
    "no program": (garbage, 126),
    "of an interpreter that is not there": (orphan, 127),
    "ourselves": (link_to_us, 126),
    "ourselves by a detour": (chain_to_us, 126),
}


@pytest.mark.parametrize("verb", ["create", "state"])
@pytest.mark.parametrize("case", BAD)
def test_no_runtime(scene: Scene, case: str, verb: str) -> None:
    make, code = BAD[case]
    scene.low.unlink()
    make(scene.low)
    if verb == "create":
        scene.answers(code)
    else:
        done = scene.call(RUNTIME, *scene.words("state", "x"))
        assert done.code in (code, 126)  # which the shell says of what it cannot execute


def test_a_script(scene: Scene, low: Path) -> None:
    scene.low.unlink()
    scene.low.write_text(f'#!/bin/sh\nexec {low} "$@"\n')
    scene.low.chmod(0o755)
    scene.answers(0)
    assert scene.nodes


@pytest.mark.parametrize("name", ["run c", "r\u00fcnc"])
def test_a_runtime_of_another_name(scene: Scene, name: str) -> None:
    path = scene.work / name
    scene.low.rename(path)
    scene.toml.write_text(scene.toml.read_text().replace(str(scene.low), str(path)))
    scene.low = path
    scene.answers(0)
    assert scene.nodes


def test_a_runtime_that_is_being_written(scene: Scene) -> None:
    with scene.low.open("r+b"):
        done = scene.answers(126)
    assert "Text file busy" in done.stderr


@pytest.mark.parametrize("status", [42, 127])
def test_its_exit_status(scene: Scene, status: int) -> None:
    env = {"RECORD_EXIT": str(status)}
    assert scene.call(RUNTIME, *scene.words(), env=env).code == status
    assert scene.call(RUNTIME, *scene.words("state", "x"), env=env).code == status


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGPIPE])
def test_it_is_ended_by_a_signal(scene: Scene, number: int) -> None:
    scene.low.write_text(f"#!/bin/sh\nkill -{int(number)} $$\n")
    for words in (scene.words(), scene.words("state", "x")):
        assert scene.call(RUNTIME, *words, preexec_fn=None, restore_signals=True).code == -number


def test_what_it_says_and_logs_is_its_own(scene: Scene) -> None:
    scene.low.write_text(f'#!/bin/sh\necho "{{}}" >>"{scene.log}"; echo out; echo err >&2; exit 3\n')
    for words in (scene.words(), scene.words("list")):
        scene.log.unlink(missing_ok=True)
        done = scene.call(RUNTIME, *words)
        assert (done.code, done.stderr, scene.log.read_text()) == (3, "err\n", "{}\n")


# Group 32.
@contextlib.contextmanager
def slow(scene: Scene) -> Iterator[subprocess.Popen[bytes]]:
    """Start a create that must refresh first, which takes its time, and wait until it is at that."""
    scene.host.behave(delay_ms=1500)
    opened = Path(scene.host.root, "usr/lib/fakehost/nvml.log")
    opened.write_text("")
    shutil.rmtree(scene.state)
    words = [str(word) for word in (RUNTIME, *scene.words())]
    env = {**scene.env, "RECORD": str(scene.record)}
    scene.record.unlink(missing_ok=True)
    try:
        heeds = recorder.ignore_only  # whoever started the tests may ignore some signals
        with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, preexec_fn=heeds) as process:
            assert soon(lambda: bool(opened.read_text()))
            yield process
            process.kill()
    finally:
        scene.host.behave()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it(scene: Scene, number: int) -> None:
    before = scene.config.read_bytes()
    with slow(scene) as process:
        process.send_signal(number)
        _, said = process.communicate(timeout=10)
    assert process.returncode == (-number)
    assert said == b""
    assert (scene.config.read_bytes(), listing(scene.bundle)) == (before, ["config.json"])
    scene.answers(0)


def test_stopped_and_continued(scene: Scene) -> None:
    with slow(scene) as process:
        process.send_signal(signal.SIGSTOP)
        assert soon(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        process.send_signal(signal.SIGCONT)
        assert process.wait(20) == 0
    assert scene.nodes
    assert recorder.read(scene.record)["pid"] == process.pid


def soon(holds: Callable[[], bool]) -> bool:
    """Wait until something holds."""
    for _ in until(20):
        if holds():
            return True
        time.sleep(0.02)
    return False


def test_its_parent_ends(scene: Scene) -> None:
    """What the parent asked to be sent then (PR_SET_PDEATHSIG) comes: it is one process, and stays the same."""
    death = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
    scene.low.write_text(f'#!/bin/sh\necho $$ >"{scene.work}/pid"; exec sleep 60\n')
    words = ["/usr/bin/python3", "-c", death, *map(str, (RUNTIME, *scene.words()))]
    with subprocess.Popen(["/bin/sh", "-c", '"$@" & sleep 60', "sh", *words], env=scene.env) as parent:
        pid = scene.work / "pid"
        assert soon(lambda: pid.exists() and bool(pid.read_text()))
        parent.kill()
    assert soon(lambda: not Path("/proc", pid.read_text().strip()).exists())


@pytest.mark.parametrize("tool", [["/usr/bin/strace", "-f", "-o", "/dev/null"]])
def test_traced(scene: Scene, tool: list[str]) -> None:
    done = scene.call(*tool, RUNTIME, *scene.words())
    assert (done.code, done.stderr) == (0, "")
    assert scene.nodes
    assert json.loads(scene.record.read_text())["argv"][-1] == "x1"
