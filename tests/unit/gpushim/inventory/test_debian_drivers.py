"""The files of real drivers: ten versions of Debian's packages, 390 to 555, for amd64 with i386 beside it.

A file of theirs is given by its capability, or stands in LEFT_OUT with the reason; each name by which a loader or a
linker finds a given library is made.
"""

from __future__ import annotations

import fnmatch
import json
import os

import pytest
from pyfakefs.fake_filesystem_unittest import Patcher

from gpushim.inventory import data_files, driver_files
from gpushim.paths import rooted
from unit.gpushim.inventory import golden
from unit.gpushim.inventory.debian_packages import LEFT_OUT

INSIDE: dict[str, dict[str, list[str]]] = json.loads((golden.DATA / "names-inside.json").read_text("utf-8"))
NAMES = sorted(path.stem for path in golden.DATA.glob("debian-*.root"))

# What a library names and can do without, where the container has not the other's capability.
OPTIONAL = {
    "libcuda.so": {"libcudadebugger.so", "libnvidia-pkcs11.so", "libnvidia-pkcs11-openssl3.so"},
    "libnvidia-ml.so": {"libcuda.so"},  # nvidia-smi shows no version of CUDA then
    "libcudadebugger.so": {"libnvidia-ml.so", "libnvidia-cfg.so", "libnvoptix.so"},
    "libnvoptix.so": {"libnvidia-ml.so"},
    "libnvidia-ifr.so": {"libnvidia-encode.so"},
    "libnvidia-cbl.so": {"libnvidia-nvvm.so"},
}
SHARED = {"libEGL_nvidia.so", "libGLX_nvidia.so"}  # CUDA and video share images with graphics, where it is


class Driver:
    """What is found in one version's root; made while that root is there."""

    def __init__(self, root: golden.Root) -> None:
        self.version = root.settings["version"]
        self.found, self.notes = root.find()
        self.entries = [entry for entries in self.found.values() for entry in entries]
        self.given = {rooted.resolve("/", entry["path"]) or "" for entry in self.entries}
        libraries = [words for word, *words in root.lines if word in ("lib", "lib32")]
        links = [words[0] for word, *words in root.lines if word in ("link", "alternative")]
        links += [f"{folder}/{soname}" for folder, soname in libraries]
        self.files = [f"{folder}/{_stem(soname)}.{self.version}" for folder, soname in libraries]
        self.files += [words[0] for word, *words in root.lines if word in ("elf", "file")]
        names = [path for path in links if "-linux-gnu/" in path and os.path.basename(path).startswith("lib")]
        self.names = [path for path in names if rooted.resolve("/", path) in self.given]
        made = [link.partition("::")[::2] for entry in self.entries for link in entry.get("links", ())]
        self.links = {path: os.path.normpath(os.path.join(os.path.dirname(path), text)) for text, path in made}
        self.sonames = {
            f"{os.path.dirname(e['path'])}/{e['soname']}": e["path"] for e in self.entries if "soname" in e
        }


def _stem(name: str) -> str:
    return os.path.basename(name).partition(".so")[0] + ".so"


@pytest.fixture(scope="module", params=NAMES)
def driver(request: pytest.FixtureRequest) -> Driver:
    root = golden.read(request.param, "x86_64")
    with Patcher() as patcher:
        assert patcher.fs
        root.build(patcher.fs)
        return Driver(root)


def test_each_file_is_given_or_left_out_for_a_reason(driver: Driver) -> None:
    left = [path for path in driver.files if path not in driver.given]
    assert driver.files
    assert not [path for path in left if not any(fnmatch.fnmatchcase(path, pattern) for pattern in LEFT_OUT)]
    assert driver.notes == []


def test_what_is_left_out_is_not_given(driver: Driver) -> None:
    assert not [path for path in driver.given for pattern in LEFT_OUT if fnmatch.fnmatchcase(path, pattern)]


def test_each_library_is_listed_with_a_capability(driver: Driver) -> None:
    libraries = {_stem(entry["path"]) for entry in driver.entries if "soname" in entry}
    assert libraries
    assert libraries <= driver_files.LISTED


def test_each_capability_has_the_libraries_that_it_lists(driver: Driver) -> None:
    shipped = {_stem(path) for path in driver.files if "/x86_64-linux-gnu/" in path}
    for capability, names in driver_files.LIBRARIES.items():
        given = {_stem(entry["path"]) for entry in driver.found[capability]}
        assert {*names} & shipped - given == set(), capability


def test_each_name_of_the_loader_or_a_linker_is_made(driver: Driver) -> None:
    made = {*driver.links, *driver.sonames, *(entry["path"] for entry in driver.entries)}
    assert any(path.endswith("/libcuda.so") for path in driver.names)
    assert [path for path in driver.names if path not in made] == []


def test_a_link_leads_to_a_given_file(driver: Driver) -> None:
    paths = {*driver.sonames, *(entry["path"] for entry in driver.entries)}
    assert {path: target for path, target in driver.links.items() if target not in paths} == {}


def test_modules_of_x_come_with_display_alone_where_x_looks(driver: Driver) -> None:
    modules = [entry for entry in driver.entries if _stem(entry["path"]) in data_files.XORG_LIBRARIES]
    assert [(entry["kind"], entry in driver.found["display"]) for entry in modules] == [("data", True)]
    assert modules[0]["path"].startswith("/usr/lib/xorg/modules/")


@pytest.mark.parametrize("version", INSIDE)
def test_what_a_library_names_comes_with_its_capability(version: str) -> None:
    """As read out of the real files."""
    for capability, libraries in driver_files.LIBRARIES.items():
        others = driver_files.LIBRARIES["compute"] if capability == "video" else ()  # which the plan brings
        own = driver_files.OWN_VERSION.get(capability, ())
        for name, inner in INSIDE[version].items():
            if _stem(name) in libraries:
                wanted = {_stem(one) for one in inner} & driver_files.LISTED - OPTIONAL.get(_stem(name), set())
                assert wanted - {*libraries, *others, *own, *SHARED} == set(), (capability, name)
