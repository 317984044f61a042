"""Programs that others could change: which way leads to them, and the copy that a refusal names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.paths import changeable
from unit import ordinary

REPOSITORY = Path(__file__).parents[4]
USER = ordinary.UID
SOME = ("bin/gpushim-hook", "shim/gpushim/launcher", "shim/gpushim/create", "shim/gpushim/oci", "hook/gpuhook/loader")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which gives files away")


def laid_out(top: Path, names: tuple[str, ...] = SOME) -> Path:
    """A checkout of root's, or some of it."""
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy2
        copy(REPOSITORY / name, top / name)
    (top / "bin/gpushim-runtime").symlink_to("../shim/gpushim/launcher")
    (top / "vendor").symlink_to(REPOSITORY / "vendor")
    return top / "bin/gpushim-runtime"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    laid_out(tmp_path / "home/gpushim")
    return tmp_path / "home/gpushim"


def given(name: str) -> Callable[[Path], Path]:
    def give(top: Path) -> Path:
        path = Path(os.path.normpath(top / name))
        os.chown(path, USER, USER, follow_symlinks=False)
        return path

    return give


def writable(name: str, mode: int) -> Callable[[Path], Path]:
    def give(top: Path) -> Path:
        path = Path(os.path.normpath(top / name))
        path.chmod(mode)
        return path

    return give


@pytest.mark.parametrize(
    "change",
    [
        given(".."),
        given("."),
        given("bin"),
        given("bin/gpushim-runtime"),  # the link
        given("shim/gpushim/launcher"),
        given("shim/gpushim/create/create.py"),
        given("hook/gpuhook"),
        given("vendor"),
        writable("..", 0o1777),
        writable("bin", 0o775),
        writable("shim/gpushim/launcher", 0o757),
        writable("shim/gpushim/oci/edits.py", 0o666),
        writable("hook/gpuhook/loader", 0o770),
    ],
)
def test_each_way(checkout: Path, change: Callable[[Path], Path]) -> None:
    program = str(checkout / "bin/gpushim-runtime")
    assert changeable.by(program) == ""
    assert changeable.by(program) == "" == changeable.by(str(checkout / "bin/gpushim-hook"))
    assert changeable.by(program) != str(change(checkout)) == changeable.by(program)


def test_a_link_in_the_code_counts_by_where_it_leads(checkout: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.py"
    theirs.touch()
    os.chown(theirs, USER, USER)
    (checkout / "shim/gpushim/nowhere.py").symlink_to(tmp_path / "nowhere")
    assert changeable.by(str(checkout / "bin/gpushim-hook")) == ""
    (checkout / "shim/gpushim/more.py").symlink_to(theirs)
    assert changeable.by(str(checkout / "bin/gpushim-hook")) == str(theirs)


@pytest.mark.parametrize("interpreter", ["", "script"])
def test_interpreters_count(
    checkout: Path, tmp_path: Path, interpreter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "python3"
    theirs.touch(0o755)
    os.chown(theirs, USER, USER)
    if interpreter:
        hook = checkout / "bin/gpushim-hook"
        hook.write_text(hook.read_text().replace("#!/usr/bin/python3", f"#!{theirs}", 1))
    else:
        monkeypatch.setattr(changeable, "PYTHON", str(theirs))
    assert changeable.by(str(checkout / "bin/gpushim-hook")) == str(theirs)


@pytest.mark.parametrize("name", ["lib/gpushim/1.0/gpushim", "lib/python3.11/site-packages/yaml"])
def test_code_of_a_package_and_of_pip(tmp_path: Path, name: str) -> None:
    """Of pip's and uv's whatever can be imported."""
    for folder in (name, "bin"):
        (tmp_path / "usr" / folder).mkdir(parents=True)
    program = tmp_path / "usr/bin/gpushim-hook"
    shutil.copy("/bin/true", program)
    assert changeable.by(str(program)) == ""
    os.chown(tmp_path / "usr" / name, USER, USER)
    assert changeable.by(str(program)) == str(tmp_path / "usr" / name)


def test_a_linked_directory_of_code_is_looked_through(checkout: Path, tmp_path: Path) -> None:
    """Once: a link may lead to what it is in."""
    (tmp_path / "shared/team").mkdir(parents=True)
    (checkout / "shim/gpushim/plug").symlink_to(tmp_path / "shared")
    (checkout / "shim/gpushim/again").symlink_to(checkout / "shim")
    program = str(checkout / "bin/gpushim-runtime")
    assert changeable.by(program) == ""
    os.chown(tmp_path / "shared/team", USER, USER)
    assert changeable.by(program) == str(checkout / "shim/gpushim/plug/team")


def test_a_fifo_of_others_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gpushim-runtime", 0o755)
    assert changeable.by(str(tmp_path / "gpushim-runtime")) == ""
    os.chown(tmp_path / "gpushim-runtime", USER, USER)
    assert changeable.by(str(tmp_path / "gpushim-runtime")) == str(tmp_path / "gpushim-runtime")


def test_who_runs_a_checkout_may_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a rootless engine; another user's is refused then, too."""
    with ordinary.folder() as folder:
        program = str(laid_out(folder / "gpushim"))
        for path in [folder / "gpushim", *(folder / "gpushim").rglob("*")]:
            os.chown(path, USER, USER, follow_symlinks=False)
        with ordinary.user():
            assert changeable.by(program) == ""
        for path in (folder / "gpushim").rglob("*"):
            os.chown(path, USER + 1, USER + 1, follow_symlinks=False)
        with ordinary.user(), pytest.raises(GpushimError, match="users other than this user own or can write to"):
            changeable.check(program)


def test_the_copy_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is one already; whoever has the checkout has nothing in it."""
    checkout = tmp_path / "home/gpushim"
    laid_out(checkout, ("bin/gpushim", "bin/gpushim-hook", "shim", "hook"))
    monkeypatch.setattr(changeable, "HERE", f"{checkout}/shim/gpushim/paths/changeable.py")
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    (checkout / "shim/gpushim/launcher").chmod(0o775)
    copy = tmp_path / "opt/gpushim"
    monkeypatch.setattr(changeable, "COPIES", (str(copy),))
    for _ in range(2):
        with pytest.raises(GpushimError) as refusal:
            changeable.check(str(checkout / "bin/gpushim-runtime"))
        sentence = str(refusal.value)
        command = sentence.partition("`")[2].partition("`")[0]
        subprocess.run(["/bin/sh", "-ec", command], check=True)
        assert changeable.by(str(copy / "bin/gpushim-runtime")) == "" == changeable.by(str(copy / "bin/gpushim-hook"))
    assert sentence.endswith(f"and use {copy}/bin/gpushim")
    subprocess.run([sys.executable, "-IB", str(copy / "bin/gpushim"), "--version"], check=True)


def test_no_copy_goes_where_others_are(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", USER, USER)
    os.chown(checkout, USER, USER)
    monkeypatch.setattr(changeable, "COPIES", (f"{tmp_path}/theirs/gpushim", str(checkout), f"{tmp_path}/opt"))
    assert "install gpushim's package" in changeable.fix(str(checkout / "bin/gpushim-runtime"))
    monkeypatch.setattr(changeable, "HERE", f"{checkout}/shim/gpushim/paths/changeable.py")
    assert f"install -d {tmp_path}/opt && " in changeable.fix(str(checkout / "bin/gpushim-runtime"))
    monkeypatch.setattr(changeable, "COPIES", (f"{tmp_path}/theirs/gpushim",))
    assert changeable.fix(str(checkout / "bin/gpushim-runtime")).startswith("install gpushim's package")
