"""The variants of the walk on the host, in one table: who must not be able to change what on the way to a file."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpushim.config import policy
from gpushim.ground import bounds
from gpushim.ground.errors import CONFIG, GpushimError
from gpushim.paths import host_files, logfile, rooted
from unit.gpuhook.sandbox import exchange, forked, open_fds, own_mounts, running, until

STRANGER = 1234


def settings(path: Path) -> str:
    """What is wrong with others' settings there; "" for nothing. The other variants say it in the same way."""
    try:
        with host_files.open_parent(str(path)) as found:
            assert os.path.samestat(found.status(), path.stat())
            assert found.path == os.path.realpath(path)
    except GpushimError as error:
        return str(error)
    return ""


def output(path: Path) -> str:
    try:
        with host_files.open_parent(str(path), output=True):
            return ""
    except GpushimError as error:
        return str(error)


def administrators(path: Path) -> str:
    try:
        assert policy.trusted(str(path), "x") == b"data"
    except GpushimError as error:
        return str(error) if error.exit_code == CONFIG else ""
    return ""


def log(path: Path) -> str:
    before = path.read_bytes()
    logfile.append(str(path), "x")
    refused = path.read_bytes() == before
    assert logfile.refused(str(path)) == refused
    return f"{path} is refused" if refused else ""


def drivers(path: Path) -> str:
    real = rooted.resolve("/", str(path))
    assert real == os.path.realpath(path)
    return rooted.mistrust("/", os.path.dirname(real))


VARIANTS = {each.__name__: each for each in (settings, output, administrators, log, drivers)}
BUT_OUTPUT = "settings administrators log drivers"


def strangers(name: str) -> Callable[[Path], object]:
    return lambda top: os.lchown(top / name, STRANGER, 0)


def mode(name: str, bits: int) -> Callable[[Path], object]:
    return lambda top: (top / name).chmod(bits)


def both(*lays: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda top: [lay(top) for lay in lays]


# By what is laid: how, the variants that refuse it, and what they name.
TABLE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "nothing": (both(), "", ""),
    "a stranger's directory": (strangers("deep/target"), BUT_OUTPUT, "deep/target"),
    "a stranger's directory above": (strangers("deep"), BUT_OUTPUT, "deep"),
    "a stranger's directory of links": (strangers("map/..1"), "settings administrators log", "map/..1"),
    "a stranger's link": (strangers("map/..data"), "settings output administrators log", "map/..data"),
    "a stranger's link at the end": (strangers("map/x"), "settings output administrators", "map/x"),
    "a stranger's file": (strangers("deep/target/y"), "administrators log", "map/x"),
    "a group may write": (mode("deep", 0o775), "settings administrators drivers", "deep"),
    "everybody may write": (mode("deep/target", 0o777), BUT_OUTPUT, "deep/target"),
    "everybody may write above": (mode("deep", 0o777), BUT_OUTPUT, "deep"),
    "everybody may write where links are": (mode("map", 0o777), "settings administrators log", "map"),
    "a sticky directory": (mode("deep/target", 0o1777), "settings drivers", "deep/target"),
    "a sticky directory with a stranger's": (
        both(mode("deep", 0o1777), strangers("deep/target")),
        BUT_OUTPUT,
        "deep",
    ),
    "a sticky directory with a stranger's link": (
        both(mode("map", 0o1777), strangers("map/x")),
        "settings output administrators",
        "map",
    ),
    "a stranger's sticky directory": (both(strangers("deep"), mode("deep", 0o1777)), BUT_OUTPUT, "deep"),
}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A ConfigMap's file, map/x, through ..data and an absolute link to its directory."""
    (tmp_path / "deep/target").mkdir(parents=True)
    (tmp_path / "deep/target/y").write_text("data")
    (tmp_path / "map/..1").mkdir(parents=True)
    (tmp_path / "map/..1/to").symlink_to(f"{tmp_path}/map/../deep/target")
    (tmp_path / "map/..data").symlink_to("..1")
    (tmp_path / "map/x").symlink_to("..data/to/y")
    return tmp_path


@pytest.mark.parametrize("laid", TABLE)
def test_who_refuses_what(laid: str, top: Path) -> None:
    lay, refusing, named = TABLE[laid]
    lay(top)
    before = open_fds()
    told = {name: ask(top / ("map/..data/to/y" if name == "log" else "map/x")) for name, ask in VARIANTS.items()}
    assert open_fds() == before
    assert {name for name, sentence in told.items() if sentence} == {*refusing.split()}
    where = re.compile(rf"{re.escape(str(top))}/{re.escape(named)}(?!/)")
    assert all(where.search(told[name]) for name in {*refusing.split()} - {"log", "output"}), told


def test_the_root_directory_counts(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("data")
    tmp_path.chmod(0o777)

    def ask() -> list[str]:
        os.chroot(tmp_path)
        return [name for name in ("settings", "administrators", "log") if VARIANTS[name](Path("/x"))]

    assert forked(ask) == ["settings", "administrators", "log"]


def test_a_read_only_mount_keeps_all_names(top: Path) -> None:
    (top / "deep").chmod(0o777)
    os.chown(top / "deep/target", STRANGER, 0)

    def ask() -> set[str]:
        own_mounts()
        for options in ("bind", "remount,bind,ro"):
            subprocess.run(["/bin/mount", "-o", options, top / "deep", top / "deep"], check=True)
        return {name for name in ("settings", "administrators") if VARIANTS[name](top / "map/x")}

    assert forked(ask) == {"settings"}


def test_links_in_circles_and_too_many(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "0").write_text("data")
    for number in range(1, bounds.LINKS + 2):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    assert [settings(tmp_path / str(bounds.LINKS)), administrators(tmp_path / str(bounds.LINKS))] == ["", ""]
    for path in (tmp_path / str(bounds.LINKS + 1), tmp_path / "loop"):
        assert settings(path) == f"{path} is a link that leads back to itself; remove it"
        with pytest.raises(OSError, match="symbolic links"):
            host_files.replaceable(str(path))
    logfile.append(str(tmp_path / "loop/log"), "x")
    assert logfile.refused(str(tmp_path / "loop/log"))
    assert host_files.folders(str(tmp_path / "loop")) == [str(tmp_path)]


@pytest.mark.parametrize("way", ["rd/../evil", "link", "evil"])
def test_a_strangers_name_in_a_sticky_directory_however_it_is_reached(tmp_path: Path, way: str) -> None:
    (tmp_path / "rd").mkdir()
    (tmp_path / "evil").touch()
    (tmp_path / "link").symlink_to("evil")
    strangers("evil")(tmp_path)
    tmp_path.chmod(0o1777)
    assert host_files.replaceable(f"{tmp_path}/{way}") == str(tmp_path)
    tmp_path.chmod(0o755)
    assert host_files.replaceable(f"{tmp_path}/{way}") == ""


def test_where_it_shows_that_another_file_is_there(top: Path) -> None:
    assert host_files.folders(f"{top}/map/x") == [f"{top}/{name}" for name in ("map", "map/..1", "deep/target")]


def test_directories_are_made_but_not_where_links_lead(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, text in {"link": "there", "gone": "there/gone", "last": "there/gone/x"}.items():
        (tmp_path / name).symlink_to(text)
    old = os.umask(0o077)
    try:
        for name in ("a/b/x", "link/c/x"):
            with host_files.open_parent(f"{tmp_path}/{name}", make=True) as found:
                assert (found.name, os.fstat(found.folder).st_mode & 0o777, found.link) == ("x", 0o755, "")
    finally:
        os.umask(old)
    with pytest.raises(FileNotFoundError), host_files.open_parent(f"{tmp_path}/gone/d/x", make=True):
        pass
    with (
        pytest.raises(GpushimError, match=r"last is a link to .*/there/gone/x, which does not exist"),
        host_files.open_parent(f"{tmp_path}/last", make=True),
    ):
        pass
    with pytest.raises(FileNotFoundError), host_files.open_parent(f"{tmp_path}/there/d/", make=True):
        pass
    with pytest.raises(GpushimError, match="is not a regular file"), host_files.open_parent(f"{tmp_path}/link/"):
        pass
    assert os.listdir(tmp_path / "there") == ["c"]


def test_a_directory_that_changes_hands_while_it_is_opened(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    os.chown(tmp_path / "theirs", STRANGER, 0)
    (tmp_path / "link").symlink_to("ours")
    ours, found = (tmp_path / "ours").stat().st_ino, set()
    with running(lambda: exchange(tmp_path / "ours", tmp_path / "theirs")):
        for _ in until(0.4):
            with suppress(GpushimError), host_files.open_parent(f"{tmp_path}/link/x") as place:
                found.add(os.fstat(place.folder).st_ino)
    assert found <= {ours}
