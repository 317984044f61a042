"""Loading kernel modules, with a real modprobe process in a chroot that changes a simulated kernel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fakehost import kernel
from gpushim.inventory import modules, procfs
from gpushim.paths import trust
from unit.gpushim.inventory.boot import Boot


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boot:
    monkeypatch.setattr(modules, "HELPER", f"{tmp_path}/helper")
    return Boot(tmp_path / "host")


def load(boot: Boot) -> list[str]:
    return modules.load(boot.root, boot.proc, lambda what: None)


@pytest.mark.parametrize(
    ("gone", "loads"),
    [
        ((), []),
        (("nvidia_uvm",), ["nvidia_uvm"]),
        (("nvidia_modeset",), ["nvidia_modeset"]),
        (("nvidia_uvm", "nvidia_modeset"), ["nvidia_uvm", "nvidia_modeset"]),
        (("nvidia",), ["nvidia", "nvidia_uvm", "nvidia_modeset"]),
    ],
)
def test_only_what_is_missing_is_loaded(boot: Boot, gone: tuple[str, ...], loads: list[str]) -> None:
    if gone:
        boot.unload(*gone)
    assert load(boot) == []
    assert boot.loads == loads
    assert set(modules.loaded(boot.proc) or ()) == set(modules.MODULES)


@pytest.mark.parametrize("version", ["535.183.01", "570.86.10"])
def test_a_module_that_only_proc_devices_tells_is_there(boot: Boot, version: str) -> None:
    boot.drive(version=version)
    devices = Path(boot.proc, "devices").read_text()
    boot.unload("nvidia_uvm")
    Path(boot.proc, "devices").write_text(devices)
    assert (load(boot), boot.loads) == ([], [])


def test_all_there_costs_one_read(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def recording(path: str) -> str | None:
        opened.append(path)
        return read(path)

    read = procfs.text
    monkeypatch.setattr(procfs, "text", recording)
    monkeypatch.setattr(os, "listdir", None)
    assert load(boot) == []
    assert opened == [f"{boot.proc}/modules"]


def test_a_kernel_without_loadable_modules(boot: Boot) -> None:
    boot.unload("nvidia_uvm")
    Path(boot.proc, "modules").unlink()
    assert (load(boot), boot.loads) == ([], [])


@pytest.mark.parametrize(
    ("vendor", "kind"), [("0x1a03", "0x030000"), ("0x10de", "0x040300"), ("0x10de", "0x068000"), ("", "")]
)
def test_without_an_nvidia_gpu_nothing_is_loaded(boot: Boot, vendor: str, kind: str) -> None:
    boot.unload("nvidia")
    for gpu in boot.gpus:
        device = Path(boot.root, "sys/bus/pci/devices", gpu.pci)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    assert (load(boot), boot.loads) == ([], [])


@pytest.mark.parametrize("kind", ["0x030000", "0x030200", "0x038000"])
def test_every_class_of_display_controllers_is_a_gpu(boot: Boot, kind: str) -> None:
    for gpu in boot.gpus:
        Path(boot.root, "sys/bus/pci/devices", gpu.pci, "class").write_text(f"{kind}\n")
    assert modules.has_gpu(f"{boot.root}/sys")


def test_never_in_a_user_namespace(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    boot.unload("nvidia_uvm")
    monkeypatch.setattr(trust, "in_user_namespace", lambda: True)
    assert (load(boot), boot.loads) == ([], [])


def test_never_as_another_user(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    boot.unload("nvidia_uvm")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (load(boot), boot.loads) == ([], [])


def test_what_modprobe_says_is_the_note_and_nothing_more_is_tried(boot: Boot) -> None:
    boot.unload("nvidia")
    Path(boot.root + kernel.BROKEN).touch()
    (note,) = load(boot)
    assert note.startswith(
        f"the kernel module nvidia is not loaded: /usr/sbin/chroot {boot.root} /sbin/modprobe nvidia"
    )
    assert note.endswith("failed (modprobe: ERROR: could not insert 'nvidia': No such device)")
    assert boot.loads == ["nvidia"]


def write_modprobe(boot: Boot, script: str, name: str = "usr/sbin/modprobe") -> None:
    boot.unload("nvidia_uvm")
    os.mknod(f"{boot.root}/dev/null", 0o020666, os.makedev(1, 3))
    path = Path(boot.root, name)
    path.write_text(f"#!{kernel.STORE}/busybox sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "says so, but it is not there"),
        ("exit 3", "failed (code 3)"),
        ("kill -9 $$", "failed (code -9)"),
        (f"{kernel.STORE}/busybox yes | {kernel.STORE}/busybox head -c 200000; exit 1", "failed (y y y"),
        ("printf '\\377'; exit 1", "failed (\ufffd)"),
        (f"exec {kernel.STORE}/busybox sleep 60", "takes longer than 1 s"),
        (f"{kernel.STORE}/busybox env; exit 1", "failed (SHLVL=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C PWD=/)"),
        (f"{kernel.STORE}/busybox sleep 2 & exit 4", "failed (code 4)"),
    ],
)
def test_modprobes_of_all_kinds(boot: Boot, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    monkeypatch.setattr(modules, "SECONDS", 1)
    write_modprobe(boot, script)
    (note,) = load(boot)
    assert words in note
    assert len(note) < 600


def test_no_modprobe_at_all(boot: Boot) -> None:
    boot.unload("nvidia_uvm")
    Path(boot.root, "usr/sbin/modprobe").unlink()
    (note,) = load(boot)
    assert "/sbin/modprobe" in note
    assert "No such file" in note


def test_the_kernels_own_setting_names_modprobe(boot: Boot) -> None:
    write_modprobe(boot, 'echo "as $0"; exit 1', "usr/bin/kmod-modprobe")
    Path(modules.HELPER).write_text("/usr/bin/kmod-modprobe\n")
    assert "failed (as /usr/bin/kmod-modprobe)" in load(boot)[0]


@pytest.mark.parametrize("text", ["\n", "relative\n"])
def test_a_setting_that_is_no_path(boot: Boot, text: str) -> None:
    boot.unload("nvidia_uvm")
    Path(modules.HELPER).write_text(text)
    assert (load(boot), boot.loads) == ([], ["nvidia_uvm"])


def test_with_the_hosts_own_root_modprobe_runs_as_it_is(
    boot: Boot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot.unload("nvidia_uvm")
    program = tmp_path / "modprobe"
    program.write_text(f"#!/bin/sh\n/usr/sbin/chroot {boot.root} /sbin/modprobe $1\n")
    program.chmod(0o755)
    Path(modules.HELPER).write_text(str(program))
    monkeypatch.setattr(modules, "sys_dir", lambda root: f"{boot.root}/sys")
    assert modules.load("/", boot.proc, lambda what: None) == []
    assert boot.loads == ["nvidia_uvm"]


def test_what_is_waited_for_is_told(boot: Boot) -> None:
    boot.unload("nvidia")
    said: list[str] = []
    modules.load(boot.root, boot.proc, said.append)
    assert said == [f"/sbin/modprobe {name}" for name in modules.MODULES]


def test_sysfs_of_a_driver_root(boot: Boot, tmp_path: Path) -> None:
    assert modules.sys_dir(boot.root) == f"{boot.root}/sys"
    assert modules.sys_dir(str(tmp_path)) == "/sys"
    assert modules.sys_dir("/") == "/sys"


def test_nothing_is_left_running(boot: Boot) -> None:
    boot.unload("nvidia")
    load(boot)
    children = subprocess.run(["/bin/ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True)
    assert "modprobe" not in children.stdout
