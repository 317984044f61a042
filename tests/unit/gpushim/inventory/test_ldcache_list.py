"""Listing an ld.so.cache, against ldconfig itself."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

import fakehost
from gpushim.inventory import loader
from unit.gpushim.inventory.golden import loader_cache


def printed(cache: Path) -> list[tuple[str, str]]:
    text = subprocess.run(["/sbin/ldconfig", "-p", "-C", cache], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^\t(\S+) \(libc6,x86-64[^)]*\) => (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize("layout", ["new", "compat"])
def test_agrees_with_ldconfig(tmp_path: Path, layout: str) -> None:
    cache = tmp_path / "cache"
    subprocess.run(["/sbin/ldconfig", "-X", "-c", layout, "-C", cache], check=True, stderr=subprocess.DEVNULL)
    assert loader.libraries(cache.read_bytes(), "x86_64") == printed(cache)
    assert printed(cache)


def test_old_layout_alone_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    subprocess.run(["/sbin/ldconfig", "-X", "-c", "old", "-C", cache], check=True, stderr=subprocess.DEVNULL)
    with pytest.raises(ValueError, match="no new-layout header"):
        loader.libraries(cache.read_bytes())


def test_other_machines_libraries_are_not_listed(tmp_path: Path) -> None:
    fakehost.build(str(tmp_path), 1)
    assert loader.libraries((tmp_path / "etc/ld.so.cache").read_bytes(), "aarch64") == []


def test_32_bit_libraries_agree_with_ldconfig(tmp_path: Path) -> None:
    fakehost.build(str(tmp_path), 1)
    cache = tmp_path / "etc/ld.so.cache"
    text = subprocess.run(["/sbin/ldconfig", "-p", "-C", cache], capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^\t(\S+) \((?:libc6|ELF)\) => (\S+)$", text, re.MULTILINE)
    assert ("libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1") in listed
    assert loader.libraries(cache.read_bytes(), "i386") == listed


@pytest.mark.parametrize(
    ("flags", "listed"),
    [(0x0303, ["x86_64"]), (0x0301, ["x86_64"]), (0x0302, []), (0x0003, ["i386"]), (0x0001, ["i386"]), (0x0803, [])],
)
def test_types_and_abis(flags: int, listed: list[str]) -> None:
    data = loader_cache([(flags, "libcuda.so.1", "/lib/libcuda.so.1")])
    machines = ("x86_64", "aarch64", "i386")
    assert [machine for machine in machines if loader.libraries(data, machine)] == listed


def test_every_truncation_is_refused_or_lists_what_is_whole(tmp_path: Path) -> None:
    fakehost.build(str(tmp_path), 1)
    data = (tmp_path / "etc/ld.so.cache").read_bytes()
    whole = loader.libraries(data)
    for size in range(len(data)):
        for beginnings in ((b"",), (b"libcuda", b"libnvi")):
            wanted = [entry for entry in whole if entry[0].encode().startswith(beginnings)]
            try:  # if it is not refused, only what follows the last of their strings is missing
                assert loader.libraries(data[:size], beginnings=beginnings) == wanted
            except ValueError:
                pass


@pytest.mark.parametrize("count", [1, 1 << 31, (1 << 32) - 1])
def test_absurd_counts(count: int) -> None:
    header = loader.NEW_MAGIC + struct.pack("=I", count) + bytes(24)
    with pytest.raises(ValueError, match="entries"):
        loader.libraries(header)
    with pytest.raises(ValueError, match="header"):
        loader.libraries(loader.OLD_MAGIC + b"\0" + struct.pack("=I", count))
