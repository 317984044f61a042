"""The file that has all that a create or a hook imports: used when it is true, else everything is as without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

TOP = Path(__file__).parents[4]
PYTHON = "/usr/bin/python3"

pytestmark = pytest.mark.slow


def compile_tree(tree: Path, lib: str = "shim") -> list[Path]:
    """Compile a tree; return its precompiled files."""
    subprocess.run([PYTHON, "-IB", tree / lib / "gpushim/create/stub.py", "compile"], check=True)
    return sorted(tree.rglob("*.precompiled"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("joined") / "tree"
    for name in ("bin", "hook", "shim"):
        shutil.copytree(TOP / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    assert len(compile_tree(tree)) == 2
    return tree


@pytest.fixture
def tree(tmp_path: Path, made: Path) -> Path:
    """A checkout that has been compiled."""
    return Path(shutil.copytree(made, tmp_path / "tree", symlinks=True))


def create(tree: Path) -> set[str]:
    """Call `state` by way of create.py, which becomes /bin/true; return gpushim's modules that were imported."""
    words = ["/bin/true", "", "state", "", "", "", "text", "0", "", "", "/launcher", "state", "x"]
    return imported([PYTHON, "-IBS", "-X", "importtime", tree / "shim/gpushim/create/stub.py", "create", *words])


def hook(tree: Path) -> set[str]:
    return imported([PYTHON, "-IBS", "-X", "importtime", tree / "bin/gpushim-hook", "poststop"])


def imported(command: list[object]) -> set[str]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    return {name for name in names if name.startswith(("gpushim", "gpuhook", "__future__"))}


def test_one_file_takes_the_place_of_all_imports(tree: Path) -> None:
    assert not create(tree)
    assert not hook(tree)
    for path in tree.rglob("*.precompiled"):
        path.unlink()
    assert {"gpushim.create.create", "gpushim.decision.plan"} < create(tree)
    assert {"gpuhook.prestart", "gpushim.ground.errors"} < hook(tree)


def test_installed_both_packages_are_in_one_directory(tree: Path) -> None:
    lib = tree / "lib/gpushim"
    for package in ("shim/gpushim", "hook/gpuhook"):
        shutil.copytree(tree / package, lib / package.partition("/")[2], ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tree / "shim")
    shutil.rmtree(tree / "hook")
    assert len(compile_tree(tree, "lib/gpushim")) == 2
    assert not hook(tree)


def changed(path: Path) -> None:
    path.write_text(path.read_text() + "\n")


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("harm", [changed, touched, Path.unlink])
def test_a_source_has_changed(tree: Path, harm: Callable[[Path], None]) -> None:
    harm(tree / "shim/gpushim/oci/require.py")
    if harm is Path.unlink:
        shutil.copy(TOP / "shim/gpushim/oci/require.py", tree / "shim/gpushim/oci/require.py")  # with another time
    assert "gpushim.decision.plan" in create(tree)


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"\0\0\r\n" + data[4:],  # another Python's
        lambda data: data[:4] + b"[" + data[5:],
        lambda data: data[:4] + b"noise" * 20,
    ],
    ids=["empty", "half", "another magic number", "another value", "noise"],
)
def test_the_file_itself_is_of_no_use(tree: Path, harm: Callable[[bytes], bytes]) -> None:
    for path in tree.rglob("*.precompiled"):
        path.write_bytes(harm(path.read_bytes()))
    assert "gpushim.decision.plan" in create(tree)
    assert "gpuhook.prestart" in hook(tree)


def test_twice_the_same_bytes(tree: Path) -> None:
    first = [path.read_bytes() for path in sorted(tree.rglob("*.precompiled"))]
    assert [path.read_bytes() for path in compile_tree(tree)] == first


def test_no_file_descriptor_is_left(tree: Path) -> None:
    words = [
        "/bin/sh",
        "",
        "state",
        "",
        "",
        "",
        "text",
        "0",
        "",
        "",
        "/launcher",
        "-c",
        "ls /proc/self/fd | wc -l",
    ]
    command = [PYTHON, "-IBS", str(tree / "shim/gpushim/create/stub.py"), "create", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4"], sys.version  # 0, 1, 2 and that of ls
