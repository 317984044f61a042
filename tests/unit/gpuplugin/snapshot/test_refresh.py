"""The child that renews the snapshot: its end, its words, its deadline; and when there is another."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable

import pytest

from gpuplugin.health import hung_file
from gpuplugin.processes import process
from gpuplugin.snapshot import refresh
from gpuplugin.snapshot.refresh import LateError, Refresh
from gpushim.inventory import ensure, renew
from unit.gpuplugin.kubelet.fake import until


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script, "refresh"]


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_its_code_words_and_environment() -> None:
    script = "cat >&2; env >&2; grep -E 'SigBlk|SigIgn' /proc/self/status >&2; exit 3"
    code, said = asyncio.run(refresh.run(shell(script), {"PATH": os.environ["PATH"], "A": "b"}, 5))
    lines = said.decode().splitlines()
    assert code == 3
    assert not children()
    assert {line.partition("=")[0] for line in lines if "=" in line} <= {"PATH", "A", "PWD", "SHLVL", "_", "OLDPWD"}
    blocked, ignored = (int(line.split()[1], 16) for line in lines if line.startswith("Sig"))
    assert not blocked
    assert not ignored & sum(1 << number - 1 for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ))


def test_of_many_words_the_last_are_kept() -> None:
    code, said = asyncio.run(refresh.run(shell("yes line | head -c 999999 >&2; echo last >&2"), dict(os.environ), 9))
    assert code == 0
    assert len(said) == refresh.STDERR_LIMIT
    assert said.endswith(b"last\n")


def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(LateError, match=r"refresh has not ended after 0.5 s and is killed") as late:
            await refresh.run(shell(f"sleep 99 & echo $! > {tmp_path}/pid; wait"), dict(os.environ), 0.5)
        await process.gone(late.value.pid)
        grandchild = int((tmp_path / "pid").read_text())
        await until(lambda: not Path(f"/proc/{grandchild}").exists() or b") Z " in stat(grandchild))
        assert not children()

    def stat(pid: int) -> bytes:
        try:
            return Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return b") Z "

    asyncio.run(run())


def test_one_that_is_not_needed_any_more_is_killed() -> None:
    async def run() -> None:
        task = asyncio.create_task(refresh.run(shell("sleep 99"), dict(os.environ), 99))
        await until(children)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not children()

    asyncio.run(run())


def test_a_signal_is_a_negative_code() -> None:
    assert asyncio.run(refresh.run(shell("kill -9 $$"), {}, 5))[0] == -signal.SIGKILL


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a refresh runs, what it leaves, and what the host's facts are."""
    found: dict[str, Any] = {"script": "exit 1", "snapshot": None, "facts": 1}
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setenv("GPUSHIM_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(renew, "command", lambda: shell(f"echo >> {tmp_path}/runs; {found['script']}"))
    monkeypatch.setattr(renew, "facts", lambda config: found["facts"])
    monkeypatch.setattr(ensure, "read", lambda config, state: found["snapshot"])
    monkeypatch.setattr(refresh, "FIRST", 0.1)
    found["runs"] = lambda: len((tmp_path / "runs").read_text()) if (tmp_path / "runs").exists() else 0
    return found


async def needed(child: Refresh, condition: Callable[[], bool]) -> float:
    """Need it until something is so; return how long that took."""

    def asked() -> bool:
        child.need()
        return condition()

    return await until(asked)


def test_what_fails_is_tried_more_and_more_rarely_and_said_once(
    host: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        child, began = Refresh(lambda: None), time.monotonic()
        host["script"] = "echo 'gpushim: warning: a note' >&2; echo 'gpushim: the state is full' >&2; exit 12"
        await needed(child, lambda: host["runs"]() == 4)
        assert time.monotonic() - began > 0.1 + 0.2 + 0.4
        assert caplog.messages == ["a note", "the state is full"]
        assert str(child.problem) == "the state is full"
        assert child.problem is not None
        assert child.problem.exit_code == 12
        host["facts"] = 2  # it is worth another try at once
        assert await needed(child, lambda: host["runs"]() == 5) < 0.5
        host["snapshot"] = {"version": 1}
        await needed(child, lambda: child.problem is None)
        await child.stop()

    asyncio.run(run())


def test_news_of_gpus_renew_a_snapshot_that_seems_true(host: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> None:
        child, words = Refresh(lambda: None), tmp_path / "words"
        host["script"], host["snapshot"] = f'echo "$@" >> {words}', {"version": 1}
        child.hurry()
        await until(lambda: words.exists() and words.read_text() == "--force\n")
        await until(lambda: child.problem is None and not children())
        await needed(child, lambda: host["runs"]() == 2)
        await until(lambda: words.read_text() == "--force\n\n")
        await child.stop()

    asyncio.run(run())


def test_one_that_a_change_has_overtaken_has_not_failed_but_two_in_a_row_have(host: dict[str, Any]) -> None:
    async def run() -> None:
        for change, problems in ((True, [None, "no inventory that is true"]), (False, ["no inventory that is true"])):
            child = Refresh(lambda: None)
            for runs, problem in enumerate(problems, host["runs"]() + 1):
                host["script"] = "sleep 0.3"
                await needed(child, lambda runs=runs: host["runs"]() == runs)  # type: ignore[misc]
                host["facts"] += change
                await until(lambda: not children())
                await asyncio.sleep(0.1)
                assert (problem or "None") in str(child.problem)
            await child.stop()

    asyncio.run(run())


def test_one_that_a_change_has_overtaken_and_that_is_true_excuses_the_next_one_too(host: dict[str, Any]) -> None:
    async def run() -> None:
        child, host["script"] = Refresh(lambda: None), "sleep 0.3"
        for runs, snapshot in enumerate([{"version": 1}, None], 1):
            await needed(child, lambda runs=runs: host["runs"]() == runs)  # type: ignore[misc]
            host["facts"], host["snapshot"] = runs + 1, snapshot
            await until(lambda: not children())
            await asyncio.sleep(0.1)
            assert child.problem is None
        await child.stop()

    asyncio.run(run())


def test_one_that_ends_as_another_instance_has_told_of_a_gpu_that_hangs_has_not_failed(
    host: dict[str, Any], tmp_path: Path
) -> None:
    async def run() -> None:
        (tmp_path / "device-plugin").mkdir(mode=0o700)
        host["script"] = "sleep 0.3; exit 12"
        child = Refresh(lambda: None)
        for runs in (1, 2):
            await needed(child, lambda runs=runs: host["runs"]() == runs)  # type: ignore[misc]
            hung_file.hangs("GPU-0")  # which is news once
            await until(lambda: not children())
            await asyncio.sleep(0.1)
            assert (child.problem is None) == (runs == 1)
        await child.stop()

    asyncio.run(run())


def test_one_that_waits_in_vain_is_killed_and_begun_again_which_is_no_failure(
    host: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        child = Refresh(lambda: None)
        host["script"] = "sleep 99"
        await needed(child, lambda: host["runs"]() == 1)
        host["script"], host["snapshot"] = "exit 0", {"version": 1}
        child.hurry(True)
        await until(lambda: host["runs"]() == 2)
        await until(lambda: not children())
        assert child.problem is None
        child.hurry(True)
        await until(lambda: host["runs"]() == 3)
        await child.stop()
        assert not caplog.messages

    asyncio.run(run())


def test_news_of_gpus_that_hang_one_after_the_other_begin_one_look_again(
    host: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the one before it has ended, which a driver that hangs may keep."""
    ended = process.gone

    async def gone(pid: int) -> None:
        await asyncio.sleep(0.3)
        await ended(pid)

    async def run() -> None:
        monkeypatch.setattr(process, "gone", gone)
        child = Refresh(lambda: None)
        host["script"] = "sleep 99"
        await needed(child, lambda: host["runs"]() == 1)
        host["script"] = f"wc -w </proc/$PPID/task/$PPID/children >{tmp_path}/beside; sleep 99"
        for _ in range(3):
            child.hurry(True)
            await asyncio.sleep(0)
        await until(lambda: (tmp_path / "beside").exists() and (tmp_path / "beside").read_text() == "1\n")
        assert host["runs"]() == 2
        await child.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", "gpushim refresh brought no inventory that is true; run it by hand to see why"),
        ("kill -9 $$", "gpushim refresh was ended by signal 9; run it by hand to see why"),
        (r"printf 'gpushim: \033[31mred\n' >&2; exit 1", r"\x1b[31mred"),
        ("""echo '{"level": "error", "msg": "so it is"}' >&2; exit 1""", "so it is"),
        ("""echo '[[[{' >&2; exit 1""", "[[[{"),
    ],
)
def test_what_it_says(host: dict[str, Any], script: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        host["script"], child = script, Refresh(lambda: None)
        await needed(child, lambda: child.problem is not None)
        assert str(child.problem) == said
        assert caplog.messages == [said]
        await child.stop()

    asyncio.run(run())


def test_the_snapshot_tells_its_error_itself(host: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        ended = asyncio.Event()
        host["script"], host["snapshot"] = "echo 'gpushim: no driver' >&2; exit 12", {"error": "no driver"}
        child = Refresh(ended.set)
        child.need()
        await asyncio.wait_for(ended.wait(), 5)
        assert child.problem is None
        assert caplog.messages == []
        await child.stop()

    asyncio.run(run())


def test_a_program_that_is_not_there(host: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(renew, "command", lambda: ["/nonexistent"])
        child = Refresh(lambda: None)
        await needed(child, lambda: child.problem is not None)
        assert "cannot be started: No such file or directory" in str(child.problem)

    asyncio.run(run())


def test_no_second_beside_one_that_cannot_be_killed(host: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(refresh, "GRACE", 0)
        monkeypatch.setattr(refresh, "_seconds", lambda config: 0.1)
        killed: list[int] = []
        monkeypatch.setattr(process, "kill", killed.append)  # as if the driver held it
        host["script"], child = "exec sleep 99", Refresh(lambda: None)
        await needed(child, lambda: child.problem is not None)
        child.need()
        await asyncio.sleep(0.4)
        child.need()
        assert host["runs"]() == 1
        assert len(children()) == 1
        os.kill(killed[0], signal.SIGKILL)
        await needed(child, lambda: host["runs"]() == 2)
        monkeypatch.undo()
        await child.stop()

    asyncio.run(run())
    assert not children()
