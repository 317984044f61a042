"""Making device nodes, real ones, from what a simulated driver says about itself. Needs root."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest

import scratch
from fakehost import ci_cap, gi_cap
from gpushim.inventory import nodes
from gpushim.paths import trust
from unit.gpushim.inventory.boot import CAPS_MAJOR, UVM_MAJOR, Boot

ROOTS = (0o666, 0, 0)
CONTROL = {
    "/dev/nvidiactl": (195, 255, *ROOTS),
    "/dev/nvidia-modeset": (195, 254, *ROOTS),
    "/dev/nvidia-uvm": (UVM_MAJOR, 0, *ROOTS),
    "/dev/nvidia-uvm-tools": (UVM_MAJOR, 1, *ROOTS),
    "/dev/nvidia0": (195, 0, *ROOTS),
    "/dev/nvidia1": (195, 1, *ROOTS),
}
CAPS = {
    "/dev/nvidia-caps/nvidia-cap1": (CAPS_MAJOR, 1, 0o400, 0, 0),
    "/dev/nvidia-caps/nvidia-cap2": (CAPS_MAJOR, 2, 0o444, 0, 0),
}


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    return Boot(tmp_path / "host")


def make(boot: Boot) -> list[str]:
    return nodes.make(boot.root, boot.proc)


@pytest.mark.parametrize("version", ["535.183.01", "570.86.10"])
def test_all_that_an_empty_dev_lacks(boot: Boot, version: str) -> None:
    boot.drive(version=version)
    assert make(boot) == []
    assert boot.nodes() == {**CONTROL, **CAPS}
    assert stat.S_IMODE(os.stat(f"{boot.root}/dev/nvidia-caps").st_mode) == 0o755


def test_umask_does_not_matter(boot: Boot) -> None:
    old = os.umask(0o777)
    try:
        make(boot)
    finally:
        os.umask(old)
    assert boot.nodes() == {**CONTROL, **CAPS}
    for folder in ("char", "nvidia-caps"):
        assert stat.S_IMODE(os.stat(f"{boot.root}/dev/{folder}").st_mode) == 0o755


def test_mode_and_owner_are_the_drivers_parameters(boot: Boot) -> None:
    boot.drive(uid=7, gid=44, mode=0o660)
    make(boot)
    found = boot.nodes()
    assert {path: found[path][2:] for path in CONTROL} == dict.fromkeys(CONTROL, (0o660, 7, 44))
    assert {path: found[path] for path in CAPS} == CAPS  # these have parameters of their own


@pytest.mark.parametrize("text", ["", "DeviceFileMode: all\nDeviceFileUID: -1\n"])
def test_parameters_that_are_not_understood(boot: Boot, text: str) -> None:
    Path(boot.proc, "driver/nvidia/params").write_text(text)
    make(boot)
    assert boot.nodes()["/dev/nvidia0"] == (195, 0, *ROOTS)


def test_mig_instances(tmp_path: Path) -> None:
    boot = Boot(tmp_path / "host", 2, {0: [(9, 0, "1g.5gb"), (9, 1, "1c.1g.5gb")]})
    assert make(boot) == []
    minor = boot.gpus[0].minor
    caps = (gi_cap(minor, 9), ci_cap(minor, 9, 0), ci_cap(minor, 9, 1))
    made = {f"/dev/nvidia-caps/nvidia-cap{cap}": (CAPS_MAJOR, cap, 0o444, 0, 0) for cap in caps}
    assert boot.nodes() == {**CONTROL, **CAPS, **made}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("nvidia_uvm", {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}),
        ("nvidia_modeset", {"/dev/nvidia-modeset"}),
        ("nvidia", {*CONTROL, *CAPS}),
    ],
)
def test_nodes_of_a_module_that_is_not_loaded(boot: Boot, module: str, absent: set[str]) -> None:
    boot.unload(module)
    assert make(boot) == []
    assert set(boot.nodes()) == {*CONTROL, *CAPS} - absent


def test_no_imex_channels_are_made(boot: Boot) -> None:
    path = Path(boot.proc, "devices")
    path.write_text(path.read_text().replace("195 ", "236 nvidia-caps-imex-channels\n195 ", 1))
    make(boot)
    assert not Path(boot.root, "dev/nvidia-caps-imex-channels").exists()


def spoil(path: Path, how: str) -> None:
    path.unlink()
    if how == "file":
        path.write_text("")
    elif how == "link":
        path.symlink_to("/dev/null")
    elif how == "dangling":
        path.symlink_to("nowhere")
    elif how == "fifo":
        os.mkfifo(path)
    else:
        kind = stat.S_IFBLK if how == "block" else stat.S_IFCHR
        number = {"major": (510, 0), "minor": (195, 77)}.get(how, (195, 0))
        os.mknod(path, kind | 0o666, os.makedev(*number))


@pytest.mark.parametrize("how", ["file", "link", "dangling", "fifo", "block", "major", "minor"])
def test_a_wrong_node_is_replaced(boot: Boot, how: str) -> None:
    make(boot)
    spoil(Path(boot.root, "dev/nvidia0"), how)
    assert make(boot) == []
    assert boot.nodes() == {**CONTROL, **CAPS}


def test_a_right_node_keeps_its_mode_owner_and_inode(boot: Boot) -> None:
    make(boot)
    node = Path(boot.root, "dev/nvidia0")
    os.chown(node, 5, 6)
    node.chmod(0o640)
    before = node.lstat()
    assert make(boot) == []
    after = node.lstat()
    assert (after.st_ino, after.st_mode, after.st_uid, after.st_gid, after.st_ctime_ns) == (
        (before.st_ino, before.st_mode, before.st_uid, before.st_gid, before.st_ctime_ns)
    )


def test_a_second_time_writes_nothing(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    make(boot)
    for name in ("mknod", "rename", "symlink", "unlink", "chown", "chmod", "mkdir"):
        monkeypatch.setattr(os, name, None)
    assert make(boot) == []


def test_where_the_driver_forbids_it_nothing_is_touched(boot: Boot) -> None:
    boot.drive(modify=0)
    Path(boot.root, "dev/nvidia0").write_text("")
    assert make(boot) == []
    assert os.listdir(f"{boot.root}/dev") == ["nvidia0"]
    assert Path(boot.root, "dev/nvidia0").is_file()


def test_a_capability_may_forbid_it_for_itself(boot: Boot) -> None:
    path = Path(boot.proc, "driver/nvidia/capabilities/mig/config")
    path.chmod(0o600)
    path.write_text(path.read_text().replace("Modify: 1", "Modify: 0"))
    make(boot)
    assert set(boot.nodes()) == {*CONTROL, "/dev/nvidia-caps/nvidia-cap2"}


def test_capabilities_of_proc_style_have_no_nodes(boot: Boot) -> None:
    devices = Path(boot.proc, "devices")
    devices.write_text(devices.read_text().replace("nvidia-caps", "other"))
    make(boot)
    assert set(boot.nodes()) == set(CONTROL)


def test_links_by_number_are_relative(boot: Boot) -> None:
    make(boot)
    nodes = boot.nodes()
    assert boot.links() == {f"{n[0]}:{n[1]}": ".." + path[len("/dev") :] for path, n in nodes.items()}
    for name in boot.links():
        assert os.stat(f"{boot.root}/dev/char/{name}").st_rdev == os.makedev(*map(int, name.split(":")))


@pytest.mark.parametrize("there", ["../nvidia0", "/dev/nvidia0"])
def test_a_right_link_is_left_alone(boot: Boot, there: str) -> None:
    Path(boot.root, "dev/char").mkdir()
    Path(boot.root, "dev/char/195:0").symlink_to(there)
    make(boot)
    assert boot.links()["195:0"] == there


def test_a_node_in_the_place_of_a_link_is_left_alone_if_it_is_the_same(boot: Boot) -> None:
    Path(boot.root, "dev/char").mkdir()
    for minor in (0, 1):
        os.mknod(f"{boot.root}/dev/char/195:{minor}", stat.S_IFCHR | 0o666, os.makedev(195, 0))
    make(boot)
    assert not os.path.islink(f"{boot.root}/dev/char/195:0")
    assert os.readlink(f"{boot.root}/dev/char/195:1") == "../nvidia1"


@pytest.mark.parametrize("there", ["../nvidia1", "../gone", ""])
def test_a_wrong_link_is_replaced(boot: Boot, there: str) -> None:
    Path(boot.root, "dev/char").mkdir()
    link = Path(boot.root, "dev/char/195:0")
    link.symlink_to(there) if there else link.write_text("")
    make(boot)
    assert boot.links()["195:0"] == "../nvidia0"


def test_leftovers_of_a_killed_refresh_go(boot: Boot) -> None:
    Path(boot.root, "dev/.nvidia0.gpushim").write_text("")
    make(boot)
    assert boot.nodes() == {**CONTROL, **CAPS}


def test_a_node_that_cannot_be_replaced_is_a_note_and_the_others_are_made(boot: Boot) -> None:
    Path(boot.root, "dev/nvidia0/full").mkdir(parents=True)
    (note,) = make(boot)
    assert note == f"{boot.root}/dev/nvidia0 or its link cannot be made: Is a directory"
    assert set(boot.nodes()) == {*CONTROL, *CAPS} - {"/dev/nvidia0"}


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_without_the_right_one_note_is_enough(boot: Boot, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def mknod(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "mknod", mknod)
    (note,) = make(boot)
    assert note.startswith(f"{boot.root}/dev/nvidiactl or its link cannot be made here ({os.strerror(code)})")
    assert boot.nodes() == {}


def test_another_user_says_what_is_missing_and_nothing_about_links(boot: Boot) -> None:
    top = Path(boot.root)
    for folder in (top, *top.parents):
        if folder.is_relative_to(scratch.TOP):
            folder.chmod(0o755)
    shim = Path(nodes.__file__).parents[2]
    code = (
        f"import sys, os; sys.path.insert(0, {str(shim)!r}); os.setuid(65534)\n"
        f"from gpushim.inventory import nodes; print(nodes.make({boot.root!r}, {boot.proc!r}))"
    )
    command = ["/usr/bin/python3", "-IB", "-c", code]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "nvidiactl or its link cannot be made here (Permission denied); refresh as the host's root" in first
    make(boot)
    for name in boot.links():
        os.unlink(f"{boot.root}/dev/char/{name}")
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_in_a_user_namespace_links_are_not_ours(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "in_user_namespace", lambda: True)
    make(boot)
    assert not Path(boot.root, "dev/char").exists()
