"""What gpushim-node refuses: nodes and containers; each time the node is left as it is, and there is one sentence."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import node
from e2e.engines import Done
from e2e.node import Node
from gpushim.ground.errors import FAILED, NOT_FOUND

SUITE = "trixie"


@pytest.fixture(scope="module")
def spoilt() -> Iterator[Node]:
    """A node that refusals leave as it is."""
    with node.node(SUITE) as there:
        yield there


def refused(there: Node, payload: Path, *words: str, before: tuple[str, ...] = ()) -> Done:
    """Install in vain: the node is as before, there is one sentence, and nobody is told that it is installed."""
    files, told = there.files(), payload.parent / "told"
    told.mkdir(exist_ok=True)
    command = there.command("install", f"--installed-file={told}/yes", *words, payload=payload, before=before)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert there.files() == files
    assert [*told.iterdir()] == []
    assert (done.stdout, done.stderr.count("\n"), done.stderr[:14]) == ("", 1, "gpushim-node: "), done.stderr
    return done


PYTHON, HOOK, LOCAL = "/usr/bin/python3", "/usr/bin/gpushim-hook", "/usr/local/bin/gpushim-runtime"


@pytest.mark.parametrize(
    ("spoil", "mend", "code", "sentence"),
    [
        (f"mv {PYTHON} /usr/p", f"mv /usr/p {PYTHON}", NOT_FOUND, f"the node has no {PYTHON} that runs"),
        (
            "mount --bind /usr /usr && mount -o remount,bind,ro /usr",
            "umount --lazy /usr",
            FAILED,
            "/usr/bin of this node is read-only",
        ),
        (f"echo >{HOOK}", f"rm {HOOK}", FAILED, f"{HOOK} already exists, and gpushim-node"),
        (f"echo >{LOCAL}", f"rm {LOCAL}", FAILED, f"{LOCAL} already exists, and gpushim-node"),
    ],
)
def test_refuses_a_node(spoilt: Node, payload: Path, spoil: str, mend: str, code: int, sentence: str) -> None:
    spoilt.run(spoil)
    try:
        done = refused(spoilt, payload)
    finally:
        spoilt.run(mend)
    assert (done.returncode, sentence in done.stderr) == (code, True), done.stderr


def test_refuses_an_old_python(spoilt: Node, payload: Path) -> None:
    spoilt.write("/run/python3", "#!/bin/sh\necho 3 8 cpython-38\n")
    spoilt.run("chmod 755 /run/python3; mount --bind /run/python3 /usr/bin/$(readlink /usr/bin/python3)")
    try:
        done = refused(spoilt, payload)
    finally:
        spoilt.run("umount /usr/bin/$(readlink /usr/bin/python3)")
    assert (done.returncode, "is Python 3.8; install 3.9 or later" in done.stderr) == (NOT_FOUND, True)


@pytest.mark.parametrize(
    ("before", "sentence"),
    [
        (("/usr/bin/setpriv", "--reuid=65534"), "only root can install on a node"),
        (("/usr/bin/setpriv", "--bounding-set=-sys_admin"), "the node cannot be entered: "),
        (("/usr/bin/unshare", "--pid", "--fork"), "give the pod hostPID: true"),
    ],
)
def test_refuses_a_container(spoilt: Node, payload: Path, before: tuple[str, ...], sentence: str) -> None:
    done = refused(spoilt, payload, before=before)
    assert (done.returncode, sentence in done.stderr) == (FAILED, True), done.stderr


def test_refuses_a_root_that_is_none(spoilt: Node, payload: Path) -> None:
    other = f"/proc/{spoilt.holder}/root/other"
    spoilt.run(
        "cd /; for each in etc proc run usr/bin var/lib; do mkdir -p other/$each; done; mount --bind proc other/proc"
    )
    done = refused(spoilt, payload, f"--host={other}")
    assert "/other is not the root of this node's process 1; mount the node's / there" in done.stderr


def test_refuses_while_another_one_is_at_work(spoilt: Node, payload: Path) -> None:
    lock = f"/proc/{spoilt.holder}/root/run/gpushim-node.lock"
    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        done = refused(spoilt, payload)
    finally:
        os.unlink(lock)
        os.close(fd)
    assert (done.returncode, "another gpushim-node is at work" in done.stderr) == (FAILED, True)


def test_refuses_where_a_package_has_the_programs(spoilt: Node, payload: Path) -> None:
    """As dpkg-query, of the node's own, says."""
    fields = ("Status: install ok installed", "Version: 1", "Architecture: all", "Maintainer: x", "Description: x")
    spoilt.write("/var/lib/dpkg/status.d", "\n".join(["Package: gpushim", *fields, ""]))
    spoilt.write("/var/lib/dpkg/info/gpushim.list", "/.\n/usr\n/usr/bin\n/usr/bin/gpushim-runtime\n")
    spoilt.run("cp /var/lib/dpkg/status /run/status; (echo; cat /var/lib/dpkg/status.d) >>/var/lib/dpkg/status")
    spoilt.run("touch /usr/bin/gpushim-runtime")
    try:
        done = refused(spoilt, payload)
    finally:
        spoilt.run("mv /run/status /var/lib/dpkg/status; rm /usr/bin/gpushim-runtime /var/lib/dpkg/status.d")
    assert "the package gpushim has /usr/bin/gpushim-runtime on this node; remove the package there" in done.stderr


def test_keep_needs_the_program_that_install_has_put_there(spoilt: Node) -> None:
    spoilt.write("/var/lib/gpushim/node.json", "{}")
    done = spoilt.call("keep", check=False)
    spoilt.run("rm -r /var/lib/gpushim")
    assert (done.returncode, "run gpushim-node install before" in done.stderr) == (NOT_FOUND, True)


def test_keep_installs_where_install_has_not(spoilt: Node, payload: Path) -> None:
    """And says what is in the way; a failure leaves it to do so again."""
    done = [spoilt.call("keep", "--engine=crio", payload=payload.parent, check=False) for _ in range(2)]
    assert all("has no version of gpushim for nodes" in one.stderr for one in done)
    spoilt.run("rm /run/gpushim-node.begun")
