"""The walk, held against openat2(RESOLVE_IN_ROOT) and against a real chroot."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from gpushim.ground import bounds
from gpushim.paths.mountinfo import read_proc
from gpushim.paths.walk import walk
from unit.gpuhook.sandbox import exchange, forked, open_fds, openat2_in_root, running, until

NAMES = ("a", "b", "c", "d")
WORDS = (*NAMES, *NAMES, *NAMES, "..", "..", ".", "", "nothing")
PLACE = os.O_PATH | os.O_CLOEXEC


def random_path(rng: random.Random, longest: int) -> str:
    text = "/".join(rng.choice(WORDS) for _ in range(rng.randint(1, longest)))
    return rng.choice(("", "", "/", "//", "/../")) + text + rng.choice(("", "", "", "/", "/."))


def random_tree(rng: random.Random, top: Path) -> None:
    """Make up to 40 directories, files and links below `top`, some links pointing far above it."""
    directories = [top]
    for _ in range(rng.randint(5, 40)):
        path = rng.choice(directories) / rng.choice(NAMES)
        if os.path.lexists(path):
            continue
        kind = rng.choice(("directory", "directory", "file", "link", "link", "link", "fifo"))
        if kind == "directory":
            path.mkdir()
            directories.append(path)
        elif kind == "file":
            path.touch()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to(random_path(rng, 5) or ".")


def identify(fd: int) -> object:
    facts = os.fstat(fd)
    os.close(fd)
    return (facts.st_dev, facts.st_ino)


def ours(root: int, path: str, follow: bool) -> object:
    try:
        return identify(walk(root, path, follow))
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def kernels(root: int, path: str, follow: bool) -> object:
    try:
        return identify(openat2_in_root(root, path, PLACE | (0 if follow else os.O_NOFOLLOW)))
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def chroots(top: Path, questions: list[tuple[str, bool]]) -> list[object]:
    """Answers of the kernel's ordinary lookup after chroot(2); a relative path starts at the new root."""

    def ask() -> list[object]:
        os.chroot(top)
        os.chdir("/")
        answers: list[object] = []
        for path, follow in questions:
            try:
                answers.append(identify(os.open(path, PLACE | (0 if follow else os.O_NOFOLLOW))))
            except OSError as error:
                answers.append(errno.errorcode[error.errno or 0])
        return answers

    return forked(ask)


@pytest.mark.parametrize("seed", range(40))
def test_random_trees(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    before = open_fds()
    for number in range(5):
        top = tmp_path / str(number)
        top.mkdir()
        random_tree(rng, top)
        root = os.open(top, PLACE)
        questions = [(random_path(rng, 7), rng.random() < 0.7) for _ in range(60)]
        mine = [ours(root, *question) for question in questions]
        assert list(zip(questions, mine)) == list(zip(questions, chroots(top, questions)))
        assert list(zip(questions, mine)) == [(q, kernels(root, *q)) for q in questions]
        os.close(root)
    assert open_fds() == before


def chain(top: Path, length: int) -> None:
    (top / "l0").mkdir()
    for number in range(1, length + 1):
        (top / f"l{number}").symlink_to(f"l{number - 1}")


EDGES = (
    *((f"l{number}", follow) for number in (39, 40, 41, 42) for follow in (True, False)),
    ("l40/", False),
    ("l41/", False),
    ("n" * 255, True),
    ("n" * 256, True),
    ("./" * 2047 + ".", True),
    ("./" * 2047 + "./", True),
    ("", True),
    ("/", False),
    ("..", True),
    ("loop", True),
    ("loop", False),
    ("loop/", False),
    ("file/", True),
    ("file/..", True),
    ("file/.", False),
    ("to-file/", False),
    ("up/l0", True),
    ("dangling", True),
    ("dangling", False),
    ("to-dangling/..", True),
)


@pytest.mark.parametrize(("path", "follow"), EDGES)
def test_edges(tmp_path: Path, path: str, follow: bool) -> None:
    chain(tmp_path, 42)
    (tmp_path / "file").touch()
    links = {"loop": "loop", "to-file": "file", "up": "../../../..", "dangling": "/gone", "to-dangling": "dangling"}
    for name, text in links.items():
        (tmp_path / name).symlink_to(text)
    root = os.open(tmp_path, PLACE)
    # The kernel's count of links goes on when it starts over for one that it has not cached yet.
    chroots(tmp_path, [(path, follow)])
    answers = {str(answer(root, path, follow)) for answer in (ours, kernels)}
    answers.add(str(chroots(tmp_path, [(path, follow)])[0]))
    os.close(root)
    assert len(answers) == 1, answers


def test_so_many_words_and_none_more(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d/../" * 800)
    root = os.open(tmp_path, PLACE)
    most = "link/" + "d/../" * ((bounds.WORDS - 1602) // 2) + "d"
    assert ours(root, most, True) == ours(root, "d", True)
    assert ours(root, most + "/..", True) == "ELOOP"
    os.close(root)


def test_magic_link_is_text(tmp_path: Path) -> None:
    proc = os.open("/proc", PLACE)
    with pytest.raises(FileNotFoundError):
        walk(proc, "self/exe")  # below /proc as root there is no /usr
    os.close(proc)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["/", "../../..", "../../../../..", "/proc/self/root", "CANARY"])
def test_another_process_swaps_directory_and_link(tmp_path: Path, text: str) -> None:
    canary, top = tmp_path / "canary", tmp_path / "root"
    (top / "x" / "deep" / "er").mkdir(parents=True)
    canary.mkdir()
    (canary / "secret").touch()
    inside = {(path.stat().st_dev, path.stat().st_ino) for path in [top, *top.rglob("*")]}
    (top / "x" / "link").symlink_to(text.replace("CANARY", str(canary)))
    root = os.open(top, PLACE)
    paths = (
        "x/deep/er/../../..",
        "x/deep/../../canary/secret",
        "x/link/er",
        "x/deep/er/../../../../canary",
        "x/deep",
    )
    found = set()
    with running(lambda: exchange(top / "x" / "deep", top / "x" / "link")):
        for number in until(0.4):
            found.add(ours(root, paths[number % len(paths)], True))
    os.close(root)
    assert {answer for answer in found if isinstance(answer, tuple)} <= inside
    assert len(found) > 1


@pytest.mark.slow
def test_another_process_moves_the_directory_we_are_in(tmp_path: Path) -> None:
    """A directory that wanders up while `..` follows: a kernel that trusts it would leave the root."""
    top = tmp_path / "root"
    (top / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "canary").mkdir()
    here, there = top / "a" / "b", top / "wandered"
    root = os.open(top, PLACE)
    inside = {os.stat(path).st_ino for path in [top, *top.rglob("*")]}

    def wander() -> None:
        os.rename(here, there)
        os.rename(there, here)

    with running(wander):
        found = {
            ours(root, path, True) for _ in until(0.8) for path in ("a/b/c/../../..", "a/b/c/../../../../canary")
        }
    os.close(root)
    assert {answer[1] for answer in found if isinstance(answer, tuple)} <= inside


def test_a_file_of_proc_is_read_whole_or_not_at_all() -> None:
    size = len(read_proc("/proc/self/mountinfo", 1 << 30))
    assert len(read_proc("/proc/self/mountinfo", size)) == size
    with pytest.raises(OSError, match="File too large"):
        read_proc("/proc/self/mountinfo", size - 1)
