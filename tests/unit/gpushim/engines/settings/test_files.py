"""Files of others: what is read, refused, replaced and put back."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines.settings import files, records
from gpushim.engines.settings.files import Change, apply, diff, read
from gpushim.ground.errors import GpushimError
from gpushim.paths import exchange, replace, walk

# pytest's directories let nobody in but root, so the file's is made the root directory.
AS_USER = f"""
import os, sys
sys.path[:0] = {[str(Path(files.__file__).parents[3]), str(Path(walk.__file__).parents[2])]}
from gpushim.engines.settings import files
os.chroot(os.path.dirname(sys.argv[1]))
os.chdir("/")
os.setgroups([])
os.setgid(1234)
os.setuid(1234)
print(files.read("/daemon.json"))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "daemon.json"
    path.parent.mkdir()
    path.write_bytes(b"old")
    return path


def edit(path: Path, new: bytes | None = b"new") -> Change:
    return Change(str(path), read(str(path)), new, before=read(str(path)))


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert read(f"{tmp_path}/none/daemon.json") is None


def test_mode_owner_and_attributes_are_kept(file: Path) -> None:
    file.chmod(0o640)
    os.chown(file, 0, 12)
    os.setxattr(file, "user.note", b"x")
    apply([edit(file)])
    status = file.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o640, 0, 12)
    assert os.getxattr(file, "user.note") == b"x"
    assert stat.S_IMODE(Path(f"{file}{records.BEFORE}").stat().st_mode) == 0o640


def test_a_new_file_gets_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "daemon.json"
    apply([edit(path)])
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_link_stays_and_its_file_is_replaced(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "daemon.json"
    link.symlink_to("etc/daemon.json")
    apply([edit(link)])
    assert os.readlink(link) == "etc/daemon.json"
    assert file.read_bytes() == b"new"
    assert records.before(str(link)) == b"old"


def test_a_dangling_link(tmp_path: Path) -> None:
    link = tmp_path / "daemon.json"
    link.symlink_to("/nonexistent/daemon.json")
    with pytest.raises(GpushimError, match=r"is a link to /nonexistent/daemon\.json, which does not exist"):
        read(str(link))


def test_a_link_to_itself(tmp_path: Path) -> None:
    link = tmp_path / "daemon.json"
    link.symlink_to("daemon.json")
    with pytest.raises(GpushimError, match="a link that leads back to itself"):
        read(str(link))


def test_a_link_below_another_root_stays_in_it(file: Path) -> None:
    link = file.parent / "link.json"
    link.symlink_to(file)
    with another_root(file.parent) as root:
        assert read(f"{root}/daemon.json") == b"old"
        with pytest.raises(GpushimError, match=f"is a link to {file}, which does not exist"):
            read(f"{root}/link.json")
        link.unlink()
        link.symlink_to("/../../daemon.json")
        assert read(f"{root}/link.json") == b"old"


@contextlib.contextmanager
def another_root(top: Path) -> Iterator[str]:
    """A process whose root directory is another one."""
    script = "import os, sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, top], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield f"/proc/{child.pid}/root"
        child.communicate()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "FIFO"])
def test_what_is_no_file(make: object, tmp_path: Path) -> None:
    path = f"{tmp_path}/daemon.json"
    make(path)  # type: ignore[operator]
    with pytest.raises(GpushimError, match="is not a regular file"):
        read(path)


def test_a_huge_file(file: Path) -> None:
    os.truncate(file, exchange.LIMIT + 1)
    with pytest.raises(GpushimError, match="is larger than 1 MiB"):
        read(str(file))


def test_somebody_elses_file_or_directory(file: Path) -> None:
    os.chown(file, 1234, 0)
    with pytest.raises(GpushimError, match="belongs to user 1234; move it away and write your own"):
        read(str(file))
    os.chown(file, 0, 0)
    os.chown(file.parent, 1234, 0)
    with pytest.raises(GpushimError, match=f"{file.parent} belongs to user 1234; move it away and write your own"):
        read(str(file))


def test_a_file_in_the_home_of_its_owner(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere that user could not change it, and would be told to be root."""
    owner = pwd.struct_passwd(("x", "", 1234, 1234, "", str(file.parent), ""))
    monkeypatch.setattr("pwd.getpwuid", {1234: owner}.__getitem__)
    os.chown(file, 1234, 0)
    with pytest.raises(GpushimError, match="belongs to user 1234; run this as that user"):
        read(str(file))


@pytest.mark.parametrize("name", ["daemon.json", "none.json"], ids=["there", "missing"])
@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        (0o777, "(mode 777); chmod go-w it, and look"),
        (0o775, "(mode 775); chmod go-w it, and look"),
        (0o1777, "others may make files in"),
    ],
)
def test_a_directory_above_in_which_others_may_write(mode: int, sentence: str, name: str, file: Path) -> None:
    below = file.parent / "a" / "b"
    below.mkdir(parents=True)
    (below / "daemon.json").write_bytes(b"old")
    file.parent.chmod(mode)
    with pytest.raises(GpushimError, match=re.escape(sentence)):
        read(f"{below}/{name}")
    with pytest.raises(GpushimError, match=re.escape(sentence)):
        apply([Change(f"{below}/{name}", None, b"new")])
    assert sorted(os.listdir(below)) == ["daemon.json"]


def test_a_link_that_somebody_else_made(file: Path) -> None:
    link = file.parent / "link.json"
    link.symlink_to("daemon.json")
    os.chown(link, 1234, 0, follow_symlinks=False)
    with pytest.raises(GpushimError, match=f"{link} belongs to user 1234"):
        read(str(link))


def test_a_file_that_others_may_write(file: Path) -> None:
    file.chmod(0o666)
    with pytest.raises(GpushimError, match=r"may be written by others \(mode 666\); look at a copy"):
        read(str(file))


def test_a_users_own_group_is_that_user(file: Path) -> None:
    for path in (file, file.parent):
        os.chown(path, 1234, 1234)
        path.chmod(path.stat().st_mode | 0o020)
    done = subprocess.run([sys.executable, "-c", AS_USER, file], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("b'old'\n", "")


def test_a_group_that_users_share_is_not_that_user(file: Path) -> None:
    """As on distributions where "users" is everybody's primary group."""
    os.chown(file, 1234, 100)
    file.chmod(0o664)
    code = AS_USER.replace("setgid(1234)", "setgid(100)")
    assert code != AS_USER
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=False)
    assert "may be written by others (mode 664)" in done.stderr


def test_a_read_only_file(file: Path) -> None:
    file.chmod(0o444)
    with pytest.raises(GpushimError, match="is read-only, perhaps on purpose"):
        apply([edit(file)])
    assert os.listdir(file.parent) == ["daemon.json"]


def refuse_exchange(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Let nothing be renamed to a name."""
    rename, renames = exchange._rename, os.rename

    def refuse(source: str, folder: int, target: str, into: int, flags: int) -> None:
        if target == name:
            raise OSError(number, os.strerror(number))
        rename(source, folder, target, into, flags)

    def refuse_plain(source: str, target: str, **folders: int) -> None:
        refuse(source, -1, target, -1, -1) if target == name else renames(source, target, **folders)

    monkeypatch.setattr(exchange, "_rename", refuse)
    monkeypatch.setattr(os, "rename", refuse_plain)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM, errno.EBUSY, errno.ENOSPC, errno.EIO])
def test_a_file_that_cannot_be_replaced(number: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_exchange(monkeypatch, file.name, number)
    with pytest.raises(GpushimError, match=f"^{file} "):
        apply([edit(file)])
    assert file.read_bytes() == b"old"
    assert os.listdir(file.parent) == ["daemon.json"]


def test_a_file_that_changes_meanwhile(file: Path) -> None:
    change = edit(file)
    file.write_bytes(b"theirs")
    with pytest.raises(GpushimError, match="has been changed by somebody else meanwhile"):
        apply([change])
    assert file.read_bytes() == b"theirs"


def test_all_or_none(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_bytes(b"read-only")
    other.chmod(0o444)
    made = tmp_path / "made.json"
    with pytest.raises(GpushimError, match="read-only"):
        apply([edit(file), edit(made), edit(other)])
    assert file.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["etc", "other.json"]
    assert os.listdir(file.parent) == ["daemon.json"]


def test_before_and_after_are_of_the_last_time(file: Path) -> None:
    apply([edit(file, b"first")])
    apply([Change(str(file), b"first", b"second", before=b"theirs")])
    assert (records.before(str(file)), records.after(str(file))) == (b"theirs", b"second")


def test_no_before_for_a_file_that_we_made(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    apply([edit(path, b"first")])
    apply([Change(str(path), b"first", b"second", before=b"theirs")])
    apply([Change(str(path), b"second", b"third", before=None)])
    assert (records.before(str(path)), records.after(str(path))) == (None, b"third")


def test_undo_takes_the_records_along(file: Path) -> None:
    apply([edit(file)])
    apply([edit(file, b"old")], undo=True)
    assert os.listdir(file.parent) == ["daemon.json"]


def test_records_lie_beside_a_directory_that_an_engine_reads_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "crio.conf.d" / "99-gpushim.toml"
    path.parent.mkdir()
    path.write_bytes(b"old")
    apply([edit(path)])
    assert os.listdir(path.parent) == ["99-gpushim.toml"]
    assert records.before(str(path)) == b"old"


def test_a_diff_shows_ends_of_lines_and_odd_bytes() -> None:
    shown = diff(
        [Change("/f", b"a\r\nb\x0c\xff", b"a\r\nc\x0c\xff"), Change("/g", None, b"x\n"), Change("/h", b"y\n", None)]
    )
    assert shown == (
        "--- /f\n+++ /f\n@@ -1,2 +1,2 @@\n a\r\n-b\x0c\\xff\n\\ No newline at end of file\n+c\x0c\\xff\n"
        "\\ No newline at end of file\n--- /dev/null\n+++ /g\n@@ -0,0 +1 @@\n+x\n"
        "--- /h\n+++ /dev/null\n@@ -1 +0,0 @@\n-y\n"
    )


def test_each_attribute_is_set_by_itself_and_those_lost_are_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("user.a", "user.b", "user.c"):
        os.setxattr(file, name, name.encode())
    setxattr = os.setxattr

    def refuse(path: int, name: str, value: bytes) -> None:
        if name == "user.a":
            raise OSError(errno.EPERM, "Operation not permitted")
        setxattr(path, name, value)

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "listxattr", lambda path: ["user.a", "user.b", "user.c"])
    notes = apply([edit(file)])
    assert notes == [f"{file} has lost its attribute user.a: Operation not permitted"]
    assert (os.getxattr(file, "user.b"), os.getxattr(file, "user.c")) == (b"user.b", b"user.c")


def test_records_are_as_before_after_a_change_that_failed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply([edit(file, b"first")])
    refuse_exchange(monkeypatch, file.name, errno.ENOSPC)
    with pytest.raises(GpushimError, match="no space is left"):
        apply([Change(str(file), b"first", b"second", before=b"theirs")])
    assert (records.before(str(file)), records.after(str(file))) == (b"old", b"first")


def test_copies_have_names_of_their_own(file: Path) -> None:
    for content in (b"one", b"two", b"two"):
        file.write_bytes(content)
        apply([Change(str(file), content, b"new", recorded=False, lost=("x",))])
    assert sorted(os.listdir(file.parent)) == [
        "daemon.json",
        "daemon.json.kept-gpushim",
        "daemon.json.kept-gpushim.2",
    ]


class TestAFileThatIsAsWishedAlready:
    """Records are about the file that is there, never about one that was there before it."""

    def same(self, path: Path) -> Change:
        now = read(str(path))
        return Change(str(path), now, now, before=b"theirs")

    def test_configure_renews_its_records(self, file: Path) -> None:
        apply([edit(file)])
        file.write_bytes(b"another")
        apply([self.same(file)])
        assert (records.before(str(file)), records.after(str(file))) == (b"theirs", b"another")

    def test_configure_makes_none(self, file: Path) -> None:
        """Nothing is written where nothing changes: it may lie on a read-only file system."""
        apply([self.same(file)])
        assert os.listdir(file.parent) == ["daemon.json"]

    @pytest.mark.parametrize("now", [b"another", None], ids=["replaced", "removed"])
    def test_remove_forgets_its_records(self, file: Path, now: bytes | None) -> None:
        apply([edit(file)])
        file.write_bytes(now) if now else file.unlink()
        apply([Change(str(file), now, now)], undo=True)
        assert os.listdir(file.parent) == ([file.name] if now else [])

    def test_remove_makes_no_directory(self, tmp_path: Path) -> None:
        apply([Change(f"{tmp_path}/none/daemon.json", None, None)], undo=True)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("folder", ["crio.conf.d", "etc"])
@pytest.mark.parametrize("undo", [False, True], ids=["configure", "remove"])
@pytest.mark.parametrize("number", [1, 2, 3], ids=["before", "after", "file"])
def test_what_a_killed_process_has_left(tmp_path: Path, folder: str, undo: bool, number: int) -> None:
    path = tmp_path / "top" / folder / "99-gpushim.toml"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"old")
    assert killed(edit(path), number)
    assert not folder.endswith(".d") or os.listdir(path.parent) == [path.name]
    assert [each for each in path.parents[1].rglob("*") if each.suffix == replace.SUFFIX]
    now = read(str(path))
    apply([Change(str(path), now, now)], undo=undo)
    assert not [each for each in path.parents[1].rglob("*") if each.suffix == replace.SUFFIX]


def killed(change: Change, number: int) -> bool:
    """Make a change in a process that is gone at a rename; returns whether it was."""
    child = os.fork()
    if not child:
        calls = iter(range(1, 10))
        rename = os.rename

        def gone(*names: Any, **folders: Any) -> None:
            if next(calls) == number:
                os._exit(9)
            rename(*names, **folders)

        os.rename = gone
        with contextlib.suppress(BaseException):
            apply([change])
        os._exit(0)
    return os.waitpid(child, 0)[1] >> 8 == 9


def test_a_directory_that_is_a_file_system_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "crio.conf.d" / "99-gpushim.toml"
    rename = exchange._rename

    def other(source: str, folder: int, target: str, into: int, flags: int) -> None:
        if not os.path.samestat(os.fstat(folder), os.fstat(into)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, folder, target, into, flags)

    monkeypatch.setattr(exchange, "_rename", other)
    apply([edit(path)])
    assert (path.read_bytes(), os.listdir(path.parent)) == (b"new", [path.name])
    assert sorted(os.listdir(tmp_path)) == ["crio.conf.d", "crio.conf.d.99-gpushim.toml.after-gpushim"]


def test_a_lock_of_somebody_else_on_the_directory_holds_nobody_up(file: Path) -> None:
    """As the user nobody may take one on /etc/docker."""
    fd = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    apply([edit(file)])
    os.close(fd)
    assert file.read_bytes() == b"new"


@pytest.mark.parametrize("back", [False, True], ids=["became a link", "became a file"])
def test_records_are_found_when_the_file_becomes_a_link_and_back(back: bool, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "srv.json"
    if back:
        file.rename(other)
        file.symlink_to(other)
    apply([edit(file)])
    if back:
        file.unlink()
        other.rename(file)
    else:
        file.rename(other)
        file.symlink_to(other)
    assert (records.before(str(file)), records.after(str(file))) == (b"old", b"new")
    apply([Change(str(file), b"new", b"old")], undo=True)
    assert not [name for folder in (file.parent, tmp_path) for name in os.listdir(folder) if "-gpushim" in name]


def test_two_directories_of_one_engine_have_records_of_their_own(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "99-gpushim.toml" for folder in ("crio.conf.d", "more.d")]
    for number, path in enumerate(paths):
        path.parent.mkdir()
        path.write_text(f"{number}")
        apply([edit(path)])
    assert [records.before(str(path)) for path in paths] == [b"0", b"1"]


def reuse(file: Path, other: Path) -> None:
    """Let another file have the inode number of one that has records and is gone."""
    rows = json.loads(Path(records.DIRECTORY, records.NAME).read_text())
    rows[str(file)]["inode"] = other.stat().st_ino
    file.unlink()
    Path(records.DIRECTORY, records.NAME).write_text(json.dumps(rows))


def test_a_file_that_has_got_the_number_of_another_has_no_records(file: Path, tmp_path: Path) -> None:
    apply([edit(file)])
    other = tmp_path / "other.json"
    other.write_bytes(b"theirs")
    reuse(file, other)
    assert (records.before(str(other)), records.after(str(other))) == (None, None)
    apply([Change(str(other), b"theirs", b"theirs")], undo=True)
    assert records.after(str(file)) == b"new"


def test_a_file_that_was_moved_keeps_its_records_and_they_go_with_it(file: Path, tmp_path: Path) -> None:
    apply([edit(file)])
    moved = tmp_path / "moved.json"
    file.rename(moved)
    assert records.before(str(moved)) == b"old"
    apply([Change(str(moved), b"new", b"old")], undo=True)
    assert os.listdir(file.parent) == []
    assert not {str(file), str(moved)} & {*records.led("", [])}


@pytest.mark.parametrize("same", [False, True], ids=["another", "a copy"])
def test_a_file_in_the_place_of_a_link_while_what_it_led_to_is_there(same: bool, file: Path, tmp_path: Path) -> None:
    """Its records are the other's, unless it is what `configure` wrote."""
    link = tmp_path / "link.json"
    link.symlink_to(file)
    apply([edit(link)])
    link.unlink()
    link.write_bytes(b"new" if same else b"theirs")
    assert records.before(str(link)) == (b"old" if same else None)


def test_a_place_of_another_engines_that_is_not_trusted_holds_nobody_up(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "crio" / "crio.conf"
    other.parent.mkdir()
    apply([edit(other)])
    other.parent.chmod(0o777)
    apply([edit(file)])
    assert file.read_bytes() == b"new"


def test_a_configure_of_a_moved_file_lists_it_where_it_is(file: Path, tmp_path: Path) -> None:
    apply([edit(file)])
    moved = tmp_path / "moved.json"
    file.rename(moved)
    apply([Change(str(moved), b"new", b"newer", before=b"old", main="/main")])
    assert records.led("/main", []) == [str(moved)]
    assert os.listdir(file.parent) == []
