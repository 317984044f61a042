"""What keeps the snapshot true: when it lists GPUs, how often it tries, and what it says; and the end of it all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest

from gpushim.cdi.generate import output
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure, failure, renew, save
from gpushim.paths.replace import replace
from gpushim.refresh import keep, plugin_requests
from gpushim.refresh.keep import Keep


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a refresh runs, what it leaves, and what the host's facts are."""
    found: dict[str, Any] = {"script": "exit 1", "snapshot": None, "facts": 1}
    command = ["/bin/sh", "-c"]
    monkeypatch.setattr(renew, "command", lambda: [*command, f"echo $0 >>{tmp_path}/runs; {found['script']}"])
    monkeypatch.setattr(failure, "facts", lambda config: found["facts"])
    monkeypatch.setattr(ensure, "read", lambda config, state: found["snapshot"])
    monkeypatch.setattr(keep, "FIRST", 0.1)
    monkeypatch.setattr(output, "path_of", lambda policy: found["spec"])
    found["spec"] = str(tmp_path / "spec.json")
    Path(found["spec"]).touch()
    found["runs"] = lambda: len((tmp_path / "runs").read_text().split()) if (tmp_path / "runs").exists() else 0
    return found


@pytest.fixture
def kept(host: dict[str, Any], tmp_path: Path) -> Keep:
    return Keep(str(tmp_path / "config.toml"), str(tmp_path))


def until(kept: Keep, condition: Callable[[], bool]) -> float:
    """Look until something is so; return how long that took."""
    began = time.monotonic()
    while not condition():
        kept.look()
        time.sleep(0.01)
        assert time.monotonic() - began < 20
    return time.monotonic() - began


def alive(life: float = 300, age: float = 0) -> dict[str, Any]:
    return {"life": life, "looked": system.clock() - age, "policy": {}}


def test_what_fails_is_tried_more_and_more_rarely_and_said_once(
    kept: Keep, host: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    host["script"] = """echo '{"msg": "a note", "time": "'$(date +%N)'"}' >&2; echo 'gpushim: no room' >&2; exit 12"""
    assert until(kept, lambda: host["runs"]() == 4) > 0.1 + 0.2 + 0.4
    assert [line for line in capfd.readouterr().err.splitlines() if "no room" in line] == ["gpushim: no room"]
    kept._again = time.monotonic() + 60
    host["facts"] = 2  # it is worth another try at once
    until(kept, lambda: host["runs"]() == 5)
    assert "a note" not in capfd.readouterr().err
    kept.stop()


@pytest.mark.parametrize(
    ("life", "age", "runs"),
    [(300, 0, 0), (0, 0, 0), (300, 260, 0), (300, 275, 1), (30, 5, 0), (30, 16, 1)],
    ids=["new", "endless", "old", "nearly over", "short", "half of a short one"],
)
def test_a_snapshot_is_renewed_before_its_life_is_over(
    kept: Keep, host: dict[str, Any], life: float, age: float, runs: int
) -> None:
    host.update(snapshot=alive(life, age), script="exit 0")
    kept.look()
    kept.stop()
    assert (kept._child is not None) == bool(runs)


@pytest.mark.parametrize(("age", "runs"), [(-5, 0), (5, 1)], ids=["made since", "made before"])
def test_what_another_version_has_made_since_is_left_to_it(
    kept: Keep, host: dict[str, Any], monkeypatch: pytest.MonkeyPatch, age: float, runs: int
) -> None:
    """A keeper and creates of two versions would renew each other's snapshots for ever."""
    found = alive(300, age)
    monkeypatch.setattr(save, "of_another", lambda config, state: found)
    monkeypatch.setattr(ensure, "alive", lambda snapshot, ahead=0: True)
    host["script"] = "exit 0"
    kept.look()
    kept.stop()
    assert (kept._child is not None) == bool(runs)


def test_a_cdi_spec_that_goes_is_written_again(kept: Keep, host: dict[str, Any]) -> None:
    """It is at its start, and whenever it was there; nobody asks again where a refresh leaves none."""
    spec = Path(host["spec"])
    host.update(snapshot=alive(), script=f"touch {spec}")
    for _ in range(5):
        kept.look()
    assert not host["runs"]()
    for runs in (1, 2):
        spec.unlink()
        until(kept, lambda: host["runs"]() == runs and kept._child is None)  # noqa: B023
        assert spec.exists()
    host["script"] = "exit 0"
    spec.unlink()
    until(kept, lambda: host["runs"]() == 3 and kept._child is None)
    for _ in range(20):
        kept.look()
    assert (host["runs"](), kept._child) == (3, None)
    spec.touch()  # by another refresh
    kept.look()
    spec.unlink()
    until(kept, lambda: host["runs"]() == 4 and kept._child is None)


def test_a_cdi_spec_that_was_gone_before_it_began(kept: Keep, host: dict[str, Any]) -> None:
    Path(host["spec"]).unlink()
    host.update(snapshot=alive(), script="exit 0")
    until(kept, lambda: host["runs"]() == 1 and kept._child is None)


def test_a_wish_is_served_once_and_at_once(kept: Keep, host: dict[str, Any], tmp_path: Path) -> None:
    until(kept, lambda: host["runs"]() == 1 and kept._child is None)
    host.update(snapshot=alive(), script="exit 0")
    path = tmp_path / plugin_requests.NAME
    path.parent.mkdir()
    path.write_text("{}")
    kept._again = time.monotonic() + 60
    until(kept, lambda: host["runs"]() == 2 and kept._child is None)
    for _ in range(20):
        kept.look()
    assert (host["runs"](), kept._child) == (2, None)


def test_a_wish_is_served_long_before_the_next_look(tmp_path: Path) -> None:
    """But no other file beside it is looked at."""
    (path := tmp_path / plugin_requests.NAME).parent.mkdir()
    program = (
        "from gpushim.refresh import keep\n"
        "keep.LOOK = 3600.0\n"
        "keep.Keep.look = lambda self: (self._folder.watch(), print(self.is_asked(), flush=True))\n"
        "keep.keep()"
    )
    env = {**os.environ, "GPUSHIM_STATE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        replace(f"{path}-other", b"{}")
        replace(str(path), b"{}")
        assert process.stdout.readline() == "True\n"
        process.terminate()
        assert "False" not in process.stdout.read()  # it may have heard of the one file twice
    assert process.returncode == 0


def test_no_gpu_is_opened_while_they_are_let_go(kept: Keep, host: dict[str, Any], tmp_path: Path) -> None:
    released = tmp_path / plugin_requests.RELEASED
    released.parent.mkdir()
    released.touch()
    for _ in range(5):
        kept.look()
    assert (host["runs"](), kept._child) == (0, None)
    released.unlink()
    until(kept, lambda: host["runs"]() == 1)
    kept.stop()


def test_one_that_hangs_is_killed_and_no_other_is_started_before_its_end(
    kept: Keep, host: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keep, "DEADLINE", 0.3)
    host["script"] = "sleep 99 & wait"
    until(kept, lambda: bool(caplog.messages))
    assert "has not ended after 0.3 s and is killed" in caplog.text
    child = kept._child
    assert child is not None
    monkeypatch.setattr(child, "ended", lambda: None)  # the driver holds it
    until(kept, lambda: os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None)
    assert (kept._child, host["runs"]()) == (child, 1)
    kept.stop()
    with pytest.raises(ChildProcessError):
        os.waitpid(child.process.pid, 0)


def test_one_that_cannot_be_started(
    kept: Keep, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(renew, "command", lambda: ["/gone/python3"])
    for _ in range(3):
        kept.look()
    assert capfd.readouterr().err == "gpushim: gpushim refresh cannot be started: No such file or directory\n"


def until_replaced(monkeypatch: pytest.MonkeyPatch, folder: Path, look: Callable[[], object]) -> None:
    """Keep a snapshot, by this look, until another version takes this one's place."""
    whole = folder / "whole"
    whole.touch()

    def once(kept: Keep) -> None:
        look()
        whole.unlink()

    monkeypatch.setattr(Keep, "look", once)
    monkeypatch.setattr(keep, "WHOLE", str(whole))
    monkeypatch.setattr(keep, "LOOK", 0.02)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(GpushimError, match="another version has taken this one's place; start gpushim refresh"):
            keep.keep()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def test_the_end_of_this_version_is_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    until_replaced(monkeypatch, tmp_path, lambda: None)


def test_children_are_waited_for_though_their_parent_let_them_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as it stays over an exec
    until_replaced(monkeypatch, tmp_path, lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0))
