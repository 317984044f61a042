"""32-bit libraries beside 64-bit ones of the same name, held against what the machine's ldconfig makes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from unit.gpuhook.caches import ldconfig, listing
from unit.gpuhook.sandbox import as_root, picture
from unit.gpuhook.trees import LIBS, LINK, glibc, run

DRV, DRV32 = "/usr/lib/drv", "/usr/lib/drv32"
MORE = (
    *("--lib", f"libnvidia-eglcore.so.550={DRV}/libnvidia-eglcore.so.550"),
    *("--lib32", f"libcuda.so.1={DRV32}/libcuda.so.550"),
    *("--lib32", f"libnvidia-eglcore.so.550={DRV32}/libnvidia-eglcore.so.550"),
    *("--link", f"libcuda.so.1::{DRV32}/libcuda.so"),
)


def build(path: Path, soname: str, *more: str) -> None:
    """Make a library that needs libc.so.6, by which ldconfig knows what it is for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["/usr/bin/gcc", *more, "-shared", "-nostdlib", "-x", "c", "/dev/null", "-x", "none"]
    stub = path.parent / "stub.so"
    subprocess.run([*words, "-Wl,-soname,libc.so.6", "-o", str(stub)], check=True)
    link = ["-Wl,--no-as-needed", str(stub), f"-Wl,-soname,{soname}", "-o", str(path)]
    subprocess.run([*words, *link], check=True)
    stub.unlink()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A multilib image with an older driver of its own, and a driver as it is mounted."""
    top = tmp_path_factory.mktemp("built")
    for bits, folder, more in ((64, DRV, ()), (32, DRV32, ("-m32",))):
        for name, soname in (
            ("libcuda.so.550", "libcuda.so.1"),
            ("libnvidia-eglcore.so.550", "libnvidia-eglcore.so.550"),
        ):
            build(top / folder[1:] / name, soname, *more)
        build(top / f"opt/lib{bits}/libcuda.so.470", "libcuda.so.1", *more)
        build(top / f"opt/lib{bits}/libz.so.1", "libz.so.1", *more)
    build(top / DRV[1:] / "libnvidia-ml.so.550", "libnvidia-ml.so.1")
    (top / "etc/ld.so.conf.d").mkdir(parents=True)
    (top / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n/opt/lib32\n/opt/lib64\n")
    glibc(top)
    return top


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    subprocess.run(["/bin/cp", "--archive", str(built), str(tmp_path / "root")], check=True)
    return tmp_path / "root"


def finish(root: Path, pid: int, *more: str) -> None:
    log = root.parent / "log"
    as_root(pid, root)
    done = run("prestart", "--rootfs", root, "--log", log, *LIBS, *LINK, *more, state=b'{"pid": %d}' % pid)
    assert (done.returncode, done.stderr, log.exists()) == (0, b"", False)


def kinds(lines: list[str], name: str) -> list[str]:
    return [line.split(" ", 1)[1] for line in lines if line.startswith(f"{name} ")]


@pytest.mark.parametrize("form", ["new", "compat", "old"])
def test_the_cache_is_the_one_that_ldconfig_would_write(root: Path, pid: int, form: str) -> None:
    for elder in root.glob("opt/lib*/libcuda*"):
        elder.unlink()  # ours take their place in the cache, ldconfig's only come first
    ldconfig(root, form)
    finish(root, pid, *MORE)
    ours = listing((root / "etc/ld.so.cache").read_bytes())
    ldconfig(root, form)  # with our configuration and our links, but by its own eyes
    assert ours == listing((root / "etc/ld.so.cache").read_bytes())
    assert kinds(ours, "libcuda.so.1") == [
        f"(libc6{mark}) => {folder}/libcuda.so.1" for mark, folder in ((",x86-64", DRV), ("", DRV32))
    ]
    assert kinds(ours, "libcuda.so")[-1] == f"(libc6) => {DRV32}/libcuda.so"
    assert len(kinds(ours, "libz.so.1")) == 2


def test_a_second_run_changes_nothing(root: Path, pid: int) -> None:
    finish(root, pid, *MORE)
    before = picture(root)
    finish(root, pid, *MORE)
    assert picture(root) == before


def test_links_and_configuration(root: Path, pid: int) -> None:
    finish(root, pid, *MORE, "--lib32", "libx.so.1=/usr/lib/i386-linux-gnu/libx.so.1")
    for folder in (DRV, DRV32):
        assert (root / folder[1:] / "libcuda.so.1").readlink() == Path("libcuda.so.550")
        assert (root / folder[1:] / "libcuda.so").readlink() == Path("libcuda.so.1")
    assert (root / "etc/ld.so.conf.d/00-gpushim.conf").read_text() == f"{DRV}\n{DRV32}\n"
    assert (root / "etc/ld.so.conf.d/zz-gpushim.conf").read_text() == "/usr/lib/i386-linux-gnu\n"


def test_a_link_where_libraries_of_both_kinds_are_is_of_64_bits(root: Path, pid: int) -> None:
    finish(root, pid, *MORE, "--lib32", f"libcuda.so.2={DRV}/libcuda32.so.550", "--link", f"x.so::{DRV}/libboth.so")
    found = kinds(listing((root / "etc/ld.so.cache").read_bytes()), "libboth.so")
    assert found == [f"(libc6,x86-64) => {DRV}/libboth.so"]


def test_an_image_for_32_bits_alone(root: Path, pid: int) -> None:
    for loader in root.glob("lib64/ld-*"):
        loader.unlink()
    (root / "lib").mkdir(exist_ok=True)
    (root / "lib/ld-linux.so.2").touch()
    finish(root, pid, *MORE)
    found = kinds(listing((root / "etc/ld.so.cache").read_bytes()), "libcuda.so.1")
    assert f"(libc6) => {DRV32}/libcuda.so.1" in found


def test_musl_knows_no_32_bit_libraries(root: Path, pid: int) -> None:
    (root / "etc/alpine-release").touch()
    finish(root, pid, *MORE)
    assert "drv32" not in next(root.glob("etc/ld-musl-*.path")).read_text()


def test_without_32_bit_libraries_the_images_own_stay(root: Path, pid: int) -> None:
    ldconfig(root)
    before = kinds(listing((root / "etc/ld.so.cache").read_bytes()), "libcuda.so.1")
    finish(root, pid)
    found = kinds(listing((root / "etc/ld.so.cache").read_bytes()), "libcuda.so.1")
    assert before[1] == found[1] == "(libc6) => /opt/lib32/libcuda.so.1"


def test_a_link_elsewhere_to_a_32_bit_library_is_of_32_bits(root: Path, pid: int) -> None:
    """As Debian's alternatives are, in a directory where no file of the driver's lies."""
    finish(root, pid, *MORE, "--link", f"{DRV32}/libcuda.so.550::/usr/lib/usual/libnarrow.so.1")
    (line,) = [one for one in listing((root / "etc/ld.so.cache").read_bytes()) if one.split()[0] == "libnarrow.so.1"]
    assert "x86-64" not in line
