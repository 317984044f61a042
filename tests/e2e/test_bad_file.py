"""Bad config.json files: no JSON, very large ones, odd kinds of files.

Out of scope: what stands in it (test_bad_spec.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.bad_input import ALL, BIN, CONFIG, Scene, flagged, listing, mounted, ready, refused
from fakehost import Host
from unit.gpuhook.sandbox import exchange, running

WORD = b"NVIDIA_VISIBLE_DEVICES"
SMALL = {"process": {"env": [ALL]}, "root": {"path": "/r"}, "x": [-0.0, "\u00e9"]}


@pytest.fixture(scope="module")
def shared(gpu_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return ready(tmp_path_factory.mktemp("shared"), gpu_host)


@pytest.fixture
def scene(shared: Scene) -> Scene:
    return shared.renew()


# Group 1. Where the shim's words do not occur, or nothing can be read, runc is to say what is wrong.
NO_JSON = {
    "empty": (b"", 0),
    "no word": (b"{", 0),
    "not UTF-8": (b'{"a":"\xff' + WORD + b'"}', 14),
    "UTF-16": (f'{{"{ALL}":1}}'.encode("utf-16"), 0),
    "trailing garbage": (b'{"a":"' + WORD + b'"}x', 14),
    "list": (b'["' + WORD + b'"]', 14),
    "escape in a name": (b'{"\\ud800\\u0000":"' + WORD + b'"', 14),
}


@pytest.mark.parametrize(("text", "code"), NO_JSON.values(), ids=NO_JSON)
def test_what_is_no_config(scene: Scene, text: bytes, code: int) -> None:
    scene.config.write_bytes(text)
    scene.answers(code)


@pytest.mark.parametrize("case", ["empty", "not UTF-8", "list", "trailing garbage"])
def test_the_command_line_says_the_same(scene: Scene, case: str) -> None:
    scene.config.write_bytes(NO_JSON[case][0])
    done = scene.call(BIN / "gpushim", "explain", scene.bundle, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    refused(done)
    assert done.code == 14
    assert listing(scene.bundle) == ["config.json"]


def test_missing(scene: Scene) -> None:
    scene.config.unlink()
    scene.answers(0)


def test_cut_around_the_word_and_between(scene: Scene) -> None:
    text = json.dumps(SMALL).encode()
    word = text.index(WORD)
    for end in (*range(0, len(text), 9), word, word + len(WORD) - 1, word + len(WORD), len(text) - 1):
        scene.config.write_bytes(text[:end])
        scene.answers(14 if WORD in text[:end] else 0)


def test_a_real_one_cut_anywhere(scene: Scene) -> None:
    text = scene.config.read_bytes()
    for end in range(0, len(text), 1411):
        scene.config.write_bytes(text[:end])
        scene.answers(14 if WORD in text[:end] else 0)


# Group 2.
def huge(**members: Any) -> Callable[[Scene], None]:
    """Write a config.json with large members."""
    return lambda scene: scene.ask(ALL, **members)


def sparse(text: bytes) -> Callable[[Scene], None]:
    """Write a file of 2 GB with some text at its beginning."""

    def write(scene: Scene) -> None:
        scene.config.write_bytes(text)
        os.truncate(scene.config, 2 << 30)

    return write


def nested(before: bytes, after: bytes) -> Callable[[Scene], object]:
    """Write a value within 100 000 others."""
    return lambda scene: scene.config.write_bytes(b'{"%b":%b1%b}' % (WORD, before * 100_000, after * 100_000))


MOUNT = {"source": "/tmp", "type": "bind", "options": ["bind"]}
LARGE: dict[str, tuple[Callable[[Scene], object], int]] = {
    "50 MB": (huge(annotations={"x": "y" * (50 << 20)}), 0),
    "2 GB of nothing": (sparse(b""), 0),
    "2 GB": (sparse(WORD), 14),
    "a million variables": (lambda scene: scene.ask(ALL, *[f"V{number}=x" for number in range(10**6)]), 0),
    "100 000 mounts": (huge(mounts=[{"destination": f"/m{number}", **MOUNT} for number in range(10**5)]), 0),
    "a variable of 128 KiB": (lambda scene: scene.ask(ALL, "X=" + "y" * (1 << 17)), 0),
    "a variable of 2 MiB": (lambda scene: scene.ask(ALL, "X=" + "y" * (2 << 20)), 0),
    "deep lists": (nested(b"[", b"]"), 14),
    "deep objects": (nested(b'{"a":', b"}"), 14),
    "a number of a million digits": (lambda scene: scene.config.write_bytes(b'{"%b":%b}' % (WORD, b"9" * 10**6)), 14),
}  # fmt: skip


@pytest.mark.parametrize(("write", "code"), LARGE.values(), ids=LARGE)
def test_large(scene: Scene, write: Callable[[Scene], object], code: int) -> None:
    write(scene)
    scene.answers(code)
    scene.config.unlink()


# Group 3.
KINDS: dict[str, Callable[[Path], object]] = {
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "directory": Path.mkdir,
    "FIFO": os.mkfifo,
    "device": lambda path: os.mknod(path, 0o020666, os.makedev(1, 5)),
    "socket": lambda path: os.mknod(path, 0o140600),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_file(scene: Scene, name: str) -> None:
    scene.config.unlink()
    KINDS[name](scene.config)
    scene.answers(0 if name == "dangling link" else 14)  # runc says itself what is not there


@pytest.mark.parametrize("name", [Path.symlink_to, os.link], ids=["link", "hard link"])
def test_a_file_of_the_hosts_is_not_written(scene: Scene, name: Callable[[Path, Path], None]) -> None:
    elsewhere = scene.work / "elsewhere.json"
    scene.config.rename(elsewhere)
    text = elsewhere.read_bytes()
    name(*((scene.config, elsewhere) if name is Path.symlink_to else (elsewhere, scene.config)))
    scene.answers(0)
    assert scene.nodes
    assert elsewhere.read_bytes() == text
    elsewhere.unlink()


@pytest.mark.parametrize(("mode", "owner"), [(0o000, 0), (0o600, 4711), (0o4755, 12)])
def test_mode_and_owner_stay(scene: Scene, mode: int, owner: int) -> None:
    os.chown(scene.config, owner, owner)
    scene.config.chmod(mode)
    scene.answers(0)
    facts = scene.config.stat()
    assert (facts.st_mode & 0o7777, facts.st_uid, facts.st_gid) == (mode, owner, owner)
    assert scene.nodes


def test_not_readable_by_this_user(shared: Scene, tmp_path: Path) -> None:
    """What cannot be looked into may ask for a GPU."""
    with tempfile.TemporaryDirectory() as name:
        bundle = Path(name)
        bundle.chmod(0o755)
        shutil.copy(CONFIG, bundle / "config.json")
        (bundle / "config.json").chmod(0)
        env = {"GPUSHIM_STATE": name, "GPUSHIM_CONFIG": "/nowhere/config.toml", "RECORD": "/dev/null"}
        done = shared.call(BIN / "gpushim-runtime", "create", "-b", name, "x", env=env, user=4711, group=4711)
        assert (done.code, "cannot be read: no permission" in done.stderr) == (14, True)


def test_mounted_noexec_and_nosuid(scene: Scene) -> None:
    text = scene.config.read_bytes()
    with mounted("tmpfs", scene.bundle, "noexec,nosuid"):
        scene.config.write_bytes(text)
        scene.answers(0)
        assert scene.nodes


def test_a_full_bundle(scene: Scene) -> None:
    with mounted("tmpfs", scene.bundle, "size=4k"):
        scene.config.write_text(json.dumps(SMALL))
        assert "No space left on device; the old file is untouched" in scene.answers(14).stderr


def test_a_read_only_bundle(scene: Scene) -> None:
    text = scene.config.read_bytes()
    with mounted("tmpfs", scene.bundle, "mode=755"):
        scene.config.write_bytes(text)
        subprocess.run(["/usr/bin/mount", "-o", "remount,ro", str(scene.bundle)], check=True)
        assert "Read-only file system" in scene.answers(14).stderr
        assert scene.config.read_bytes() == text


@pytest.mark.parametrize(("flag", "what"), [("i", "config.json"), ("a", "config.json"), ("i", ".")])
def test_immutable(scene: Scene, flag: str, what: str) -> None:
    with flagged(flag, scene.bundle / what):
        done = scene.answers(14)
    assert "cannot be replaced: not permitted" in done.stderr


def test_a_mount_point(scene: Scene) -> None:
    with mounted("none", scene.config, "bind", str(shutil.copy(scene.config, scene.work / "other.json"))):
        done = scene.answers(14)
    assert "it is a mount point" in done.stderr


# Group 11.
def test_a_bundle_that_is_replaced_meanwhile(scene: Scene) -> None:
    other = scene.work / "other"
    shutil.copytree(scene.bundle, other)
    words = scene.words()
    with running(lambda: exchange(scene.bundle, other)):
        codes = {scene.call(BIN / "gpushim-runtime", *words).code for _ in range(40)}
    assert codes <= {0, 14}
    for bundle in (scene.bundle, other):
        assert json.loads((bundle / "config.json").read_bytes())["process"]
        assert listing(bundle) == ["config.json"]
    shutil.rmtree(other)
