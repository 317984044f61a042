"""Driver roots written down as text, built in pyfakefs, and what is found in them as JSON.

A root's description is tests/data/inventory/NAME.root. Its first lines name things: "root", "version", "mps". Then:

    lib FOLDER SONAME              a library with the driver's version, and the SONAME's link; SONAME may end in .so
    lib32 FOLDER SONAME            the same for i386
    elf PATH SONAME [MACHINE]      a library, "-" for one without a SONAME
    file PATH                      any other file
    link PATH TARGET
    alternative PATH TARGET        Debian's link through /etc/alternatives
    socket PATH / fifo PATH / directory PATH
    text PATH WORDS                a file with these words and a newline
    cache FOLDER...                etc/ld.so.cache, naming the libraries in these folders

{version}, {triplet} and {machine} stand for what they say; "x86_64: " before a line is for that machine only. Paths
are inside the root; a path that begins with "host:" is not.

What is found goes to NAME.MACHINE.json, and what is found on fakehost's hosts to host-LAYOUT.json. To write all of
them again, from the checkout's top:

    PYTHONPATH=tests:shim .venv/bin/python -m unit.gpushim.inventory.golden
"""

from __future__ import annotations

import json
import os
import stat
import struct
import tempfile
from pathlib import Path

from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.fake_filesystem_unittest import Patcher

import fakehost
from fakehost import smallelf
from gpushim.ground.machines import CACHE_ABIS
from gpushim.ground.model import File
from gpushim.inventory import driver_files, loader
from gpushim.paths import rooted

DATA = Path(__file__).resolve().parents[3] / "data" / "inventory"
NAMES = ("debian", "rhel", "split", "nixos", "container")
MACHINES = ("x86_64", "aarch64")
LIBC6 = 3  # FLAG_ELF_LIBC6, the type of nearly all entries of an ld.so.cache


class Root:
    """A description for one machine: its settings and, once built, its files."""

    def __init__(self, text: str, machine: str) -> None:
        self.machine = machine
        self.settings = {"root": "/", "version": "", "mps": ""}
        self.lines = []
        for line in text.splitlines():
            only, colon, rest = line.partition(": ")
            words = (rest if colon and only in MACHINES else line).split()
            if not words or words[0].startswith("#") or (colon and only in MACHINES and only != machine):
                continue
            if words[0] in self.settings:
                self.settings[words[0]] = words[1]
            else:
                names = {"version": self.settings["version"], "triplet": f"{machine}-linux-gnu", "machine": machine}
                self.lines.append([word.format(**names) for word in words])

    def build(self, fs: FakeFilesystem) -> None:
        """Make the files."""
        for word, *rest in self.lines:
            getattr(self, "_" + word)(fs, *rest)

    def find(self) -> tuple[dict[str, list[File]], list[str]]:
        """Return what is found, and the notes."""
        notes: list[str] = []
        of_root = self.settings
        return driver_files.find(
            of_root["root"], of_root["version"], notes, mps=of_root["mps"], machine=self.machine
        ), notes

    def _at(self, path: str) -> str:
        return path[5:] if path.startswith("host:") else rooted.inside(self.settings["root"], path)

    def _lib(self, fs: FakeFilesystem, folder: str, soname: str, machine: str = "") -> None:
        stem = soname[: soname.index(".so") + 3]
        name = f"{stem}.{self.settings['version']}"
        self._elf(fs, f"{folder}/{name}", name if soname == stem else soname, machine)
        if soname != stem:
            self._link(fs, f"{folder}/{soname}", name)

    def _lib32(self, fs: FakeFilesystem, folder: str, soname: str) -> None:
        self._lib(fs, folder, soname, "i386")

    def _elf(self, fs: FakeFilesystem, path: str, soname: str, machine: str = "") -> None:
        contents = smallelf.library(machine or self.machine, soname.strip("-"))
        fs.create_file(self._at(path), contents=contents)

    def _file(self, fs: FakeFilesystem, path: str) -> None:
        fs.create_file(self._at(path), contents="x")

    def _text(self, fs: FakeFilesystem, path: str, *words: str) -> None:
        fs.create_file(self._at(path), contents=" ".join(words) + "\n")

    def _link(self, fs: FakeFilesystem, path: str, target: str) -> None:
        fs.create_symlink(self._at(path), target)

    def _alternative(self, fs: FakeFilesystem, path: str, target: str) -> None:
        middle = f"/etc/alternatives/nvidia--{path[1:].replace('/', '-')}"
        self._link(fs, path, middle)
        self._link(fs, middle, target)

    def _directory(self, fs: FakeFilesystem, path: str) -> None:
        fs.create_dir(self._at(path))

    def _socket(self, fs: FakeFilesystem, path: str) -> None:
        fs.create_file(self._at(path), st_mode=stat.S_IFSOCK | 0o666)

    def _fifo(self, fs: FakeFilesystem, path: str) -> None:
        fs.create_file(self._at(path), st_mode=stat.S_IFIFO | 0o666)

    def _cache(self, fs: FakeFilesystem, *folders: str) -> None:
        entries = []
        for folder in folders:
            for name in sorted(os.listdir(self._at(folder))):
                real = rooted.resolve(self.settings["root"], f"{folder}/{name}")
                for machine in ("i386", self.machine):
                    try:
                        soname = loader.soname(self._at(real or ""), machine)
                    except (OSError, ValueError):
                        continue
                    if soname == name or name.endswith(".so"):
                        entries.append((CACHE_ABIS[machine] | LIBC6, name, f"{folder}/{name}"))
        fs.create_file(self._at("/etc/ld.so.cache"), contents=loader_cache(entries))


def loader_cache(entries: list[tuple[int, str, str]]) -> bytes:
    """Return an ld.so.cache in the new layout."""
    start = loader.NEW_HEADER + len(entries) * loader.NEW_ENTRY
    table, strings = b"", b""
    for flags, name, path in entries:
        key = start + len(strings)
        strings += name.encode() + b"\0"
        table += struct.pack("=iIIIQ", flags, key, start + len(strings), 0, 0)
        strings += path.encode() + b"\0"
    header = loader.NEW_MAGIC + struct.pack("=IIIIIII", len(entries), len(strings), 0, 0, 0, 0, 0)
    return header + table + strings


def read(name: str, machine: str) -> Root:
    """Read a description."""
    return Root((DATA / f"{name}.root").read_text(encoding="utf-8"), machine)


def dump(found: dict[str, list[File]]) -> str:
    """Write what was found with a line for each file."""
    groups = []
    for key, entries in found.items():
        lines = ",\n".join("    " + json.dumps(entry) for entry in entries)
        groups.append(f'  "{key}": [\n{lines}\n  ]' if entries else f'  "{key}": []')
    return "{\n" + ",\n".join(groups) + "\n}\n"


def main() -> None:
    """Write what is found in every root for every machine, and on every simulated host."""
    for name in NAMES:
        for machine in MACHINES:
            root = read(name, machine)
            with Patcher() as patcher:
                assert patcher.fs
                root.build(patcher.fs)
                found, notes = root.find()
            print(name, machine, sum(len(group) for group in found.values()), notes)
            (DATA / f"{name}.{machine}.json").write_text(dump(found), encoding="utf-8")
    for layout in fakehost.layouts.LIBDIRS:
        with tempfile.TemporaryDirectory() as folder:
            host = fakehost.build(folder, 1, layout=layout, complete=True, mps=True, nodes=False)
            found = driver_files.find(host.root, host.driver, [], mps="/run/nvidia-mps")
        (DATA / f"host-{layout}.json").write_text(dump(found), encoding="utf-8")


if __name__ == "__main__":
    main()
