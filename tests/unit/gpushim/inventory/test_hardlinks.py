"""Directories of hard links to the driver's libraries: a refresh as a process makes them, or says why not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpushim.ground import system
from gpushim.ground.model import File
from gpushim.inventory import ensure, hardlinks
from gpushim.paths import mountinfo
from unit.gpushim import labels
from unit.gpushim.inventory.machine import Machine

pytestmark = pytest.mark.slow


def built(machine: Machine, top: Path, **options: Any) -> None:
    machine.build(1, f'library-directory = "{top}"\n', **options)


@pytest.fixture
def top(machine: Machine) -> Path:
    place = machine.folder / "kept/libraries"
    built(machine, place)
    return place


def inside(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return [file for files in snapshot["files"].values() for file in files if "in" in file]


def test_each_capability_has_a_directory_with_its_libraries(machine: Machine, top: Path) -> None:
    snapshot = machine.refreshed()
    place = Path(snapshot["hardlinks"])
    assert [path.name for path in top.iterdir()] == [place.name]
    assert {path.name for path in place.iterdir()} >= {"utility", "compute", "video", "graphics", "graphics32"}
    for capability, files in snapshot["files"].items():
        names = {name for file in files if "in" in file for name in (Path(file["path"]).name, file["soname"])}
        assert {file["in"] for file in files if "in" in file} <= {capability}
        assert names == set(os.listdir(place / capability) if names else ())


def test_they_are_the_same_files_found_by_their_sonames_too(machine: Machine, top: Path) -> None:
    snapshot = machine.refreshed()
    for file in inside(snapshot):
        for name in (Path(file["path"]).name, file["soname"]):
            assert os.path.samefile(f"{snapshot['hardlinks']}/{file['in']}/{name}", machine.root + file["path"])


def test_nothing_but_libraries_is_in_them(machine: Machine, top: Path) -> None:
    assert {file["kind"] for file in inside(machine.refreshed())} == {"library", "library32"}


def test_all_may_read_them_whatever_the_umask(machine: Machine, top: Path) -> None:
    old = os.umask(0o777)
    try:
        machine.refresh()
    finally:
        os.umask(old)
    place = Path(machine.saved()["hardlinks"])
    assert {path.stat().st_mode & 0o777 for path in (place, *place.iterdir())} == {0o755}


def test_second_refresh_finds_them_made(machine: Machine, top: Path) -> None:
    first = machine.refreshed()["hardlinks"]
    before = os.stat(first).st_ino
    machine.refresh("--force")
    assert (machine.saved()["hardlinks"], os.stat(first).st_ino) == (first, before)


def test_those_of_an_older_driver_stay_until_the_next_boot(machine: Machine, top: Path) -> None:
    old = machine.refreshed()["hardlinks"]
    files = os.listdir(f"{old}/compute")
    shutil.rmtree(machine.root)
    built(machine, top, driver="550.54.14")
    new = machine.refreshed()["hardlinks"]
    assert os.listdir(f"{old}/compute") == files
    os.rename(old, top / ("00000000" + Path(old).name[8:]))  # the boot's id
    machine.refresh("--force")
    assert os.listdir(top) == [Path(new).name]


def test_what_is_not_ours_stays(machine: Machine, top: Path) -> None:
    for name in ("mine", "new"):
        (top / name).mkdir(parents=True)
    machine.refreshed()
    assert {"mine", "new"} < {*os.listdir(top)}


def test_leftovers_of_a_killed_refresh_go(machine: Machine, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", machine.state)
    boot = Path(system.BOOT_ID).read_text()[:8]
    left = {boot: hardlinks._unfinished(boot), "": hardlinks.UNFINISHED + "00000000-" + "0" * 16}
    others = hardlinks.UNFINISHED + boot + "-" + "0" * 16  # it may be at work
    for name in (*left.values(), others):
        (top / name / "compute").mkdir(parents=True)
    place = machine.refreshed()["hardlinks"]
    assert {*os.listdir(top)} == {Path(place).name, others}


def test_another_refresh_that_makes_the_same_meanwhile(machine: Machine, top: Path) -> None:
    """One with another state directory, which has a lock of its own."""
    place, fresh = Path(machine.refreshed()["hardlinks"]), top / "fresh"
    inode = place.stat().st_ino
    shutil.copytree(place, fresh, symlinks=True)
    hardlinks._move(str(fresh), str(place))
    assert (os.listdir(top), place.stat().st_ino) == ([place.name], inode)


def test_create_notices_that_they_are_gone(machine: Machine, top: Path) -> None:
    place = machine.refreshed()["hardlinks"]
    assert ensure.read(machine.config, machine.state)
    shutil.rmtree(f"{place}/compute")
    assert ensure.read(machine.config, machine.state) is None


def test_changed_by_somebody_is_not_used(machine: Machine, top: Path) -> None:
    place = machine.refreshed()["hardlinks"]
    Path(place, "compute/libmine.so").touch()
    snapshot = machine.refreshed()
    assert f"{place} is not as gpushim made it" in snapshot["notes"][-1]
    assert (inside(snapshot), "hardlinks" in snapshot) == ([], False)


def test_on_another_file_system_each_library_is_mounted_by_itself(machine: Machine) -> None:
    place = Path("/dev/shm") / f"gpushim-{machine.folder.name}"
    try:
        built(machine, place)
        snapshot = machine.refreshed()
        left = os.listdir(place)
    finally:
        shutil.rmtree(place)
    assert f"{place} cannot have hard links to the driver's libraries" in snapshot["notes"][-1]
    assert snapshot["notes"][-1].endswith("; each library is mounted by itself")
    assert (inside(snapshot), left) == ([], [])


@pytest.mark.parametrize("bad", ["writable", "file", "link"])
def test_place_of_others_is_not_used(machine: Machine, top: Path, bad: str) -> None:
    top.parent.mkdir()
    if bad == "writable":
        top.mkdir()
        top.chmod(0o777)
    elif bad == "file":
        top.touch()
    else:
        top.symlink_to(machine.folder)
    snapshot = machine.refreshed()
    assert snapshot["notes"][-1].startswith(f"library-directory {top} cannot be ")
    assert inside(snapshot) == []


def test_without_the_setting_nothing_is_made(machine: Machine) -> None:
    machine.build(1)
    snapshot = machine.refreshed()
    assert (inside(snapshot), "hardlinks" in snapshot) == ([], False)


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where links are made by default, and a driver's two libraries beside it."""
    for name in "ab":
        (tmp_path / f"lib{name}.so.5").touch()
    monkeypatch.setattr(hardlinks, "USUAL", str(tmp_path / "gpushim-driver"))
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path / "state"))
    return tmp_path / "gpushim-driver"


def by_default(usual: Path, **changes: str) -> dict[str, Any]:
    """Return the snapshot of a driver below /, or below another root, after `add`."""
    driver = {"root": "/", "library-directory": hardlinks.AUTO, **changes}
    files = [library(str(usual.with_name(f"lib{name}.so.5")), f"lib{name}.so.1") for name in "ab"]
    snapshot: Any = {
        "platform": "native",
        "driver": driver,
        "policy": {"driver": driver},
        "files": {"compute": files},
        "notes": [],
        "stamp": {"boot": "01234567-89", "nodes": []},
        "inputs": {"nodes": []},
    }
    hardlinks.add(snapshot)
    found: dict[str, Any] = snapshot
    return found


def test_made_by_default_for_a_driver_below_the_root(usual: Path) -> None:
    place = by_default(usual)["hardlinks"]
    assert os.path.dirname(place) == str(usual)
    assert os.path.samefile(f"{place}/compute/liba.so.1", usual.with_name("liba.so.5"))


def test_another_driver_root_has_none_by_default(usual: Path) -> None:
    assert ("hardlinks" in by_default(usual, root="/run/nvidia/driver"), usual.exists()) == (False, False)


def test_where_a_link_would_be_a_copy_there_is_none_by_default(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = b"%s 1 0:9 / / rw - overlay overlay rw\n"
    monkeypatch.setattr(mountinfo, "read", lambda _: overlay % b"7")
    monkeypatch.setattr(mountinfo, "mount_id", lambda _: b"7")
    assert ("hardlinks" in by_default(usual), usual.exists()) == (False, False)


def test_nothing_is_said_where_the_default_cannot_be(usual: Path) -> None:
    usual.touch()
    snapshot = by_default(usual)
    assert ("hardlinks" in snapshot, snapshot["notes"]) == (False, [])
    assert by_default(usual, **{"library-directory": str(usual)})["notes"]


def library(path: str, soname: str) -> File:
    return {"path": path, "kind": "library", "soname": soname}


@pytest.mark.parametrize(
    "other",
    [
        library("/other/liba.so.5", "libother.so.1"),
        library("/usr/lib/libc.so.5", "liba.so.1"),
        library("/usr/lib/libc.so.5", "liba.so.5"),
        library("/usr/lib/a::b/libc.so.5", "libc.so.1"),
        library("/usr/lib/libc.so.5", ".."),
        {"path": "/usr/bin/nvidia-smi", "kind": "binary"},
    ],
)
def test_what_cannot_be_in_one_directory_with_the_others(other: File) -> None:
    fit = [library("/usr/lib/liba.so.5", "liba.so.1"), library("/usr/lib/libb.so.5", "libb.so.5")]
    assert hardlinks._groups({"compute": [*fit, other]}) == {"compute": fit}


def test_single_library_needs_no_directory() -> None:
    assert hardlinks._groups({"ngx": [library("/usr/lib/liba.so.5", "liba.so.1")]}) == {}


def test_boot_is_in_the_name(machine: Machine, top: Path) -> None:
    boot = Path(system.BOOT_ID).read_text()
    assert Path(machine.refreshed()["hardlinks"]).name.startswith(boot[:8] + "-")


def test_the_directory_is_recorded_for_the_packages_removal(machine: Machine, top: Path) -> None:
    machine.refreshed()
    machine.refreshed()
    assert Path(machine.state, "library-directories").read_text() == f"{top}\n"


@pytest.mark.parametrize(("kind", "linked"), [("var_lib_t", False), ("lib_t", True)])
def test_a_link_has_no_other_selinux_label_than_the_drivers_file(machine: Machine, kind: str, linked: bool) -> None:
    top = machine.folder / "kept"
    top.mkdir()
    host = machine.build(1, f'library-directory = "{top}"\n')
    labels.label(host.lib_path, "lib_t")
    labels.label(top, kind)
    snapshot = machine.refreshed()
    assert ("hardlinks" in snapshot, any(top.iterdir())) == (linked, linked)
    refusal = f"library-directory {top} is var_lib_t to SELinux"
    assert any(note.startswith(refusal) for note in snapshot["notes"]) is not linked


def test_links_made_before_selinux_was_on_are_not_used(machine: Machine, top: Path) -> None:
    assert inside(machine.refreshed())
    labels.label(top, "var_lib_t")
    labels.label(f"{machine.root}/usr/lib/x86_64-linux-gnu", "lib_t")
    assert not inside(machine.refreshed("--force"))
