"""What the arm64 machine has besides: gpushim's packages, its image, hosts with a Grace-Hopper and a Jetson."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from e2e import built, trees
from e2e import image as images

FETCHED = "var/cache/apt/archives"
KUBELET = "unit/gpuplugin/kubelet/fake.py"
INSTALLED = "Status: install ok installed"


def known(tree: Path) -> None:
    """Let dpkg know what apt has fetched for a root filesystem and mmdebstrap has unpacked without it."""
    state = tree / "var/lib/dpkg"
    (state / "info").mkdir(parents=True, exist_ok=True)
    with (state / "status").open("w") as status:
        for package in sorted((tree / FETCHED).glob("*.deb")):
            command = ["/usr/bin/dpkg-deb", "--field", str(package)]
            fields = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            name, _, others = fields.partition("\n")
            status.write(f"{name}\n{INSTALLED}\n{others}\n")
            package.unlink()


def install(root: Path, chroot: Callable[..., str]) -> None:
    """Install our packages.

    Args:
        root: the machine's, whose programs run meanwhile.
        chroot: runs one of them in it.
    """
    (root / "srv").mkdir(exist_ok=True)
    packages = [shutil.copy(package, root / "srv") for package in built.packages("deb").values()]
    chroot(root, "/usr/bin/dpkg", "--install", *(f"/srv/{Path(package).name}" for package in packages))


def prepare(root: Path) -> None:
    """Put into a root filesystem what the trial needs besides, after the trials themselves."""
    with (root / "etc/trial.env").open("a") as env:  # the kubelet speaks with the plugin's own words
        env.write(f"PYTHONPATH=/srv:/usr/lib/gpushim/{built.version_here()}\n")
    place = root / "srv" / KUBELET
    place.parent.mkdir(parents=True)
    shutil.copy(trees.TOP / "tests" / KUBELET, place)
    shutil.copy(images.archive("aarch64"), root / "srv/image.tar")
