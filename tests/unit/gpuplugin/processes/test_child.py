"""Children that speak, hang, crash, write rubbish and cannot be killed; scripts stand in for NVML."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from gpuplugin.processes import child as module
from gpuplugin.processes import spawn
from unit.gpuplugin.kubelet.fake import until
from unit.gpuplugin.watched import Heard

FLOODS = "it writes without end"


def running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 0.05)
    monkeypatch.setattr(module, "STARTING", 0.1)


def test_what_it_tells_is_heard_but_not_what_is_about_itself() -> None:
    heard = Heard("tell(alive=1); tell(asks='GPU-a'); tell(watching=['GPU-a']); tell(xid=79); time.sleep(99)")

    async def body() -> None:
        await until(lambda: len(heard.lines) == 2)
        assert [line for _, line in heard.lines] == [{"watching": ["GPU-a"]}, {"xid": 79}]
        assert heard.blind == []

    heard.run(body)


def test_lines_that_come_one_after_the_other_cost_few_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it says of each GPU that it asks it, all the time."""
    monkeypatch.setattr(module, "GATHER", 1.0)
    heard = Heard("tell(watching=[])\nfor _ in range(50): tell(xid=1); time.sleep(0.002)\ntime.sleep(99)")
    heard.child._gather = True

    async def body() -> None:
        read: list[int] = []
        take = heard.child._read

        def noted(reading: int) -> None:
            read.append(reading)
            take(reading)

        monkeypatch.setattr(heard.child, "_read", noted)
        before = time.thread_time()
        await until(lambda: len(heard.lines) == 51)
        assert len(read) < 10
        assert time.thread_time() - before < 0.5  # of two seconds: nor does it turn while it waits

    heard.run(body)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("tell(watching=[])", "it has ended"),
        ("sys.exit(3)", "it has ended"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "it has ended"),
        ("tell(failed='NVML cannot be used (no)')", "NVML cannot be used (no)"),
        ("tell(failed='\\x1b[31m' + 'x' * 9999)", r"\x1b[31m" + "x" * 295),
        ("tell(asks=''); time.sleep(99)", "no output for"),
        ("tell(asks='GPU-a'); tell(alive=1); time.sleep(99)", "no output for"),
        ("tell(asks='GPU-a'); tell(xid=1); time.sleep(99)", "no output for"),
        ("if os.fork(): sys.exit(0)\nos.setsid()\nwhile True: tell(alive=1); time.sleep(0.1)", "it has ended"),
        ("tell(watching=[]); os.close(1); time.sleep(99)", "it has ended"),
        ("tell(watching=[]); print('\\n' * 2000, flush=True); time.sleep(99)", FLOODS),
        ("for _ in range(4000): tell(xid=31)", FLOODS),
        ("for _ in range(9): tell(xid='9' * 60000)", FLOODS),
        ("print('x' * 99999, end='', flush=True); time.sleep(99)", "it has written a line of more than 64 KiB"),
    ],
)
def test_one_that_ends_is_followed_by_another_and_it_is_said_why(script: str, why: str) -> None:
    heard = Heard(script, silence=1 if "nothing" in why else 5)

    async def body() -> None:
        await until(lambda: len(heard.suspects) > 1)
        assert heard.blind[0][0].startswith(why)

    heard.run(body)


@pytest.mark.parametrize("last", ["", "tell(alive=1); "])
def test_the_end_of_one_whose_child_holds_the_pipe(last: str) -> None:
    heard = Heard(f"if os.fork(): tell(watching=[]); {last}sys.exit(0)\ntime.sleep(99)", silence=1)

    async def body() -> None:
        await until(lambda: len(heard.suspects) > 1)
        assert heard.blind[0] == ("it has ended", "")  # and is silent, too

    heard.run(body)


def test_one_that_hangs_is_killed_and_the_next_knows_which_gpu_it_asked() -> None:
    heard = Heard("tell(watching=['GPU-b']); tell(asks='GPU-a'); time.sleep(99)", silence=1)

    async def body() -> None:
        await until(lambda: heard.child.pid)
        first = heard.child.pid
        await until(lambda: len(heard.suspects) > 1)
        assert heard.blind[0] == ("a call of GPU-a hangs", "GPU-a")
        assert heard.suspects[:2] == [[], ["GPU-a"]]
        assert not running(first)

    heard.run(body)


def test_a_gpu_that_answers_is_suspect_no_more() -> None:
    heard = Heard("tell(poll={'GPU-a': {}}); time.sleep(99)")

    async def body() -> None:
        heard.child._suspects = {"GPU-a": None, "GPU-b": None}
        await until(lambda: heard.lines)
        heard.child.again()
        await until(lambda: len(heard.suspects) == 2)
        assert heard.suspects == [["GPU-a", "GPU-b"], ["GPU-b"]]
        assert heard.blind == []

    heard.run(body)


def test_one_that_ends_at_once_is_started_more_and_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard("tell(watching=[])")

    async def body() -> None:
        began = time.monotonic()
        await until(lambda: len(heard.suspects) == 4)
        assert time.monotonic() - began > 0.05 + 0.1 + 0.2

    heard.run(body)
    assert caplog.messages == ["GPUs are not watched (gpushim-events): it has ended; it starts again"]


@pytest.mark.parametrize("line", ["'rubbish'", "'[' * 60000", "'[1]'", "'9' * 60000", r"'\xff\x00'"])
def test_rubbish_is_said_once_and_passed_over(line: str, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard(f"print({line}); print({line}); tell(watching=5, poll='x'); time.sleep(99)")

    async def body() -> None:
        await until(lambda: heard.lines)
        assert len(caplog.messages) == 1
        assert "has written what is none of its lines: " in caplog.messages[0]
        assert len(caplog.messages[0]) < 200

    heard.run(body)


@pytest.mark.parametrize(
    "script", ["time.sleep(99)", "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(99)"]
)
def test_stop_ends_one_that_hangs_soon(script: str) -> None:
    heard = Heard(script, silence=60)

    async def body() -> None:
        await until(lambda: heard.child.pid)
        began = time.monotonic()
        assert await heard.child.stop()
        assert time.monotonic() - began < 3

    heard.run(body)


def test_stop_right_after_again_while_it_waits_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 60)
    heard = Heard("")

    async def body() -> None:
        await until(lambda: heard.blind and not heard.child.pid)
        await asyncio.sleep(0.05)
        heard.child.again()
        await asyncio.sleep(0)
        assert await asyncio.wait_for(heard.child.stop(), 3)

    heard.run(body)


def test_its_own_children_are_killed_with_it() -> None:
    heard = Heard("pid = os.fork()\nif pid: tell(watching=[str(pid)])\ntime.sleep(99)")

    async def body() -> None:
        await until(lambda: heard.lines)
        (pid,) = heard.lines[0][1]["watching"]
        await heard.child.stop()
        await until(lambda: not running(int(pid)) or state(int(pid)) == "Z")

    heard.run(body)


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2][0]


def test_none_beside_one_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard("tell(asks='GPU-a'); time.sleep(99)", silence=1)
    monkeypatch.setattr(spawn, "kill", lambda pid: None)  # as if the driver held it

    async def body() -> None:
        await until(lambda: len(heard.blind) == 2)
        held = heard.child.pid
        assert heard.blind[1] == (f"the driver holds process {held}, which cannot be killed", "")
        began = time.monotonic()
        assert not await heard.child.stop()
        assert time.monotonic() - began < 5
        heard.child.begin()
        await asyncio.sleep(0.3)
        assert (len(heard.suspects), heard.child.pid) == (1, held)
        os.kill(held, signal.SIGKILL)
        await until(lambda: len(heard.suspects) == 2)
        monkeypatch.undo()

    heard.run(body)


def test_what_it_has_told_before_it_is_stopped_is_heard() -> None:
    heard = Heard("tell(xid=79); time.sleep(99)")

    async def body() -> None:
        await until(lambda: heard.child.pid)
        time.sleep(1)  # as a loop that is busy
        await heard.child.stop()
        assert [line for _, line in heard.lines] == [{"xid": 79}]

    heard.run(body)


def test_who_is_patient_waits_for_one_that_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard("tell(watching=[]); time.sleep(99)")
    monkeypatch.setattr(spawn, "kill", lambda pid: None)
    monkeypatch.setattr(module, "KILLED", 0.05)

    async def body() -> None:
        await until(lambda: heard.lines)
        held, patient = heard.child.pid, asyncio.ensure_future(heard.child.stop(patient=True))
        assert not (await asyncio.wait([patient], timeout=0.5))[0]
        os.kill(held, signal.SIGKILL)
        assert await patient

    heard.run(body)


def test_a_program_that_is_not_there_is_tried_again() -> None:
    heard = Heard(words=lambda suspects: ["/nonexistent"])

    async def body() -> None:
        await until(lambda: len(heard.blind) > 1)
        assert heard.blind[0] == ("it cannot be started: No such file or directory", "")

    heard.run(body)


def test_who_hears_fails_and_that_is_not_hidden() -> None:
    heard = Heard("tell(watching=[]); time.sleep(99)")

    def fail(line: dict[str, Any]) -> None:
        raise KeyError(line["no"])

    async def body() -> None:
        tasks: list[asyncio.Task[Any]] = []
        await heard.child.stop()
        heard.child._heard = fail
        heard.child._start = lambda work: tasks.append(asyncio.ensure_future(work)) or tasks[0]  # type: ignore[func-returns-value]
        heard.child.begin()
        with pytest.raises(KeyError):
            await tasks[0]

    heard.run(body)


def test_one_that_is_fed_may_answer_much() -> None:
    heard = Heard("for one in range(4000): tell(said=one)\ntime.sleep(99)", fed=True)

    async def body() -> None:
        await until(lambda: len(heard.lines) == 4000)
        assert heard.blind == []

    heard.run(body)


def test_one_that_is_fed_reads_what_it_is_told() -> None:
    heard = Heard("for line in sys.stdin: os.write(2, b'x'); tell(said=line)", fed=True)

    async def body() -> None:
        await until(lambda: heard.child.say({"a": 1}))
        await until(lambda: bool(heard.lines))
        assert heard.lines[0][1] == {"said": '{"a": 1}\n'}
        assert not heard.child.say({"a": "x" * 5000})  # more than a pipe takes as one

    assert not heard.child.say({})
    heard.run(body)
    assert not heard.child.say({})


def test_what_is_no_child_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: killed.append(pid))
    spawn.kill(os.getppid())  # as an id that was waited for, and is another's now
    assert not killed


def test_children_are_waited_for() -> None:
    program = (
        "import asyncio, os, time; from gpuplugin.processes.spawn import wait_for_all;"
        "os.posix_spawn('/bin/sleep', ['sleep', '0.5'], {}); began = time.monotonic();"
        "asyncio.run(wait_for_all()); assert 0.4 < time.monotonic() - began < 5"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=env, timeout=30)
