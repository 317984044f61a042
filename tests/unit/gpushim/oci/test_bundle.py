from __future__ import annotations

import os
import posix
import resource
from pathlib import Path
from typing import Callable

import pytest

from gpushim.ground.errors import BUNDLE, GpushimError
from gpushim.oci import bundle


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"old":1}')
    path.chmod(0o640)
    return path


def test_reads_all_bytes(config: Path) -> None:
    data, status = bundle.read(str(config))
    assert data == b'{"old":1}'
    assert status.st_ino == config.stat().st_ino


def test_replaces_by_a_new_file_of_the_same_mode_and_owner(config: Path) -> None:
    os.chown(config, 12, 34)
    old = config.open("rb")
    _, status = bundle.read(str(config))
    bundle.replace(str(config), '{"new":1}', status)
    assert config.read_text() == '{"new":1}'
    assert (config.stat().st_mode & 0o7777, config.stat().st_uid, config.stat().st_gid) == (0o640, 12, 34)
    assert old.read() == b'{"old":1}'  # whoever had it open still reads the old file, whole
    old.close()


def test_umask_does_not_change_the_mode(config: Path) -> None:
    before = os.umask(0o077)
    try:
        bundle.replace(str(config), "{}", bundle.read(str(config))[1])
    finally:
        os.umask(before)
    assert config.stat().st_mode & 0o7777 == 0o640


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "absent", "dangling", "socket"])
def test_refuses_what_is_not_a_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    make: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
        "absent": lambda: None,
        "dangling": lambda: path.symlink_to("nowhere"),
        "socket": lambda: os.mknod(path, 0o140600),
    }
    make[kind]()
    with pytest.raises(GpushimError) as caught:
        bundle.read(str(path))
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == BUNDLE


def test_refuses_a_huge_file_without_reading_it(config: Path) -> None:
    os.truncate(config, 2 << 30)
    with pytest.raises(GpushimError, match="2147483648 bytes"):
        bundle.read(str(config))


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(config: Path) -> None:
    fd = posix.open(config, posix.O_RDONLY)
    try:
        assert bundle._read_all(fd, 3) == b'{"old":1}'
    finally:
        posix.close(fd)


@pytest.mark.parametrize("failing", ["write", "fsync", "fchmod", "rename", "open"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    config: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    _, status = bundle.read(str(config))

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(posix, failing, fail)
    with pytest.raises(GpushimError, match="No space left on device; the old file is untouched"):
        bundle.replace(str(config), "{}", status)
    monkeypatch.undo()
    assert config.read_bytes() == b'{"old":1}'
    assert os.listdir(config.parent) == ["config.json"]


def test_a_short_write_is_continued(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = posix.write
    monkeypatch.setattr(posix, "write", lambda fd, data: write(fd, bytes(data[:3])))
    bundle.replace(str(config), '{"longer":"than three"}', bundle.read(str(config))[1])
    assert config.read_text() == '{"longer":"than three"}'


def test_no_file_descriptor_stays_open(config: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = sorted(os.listdir("/proc/self/fd"))
    bundle.replace(str(config), "{}", bundle.read(str(config))[1])
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit


def test_what_is_read_is_what_is_replaced(config: Path) -> None:
    folder = bundle.directory(str(config))
    _, status = bundle.read(str(config), folder)
    moved = config.parent.rename(config.parent.with_name("moved"))
    config.parent.mkdir()
    bundle.replace(str(config), '{"new":1}', status, folder)
    os.close(folder)
    assert ((moved / config.name).read_text(), os.listdir(config.parent)) == ('{"new":1}', [])


def test_the_target_of_a_link_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.json"
    target.write_text("{}")
    path = tmp_path / "config.json"
    path.symlink_to(target)
    bundle.replace(str(path), '{"new":1}', bundle.read(str(path))[1])
    assert target.read_text() == "{}"
    assert path.read_text() == '{"new":1}'


def test_what_a_killed_create_has_left_is_not_in_the_way(config: Path) -> None:
    for name in (f"config.json.gpushim-{os.getpid()}", "config.json.gpushim-0123456789abcdef"):
        (config.parent / name).write_text("{")
    bundle.replace(str(config), '{"new":1}', bundle.read(str(config))[1])
    assert config.read_text() == '{"new":1}'


@pytest.mark.parametrize(
    ("spec", "key", "name"),
    [
        ({"Process": {}}, "Process", "process"),
        ({"process": {"ENV": []}}, "ENV", "env"),
        ({"proce\u017f\u017f": {}}, "proce", "process"),  # a long s, which Go's JSON takes for an s
        ({"linux": {"resources": {"Devices": []}}}, "Devices", "devices"),
        ({"hooks": {"preStart": []}}, "preStart", "prestart"),
    ],
)
def test_keys_in_other_letters(spec: dict[str, object], key: str, name: str) -> None:
    with pytest.raises(GpushimError, match=f'the key "{key}.*", which some runtimes take for "{name}"'):
        bundle.check_spelling(spec, "config.json")


def test_keys_of_no_concern() -> None:
    bundle.check_spelling({"process": {"env": [], "TTY": 1}, "Other": {"process": 1}, "linux": None}, "config.json")


def test_what_is_kept_is_the_result_and_what_was_before(config: Path) -> None:
    folder = bundle.directory(str(config))
    assert bundle.saved(str(config), folder) == (b"", b"")
    bundle.replace(str(config), "{}", bundle.read(str(config))[1], folder, b'{"old":1}')
    assert bundle.saved(str(config), folder) == (b"{}", b'{"old":1}')


@pytest.mark.parametrize("data", [b"", b"\n", b"1", b"3\n{}", b"2\n{}", b"x\n{}{}", b"-1\n{}", b"9" * 5000 + b"\n{}"])
def test_what_is_kept_and_damaged_counts_for_nothing(config: Path, data: bytes) -> None:
    saved = config.with_name("config.json.gpushim")
    saved.write_bytes(data)
    saved.chmod(0o600)
    assert bundle.saved(str(config), bundle.directory(str(config))) == (b"", b"")


@pytest.mark.parametrize("how", ["group", "all", "owner", "link"])
def test_what_others_could_have_kept_counts_for_nothing(config: Path, how: str) -> None:
    saved = config.with_name("config.json.gpushim")
    saved.write_bytes(b"2\n{}[]")
    saved.chmod({"group": 0o620, "all": 0o602}.get(how, 0o600))
    if how == "owner":
        os.chown(saved, 1000, 1000)
    elif how == "link":
        saved.rename(config.with_name("second"))
        saved.symlink_to("second")
    assert bundle.saved(str(config), bundle.directory(str(config))) == (b"", b"")


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o755])
def test_what_is_kept_and_others_may_read_counts(config: Path, mode: int) -> None:
    saved = config.with_name("config.json.gpushim")
    saved.write_bytes(b"2\n{}[]")
    saved.chmod(mode)
    os.link(saved, config.with_name("backup"))
    assert bundle.saved(str(config), bundle.directory(str(config))) == (b"{}", b"[]")
