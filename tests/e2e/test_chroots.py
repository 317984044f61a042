"""An entered Debian is one of its own, and nothing of it outlives its use."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import chroots, leftovers
from e2e.chroots import Chroot
from e2e.trees import TOP


@pytest.fixture(scope="module", params=chroots.SUITES)
def place(request: pytest.FixtureRequest) -> Iterator[Chroot]:
    with chroots.entered(request.param) as place:
        yield place


def said(place: Chroot, script: str) -> str:
    words = [*place.prefix, "/bin/sh", "-euc", script]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def test_its_python_is_newer_than_this_machines(place: Chroot) -> None:
    version = said(place, "/usr/bin/python3 -c 'import sys; print(sys.version_info >= (3, 13))'")
    assert version == "True"


def test_the_checkout_is_read_only_and_has_no_vendor(place: Chroot) -> None:
    assert (TOP / "vendor" / "pynvml.py").exists()
    assert said(place, f"ls {TOP}/vendor; cat {TOP}/bin/gpushim") == (TOP / "bin" / "gpushim").read_text().strip()
    assert said(place, f"touch {TOP}/bin/x 2>/dev/null || echo refused") == "refused"


@pytest.mark.parametrize("view", ["hybrid", "v2"])
def test_what_was_started_mounted_and_written_is_gone_afterwards(tmp_path: Path, view: str) -> None:
    with chroots.entered("trixie", view=view) as place:
        # As a daemon's remains: in a session of its own, its parent gone.
        said(place, f"setsid sh -c 'sleep 1000; exit' {tmp_path} </dev/null >/dev/null 2>&1 & touch /etc/written")
        said(place, f"mount -t tmpfs none {tmp_path}; touch {tmp_path}/hidden")
        assert leftovers.processes(tmp_path)
    assert leftovers.processes(tmp_path) == []
    mounts = Path("/proc/self/mounts").read_text()
    assert str(tmp_path) not in mounts
    assert str(chroots.CACHE) not in mounts
    assert list(tmp_path.iterdir()) == []
    assert not (chroots.tree("trixie") / "etc" / "written").exists()
