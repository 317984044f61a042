"""Tests run apart from this machine, and what they leave all the same is told."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import apart
import checkout
import scratch
import traces
from unit.gpuhook.sandbox import mount

TESTS = Path(apart.__file__).parent
THERE = 'mount --bind "$0" "$1" && cd "$1" && shift && exec "$@"'


def test_what_is_written_apart_is_gone() -> None:
    """Nodes, files, and cgroups where no other run is on: the last one takes away those of all."""
    lock = os.open(scratch.TOP.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_alone = True
    except BlockingIOError:
        is_alone = False
    os.close(lock)
    names = [f"/{top}/gpushim-apart" for top in (*apart.LAYERED, "opt")]
    group = next(name for name in traces.mounts() if name.startswith("/sys/fs/cgroup/")) + "/gpushim-apart/inner"
    script = f"mknod /dev/nvidia199 c 195 199 && touch {' '.join(names)} && mkdir -p {group} && exit 7"
    done = subprocess.run([sys.executable, TESTS / "apart.py", "/bin/sh", "-ec", script], check=False)
    assert done.returncode == 7
    groups = [group, os.path.dirname(group)] if is_alone else []
    assert [name for name in (*names, "/dev/nvidia199", *groups) if os.path.lexists(name)] == []


def test_the_tests_files_are_there_apart_and_what_else_is_in_opt() -> None:
    own = ("gpushim-layers-", apart.CGROUPS)  # of runs that go on beside this
    there = {path.name for path in scratch.TOP.parent.iterdir() if not path.name.startswith(own)}
    script = f"stat -c %d /opt {scratch.TOP} && ls /opt"
    words = [sys.executable, str(TESTS / "apart.py"), "/bin/sh", "-ec", script]
    layer, tests, *names = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert layer != tests
    assert there <= {*names}


def test_terminals_and_shared_memory_are_there_apart() -> None:
    script = "test -c /dev/pts/ptmx -a -d /dev/shm && : >/dev/null"
    subprocess.run([sys.executable, TESTS / "apart.py", "/bin/sh", "-ec", script], check=True)


def test_what_is_made_once_for_the_machine_is_kept() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "XDG_CACHE_HOME": home}
        script = f"touch {home}/gpushim-tests/kept {home}/lost"
        subprocess.run([sys.executable, TESTS / "apart.py", "/bin/sh", "-ec", script], check=True, env=env)
        assert [str(path.relative_to(home)) for path in Path(home).rglob("*")] == [
            "gpushim-tests",
            "gpushim-tests/kept",
        ]


@pytest.mark.parametrize("top", ["/tmp", "/root", "/home"])
def test_the_checkout_is_there_apart_wherever_it_lies(top: str) -> None:
    """As it was before layers, in which no user namespace can mount files with ids of its own."""
    with tempfile.TemporaryDirectory(prefix="a ü ", dir=top) as name:
        words = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", THERE, str(TESTS.parent), name, sys.executable]
        words += ["tests/apart.py", "/bin/sh", "-c", "pwd -P; stat -f -c %T ."]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    kind = subprocess.run(["stat", "-f", "-c", "%T", TESTS], check=True, capture_output=True, text=True).stdout
    assert said == [str(checkout.PLACE), *kind.split()]


def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(traces, "PLACES", (str(tmp_path / "place"),))
    monkeypatch.setattr(scratch, "TOP", tmp_path / "scratch")
    return traces.look()


def test_what_is_left_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    for name in ("stays", "goes", "changes"):
        (place / name).write_text(name)
    before = look(tmp_path, monkeypatch)
    (place / "comes").mkdir()
    (place / "goes").unlink()
    (place / "changes").write_text("again")
    mount("tmpfs", place / "comes")
    told = [line for line in traces.changes(before, look(tmp_path, monkeypatch)) if str(place) in line]
    subprocess.run(["umount", place / "comes"], check=True)
    assert [line.split(": ")[0] for line in told] == ["has gone", "is another", "is there", "is there"]
    assert f"is there: mount {place}/comes " in told


def test_a_process_that_is_left_is_told(tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, env={traces.OURS: "1"}) as left:
        while not Path(f"/proc/{left.pid}/cmdline").read_bytes().startswith(b"/bin/cat"):
            assert left.poll() is None
        during = [*traces.processes()]
    assert f"{left.pid} /bin/cat " in during
    assert f"{left.pid} /bin/cat " not in [*traces.processes()]


def test_nothing_is_told_where_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "look", lambda: {"a file": "its facts"})
        patch.setattr(sys, "argv", ["traces.py", str(tmp_path / "before")])
        assert (traces.main(), traces.main()) == (0, 0)
        patch.setattr(traces, "look", lambda: {"a file": "its facts", "another": "2"})
        assert traces.main() == 1
    assert "in 1 places:\n  is there: another 2\n" in capsys.readouterr().out
