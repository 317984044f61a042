"""SELinux policies that a machine can have: a directory with etc/selinux, and what else of a host belongs to it.

Out of scope: labels that files get by them (confinement.py).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from e2e import trees

VARIABLE = "GPUSHIM_SELINUX"
CACHE = trees.TOP / ".cache" / "machine"
PARTS = ("etc/selinux", "usr/share/containers/selinux")  # the second is of container-selinux


def of_a_host() -> Path:
    """Return the copy of a host's policy that a variable names.

    Raises:
        FileNotFoundError: there is none, with a sentence that says what is wanted.
    """
    top = Path(os.environ.get(VARIABLE, ""))
    if not os.environ.get(VARIABLE) or not list(top.glob("etc/selinux/*/policy/policy.*")):
        wanted = "with etc/selinux/targeted and usr/share/containers/selinux of a host of Red Hat's"
        raise FileNotFoundError(f"{VARIABLE} names no directory {wanted}")
    return top


def of_debian(cache: Path = CACHE) -> Path:
    """Return the policy of Debian's package, building it the first time: its scripts compile the modules."""
    made = cache / "policy-debian"
    with trees.locked(cache):
        if not made.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                root, fresh = Path(scratch) / "root", Path(scratch) / "policy"
                trees.bootstrap(root, "trixie", "essential", ("selinux-policy-default",))
                shutil.copytree(root / PARTS[0], fresh / PARTS[0], symlinks=True)
                fresh.rename(made)
    return made


def install(root: Path, policy: Path) -> Path:
    """Put a policy into a root filesystem, to be enforced from the boot.

    Returns:
        Its directory there.
    """
    for part in PARTS:
        if (policy / part).is_dir():
            shutil.copytree(policy / part, root / part, symlinks=True, dirs_exist_ok=True)
    (compiled,) = {path.parents[1] for path in root.glob("etc/selinux/*/policy/policy.*")}
    (root / "etc/selinux/config").write_text(f"SELINUX=enforcing\nSELINUXTYPE={compiled.name}\n")
    return compiled
