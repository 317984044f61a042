"""The table of machines against what this one's own Python, compiler and loader say, and against other spellings."""

from __future__ import annotations

import ast
import os
import platform
import sys
import sysconfig
from pathlib import Path

import pytest

from fakehost import smallelf
from gpuhook.loader import ldcache
from gpuhook.loader.finish import SYSTEM_FOLDERS
from gpushim.ground import machines
from gpushim.inventory import loader

TOP = Path(__file__).parents[4]
DRIVERS = set(machines.LOADERS)  # the machines that NVIDIA's drivers are for
# Whatever else is told by a machine's name belongs into the table.
NAMES = {*DRIVERS, "ppc64le", "amd64", "arm64"}


@pytest.mark.parametrize("facts", [machines.ELF, machines.CACHE_ABIS, machines.BPF, ldcache.FLAGS])
def test_every_machine_of_the_driver_has_every_fact(facts: dict[str, object]) -> None:
    assert facts.keys() >= DRIVERS


def test_the_facts_of_this_machine() -> None:
    machine = platform.machine()
    header = Path(sys.executable).resolve().read_bytes()[:20]
    assert (header[4], int.from_bytes(header[18:20], sys.byteorder)) == machines.ELF[machine]
    assert os.path.exists(machines.LOADERS[machine])
    assert machines.triplet(machine) == sysconfig.get_config_var("MULTIARCH")
    cache = Path("/etc/ld.so.cache").read_bytes()
    assert any(path.endswith("/libc.so.6") for _, path in loader.libraries(cache, machine))


@pytest.mark.parametrize(
    ("machine", "flags", "path", "folder"),
    [
        ("x86_64", 0x0303, "/lib64/ld-linux-x86-64.so.2", b"/usr/lib/x86_64-linux-gnu"),
        ("aarch64", 0x0A03, "/lib/ld-linux-aarch64.so.1", b"/usr/lib/aarch64-linux-gnu"),
    ],
)
def test_what_the_hook_knows(machine: str, flags: int, path: str, folder: bytes) -> None:
    assert (ldcache.FLAGS[machine], machines.LOADERS[machine]) == (flags, path)
    assert {folder, b"/" + b"/".join(folder.split(b"/")[2:])} <= set(SYSTEM_FOLDERS)
    assert smallelf.MACHINES[machine] == machines.ELF[machine]


def test_only_an_x86_has_programs_of_another_kind() -> None:
    assert (machines.COMPANIONS, ldcache.FLAGS32) == ({"x86_64": "i386"}, {"x86_64": 0x0003})


def test_no_other_module_tells_machines_apart() -> None:
    found = set()
    for path in (path for package in ("shim", "hook", "plugin") for path in (TOP / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            keys = getattr(node, "keys", None) or getattr(node, "comparators", [])  # of a dict; compared with
            if any(isinstance(key, ast.Constant) and key.value in NAMES for key in keys):
                found.add(path.name)
    assert found == {"machines.py"}


def test_directories_of_all_machines_are_named_as_each_ones() -> None:
    machines_of_files = (*machines.LOADERS, *machines.COMPANIONS.values())
    assert [f"/{machines.triplet(each)}".encode() for each in machines_of_files] == list(machines.MULTIARCH)
