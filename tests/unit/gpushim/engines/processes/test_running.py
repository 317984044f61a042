"""Engines found in a made /proc, as on hosts with Docker, k3s, a snap, a rootless user and containers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines.processes import origin, running
from gpushim.ground.errors import GpushimError

LOOK = running.look  # conftest.py replaces it
ME = os.geteuid()
UNIT = "0::/system.slice/{}.service\n"


class Proc:
    """A /proc, and programs below a root directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.top, self.root = folder / "proc", folder / "root"
        self.top.mkdir()
        (self.top / "stat").write_text("cpu 1 2 3\nbtime 1700000000\n")
        self.process(1, "/usr/lib/systemd/systemd", "/sbin/init")
        os.symlink("1", self.top / "self")

    def program(self, path: str) -> Path:
        place = Path(f"{self.root}{path}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch(0o755)
        return place

    def process(self, pid: int, exe: str, *argv: str, **facts: Any) -> None:
        folder = self.top / str(pid)
        (folder / "ns").mkdir(parents=True)
        os.symlink(self.program(exe), folder / "exe")
        os.symlink(facts.get("cwd", "/"), folder / "cwd")
        for name in ("pid", "mnt", "user"):
            os.symlink(facts.get(f"{name}_ns", f"{name}:[1]"), folder / "ns" / name)
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
        uids = "\t".join(map(str, facts.get("uids", [ME] * 4)))
        (folder / "status").write_text(f"Name:\tx\nPPid:\t{facts.get('parent', 1)}\nUid:\t{uids}\n")
        (folder / "stat").write_text(f"{pid} (odd) name) S " + " ".join(["0"] * 18) + f" {pid * 100} 0 0\n")
        (folder / "environ").write_bytes(b"PATH=/usr/bin\0SECRET=x\0HOME=/root\0CONTAINERS_STORAGE_CONF=/x\0")
        (folder / "cgroup").write_text(facts.get("cgroup", "0::/\n").lstrip())


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def found(proc: Proc) -> list[running.Engine]:
    return LOOK(str(proc.top))[0]


def only(proc: Proc) -> running.Engine:
    (engine,) = found(proc)
    return engine


def stranger(proc: Proc) -> str:
    """Return why the only process that looks like an engine is none."""
    engines, (other,) = LOOK(str(proc.top))
    assert engines == []
    return other.why


def test_dockerd(proc: Proc) -> None:
    argv = ("/usr/bin/dockerd", "-H", "fd://", "--config-file=/srv/daemon.json", "--host=unix:///x")
    proc.process(40, "/usr/bin/dockerd", *argv, cgroup=UNIT.format("docker"))
    engine = only(proc)
    assert (engine.name, engine.pid, engine.config, engine.root) == ("dockerd", 40, "/srv/daemon.json", "")
    assert engine.option("--host", "-H") == ["fd://", "unix:///x"]
    assert (engine.unit, engine.started) == ("docker.service", 1700000000 + 4000 / os.sysconf("SC_CLK_TCK"))
    assert engine.environ == {"PATH": "/usr/bin", "HOME": "/root", "CONTAINERS_STORAGE_CONF": "/x"}


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


@pytest.mark.parametrize("program", ["containerd", "k3s"])
def test_k3s_and_its_containerd(proc: Proc, program: str) -> None:
    proc.process(40, "/usr/local/bin/k3s", "/usr/local/bin/k3s", "server", cgroup=UNIT.format("k3s"))
    argv = ("containerd", "-c", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
    cgroup = UNIT.format("k3s")
    proc.process(41, f"/var/lib/rancher/k3s/data/x/bin/{program}", *argv, parent=40, cgroup=cgroup)
    k3s, containerd = found(proc)
    assert (k3s.name, k3s.unit, containerd.name, containerd.parent) == ("k3s", "k3s.service", "containerd", 40)


def test_kubectl_by_the_name_of_k3s_is_no_engine(proc: Proc) -> None:
    proc.process(40, "/usr/local/bin/k3s", "k3s", "kubectl", "get", "pods")
    assert LOOK(str(proc.top)) == ([], [])


def snap(proc: Proc, **facts: Any) -> None:
    """A dockerd below a /snap, whose link says where that is in its root."""
    proc.process(40, "/snap/docker/2915/bin/dockerd", "dockerd", "--config-file=/x/daemon.json", **facts)
    (proc.top / "40/exe").unlink()
    os.symlink("/snap/docker/2915/bin/dockerd", proc.top / "40/exe")
    os.symlink(proc.root, proc.top / "40/root")


def test_a_snap_has_a_root_of_its_own(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    snap(proc, mnt_ns="mnt:[2]", cgroup=UNIT.format("snap.docker.dockerd"))
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: real(str(path).replace("exe", f"root{SNAPPED}"), **how))
    engine = only(proc)
    assert engine.root == f"{proc.top}/40/root"
    assert (engine.config, engine.unit) == ("/x/daemon.json", "snap.docker.dockerd.service")


SNAPPED = "/snap/docker/2915/bin/dockerd"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"cgroup": UNIT.format("snap.other.dockerd")}, "another mount namespace"),
        ({"cgroup": UNIT.format("docker")}, "another mount namespace"),
        ({"cgroup": UNIT.format("snap.docker.dockerd"), "user_ns": "user:[2]"}, "another mount namespace"),
        ({"cgroup": "0::/docker/2915\n"}, "its cgroup is /docker/2915"),
    ],
)
def test_a_container_with_the_files_of_a_snap(proc: Proc, facts: dict[str, str], why: str) -> None:
    snap(proc, mnt_ns="mnt:[2]", **facts)
    assert why in stranger(proc)


def test_what_a_snap_sees_of_the_host_has_its_plain_path(tmp_path: Path) -> None:
    engine = running.Engine("dockerd", 40, root=f"{tmp_path}/root")
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    Path(f"{engine.root}{own}").mkdir(parents=True)
    assert engine.host_path(f"{own}/daemon.json") == f"{engine.root}{own}/daemon.json"
    assert running.Engine("dockerd", 40, root="/proc/self/root").host_path(f"{shared}/x") == f"{shared}/x"


USERS = "/user.slice/user-1000.slice"


@pytest.mark.parametrize(
    ("cgroup", "namespace", "found"),
    [
        (f"0::{USERS}/user@1000.service/app.slice/docker.service", "user:[9]", True),
        (
            f"5:devices:/user.slice\n1:name=systemd:{USERS}/user@1000.service/app.slice/docker.service",
            "user:[9]",
            True,
        ),
        (f"0::{USERS}/session-2.scope", "user:[1]", True),
        (f"0::{USERS}/session-2.scope", "user:[9]", False),
        (f"0::{USERS}/user@1000.service/user.slice/libpod-0123456789ab.scope/container", "user:[9]", False),
        (f"0::{USERS}/user@1000.service/app.slice/x.service/libpod-payload-0123456789ab", "user:[9]", False),
        ("0::/user.slice/user-1001.slice/user@1001.service/app.slice/docker.service", "user:[9]", False),
    ],
)
def test_a_rootless_engine(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, cgroup: str, namespace: str, found: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    proc.process(40, "/usr/bin/dockerd", "dockerd", uids=[1000] * 4, user_ns=namespace, cgroup=cgroup)
    engines, impostors = LOOK(str(proc.top))
    assert (len(engines), len(impostors)) == (found, not found), impostors


@pytest.mark.parametrize("uids", [[ME + 7] * 4, [ME + 7, ME, ME, ME], [ME, ME + 7, ME, ME], [ME, ME, ME + 7, ME], []])
def test_a_process_that_somebody_else_has_started(proc: Proc, uids: list[int]) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd", uids=uids)
    assert stranger(proc) == f"it is user {ME + 7 if uids else 'unknown'}'s"


@pytest.mark.parametrize("name", ["mnt", "user"])
def test_a_process_in_another_namespace(proc: Proc, name: str) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd", **{f"{name}_ns": f"{name}:[9]"}, cgroup=UNIT.format("docker"))
    os.symlink(proc.root, proc.top / "40/root")
    assert stranger(proc) == f"it is in another {'mount' if name == 'mnt' else name} namespace"


CONTAINERS = [
    "0::/docker/0123456789ab",
    "0::/system.slice/docker-0123456789ab.scope",
    "0::/system.slice/docker.service/0123456789ab",
    "0::/system.slice/quadlet.service/libpod-payload-0123456789ab",
    "0::/machine.slice/libpod-0123456789ab.scope",
    "0::/machine.slice/systemd-nspawn@x.service",
    "0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-0123456789ab.scope",
    "0::/kubepods/besteffort/pod0/0123456789ab",
    "0::/system.slice/containerd.service/kubepods-pod0.slice:cri-containerd:0123456789ab",
    "0::/lxc.payload.x/system.slice/docker.service",
    "0::/crio-0123456789ab",
    "0::/user.slice/user-1000.slice/session-1.scope",
    "0::/../system.slice/docker.service",
    "5:devices:/docker/0123456789ab\n0::/",
    "4:memory:/x",
    "0::/\x0b0::/system.slice",  # one line, whose cgroup has a name with an end of a line that only Python knows
    "0::/\u20280::/system.slice",
]


@pytest.mark.parametrize("cgroup", CONTAINERS)
def test_a_process_in_a_containers_cgroup(proc: Proc, cgroup: str) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd", cgroup=f"{cgroup}\n")
    assert "its cgroup is" in stranger(proc)


@pytest.mark.parametrize(
    "cgroup",
    [
        "",
        "0::/",
        "0::/system.slice/docker.service",
        "0::/system.slice/system-docker.slice/docker@x.service",
        "0::/runtime.slice/containerd.service",
        "0::/openrc.docker",
        "5:devices:/system.slice/docker.service\n2:pids:/system.slice\n1:name=systemd:/system.slice/docker.service",
        "4:memory:/anything\n1:name=systemd:/\n0::/",
    ],
)
def test_a_process_in_a_cgroup_of_the_hosts(proc: Proc, cgroup: str) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd", cgroup=f"{cgroup}\n")
    assert only(proc).pid == 40


@pytest.mark.parametrize(
    ("place", "owner", "mode"),
    [("", 1234, 0o755), ("", 0, 0o775), ("..", 1234, 0o755), ("..", 0, 0o1777), ("../..", 0, 0o757)],
)
def test_a_program_that_somebody_else_may_replace(proc: Proc, place: str, owner: int, mode: int) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd")
    path = os.path.normpath(proc.program("/usr/bin/dockerd") / place)
    os.chown(path, owner, 0)
    os.chmod(path, mode)
    assert stranger(proc).startswith("others could have made its program, ")


@pytest.mark.parametrize("argv", [["dockerd"], ["/usr/bin/containerd", "--config=/x"]])
def test_a_process_that_only_calls_itself_an_engine(proc: Proc, argv: list[str]) -> None:
    proc.process(40, "/usr/bin/sleep", *argv)
    assert stranger(proc).startswith("its program is ")


def test_a_program_with_another_name_of_an_engines(proc: Proc) -> None:
    proc.process(40, "/usr/bin/dockerd", "containerd")
    assert only(proc).name == "dockerd"


def test_an_engine_inside_a_container_is_somebody_elses(proc: Proc) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd", pid_ns="pid:[7]", mnt_ns="mnt:[7]")
    assert LOOK(str(proc.top)) == ([], [])


def test_a_shim_and_a_zombie(proc: Proc) -> None:
    proc.process(40, "/usr/bin/containerd-shim-runc-v2", "/usr/bin/containerd-shim-runc-v2", "-id", "x")
    proc.process(41, "/usr/bin/dockerd")
    assert LOOK(str(proc.top)) == ([], [])


def test_a_program_that_was_upgraded(tmp_path: Path) -> None:
    """The process's own file is gone, and another has its name."""
    program = tmp_path / "dockerd"
    shutil.copy("/usr/bin/cat", program)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # ends with this block
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"begun\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"begun\n"  # before that, execve may not have set its command line yet
        program.unlink()
        shutil.copy("/usr/bin/cat", program)
        (engine,) = [each for each in LOOK()[0] if each.pid == child.pid]
    assert engine.exe == str(program)


@pytest.mark.parametrize("name", ["status", "cgroup", "ns/mnt"])
def test_a_process_that_ends_meanwhile(proc: Proc, name: str) -> None:
    proc.process(40, "/usr/bin/dockerd", "dockerd")
    (proc.top / "40" / name).unlink()
    assert found(proc) == ([] if name != "cgroup" else [only(proc)])


def test_the_real_proc_is_readable() -> None:
    engines, impostors = LOOK()
    assert all(engine.pid for engine in engines)
    assert all(stranger.why for stranger in impostors)


def test_the_engine_that_reads_a_file(engines: list[running.Engine]) -> None:
    me = os.geteuid()
    engines += [running.Engine("crio", pid, config=f"/x/{pid}", uid=me) for pid in (1, 2)]
    found, notes = running.reading("crio", "/x/2", "/etc/crio")
    assert found is not None
    assert (found.pid, notes) == (2, [])
    assert running.reading("crio", "/x/3", "/etc/crio") == (None, [])
    with pytest.raises(GpushimError, match="2 crio run: process 1 reads /x/1, process 2 reads /x/2"):
        running.reading("crio", "", "/etc/crio")


def test_another_users_engine_is_noted(impostors: list[running.Impostor]) -> None:
    impostors.append(running.Impostor("dockerd", 5, os.geteuid() + 1000, "it is another's"))
    found, notes = running.reading("dockerd", "", "/etc/docker/daemon.json")
    assert found is None
    assert "(process 5): it needs the same, by that user" in notes[0]


def test_processes_of_others_do_not_bury_what_is_said(impostors: list[running.Impostor]) -> None:
    """A user may start thousands, and be thousands by way of subordinate ids."""
    impostors += [running.Impostor("dockerd", pid, 100000 + pid // 2, "it is another's") for pid in range(200)]
    _, notes = running.reading("dockerd", "", "/etc/docker/daemon.json")
    assert len(notes) == running.NOTED + 1
    assert notes[-1] == f"there are {100 - running.NOTED} more such processes"


def test_what_is_passed_over_of_ones_own_is_noted(impostors: list[running.Impostor]) -> None:
    """It may be the engine after all, seen from a mount namespace of the caller's."""
    impostors.append(running.Impostor("dockerd", 5, os.geteuid(), "it is in another mount namespace"))
    _, notes = running.reading("dockerd", "", "/etc/docker/daemon.json")
    assert notes == ["process 5 is named dockerd but is ignored: it is in another mount namespace"]


@pytest.mark.parametrize("what", ["exe", "cmdline"])
def test_a_process_that_becomes_root_while_it_is_looked_at(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A user's dockerd, with options of that user's, executes a set-user-ID program before its user is asked for."""
    proc.process(40, "/usr/bin/dockerd", "dockerd", "--config-file=/root/x", uids=[1000] * 4)
    judge = origin.why_not

    def become_root(folder: str, top: str, _: list[int], *rest: Any) -> str:
        path = proc.top / "40" / what
        path.unlink()
        path.symlink_to(proc.program("/usr/bin/sudo"))
        return judge(folder, top, [ME] * 3, *rest)

    monkeypatch.setattr(origin, "why_not", become_root)
    assert "another program meanwhile" in stranger(proc)
