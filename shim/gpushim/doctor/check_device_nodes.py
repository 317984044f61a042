"""Checks of the driver's device nodes and of the links to them by number."""

from __future__ import annotations

import os
import shlex
import stat
from typing import TYPE_CHECKING

from gpushim.doctor import REFRESH, Finding, Host, broken, ok, skipped, some, warning
from gpushim.doctor.check_driver import NO_DRIVER
from gpushim.inventory import earlier, ensure, nodes, procfs
from gpushim.paths.rooted import inside

if TYPE_CHECKING:
    from collections.abc import Iterator


def existing(host: Host) -> Iterator[Finding]:
    """Check that the nodes are there, with right numbers and modes."""
    if not host.has_driver():
        yield skipped(NO_DRIVER)
        return
    wrong = list(_check_nodes(host))
    yield from wrong
    if not wrong:
        yield ok(f"{len(_expected(host))} nodes of the driver are there and right")


def _expected(host: Host) -> list[nodes.Expected]:
    """List the nodes; with mode 0, for any, where /proc does not tell the driver's device files."""
    hung = earlier.hung_now(host.state, host.proc, host.sys)  # the kernel's words of them hang, too
    expected = list(nodes.due(host.proc, hung))
    majors = procfs.majors(host.proc)
    if procfs.device_files(host.proc) is None:
        minors = {ensure.CONTROL_NODE: nodes.CONTROL, ensure.UVM_NODES[0]: nodes.UVM}
        minors.update((gpu["node"], gpu["minor"]) for gpu in procfs.gpus(host.proc, [], earlier.instead(hung)))
        for path, minor in minors.items():
            expected += [(path, major, minor, 0, 0, 0) for major in nodes.owners(path, majors)[1][:1]]
    return [entry for entry in expected if not nodes.withheld(entry[0], host.driver)]


def _check_nodes(host: Host) -> Iterator[Finding]:
    for path, major, minor, mode, _, _ in _expected(host):
        node = inside(host.driver["dev-root"], path)
        try:
            status = os.lstat(node)
        except (FileNotFoundError, NotADirectoryError):
            yield broken(f"{node} is not there", _make_fix(host, node, major, minor))
            continue
        numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
        if not stat.S_ISCHR(status.st_mode):
            yield broken(
                f"{node} is not a character device",
                f"rm -r {shlex.quote(node)} && {_make_fix(host, node, major, minor)}",
            )
        elif numbers != (major, minor):
            difference = f"{numbers[0]}:{numbers[1]}, but the kernel has {major}:{minor} for it"
            yield broken(
                f"{node} is {difference}", f"rm {shlex.quote(node)} && {_make_fix(host, node, major, minor)}"
            )
        elif status.st_mode & mode != mode:
            yield warning(
                f"{node} has mode {status.st_mode & 0o777:04o}, and the driver wants {mode:04o}: "
                "users who are not root cannot open it",
                f"chmod {mode:04o} {shlex.quote(node)}",
            )


def _make_fix(host: Host, node: str, major: int, minor: int) -> str:
    """Return the command that makes a node: not a refresh where settings or the driver forbid that to make nodes."""
    if procfs.device_files(host.proc) and host.driver["load-kernel-modules"]:
        return REFRESH
    return f"mknod -m 0666 {shlex.quote(node)} c {major} {minor}"


def links(host: Host) -> Iterator[Finding]:
    """Check the links below /dev/char, by which systemd and some releases of runc find a device."""
    if not host.has_driver():
        yield skipped(NO_DRIVER)
        return
    missing = []
    for path, major, minor, *_ in _expected(host):
        link = inside(host.driver["dev-root"], f"/dev/char/{major}:{minor}")
        try:
            status = os.stat(link)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(link)
            continue
        if status.st_rdev != os.makedev(major, minor):
            missing.append(f"{link} (which is not {path})")
    if missing:
        yield warning(
            f"missing: {some(missing)}; after a daemon-reload of systemd, containers of some releases of runc "
            "cannot open their GPUs any more",
            REFRESH
            if procfs.device_files(host.proc) and host.driver["load-kernel-modules"]
            else "gpushim system create-dev-char-links",
        )
    else:
        yield ok("/dev/char has a link to each node")
