"""The supervisor as a process, on a simulated host whose daemon checks what it is told."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e.leftovers import until
from fakehost import Host
from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.mps import control_daemon, mps, supervisor
from gpushim.config import policy
from gpushim.paths import selinux
from unit.gpushim import labels

TOP = Path(__file__).parents[4]
HERE = Path("/dev/shm").stat()
DEFAULT, EXCLUSIVE, PROHIBITED = 0, 3, 2


class Group:
    """A group of the first GPU of a host, and its supervisor.

    Args:
        folder: for all of it.
    """

    def __init__(self, folder: Path) -> None:
        self.host = fakehost.build(str(folder / "host"), 2, compile_cache=str(TOP / ".cache" / "fakehost"))
        self.place = mps.Folders(str(folder / "state"), "gpu")
        self.file = folder / "file.json"
        self.config = folder / "config.toml"
        self.config.write_text(f'[driver]\nroot = "{self.host.root}"\n[cdi]\nwrite-spec = false\n')
        self.process: subprocess.Popen[bytes] | None = None
        self.said = folder / "said"
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(str(folder / "notify"))
        self.notified.settimeout(30)
        self.env = {
            "PATH": os.environ["PATH"],
            "GPUSHIM_CONFIG": str(self.config),
            "NOTIFY_SOCKET": f"{folder}/notify",
        }
        self.env["GPUSHIM_STATE"] = self.place.state_dir
        self.ask(replicas=4)

    def ask(self, **row: Any) -> None:
        """Write the configuration file; without anything there is no group."""
        self.share([{"name": "gpu", "devices": [0], **row}] if row else [])

    def share(self, rows: list[dict[str, Any]]) -> None:
        """Write groups into it."""
        self.file.write_text(json.dumps({"version": "v1", "sharing": {"mps": {"resources": rows}}}))

    def start(self, name: str = "gpu") -> None:
        words = [
            sys.executable,
            "-B",
            f"{TOP}/bin/gpushim-device-plugin",
            f"--config-file={self.file}",
            "--mps",
            name,
        ]
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(words, stdout=said, stderr=said, env=self.env, start_new_session=True)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(30)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.ended()

    def look(self) -> None:
        """Have it look at the settings at once."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def serves(self) -> bool:
        return "group" in self.state()  # one that ends has less

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError):
            found = json.loads(Path(self.place.state).read_text())
        return found

    def described(self) -> list[str]:
        return Path(self.place.log, "control.log").read_text().splitlines()

    def mode(self, index: int = 0) -> int:
        path = Path(f"{self.host.root}/usr/lib/fakehost/compute-mode-{self.host.gpus[index].uuid}")
        return int(path.read_text()) if path.exists() else DEFAULT

    def set_mode(self, mode: int, index: int = 0) -> None:
        path = Path(f"{self.host.root}/usr/lib/fakehost/compute-mode-{self.host.gpus[index].uuid}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{mode}\n")

    def clean(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)
        if pid := self.state().get("pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["/bin/umount", "--lazy", self.place.shm], check=False, stderr=subprocess.DEVNULL)
        self.notified.close()


def lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def group_of(host: Host, **more: Any) -> MpsGroup:
    facts: dict[str, Any] = {"memory": 10240, "threads": 25, "multi_user": False, **more}
    return MpsGroup("gpu", (MpsGpu(host.gpus[0].uuid, 0, 40960),), **facts)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    found = Group(tmp_path)
    try:
        yield found
    finally:
        found.clean()


def test_a_daemon_gets_its_gpu_limits_and_shm(group: Group) -> None:
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    assert mps.unready_reason(group.place.state_dir, group_of(group.host)) == ""
    begins, *described = group.described()
    shm = Path(group.place.shm).stat()
    assert begins == f"begins shm={shm.st_dev}:{shm.st_ino} gpus=1"
    assert (shm.st_dev, shm.st_ino) != (HERE.st_dev, HERE.st_ino)
    assert "set_default_active_thread_percentage 25" in described
    assert "set_default_device_pinned_mem_limit 0 10240M" in described
    assert (group.mode(0), group.mode(1)) == (EXCLUSIVE, DEFAULT)
    assert b"READY=1" in group.notified.recv(4096)
    assert group.stop() == 0
    assert (group.described()[-1], group.mode(), group.serves()) == ("quit", DEFAULT, False)
    assert "does not run" in mps.unready_reason(group.place.state_dir, group_of(group.host))


def test_shm_has_limits_and_takes_no_programs(group: Group) -> None:
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    line = next(line for line in Path("/proc/self/mounts").read_text().splitlines() if group.place.shm in line)
    _, _, kind, options, *_ = line.split()
    assert kind == "tmpfs"
    assert {"nosuid", "nodev", "noexec"} <= set(options.split(","))
    assert "size=" in options
    assert "nr_inodes=" in options
    names = ("top", "pipe", "log", "private", "shm")
    modes = {name: os.stat(getattr(group.place, name)).st_mode & 0o7777 for name in names}
    assert modes == {"top": 0o755, "pipe": 0o755, "log": 0o755, "private": 0o700, "shm": 0o1777}


def test_logs_do_not_fill_the_memory_that_they_are_in(group: Group, tmp_path: Path) -> None:
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    log, other = Path(group.place.log, "server.log"), tmp_path / "other"
    for path in (log, other):
        path.write_bytes(b"New client\n" * (1 << 19))
    Path(group.place.log, "link").symlink_to(other)
    os.mkfifo(f"{group.place.log}/pipe")
    group.look()
    assert until(lambda: log.stat().st_size == 0, 30)
    assert (other.stat().st_size, group.stop()) == (11 << 19, 0)


def test_one_server_for_all_users_is_a_choice(group: Group) -> None:
    group.ask(replicas=2, multiUser=True)
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    assert group.described()[0].startswith("begins -M ")
    assert (
        mps.unready_reason(group.place.state_dir, group_of(group.host, memory=20480, threads=50, multi_user=True))
        == ""
    )


def test_modes_are_put_back_after_a_kill(group: Group) -> None:
    """What they were is known from before it, and the daemon that was left does not stay."""
    group.set_mode(PROHIBITED)
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    left = group.state()["pid"]
    group.stop(signal.SIGKILL)
    assert (group.mode(), lives(left)) == (EXCLUSIVE, True)
    assert "does not run" in mps.unready_reason(group.place.state_dir, group_of(group.host))
    group.start()
    assert until(lambda: group.serves() and group.state().get("pid") != left, 30), group.said.read_text()
    assert not lives(left)
    assert group.stop() == 0
    assert group.mode() == PROHIBITED


@pytest.mark.parametrize("kind", ["another start", "another boot"])
def test_a_process_that_has_the_id_of_a_daemon_of_before_is_left_alone(group: Group, kind: str) -> None:
    os.makedirs(group.place.top)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, start_new_session=True) as other:
        boot, start = supervisor._identity(other.pid).split(" ")
        daemon = f"{boot} {int(start) - 1}" if kind == "another start" else f"another {start}"
        Path(group.place.state).write_text(json.dumps({"pid": other.pid, "daemon": daemon}))
        group.start()
        assert until(group.serves, 30), group.said.read_text()
        assert (other.poll(), group.stop()) == (None, 0)


def test_a_group_that_is_gone_leaves_nothing(group: Group) -> None:
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    group.stop(signal.SIGKILL)
    group.ask()
    group.start()
    assert group.ended() == 15
    assert (
        "there is no group of MPS called gpu; sharing.mps of the configuration file has none"
        in group.said.read_text()
    )
    assert (group.mode(), os.path.exists(group.place.top)) == (DEFAULT, False)


def test_a_daemon_that_ends_ends_the_supervisor(group: Group) -> None:
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    os.kill(group.state()["pid"], signal.SIGKILL)
    assert group.ended() == 12
    assert "nvidia-cuda-mps-control has ended: no output" in group.said.read_text()
    assert (group.mode(), group.serves()) == (DEFAULT, False)


def test_a_daemon_ends_where_nothing_can_be_written_any_more(group: Group) -> None:
    """As in a /run that somebody has filled."""
    os.mkdir(group.place.state_dir)
    full = ["/bin/mount", "-t", "tmpfs", "-o", "nr_inodes=200,mode=755", "full", group.place.state_dir]
    subprocess.run(full, check=True)
    try:
        group.start()
        assert until(group.serves, 30), group.said.read_text()
        pid = group.state()["pid"]
        with contextlib.suppress(OSError):
            for number in range(200):
                Path(group.place.state_dir, str(number)).touch()
        assert group.stop() == 0, group.said.read_text()
        assert (lives(pid), group.mode(), group.serves()) == (False, DEFAULT, False)
    finally:
        group.clean()
        subprocess.run(["/bin/umount", "--lazy", group.place.state_dir], check=True)


def test_a_daemon_that_hangs_is_killed_in_the_end(group: Group) -> None:
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    pid = group.state()["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert group.stop() in (0, 12)  # 12: it was asked just then, and did not answer
    assert (lives(pid), group.mode(), group.serves()) == (False, DEFAULT, False)


def test_it_follows_the_settings_when_no_client_is_left(group: Group) -> None:
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    client = Path(group.place.log, "client")
    client.touch()
    group.ask(replicas=2)
    group.look()
    assert until(lambda: "get_client_list 4242" in group.described(), 30)
    assert group.state()["threads"] == 25
    client.unlink()
    group.look()
    assert until(lambda: group.state().get("threads") == 50, 30), group.said.read_text()
    described = [group.notified.recv(4096).partition(b"\n")[0] for _ in range(2)]
    assert described == [b"READY=1"] * 2  # STOPPING=1 would have systemd kill it after TimeoutStopSec
    group.ask()
    group.look()
    assert group.ended() == 0
    assert (group.mode(), os.path.exists(group.place.top)) == (DEFAULT, False)


@pytest.fixture
def other(group: Group, tmp_path: Path) -> Iterator[Group]:
    """Another group of that host."""
    found = copy.copy(group)
    found.place, found.said, found.process = mps.Folders(group.place.state_dir, "other"), tmp_path / "other", None
    try:
        yield found
    finally:
        found.clean()


def test_a_gpu_goes_from_one_group_to_another(group: Group, other: Group) -> None:
    """The other begins when the one has ended: what the GPU was before it is what it is after both."""
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    assert b"READY=1" in group.notified.recv(4096)
    group.share([{"name": "gpu", "devices": [0], "replicas": 2, "rename": "other"}])
    other.start("other")
    waits = "waits: gpushim-mps@gpu.service has not ended"
    assert until(lambda: f"other {waits}" in other.said.read_text(), 30)
    for _ in range(2):  # again and again: systemd waits so long from the last one on
        more, status = group.notified.recv(4096).decode().split("\n")
        assert (more, status.startswith(f"STATUS={waits}")) == ("EXTEND_TIMEOUT_USEC=300000000", True)
        other.look()
    assert group.stop(signal.SIGHUP) == 0
    other.look()
    assert until(other.serves, 30), other.said.read_text()
    assert (other.mode(), other.stop(), other.mode()) == (EXCLUSIVE, 0, DEFAULT)


def test_groups_whose_supervisors_were_killed_swap_their_gpus(group: Group, other: Group) -> None:
    """Each waits for the other's GPU, and has put back its own before."""
    for index, one in enumerate((group, other)):
        os.makedirs(one.place.top)
        Path(one.place.modes).write_text(json.dumps({group.host.gpus[index].uuid: PROHIBITED}))
        group.set_mode(EXCLUSIVE, index)
    rows = [{"name": "gpu", "devices": [1]}, {"name": "gpu", "devices": [0], "rename": "other"}]
    group.share([{**row, "replicas": 2} for row in rows])
    group.start()
    other.start("other")
    assert until(lambda: group.serves() and other.serves(), 30), other.said.read_text()
    assert (group.mode(0), group.mode(1)) == (EXCLUSIVE, EXCLUSIVE)
    assert (group.stop(), other.stop()) == (0, 0)
    assert (group.mode(0), group.mode(1)) == (PROHIBITED, PROHIBITED)


def test_a_driver_without_limits_is_told_apart(group: Group) -> None:
    os.makedirs(group.place.log)
    Path(group.place.log, "old").touch()
    group.start()
    assert group.ended() == 15
    said = group.said.read_text()
    assert "MPS of driver 535.183.01 takes no limit of memory" in said
    assert "Traceback" not in said
    assert group.mode() == DEFAULT


def test_nvml_that_hangs_ends_at_its_deadline(group: Group) -> None:
    group.config.write_text(group.config.read_text() + "[refresh]\ndeadline-seconds = 3\n")
    subprocess.run([TOP / "bin/gpushim", "refresh"], env=group.env, check=True, stdout=subprocess.DEVNULL)
    group.host.behave(hang=True)
    group.start()
    assert group.ended() == 12
    assert "NVML has not set the compute mode of the GPUs of MPS after 3 s" in group.said.read_text()


def test_a_claims_group_goes_by_no_settings(group: Group) -> None:
    """Which may be wrong: what a claim that is over has left is put back nevertheless."""
    name = "claim-12345678-1234-4234-8234-123456789012-0"
    group.place = mps.Folders(group.place.state_dir, name)
    os.makedirs(group.place.top)
    group.set_mode(EXCLUSIVE)
    Path(group.place.modes).write_text(json.dumps({group.host.gpus[0].uuid: PROHIBITED}))
    group.file.write_text("nonsense")
    group.start(name)
    assert group.ended() == 0, group.said.read_text()
    assert (group.mode(), os.path.exists(group.place.top)) == (PROHIBITED, False)
    group.start()
    assert group.ended() == 15
    assert "is not a YAML or JSON mapping" in group.said.read_text()


def test_there_is_one_supervisor(group: Group) -> None:
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    first, group.process = group.process, None
    try:
        group.start()
        assert group.ended() == 12
        assert "gpu has a supervisor that runs; stop it first" in group.said.read_text()
    finally:
        group.process = first


@pytest.mark.parametrize("name", ["../../x", "nothing", ""])
def test_another_name_is_refused(group: Group, name: str) -> None:
    group.start(name)
    assert group.ended() == 15
    assert "sharing.mps of the configuration file has gpu" in group.said.read_text()
    assert not os.path.exists(f"{group.place.state_dir}/mps")


def test_selinux_lets_clients_use_the_directory(group: Group) -> None:
    """Where the daemon cannot have the domain, as without SELinux, it serves, and the log says what that means."""
    os.makedirs(group.place.pipe)
    labels.label(group.place.pipe, labels.RUN)
    group.start()
    assert until(group.serves, 30), group.said.read_text()
    assert labels.of(group.place.pipe) == "system_u:object_r:container_file_t:s0"
    assert "SELinux lets no client connect: nvidia-cuda-mps-control cannot be spc_t: " in group.said.read_text()


def test_the_daemon_begins_in_the_domain_to_which_containers_may_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in (("runcon", 'shift; exec "$@"'), ("true", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    runcon = f"{tmp_path}/runcon"
    monkeypatch.setattr(policy, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(control_daemon, "RUNCON", runcon)
    assert control_daemon.domain_words(str(tmp_path)) == []
    labels.label(tmp_path, selinux.WRITABLE)
    assert control_daemon.domain_words(str(tmp_path)) == [
        runcon,
        "--type=container_runtime_t",
        runcon,
        "--type=spc_t",
    ]
