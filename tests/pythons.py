"""Run a Python of some version with what unit tests import: `pythons.py VERSION ARGUMENT...`.

It is this machine's. Where there is none it is a Debian's, for root: of what mmdebstrap unpacks once, /usr lies over
this machine's, or under it, in a mount namespace of the command's own, as if that Python were installed.
Out of scope: which versions (tools/test).
"""

from __future__ import annotations

import glob
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from e2e import trees
from unit.gpuhook.sandbox import bind, mount, own_mounts

# Which Debian has a version, in which packages. The newer C library goes over the other: programs take it, too, and
# openssl, which tests run, fails with another libcrypto than its own.
SUITES = {
    "3.9": ("bullseye", ("python3.9", "python3-distutils"), "lowerdir=/usr:{usr}"),
    "3.14": ("sid", ("python3.14", "openssl"), "lowerdir={usr}:/usr"),
}
PACKAGES = ["--editable", ".[device-plugin]", "hypothesis", "jsonschema", "protobuf"]
PACKAGES += ["pyfakefs", "pytest", "pytest-xdist", "tomlkit"]


def installed(version: str) -> str:
    """Return the path of this machine's; "" if it has none."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    found = [f"/usr/bin/python{version}", *glob.glob(f"{pyenv}/versions/{version}.*/bin/python3")]
    return next(filter(os.path.exists, found), "")


def lay(version: str) -> str:
    """Lay a Debian's /usr over or under this machine's, for this process alone; return the Python's path."""
    suite, packages, layers = SUITES[version]
    tree = trees.CACHE / "-".join([suite, *packages])
    with trees.locked(tree.parent):
        if not tree.is_dir():
            print(f"pythons: unpacking Python {version} of Debian's {suite}, for there is none here", flush=True)
            with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
                fresh = Path(scratch, "tree")
                trees.bootstrap(fresh, suite, "extract", packages)
                fresh.rename(tree)
    own_mounts()
    local = os.open("/usr/local", os.O_PATH)  # which tests lay layers over: not more than two may lie over another
    mount("overlay", Path("/usr"), layers.format(usr=tree / "usr"))
    bind(Path(f"/proc/self/fd/{local}"), Path("/usr/local"))
    return f"/usr/bin/python{version}"


def environment(version: str, python: str) -> Path:
    """Return the Python of an environment with the packages, made once for these."""
    top = trees.TOP / ".cache" / f"python-{version}"
    recipe = hashlib.sha256((trees.TOP / "pyproject.toml").read_bytes() + repr((PACKAGES, python)).encode())
    made = top / ".made"
    if not made.is_file() or made.read_text() != recipe.hexdigest():
        subprocess.run([python, "-m", "venv", "--clear", "--without-pip", top], check=True)
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]
        own = [f"--target={top}/lib/python{version}/site-packages", f"--python-version={version}"]  # its newest pip
        subprocess.run([sys.executable, *pip, *own, "--only-binary=:all:", "pip"], check=True)
        subprocess.run([top / "bin/python", *pip, "--no-compile", *PACKAGES], cwd=trees.TOP, check=True)
        for path in top.glob("lib/*/site-packages/*gpushim.pth"):  # as setup.sh does
            path.write_text("".join(f"../../../../../{name}\n" for name in ("hook", "plugin", "shim")))
        made.write_text(recipe.hexdigest())
    return top / "bin/python"


def main() -> NoReturn:
    """Run it; exit with 3 if it cannot be had."""
    version = sys.argv[1]
    python = installed(version)
    if not python and os.geteuid():
        print(f"pythons: this machine has no Python {version}; install it, or be root, for whom one is unpacked")
        sys.exit(3)
    command = environment(version, python or lay(version))
    os.execv(command, [str(command), *sys.argv[2:]])


if __name__ == "__main__":
    main()
