"""Which containers need gpushim-runtime for their end, as their shims and monitors tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuplugin.node import install, record, uninstall
from gpushim.ground.errors import GpushimError


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (folder := tmp_path / "proc/self/ns").mkdir(parents=True)
    for name in ("pid", "mnt", "user"):
        (folder / name).symlink_to(f"{name}:[1]")
    return tmp_path / "proc"


def process(
    proc: Path,
    pid: int,
    name: str,
    cwd: Path | None = None,
    words: str = "",
    uid: int = 0,
    ns: str = "",
    mode: int = 0o755,
) -> None:
    (folder := proc / str(pid) / "ns").mkdir(parents=True)
    for space in ("pid", "mnt", "user"):
        (folder / space).symlink_to(f"{space}:[{2 if space == ns else 1}]")
    folder = folder.parent
    (folder / name).touch()
    (folder / name).chmod(mode)
    (folder / "exe").symlink_to(folder / name)
    (folder / "cgroup").write_text("0::/kubepods.slice/pod1/monitor\n")
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode())
    if cwd:
        (folder / "cwd").symlink_to(cwd)


def bundle(tasks: Path, name: str, runtime: str, file: str) -> Path:
    (folder := tasks / name).mkdir(parents=True)
    (folder / file).write_text(runtime)
    return folder


def test_containers_by_their_engine_s_files_and_command_lines(proc: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "k8s.io"
    pod = bundle(tasks, "pod", "/usr/bin/gpushim-runtime", "runtime")
    bundle(tasks, "one", '{"BinaryName": "/usr/bin/gpushim-runtime"}', "options.json")
    bundle(tasks, "other", "/usr/bin/runc", "runtime")
    process(proc, 7, "containerd-shim", pod)
    process(proc, 8, "conmon", words="/usr/bin/conmon -b x -c two -r /usr/bin/gpushim-runtime ")
    process(proc, 9, "conmon", words="/usr/bin/conmon -c three -r /usr/bin/crun ")
    process(proc, 10, "sh", words="sh -c /usr/bin/gpushim-runtime ")
    assert uninstall.users(str(proc)) == ["one", "pod", "two"]


@pytest.mark.parametrize("facts", [{"uid": 1000}, {"ns": "pid"}, {"ns": "mnt"}, {"ns": "user"}, {"mode": 0o777}])
def test_strangers_that_call_themselves_so_keep_nothing_here(
    proc: Path, tmp_path: Path, facts: dict[str, object]
) -> None:
    """A user's process, one in a container, with the host's process ids too, and a program that others may write."""
    own = bundle(tmp_path / "tasks", "own", "/usr/bin/gpushim-runtime", "runtime")
    process(proc, 7, "containerd-shim", own, **facts)  # type: ignore[arg-type]
    process(proc, 8, "conmon", words="/usr/bin/conmon -c two -r /usr/bin/gpushim-runtime ", **facts)  # type: ignore[arg-type]
    assert uninstall.users(str(proc)) == []


def test_a_fifo_in_the_place_of_a_file_hangs_nothing(proc: Path, tmp_path: Path) -> None:
    own = bundle(tmp_path / "tasks", "own", "/usr/bin/gpushim-runtime", "options.json")
    os.mkfifo(own / "runtime")
    process(proc, 7, "containerd-shim", own)
    assert uninstall.users(str(proc)) == ["own"]


@pytest.mark.parametrize(("script", "seconds"), [("exit 3", 60.0), ("sleep 9", 0.1)])
def test_what_fails_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, seconds: float
) -> None:
    monkeypatch.setattr(record, "PATH", str(tmp_path / "node.json"))
    monkeypatch.setattr(uninstall, "SECONDS", seconds)
    monkeypatch.setattr(uninstall, "STEPS", script)
    (tmp_path / "x").write_text("x")
    record.Record({str(tmp_path / "x"): record.digest(b"x")}).save()
    with pytest.raises(GpushimError, match="not all that gpushim has written could be removed"):
        uninstall._remove(record.load(), "", str(tmp_path))
    monkeypatch.setattr(uninstall, "STEPS", "true")
    uninstall._remove(record.load(), "", str(tmp_path))
    assert not tmp_path.exists()


def test_what_tells_which_settings_are_meant() -> None:
    words = ["containerd", "--config=/etc/x", "--runtime-name=gpu", "--set-as-default", "--cdi"]
    assert install.named(words) == ["containerd", "--config=/etc/x", "--runtime-name=gpu"]
