"""NVIDIA's own user space, as Debian packages it: what containers of real runc get of it, and whether that works.

The packages of the non-free archive are installed into a root with Debian's alternatives. The kernel's side, and
NVML, which cannot start without it, are simulated there; all else is NVIDIA's. `tests/long/run drivers` runs this: it
downloads 300 MiB for a suite once.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import trees
from e2e.bundles import Bundle
from e2e.witness import settings
from gpushim.inventory import driver_files
from gpushim.paths import rooted
from unit.gpushim.inventory.debian_packages import LEFT_OUT

pytestmark = pytest.mark.skipif(not os.environ.get("GPUSHIM_DRIVERS"), reason="tests/long/run drivers sets it")

SUITES = ("trixie", "sid")
SOURCE = re.compile(r"^nvidia-graphics-drivers")
DRIVER = (
    *(
        "nvidia-driver-libs",
        "nvidia-smi",
        "libcuda1",
        "nvidia-vdpau-driver",
        "nvidia-opencl-icd",
        "libnvidia-encode1",
    ),
    *("libnvidia-ngx1", "nvidia-driver-bin", "nvidia-cuda-mps", "xserver-xorg-video-nvidia", "libnvidia-allocator1"),
    *("libnvidia-opticalflow1", "libnvidia-fbc1", "libnvidia-nvvm4", "libnvoptix1", "firmware-nvidia-gsp"),
    *("libcudadebugger1", "libnvidia-cfg1", "libnvidia-pkcs11-openssl3"),
)
UNUSED = (*LEFT_OUT, "*.1.gz", "*/alternate-install-present", "*/check-for-*", "*/pre-install")  # Debian's scripts
COMPONENTS = ("--components=main contrib non-free non-free-firmware", '--aptopt=APT::Install-Recommends "false"')
IMAGE = ("python3-minimal", "libpython3-stdlib", "libx11-6", "libxext6", "libssl3t64")
FOLDER = "usr/lib/x86_64-linux-gnu/nvidia/current"
SPARE = "usr/lib/fakehost/lib"  # for simulated libraries, of which NVML alone is used
LOOK = """
import ctypes, json, subprocess, sys
def load(name):
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return ""
loads = {name: load(name) for name in sys.argv[1:]}
smi = subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
cuda = ctypes.CDLL("libcuda.so.1")
number = ctypes.c_int()
print(json.dumps({
    "loads": loads, "smi": smi.stdout, "status": smi.returncode, "init": cuda.cuInit(0),
    "version": (cuda.cuDriverGetVersion(ctypes.byref(number)), number.value),
}))
"""


def installed(suite: str, name: str, packages: tuple[str, ...], *more: str) -> Path:
    """Return a root of a suite with these packages; it is kept, and shared."""
    tree = trees.CACHE / f"{name}-{suite}"
    with trees.locked(trees.CACHE):
        if not tree.is_dir():
            with tempfile.TemporaryDirectory(dir=trees.CACHE) as scratch:
                trees.bootstrap(Path(scratch) / "tree", suite, "minbase", packages, *more)
                (Path(scratch) / "tree").rename(tree)
    return tree


@pytest.fixture(scope="module", params=SUITES)
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Real:
    """A root with the real driver, and the kernel's side of GPUs.

    Args:
        root: of the packages, to change.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        (library,) = [path for path in (root / FOLDER).glob("libcuda.so.*") if path.name.count(".") > 2]
        self.version = library.name[len("libcuda.so.") :]
        self.notes: list[str] = []
        self.found = driver_files.find(str(root), self.version, self.notes)
        paths = {entry["path"] for entries in self.found.values() for entry in entries}
        self.given = {rooted.resolve(str(root), path) for path in paths}
        self.owned = [path for path in _owned(root) if not (root / path[1:]).is_symlink()]
        smi = os.readlink(root / "usr/bin/nvidia-smi")
        names = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
        kept = {path: (root / path).read_bytes() for path in [f"usr/bin/{names[0]}", f"usr/sbin/{names[1]}"]}
        self.host = fakehost.build(str(root), 2, driver=self.version, libdir=SPARE, cuda="12.4")
        shutil.copy(root / SPARE / f"libnvidia-ml.so.{self.version}", root / FOLDER)
        for path, data in kept.items():
            (root / path).write_bytes(data)
        (root / "usr/bin/nvidia-smi").unlink()
        (root / "usr/bin/nvidia-smi").symlink_to(smi)
        shutil.rmtree(root / SPARE)
        (root / "etc/ld.so.conf.d/fakehost.conf").unlink()
        (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
        subprocess.run(["/sbin/ldconfig", "-r", str(root)], check=True)


def _owned(root: Path) -> list[str]:
    """List the files of the driver's packages, without documentation."""
    done = subprocess.run(
        ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f=${Package} ${source:Package}\\n"],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    packages = [line.split()[0] for line in done.stdout.splitlines() if SOURCE.match(line.split()[1])]
    info = root / "var/lib/dpkg/info"
    lists = [path for name in packages for path in (info / f"{name}.list", info / f"{name}:amd64.list")]
    paths = {line for path in lists if path.exists() for line in path.read_text().splitlines()}
    documents = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/bug/", "/usr/share/lintian/")
    return sorted(path for path in paths if not path.startswith(documents) and (root / path[1:]).is_file())


@pytest.fixture(scope="module")
def real(suite: str, tmp_path_factory: pytest.TempPathFactory) -> Real:
    copy = tmp_path_factory.mktemp("real") / "root"
    packages = installed(suite, "nvidia", DRIVER, *COMPONENTS)
    subprocess.run(["cp", "-a", "--reflink=auto", str(packages), str(copy)], check=True)
    return Real(copy)


def test_each_file_of_the_packages_is_given_or_left_out_for_a_reason(real: Real) -> None:
    left = [path for path in real.owned if path not in real.given]
    assert [path for path in left if not any(fnmatch.fnmatchcase(path, one) for one in UNUSED)] == []
    assert len(real.given) > 40
    assert real.notes == []


def test_libraries_load_libcuda_answers_and_nvidia_smi_prints_its_table(
    real: Real, suite: str, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    tree = installed(suite, "image", IMAGE)
    subprocess.run(["cp", "-a", "--reflink=auto", str(tree), str(image)], check=True)
    bundle = Bundle(tmp_path / "bundle", image, settings(tmp_path, real.host.root))
    found = real.found
    libraries = [
        one for key, entries in found.items() if not key.endswith("32") for one in entries if "soname" in one
    ]
    sonames = sorted({one["soname"] for one in libraries})
    bundle.ask(
        "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", args=["python3", "-c", LOOK, *sonames]
    )  # fmt: skip
    seen: Any = json.loads(bundle.run().stdout)
    failed = {name: why for name, why in seen["loads"].items() if why}
    lacks = {why.partition(":")[0] for why in failed.values()}
    assert not [name for name in lacks if name.startswith(("libnvidia", "libcuda", "libnv"))], failed
    assert len(failed) <= len(sonames) // 4, failed  # what needs OpenGL, Wayland or GBM of an image
    assert (seen["version"][0], seen["version"][1] > 10000) == (0, True)
    assert seen["init"] in (100, 101, 802, 803, 999), "cuInit has not answered"  # no kernel is behind the nodes
    assert seen["status"] == 0, seen["smi"]
    assert f"NVIDIA-SMI {real.version}" in seen["smi"]
    assert seen["smi"].count("A100") == 2
