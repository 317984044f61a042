"""The stamp: it changes with each fact that matters, and with nothing else."""

from __future__ import annotations

import json
import os
import posix
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushim.doctor import check_state
from gpushim.ground import system
from gpushim.ground.errors import CONFIG, GpushimError
from gpushim.ground.model import Stamp
from gpushim.inventory import ensure, survey
from gpushim.paths import trust


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with one GPU in MIG mode, made of plain files."""
    nvidia = tmp_path / "proc/driver/nvidia"
    for folder in ("gpus/0000:01:00.0", "capabilities/gpu0/mig/gi1/ci0", "capabilities/mig"):
        (nvidia / folder).mkdir(parents=True)
    (nvidia / "version").write_text("NVRM version: 535\n")
    (tmp_path / "proc/devices").write_text("Character devices:\n  1 mem\n508 nvidia-uvm\n")
    bind(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_text("cache")
    (tmp_path / "dev/caps").mkdir(parents=True)
    os.mknod(tmp_path / "dev/nvidia0", 0o020666, os.makedev(195, 0))
    (tmp_path / "dev/file").write_text("")
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "boot_id").write_text("first\n")
    monkeypatch.setattr(system, "BOOT_ID", str(tmp_path / "boot_id"))
    return tmp_path


def bind(tree: Path) -> None:
    """Bind the GPU to the driver again: sysfs has a link with another inode number then."""
    driver = tree / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    (driver / "next").symlink_to("../../devices/0000:01:00.0")
    (driver / "next").rename(driver / "0000:01:00.0")


def make_anew(folder: Path) -> None:
    """Remove a directory and make another in its place, which may get the same inode number."""
    folder.rmdir()
    time.sleep(0.02)
    folder.mkdir()


def facts(tree: Path) -> Stamp:
    nodes = [f"{tree}/dev/{name}" for name in ("nvidia0", "nvidia1", "caps", "file")]
    root, sys = str(tree), f"{tree}/sys"
    return ensure.current({"config": f"{root}/config.toml", "root": root, "sys": sys, "times": True, "nodes": nodes})


def make_node(path: Path, minor: int) -> None:
    os.mknod(path, 0o020666, os.makedev(195, minor))


def replace_node(path: Path) -> None:
    path.unlink()
    os.mknod(path, 0o020666, os.makedev(510, 0))


CHANGES: dict[str, Callable[[Path], object]] = {
    "another boot": lambda tree: (tree / "boot_id").write_text("second\n"),
    "config written": lambda tree: (tree / "config.toml").write_text("[log]"),
    "config touched": lambda tree: os.utime(tree / "config.toml", ns=(1, 1)),
    "config with another mode": lambda tree: (tree / "config.toml").chmod(0o666),
    "config with another owner": lambda tree: os.chown(tree / "config.toml", 7, -1),
    "config removed": lambda tree: (tree / "config.toml").unlink(),
    "config replaced": lambda tree: (tree / "boot_id").replace(tree / "config.toml"),
    "module upgraded": lambda tree: (tree / "proc/driver/nvidia/version").write_text("NVRM version: 550\n"),
    "module unloaded": lambda tree: (tree / "proc/driver/nvidia/version").unlink(),
    "GPU added": lambda tree: (tree / "proc/driver/nvidia/gpus/0000:02:00.0").mkdir(),
    "GPU gone": lambda tree: (tree / "proc/driver/nvidia/gpus/0000:01:00.0").rmdir(),
    "compute instance added": lambda tree: (tree / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci1").mkdir(),
    "compute instance gone": lambda tree: (tree / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0").rmdir(),
    "GPU instance added": lambda tree: (tree / "proc/driver/nvidia/capabilities/gpu0/mig/gi2").mkdir(),
    "compute instance made again": lambda tree: make_anew(tree / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0"),
    "GPU bound again": bind,
    "GPU unbound": lambda tree: (tree / "sys/bus/pci/drivers/nvidia/0000:01:00.0").unlink(),
    "another major": lambda tree: (tree / "proc/devices").write_text("Character devices:\n507 nvidia-uvm\n"),
    "another GPU in MIG mode": lambda tree: (tree / "proc/driver/nvidia/capabilities/gpu1/mig/gi1").mkdir(
        parents=True
    ),
    "libraries changed": lambda tree: (tree / "etc/ld.so.cache").write_text("other"),
    "library cache removed": lambda tree: (tree / "etc/ld.so.cache").unlink(),
    "node removed": lambda tree: (tree / "dev/nvidia0").unlink(),
    "node appeared": lambda tree: make_node(tree / "dev/nvidia1", 1),
    "node with another major": lambda tree: replace_node(tree / "dev/nvidia0"),
    "node with another mode": lambda tree: (tree / "dev/nvidia0").chmod(0o600),
    "node with another owner": lambda tree: os.chown(tree / "dev/nvidia0", 7, -1),
    "node with another group": lambda tree: os.chown(tree / "dev/nvidia0", -1, 7),
    "node in a watched directory": lambda tree: make_node(tree / "dev/caps/nvidia-cap1", 1),
}


def replaced(path: Path) -> None:
    """Put a copy in its place, with its time."""
    before = path.stat()
    copy = path.with_name("copy")
    (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)
    path.rename(path.with_name("original"))
    copy.rename(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES["a watched directory replaced"] = lambda tree: replaced(tree / "dev/caps")
CHANGES["a watched file replaced"] = lambda tree: replaced(tree / "dev/file")
NO_CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda tree: None,
    "another node": lambda tree: make_node(tree / "dev/tty", 2),
    "node used": lambda tree: os.utime(tree / "dev/nvidia0"),
    "other file in etc": lambda tree: (tree / "etc/passwd").write_text(""),
    "a device of others": lambda tree: (tree / "proc/devices").write_text("511 vfio\n508 nvidia-uvm\n"),
    "GPU without instances": lambda tree: (tree / "proc/driver/nvidia/capabilities/gpu7/mig").mkdir(parents=True),
    "information of a GPU": lambda tree: (tree / "proc/driver/nvidia/gpus/0000:01:00.0/information").write_text("x"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes(tree: Path, change: Callable[[Path], object]) -> None:
    before = facts(tree)
    change(tree)
    assert facts(tree) != before


@pytest.mark.parametrize("change", NO_CHANGES.values(), ids=NO_CHANGES)
def test_does_not_change(tree: Path, change: Callable[[Path], object]) -> None:
    before = facts(tree)
    change(tree)
    assert facts(tree) == before


def put_file(folder: Path) -> None:
    """Put a file in the place of an empty directory."""
    folder.rmdir()
    folder.touch()


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "link that leads nowhere": lambda path: path.symlink_to("none"),
    "loop of links": lambda path: path.symlink_to(path),
    "name that cannot be looked up": lambda path: put_file(path.parent),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_name_that_cannot_be_read_is_not_a_missing_file(tmp_path: Path, case: str) -> None:
    path = tmp_path / "folder/config.toml"
    path.parent.mkdir()
    assert trust.identity(str(path)) is None
    UNREADABLE[case](path)
    assert len(trust.identity(str(path)) or []) == 5


def test_a_link_is_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("config.toml")
    before = trust.identity(f"{tmp_path}/link")
    (tmp_path / "config.toml").touch()
    assert before != trust.identity(f"{tmp_path}/link") == trust.identity(f"{tmp_path}/config.toml")


def test_survives_json(tree: Path) -> None:
    os.mkdir(os.fsencode(tree) + b"/proc/driver/nvidia/gpus/\xff")
    assert json.loads(json.dumps(facts(tree))) == facts(tree)


def test_version_is_bounded(tree: Path) -> None:
    (tree / "proc/driver/nvidia/version").write_text("x" * 5000)
    assert len(facts(tree)["module"] or "") == ensure.VERSION_LIMIT


def test_fifos_do_not_hang(tree: Path) -> None:
    (tree / "proc/driver/nvidia/version").unlink()
    os.mkfifo(tree / "proc/driver/nvidia/version")
    assert facts(tree)["module"] == ""


def test_proc_of_a_driver_root_without_its_own(tmp_path: Path) -> None:
    assert ensure.proc_dir(str(tmp_path)) == "/proc"
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert ensure.proc_dir(str(tmp_path)) == f"{tmp_path}/proc"
    assert ensure.proc_dir("/") == "/proc"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "/run/gpushim"), (b"", "/run/gpushim"), (b"/tmp/x y", "/tmp/x y"), (b"/\xff", "/\udcff")],
)
def test_state_dir(value: bytes | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(posix.environ, b"GPUSHIM_STATE", raising=False)
    if value is not None:
        monkeypatch.setitem(posix.environ, b"GPUSHIM_STATE", value)
    assert system.state_dir() == expected


def test_relative_paths_in_the_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(posix.environ, b"GPUSHIM_CONFIG", b"here.toml")
    with pytest.raises(GpushimError, match=r"GPUSHIM_CONFIG is 'here.toml', which is not an absolute path") as caught:
        system.config_path()
    assert caught.value.exit_code == CONFIG


def test_imports_nothing_slow() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import gpushim.inventory.ensure;"
        "print(*sorted({'os', 're', 'json', 'typing', 'subprocess', 'struct', 'enum'} & set(sys.modules)))"
    )
    shim = ensure.__file__.rpartition("/gpushim/")[0]
    done = subprocess.run([sys.executable, "-IS", "-c", code, shim], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


IDENTITY = "         0          0 4294967295\n"
FACTS: Any = {"boot": "boot", "module": "535", "nodes": [[195, 0o20666, 0, 44], None]}


@pytest.mark.parametrize(("uid_map", "uid", "trusted"), [
    (IDENTITY, 0, True),
    (IDENTITY, 1234, False),
    (IDENTITY, 65534, False),
    ("0 1000 1\n", 65534, True),
    ("0 1000 1\n", 1234, False),
])  # fmt: skip
def test_the_hosts_root_is_trusted_in_a_user_namespace_too(
    monkeypatch: pytest.MonkeyPatch, uid_map: str, uid: int, trusted: bool
) -> None:
    monkeypatch.setattr(system, "text", lambda path, limit: uid_map)
    assert trust.trusted(uid) is trusted


@pytest.mark.parametrize(("uid_map", "same"), [(IDENTITY, False), ("0 1000 1\n", True)])
def test_owners_count_only_on_the_host(monkeypatch: pytest.MonkeyPatch, uid_map: str, same: bool) -> None:
    monkeypatch.setattr(system, "text", lambda path, limit: uid_map)
    here: list[Any] = [{**FACTS, "nodes": [[195, mode, 65534, 65534], None]} for mode in (0o20666, 0o20600)]
    assert [ensure.same_from_here(FACTS, facts) for facts in here] == [same, False]


@pytest.mark.parametrize(("life", "age", "alive"), [
    (0, 1e9, True),
    (30, 29, True),
    (30, 30.5, False),
    (30, -1, False),  # of another boot, or of a time namespace
])  # fmt: skip
def test_a_life_is_counted_from_the_look(life: int, age: float, alive: bool) -> None:
    snapshot: Any = {"life": life, "looked": system.clock() - age}
    assert ensure.alive(snapshot) is alive


def test_without_times_an_instance_is_its_place(tree: Path) -> None:
    proc, sys = f"{tree}/proc", f"{tree}/sys"
    before = ensure.driver(proc, sys, False)
    make_anew(tree / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0")
    assert ensure.driver(proc, sys, False) == before


def test_what_covers_a_member_is_a_fact(tree: Path) -> None:
    assert set(survey.COVER.values()) - {"life", "own"} == set(facts(tree)) - {"majors"}
    assert set(check_state.FACTS) == set(facts(tree))


@pytest.mark.parametrize(("mode", "uid", "expected"), [(0o755, 0, True), (0o777, 0, False), (0o755, 1234, False)])
def test_a_directory_is_ours_if_nobody_else_may_write(tmp_path: Path, mode: int, uid: int, expected: bool) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, uid, uid)
    assert trust.ours(str(folder)) is expected
    (tmp_path / "link").symlink_to(folder)
    os.lchown(tmp_path / "link", 1234, 1234)
    assert not trust.ours(f"{tmp_path}/link")
    assert not trust.ours(f"{tmp_path}/none")
