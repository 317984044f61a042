"""When the image's newer libcuda comes first, and which of its libraries do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhook.loader import compat
from gpushim.paths.rootfs import Rootfs
from unit.gpuhook.notes import libcuda, library

FOLDER = "/usr/local/cuda/compat"
HOST = ("550.54.15", "12.4")
NEWER = "libcuda.so.590.44.01"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The directory of an image as NVIDIA's packages lay it out, still without a libcuda."""
    (tmp_path / "usr/local/cuda-13.1/compat").mkdir(parents=True)
    (tmp_path / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-13.1")
    (tmp_path / "usr/local/cuda-13.1/compat/libcuda.so.1").symlink_to(NEWER)
    return tmp_path / "usr/local/cuda-13.1/compat"


def choose(folder: Path, driver: str = HOST[0], cuda: str = HOST[1]) -> tuple[dict[str, str], list[str]]:
    said: list[str] = []
    root = Rootfs("", str(folder.parents[3]))
    found = compat.choose(root, driver, cuda, lambda what, error: said.append(f"{what}: {error}"), FOLDER)
    os.close(root.fd)
    return dict(found), said


def chosen(folder: Path, driver: str = HOST[0], cuda: str = HOST[1]) -> bool:
    found, said = choose(folder, driver, cuda)
    assert not said
    assert found.get("libcuda.so.1", FOLDER + "/libcuda.so.1") == FOLDER + "/libcuda.so.1"
    return bool(found)


@pytest.mark.parametrize(
    ("driver", "used"),
    [
        ("550.54.15", True),
        ("535.183.01", True),
        ("590.44.00", True),
        ("560.35.03", False),  # not among the branches
        ("590.44.01", False),  # the same
        ("590.48.01", False),  # the host's is the newer one
        ("600.1", False),
        ("470.1", False),
    ],
)
def test_a_note_that_lists_branches(folder: Path, driver: str, used: bool) -> None:
    (folder / NEWER).write_bytes(libcuda())
    assert chosen(folder, driver) == used
    assert chosen(folder, driver, "13.1") == used


@pytest.mark.parametrize(
    ("cuda", "used"), [("12.4", True), ("13.0", True), ("13.1", False), ("13.2", False), ("9.2", True), ("", False)]
)
@pytest.mark.parametrize("branches", [None, []])
def test_a_note_that_lists_none(folder: Path, branches: object, cuda: str, used: bool) -> None:
    (folder / NEWER).write_bytes(libcuda(Driver=branches))
    assert chosen(folder, cuda=cuda) == used


def test_a_host_whose_driver_version_is_unknown_compares_cuda(folder: Path) -> None:
    (folder / NEWER).write_bytes(libcuda())
    assert chosen(folder, "", "12.4")
    assert not chosen(folder, "", "13.1")
    assert not chosen(folder, "", "")


@pytest.mark.parametrize(
    ("driver", "used"), [("550.54.15", True), ("589.99", True), ("590.1", False), ("600.1", False), ("", False)]
)
def test_without_a_note_the_branch_decides(folder: Path, driver: str, used: bool) -> None:
    (folder / NEWER).write_bytes(library())
    assert chosen(folder, driver) == used


def test_numbers_compare_as_numbers(folder: Path) -> None:
    (folder / "libcuda.so.1000.2").write_bytes(library())
    assert chosen(folder, "990.1")


def test_the_libraries_are_those_that_ldconfig_would_name(folder: Path) -> None:
    (folder / NEWER).write_bytes(libcuda())
    whole = ["libcudadebugger.so.590.44.01", "libnvidia-nvvm.so.590.44.01", "libnvidia-gpucomp.so.590.44.01"]
    for name in whole:
        (folder / name).touch()
    links = ["libcuda.so", "libcudadebugger.so.1", "libnvidia-nvvm.so.4"]
    for name in links:
        (folder / name).symlink_to("x")
    for name in ("README", "lib", "libfoo.a", "libfoo.so.x", "foo.so.1", "libfoo.so.1.", "libfoo.so.\u0661"):
        (folder / name).touch()
    names = ["libcuda.so.1", "libnvidia-gpucomp.so.590.44.01", *links]
    assert choose(folder)[0] == {name: f"{FOLDER}/{name}" for name in names}


def test_a_libcuda_without_its_link(folder: Path) -> None:
    (folder / "libcuda.so.1").unlink()
    (folder / NEWER).write_bytes(libcuda())
    assert choose(folder)[0]["libcuda.so.1"] == f"{FOLDER}/{NEWER}"


def nothing(folder: Path) -> None:
    pass


def no_folder(folder: Path) -> None:
    (folder / "libcuda.so.1").unlink()
    folder.rmdir()


def a_file(folder: Path) -> None:
    no_folder(folder)
    folder.touch()


def only_links(folder: Path) -> None:
    (folder / "x").write_bytes(libcuda())
    (folder / NEWER).symlink_to("x")


def only_directories(folder: Path) -> None:
    (folder / NEWER).mkdir()


def only_fifos(folder: Path) -> None:
    os.mkfifo(folder / NEWER)


def short_version(folder: Path) -> None:
    (folder / "libcuda.so.590").write_bytes(libcuda())


@pytest.mark.parametrize(
    "make", [nothing, no_folder, a_file, only_links, only_directories, only_fifos, short_version]
)
def test_images_without_one_are_nothing_to_mention(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder)
    assert choose(folder) == ({}, [])


BROKEN = {
    "empty": (b"", "not an ELF file"),
    "text": (b"x" * 100, "not an ELF file"),
    "no JSON": (library("{"), "is not valid JSON"),
    "no object": (library("[]"), "not a JSON object"),
    "deep JSON": (library("[" * 60_000), "nested too deeply" if sys.version_info < (3, 14) else "is not valid JSON"),
    "not UTF-8": (library('{"Format": 1}').replace(b"Format", b"Form\xff\xff"), "is not UTF-8"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_judged_is_said_and_not_used(folder: Path, kind: str) -> None:
    data, text = BROKEN[kind]
    (folder / NEWER).write_bytes(data)
    found, said = choose(folder)
    assert (found, len(said)) == ({}, 1)
    assert said[0].startswith(f"{FOLDER}/{NEWER}: ")
    assert text in said[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"Driver": "550"},
        {"Driver": {"550": 1}},
        {"Driver": ["550", None, 5.505e2, [550]], "CUDA Version": 99},
        {"Driver": [10**400]},
        {"CUDA Version": None, "Driver": None},
        {"CUDA Version": "13.x", "Driver": []},
        {"CUDA Version": "1" * 5000, "Driver": []},
    ],
)
def test_odd_facts_are_no_reason_to_use_it(folder: Path, changes: dict[str, object]) -> None:
    (folder / NEWER).write_bytes(libcuda(**changes))
    assert choose(folder, cuda="13.1")[0] == {}


def test_two_of_them(folder: Path) -> None:
    for name in (NEWER, "libcuda.so.580.1"):
        (folder / name).write_bytes(libcuda())
    assert choose(folder) == ({}, [f"{FOLDER}: 2 files there are called libcuda.so.*.*, instead of one"])


@pytest.mark.parametrize(("count", "text"), [(80, "more than 64 libraries"), (1100, "File too large")])
def test_crowds(folder: Path, count: int, text: str) -> None:
    (folder / NEWER).write_bytes(libcuda())
    for number in range(count):
        (folder / f"liba{number}.so.1").touch()
    found, (said,) = choose(folder)
    assert not found
    assert text in said


@pytest.mark.parametrize("target", ["/", "../../../../../..", "/proc/self/root", "compat", "/etc/alternatives"])
def test_a_folder_that_leads_elsewhere_stays_inside(folder: Path, target: str) -> None:
    (folder / "libcuda.so.1").unlink()
    folder.rmdir()
    folder.symlink_to(target)
    (folder.parents[3].parent / NEWER).write_bytes(libcuda())
    assert choose(folder)[0] == {}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("535.183.01", (535, 183, 1)),
        ("12", (12,)),
        ("", ()),
        ("1.", ()),
        (".1", ()),
        ("1..2", ()),
        ("v1.2", ()),
        ("-1", ()),
        ("1_0", ()),
        (" 1", ()),
        ("\u0661.1", ()),
        ("1." * 40 + "1", ()),
    ],
)
def test_versions(text: str, numbers: tuple[int, ...]) -> None:
    assert compat.version(text) == numbers
