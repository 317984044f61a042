"""Settings files: what is read, refused and replaced."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushim.engines.settings import files
from gpushim.engines.settings.files import Change, apply, diff, read
from gpushim.ground.errors import GpushimError
from gpushim.paths import walk

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
    return Change(str(path), read(str(path)), new)


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
    os.truncate(file, files.LIMIT + 1)
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


def test_a_file_that_changes_meanwhile(file: Path) -> None:
    change = edit(file)
    file.write_bytes(b"theirs")
    with pytest.raises(GpushimError, match="has been changed by somebody else meanwhile"):
        apply([change])
    assert file.read_bytes() == b"theirs"


def test_what_was_deleted_comes_back_with_its_mode(file: Path, tmp_path: Path) -> None:
    file.chmod(0o600)
    content = file.read_bytes()
    with pytest.raises(GpushimError):
        apply([Change(str(file), content, None), Change(f"{tmp_path}/other.json", b"not there", b"{}")])
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (content, 0o600)


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


def test_a_diff_shows_ends_of_lines_and_odd_bytes() -> None:
    shown = diff(
        [Change("/f", b"a\r\nb\x0c\xff", b"a\r\nc\x0c\xff"), Change("/g", None, b"x\n"), Change("/h", b"y\n", None)]
    )
    assert shown == (
        "--- /f\n+++ /f\n@@ -1,2 +1,2 @@\n a\r\n-b\x0c\\xff\n\\ No newline at end of file\n+c\x0c\\xff\n"
        "\\ No newline at end of file\n--- /dev/null\n+++ /g\n@@ -0,0 +1 @@\n+x\n"
        "--- /h\n+++ /dev/null\n@@ -1 +0,0 @@\n-y\n"
    )


def test_nothing_is_written_where_nothing_changes(file: Path, tmp_path: Path) -> None:
    """It may lie on a read-only file system."""
    apply([edit(file, b"old"), edit(tmp_path / "none" / "daemon.json", None)])
    assert (os.listdir(file.parent), os.listdir(tmp_path)) == (["daemon.json"], ["etc"])


def test_a_lock_of_somebody_else_on_the_directory_holds_nobody_up(file: Path) -> None:
    """As the user nobody may take one on /etc/docker."""
    fd = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    apply([edit(file)])
    os.close(fd)
    assert file.read_bytes() == b"new"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM, errno.EBUSY, errno.ENOSPC, errno.EIO])
def test_a_file_that_cannot_be_replaced(number: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def refuse(source: str, target: str, **folders: int) -> None:
        if target == file.name:
            raise OSError(number, os.strerror(number))
        rename(source, target, **folders)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(GpushimError, match=f"^{file} "):
        apply([edit(file)])
    assert (file.read_bytes(), os.listdir(file.parent)) == (b"old", ["daemon.json"])


def test_copies(file: Path) -> None:
    """One as it was without gpushim, the last; all of what somebody wrote."""
    for content in (b"one", b"two", b"two"):
        for suffix in (files.BEFORE, files.EDITED):
            file.write_bytes(content)
            (note,) = apply([Change(str(file), content, b"new", suffix)])
            assert note.startswith(f"{file} as it was is kept as {file}{suffix}")
    found = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    assert found == {
        "daemon.json": b"new",
        "daemon.json.before-gpushim": b"two",
        "daemon.json.kept-gpushim": b"one",
        "daemon.json.kept-gpushim.2": b"two",
    }


@pytest.mark.parametrize("fails", [False, True], ids=["one file system", "two"])
def test_only_the_file_is_made_in_a_directory_that_an_engine_reads_as_a_whole(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "crio.conf.d" / "99-gpushim.toml"
    rename, seen = os.rename, list[str]()

    def watch(source: str, target: str, src_dir_fd: int, dst_dir_fd: int) -> None:
        seen.extend(os.listdir(path.parent))
        if fails and not os.path.samestat(os.fstat(src_dir_fd), os.fstat(dst_dir_fd)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", watch)
    apply([edit(path)])
    assert fails or seen == []
    apply([Change(str(path), b"new", b"newer", files.EDITED)])
    assert ([*path.parent.iterdir()], path.read_bytes()) == ([path], b"newer")
    assert sorted(os.listdir(tmp_path)) == ["crio.conf.d", "crio.conf.d.99-gpushim.toml.kept-gpushim"]


@pytest.mark.parametrize("folder", ["crio.conf.d", "etc"])
@pytest.mark.parametrize("new", [b"new", None], ids=["change", "remove"])
def test_a_kill_leaves_the_old_or_the_new_file_and_nothing_that_stays(
    folder: str, new: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any call that changes something; the next run takes away what is left."""
    path, names, count = tmp_path / folder / "file", ("write", "fsync", "rename", "unlink"), 0
    path.parent.mkdir()
    while True:
        path.write_bytes(b"old")
        count += 1
        if not killed(Change(str(path), b"old", new), count, names):
            break
        assert (path.read_bytes() if path.exists() else None) in (b"old", new)
        apply([Change(str(path), read(str(path)), b"x")])
        assert [*path.parent.iterdir(), *tmp_path.glob(".*")] == [path]
    assert count > 2


def killed(change: Change, at: int, names: tuple[str, ...]) -> bool:
    """Make a change in a process that is killed before such a call; return whether it was."""
    pid = os.fork()
    if not pid:
        left = iter(range(1, 1000))
        for name in names:
            call = getattr(os, name)
            setattr(os, name, lambda *a, call=call, **k: os._exit(7) if next(left) == at else call(*a, **k))
        apply([change])
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
