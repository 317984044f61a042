"""Rpms of this checkout, and machines on which rpm installs them.

The machines are those of packages.py: a Debian that has no rpm. It gets this machine's, with its libraries beside it
and a database in the test's own directory; what rpm is told that the system has is in an rpm of its own.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e import packages
from e2e.engines import Done
from e2e.installed import Machine

SUITE = "trixie"
MAIN, COMPAT, PLUGIN, SOURCE = "gpushim", "gpushim-nvidia-compat", "gpushim-device-plugin", "gpushim.src"
RPM, RPMBUILD, CONFIGURATION = "/usr/bin/rpm", "/usr/bin/rpmbuild", "/usr/lib/rpm"
# Of these a program takes those of the system that it runs on.
GLIBC = ("libc.so.6", "libm.so.6")
SPEC = """
Name: {name}
Version: {version}
Release: 1
Summary: stands for packages of a distribution, without files
License: none
BuildArch: noarch
{tags}
%description
It has no files.
%files
"""
SYSTEM = "Provides: python3 = 3.13, python3-pyyaml, python3-grpcio = 1.48, coreutils, grep, sed, /bin/sh"
# Directories of such a system, most of them of Fedora's package `filesystem`.
DIRECTORIES = (
    *("/usr/share/man/man1", "/usr/share/man/man8", "/usr/share/licenses", "/usr/lib/systemd/system-preset"),
    *("/usr/share/zsh/site-functions", "/usr/share/fish/vendor_completions.d"),
    *("/usr/share/bash-completion/completions", "/usr/lib/udev/rules.d", "/usr/lib/sysusers.d"),
)


def stand_in(directory: Path, name: str, tags: str, version: str = "1") -> Path:
    """Build an rpm without files that has a name, a version and these lines of a spec."""
    spec = directory / f"{name}.spec"
    spec.write_text(SPEC.format(name=name, version=version, tags=tags))
    defines = ["--define", f"_topdir {directory}", "--define", f"_rpmdir {directory}"]
    subprocess.run([RPMBUILD, "-bb", "--quiet", *defines, str(spec)], check=True, capture_output=True)
    return directory / f"noarch/{name}-{version}-1.noarch.rpm"


@dataclass
class RpmMachine:
    """A machine with rpm."""

    there: Machine
    command: str

    def rpm(self, words: str, *files: Path, check: bool = True) -> Done:
        """Run rpm with these words and package files."""
        places = [str(shutil.copy(file, self.there.state)) for file in files]
        return self.there.run(" ".join([self.command, words, *places]), check=check)


@contextlib.contextmanager
def machine(containers: Path, suite: str = SUITE) -> Iterator[RpmMachine]:
    """Set a machine up as packages.machine does, with an rpm that knows what gpushim needs to be there."""
    with packages.machine(suite, containers) as there:
        command = f"RPM_CONFIGDIR={there.state}/rpm/config {_portable(there.state / 'rpm')}"
        found = RpmMachine(there, f"{command} --define '_dbpath {there.state}/rpmdb'")
        found.rpm("-i", stand_in(there.state, "system", SYSTEM))
        there.run(f"mkdir -p {' '.join(DIRECTORIES)}")
        yield found


def _portable(directory: Path) -> str:
    """Copy this machine's rpm; returns the words that run it on another."""
    shutil.copytree(CONFIGURATION, directory / "config")
    shutil.copy(RPM, directory)
    linked = subprocess.run(["/usr/bin/ldd", RPM], check=True, capture_output=True, text=True).stdout
    for name, path in re.findall(r"(\S+) => (/\S+)", linked):
        if name not in GLIBC:
            shutil.copy(path, directory)
    loader = re.search(r"^\s*(/\S+)", linked, re.MULTILINE)
    assert loader is not None, linked
    # Not LD_LIBRARY_PATH, which the scripts of packages would inherit.
    return f"{loader[1]} --library-path {directory} {directory}/rpm"
