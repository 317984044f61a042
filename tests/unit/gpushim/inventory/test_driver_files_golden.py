"""What is found in whole driver roots: those of golden.py in pyfakefs, and real trees with real libraries."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

import fakehost
from gpushim.inventory import driver_files, loader
from unit.gpushim.inventory import golden
from unit.gpushim.inventory.machine import Machine

BUDGET = 0.06  # seconds


def expected(name: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((golden.DATA / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def data() -> dict[str, str]:
    """The descriptions, read while the real files are there."""
    return {name: (golden.DATA / f"{name}.root").read_text(encoding="utf-8") for name in golden.NAMES}


@pytest.mark.parametrize("machine", golden.MACHINES)
@pytest.mark.parametrize("name", golden.NAMES)
def test_golden(data: dict[str, str], request: pytest.FixtureRequest, name: str, machine: str) -> None:
    wanted = expected(f"{name}.{machine}")
    root = golden.Root(data[name], machine)
    root.build(request.getfixturevalue("fs"))
    found, notes = root.find()
    assert found == wanted
    assert all("ld.so.cache" in note or "is left out" in note for note in notes)


def test_firmware_of_the_running_kernel_comes_first(fs: FakeFilesystem) -> None:
    release = os.uname().release
    for folder in ("", f"/{release}", "/updates", f"/updates/{release}"):
        fs.create_file(f"/lib/firmware{folder}/nvidia/1.2/gsp_ga10x.bin", contents="x")
    found = []
    for folder in (f"/updates/{release}", "/updates", f"/{release}", ""):
        (entry,) = driver_files.find("/", "1.2", [])["any"]
        found.append(entry["path"].replace(folder + "/nvidia", "/nvidia"))
        fs.remove(entry["path"])
    assert found == ["/lib/firmware/nvidia/1.2/gsp_ga10x.bin"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("layout", fakehost.layouts.LIBDIRS)
def test_real_tree(machine: Machine, layout: str) -> None:
    """With libraries from gcc, a cache from ldconfig, and the refresh as a process of its own."""
    host = machine.build(1, layout=layout, complete=True, mps=True)
    found = machine.refreshed()["files"]
    wanted = expected(f"host-{layout}")
    assert found == {**wanted, "mps": []}  # which is looked for only where the policy wants it
    assert driver_files.find(host.root, host.driver, [], mps="/run/nvidia-mps") == wanted


@pytest.mark.slow
def test_a_full_driver_in_time(tmp_path: Path) -> None:
    host = fakehost.build(str(tmp_path), 1, complete=True, mps=True)
    cache = f"{host.root}/etc/ld.so.cache"
    with open(cache, "rb") as file:
        data = file.read()
    own = [(0x0303, *entry) for entry in loader.libraries(data, "x86_64")]
    own += [(0x0003, *entry) for entry in loader.libraries(data, "i386")]
    more = []
    for number in range(3000):  # a desktop has as many other libraries
        os.symlink("libcuda.so.1", f"{host.lib_path}/libnvidia-other{number}.so.1")
        more.append((0x0303, f"libother{number}.so.1", f"/{host.libdir}/libother{number}.so.1"))
    with open(cache, "wb") as file:
        file.write(golden.loader_cache([*more[:1500], *own, *more[1500:]]))
    times = []
    for _ in range(5):  # the processor's time: this machine may do other things meanwhile
        start = time.process_time()
        found = driver_files.find(host.root, host.driver, [], mps="/run/nvidia-mps")
        times.append(time.process_time() - start)
    assert found == expected("host-debian")
    assert min(times) < BUDGET
