"""Which directory the kubelet that runs was given, from a /proc that the test makes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.engines.processes import kubelets


def process(
    proc: Path,
    pid: int,
    *argv: str,
    exe: str = "kubelet",
    uid: int = 0,
    ns: str = "",
    cgroup: str = "kubelet.service",
) -> None:
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / exe).touch(0o755)
    (folder / "exe").symlink_to(folder / exe)
    for space in ("pid", "mnt", "user"):
        (folder / "ns" / space).symlink_to(f"{space}:[{2 if space == ns else 1}]")
    (folder / "cgroup").write_text(f"0::/system.slice/{cgroup}\n")
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self/ns").mkdir(parents=True)
    for space in ("pid", "mnt", "user"):
        (tmp_path / "self/ns" / space).symlink_to(f"{space}:[1]")
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["kubelet", "--root-dir=/data/kubelet"], "/data/kubelet"),
        (["kubelet", "--root-dir", "/data/kubelet/"], "/data/kubelet"),
        (["kubelet", "--root-dir=/a", "--root-dir=/b"], "/b"),
        (["kubelet", "--config=/x"], ""),
        (["kubelet", "--root-dir=relative"], ""),
        (["kubelet", "--root-dir"], ""),
        ([], ""),
    ],
)
def test_the_directory_of_its_command_line(proc: Path, argv: list[str], named: str) -> None:
    process(proc, 7, *argv)
    assert kubelets.root_dir(str(proc)) == named


def test_it_may_be_microk8s_and_is_not_the_first_process(proc: Path) -> None:
    process(proc, 1, "init", exe="init")
    process(proc, 9, "kubelite", "--root-dir=/snap/x", exe="kubelite")
    assert kubelets.root_dir(str(proc)) == "/snap/x"


STRANGERS = [
    *({"uid": 1000}, {"ns": "pid"}, {"ns": "mnt"}, {"ns": "user"}),
    *({"exe": "kubelet.sh"}, {"cgroup": "docker-0123.scope"}),
]


@pytest.mark.parametrize("facts", STRANGERS)
def test_strangers_say_nothing(proc: Path, facts: dict[str, object]) -> None:
    """A user's, root's in a container, with the host's process ids or not, and one that only calls itself so."""
    process(proc, 7, "kubelet", "--root-dir=/x", **facts)  # type: ignore[arg-type]
    assert kubelets.root_dir(str(proc)) == ""


def test_a_process_that_has_ended_meanwhile(proc: Path) -> None:
    (proc / "8").mkdir()
    assert kubelets.root_dir(str(proc)) == ""
