"""Engines found in a made /proc, as on hosts with Docker, k3s, a snap, a rootless user and containers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines import running
from gpushim.errors import GpushimError

FIND = running.find  # conftest.py replaces it


class Proc:
    """A /proc."""

    def __init__(self, top: Path) -> None:
        self.top = top
        (top / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
        self.process(1, "/usr/lib/systemd/systemd", "/sbin/init")
        os.symlink("1", top / "self")

    def process(self, pid: int, exe: str, *argv: str, **facts: Any) -> None:
        folder = self.top / str(pid)
        (folder / "ns").mkdir(parents=True)
        os.symlink(exe, folder / "exe")
        os.symlink(facts.get("cwd", "/"), folder / "cwd")
        os.symlink(facts.get("pidns", "pid:[1]"), folder / "ns" / "pid")
        os.symlink(facts.get("mntns", "mnt:[1]"), folder / "ns" / "mnt")
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
        uid = facts.get("uid", 0)
        (folder / "status").write_text(
            f"Name:\tx\nPPid:\t{facts.get('parent', 1)}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        )
        (folder / "stat").write_text(f"{pid} (odd) name) S " + " ".join(["0"] * 18) + f" {pid * 100} 0 0\n")
        (folder / "environ").write_bytes(b"PATH=/usr/bin\0SECRET=x\0HOME=/root\0")
        (folder / "cgroup").write_text(facts.get("cgroup", "0::/init.scope\n"))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def only(proc: Proc) -> running.Engine:
    (engine,) = FIND(str(proc.top))
    return engine


def test_dockerd(proc: Proc) -> None:
    argv = ("/usr/bin/dockerd", "-H", "fd://", "--config-file=/srv/daemon.json", "--host=unix:///x")
    proc.process(40, "/usr/bin/dockerd", *argv, cgroup="0::/system.slice/docker.service\n")
    engine = only(proc)
    assert (engine.name, engine.pid, engine.config, engine.root) == ("dockerd", 40, "/srv/daemon.json", "")
    assert engine.option("--host", "-H") == ["fd://", "unix:///x"]
    assert (engine.unit, engine.started) == ("docker.service", 1700000000 + 4000 / os.sysconf("SC_CLK_TCK"))
    assert engine.environ == {"PATH": "/usr/bin", "HOME": "/root"}


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        (["containerd"], ""),
        (["containerd", "-c", "/a.toml"], "/a.toml"),
        (["containerd", "--config", "b/../b.toml"], "/run/b.toml"),
        (["containerd", "-config=/c.toml"], "/c.toml"),
        (["containerd", "--config"], ""),
        (["containerd", "--config="], ""),
    ],
)
def test_where_the_command_line_says_the_settings_are(proc: Proc, argv: list[str], config: str) -> None:
    proc.process(40, "/usr/bin/containerd", *argv, cwd="/run")
    assert only(proc).config == config


def test_k3s_and_its_containerd(proc: Proc) -> None:
    proc.process(40, "/usr/local/bin/k3s", "/usr/local/bin/k3s", "server", cgroup="0::/system.slice/k3s.service\n")
    argv = ("containerd", "-c", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
    proc.process(41, "/var/lib/rancher/k3s/data/x/bin/containerd", *argv, parent=40)
    k3s, containerd = FIND(str(proc.top))
    assert (k3s.name, k3s.unit, containerd.name, containerd.parent) == ("k3s", "k3s.service", "containerd", 40)


def test_kubectl_by_the_name_of_k3s_is_no_engine(proc: Proc) -> None:
    proc.process(40, "/usr/local/bin/k3s", "k3s", "kubectl", "get", "pods")
    assert FIND(str(proc.top)) == []


def test_a_snap_has_a_root_of_its_own(proc: Proc) -> None:
    config = "--config-file=/var/snap/docker/2915/config/daemon.json"
    unit = "0::/system.slice/snap.docker.dockerd.service\n"
    proc.process(40, "/snap/docker/2915/bin/dockerd", "dockerd", config, mntns="mnt:[2]", cgroup=unit)
    engine = only(proc)
    assert engine.root == f"{proc.top}/40/root"
    assert engine.unit == "snap.docker.dockerd.service"


def test_what_a_snap_sees_of_the_host_has_its_plain_path(proc: Proc, tmp_path: Path) -> None:
    proc.process(40, "/bin/dockerd", "dockerd", mntns="mnt:[2]")
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    os.makedirs(f"{proc.top}/40/root{tmp_path}")
    os.symlink(shared, f"{proc.top}/40/root{shared}")
    engine = only(proc)
    assert engine.seen(f"{shared}/daemon.json") == f"{shared}/daemon.json"
    assert engine.seen(f"{own}/daemon.json") == f"{proc.top}/40/root{own}/daemon.json"


def test_a_rootless_engine(proc: Proc) -> None:
    unit = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker.service\n"
    proc.process(40, "/usr/bin/dockerd", "dockerd", uid=1000, mntns="mnt:[3]", cgroup=unit)
    assert (only(proc).uid, only(proc).unit) == (1000, "docker.service")


def test_an_engine_inside_a_container_is_somebody_elses(proc: Proc) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd", pidns="pid:[7]", mntns="mnt:[7]")
    assert FIND(str(proc.top)) == []


def test_a_shim_a_zombie_and_a_program_that_was_upgraded(proc: Proc) -> None:
    proc.process(40, "/usr/bin/containerd-shim-runc-v2", "/usr/bin/containerd-shim-runc-v2", "-id", "x")
    proc.process(41, "/usr/bin/dockerd")
    proc.process(42, "/usr/bin/dockerd (deleted)", "dockerd")
    assert (only(proc).pid, only(proc).exe) == (42, "/usr/bin/dockerd")


def test_a_process_that_ends_meanwhile(proc: Proc) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd")
    for name in ("status", "stat", "cgroup", "environ"):
        (proc.top / "40" / name).unlink()
    assert only(proc).started == 1700000000


def test_the_real_proc_is_readable() -> None:
    assert all(engine.pid for engine in FIND())


def test_the_engine_that_reads_a_file(engines: list[running.Engine]) -> None:
    me = os.geteuid()
    engines += [running.Engine("crio", pid, config=f"/x/{pid}", uid=me) for pid in (1, 2)]
    found, notes = running.reading("crio", "/x/2", "/etc/crio")
    assert found is not None
    assert (found.pid, notes) == (2, [])
    assert running.reading("crio", "/x/3", "/etc/crio") == (None, [])
    with pytest.raises(GpushimError, match="2 crio run: process 1 reads /x/1, process 2 reads /x/2"):
        running.reading("crio", "", "/etc/crio")


def test_another_users_engine_is_noted(engines: list[running.Engine]) -> None:
    engines.append(running.Engine("dockerd", 5, uid=os.geteuid() + 1000))
    found, notes = running.reading("dockerd", "", "/etc/docker/daemon.json")
    assert found is None
    assert "(process 5): it needs the same, by that user" in notes[0]
