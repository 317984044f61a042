"""Images whose files are links to what the host's root may read and the container may not: none of it comes in.

What a hook reads there and writes into the image, the container could read. Three ways: the shim's hook, the hook
alone, and the hooks of a CDI spec. Each link leads to a file of the container's own procfs, which shows the host's
kernel, or to a volume of the user's.
"""

from __future__ import annotations

import stat
from typing import Any

import pytest

from e2e.hostile import LIBS, Trap
from e2e.hostile_reads import CACHE, CONF, MUSL, PLACES, ask, volume
from e2e.hostile_reads import trap as trap
from fakehost import Host

# A part of each file's text; of /proc/kmsg see test_hostile_roots.py.
SECRETS = {
    "/proc/1/mountinfo": b" - overlay ",
    "/proc/iomem": b"System RAM",
    "/proc/keys": b"keyring",
    "/proc/1/environ": b"LIBCONTAINER",
    "/proc/1": b"gpushim",
    "/sys/kernel/mm": b"gpushim",
    "/volume/secret": b"the user's own",
    "/volume/fifo": b"gpushim",
    "/volume": b"gpushim",
    "/dev/zero": bytes(4096),
}
CASES = [(MUSL, secret) for secret in SECRETS]
CASES += [(place, secret) for place in PLACES for secret in ("/proc/1/mountinfo", "/volume/secret") if place != MUSL]


def made(trap: Trap) -> dict[str, bytes]:
    """What is new in the image: the texts of files, and names."""
    upper = trap.work / "upper"
    found = {str(path): path.read_bytes() for path in upper.rglob("*") if path.is_file() and not path.is_symlink()}
    return {path: data for path, data in found.items() if not path.endswith("/busybox")}


@pytest.mark.parametrize(("place", "secret"), CASES)
def test_what_the_container_may_not_read_does_not_come_in(
    trap: Trap, gpu_host: Host, place: str, secret: str
) -> None:
    trap.link(place, secret)
    if PLACES[place]:
        trap.write(PLACES[place], b"")
    ask(trap, gpu_host, volume(trap))
    with trap.harmless(gpu_host):
        done = trap.run()
    assert done.returncode == 0, done.stderr
    leaked = [path for path, data in made(trap).items() if SECRETS[secret] in data or trap.token.encode() in data]
    assert not leaked


@pytest.mark.parametrize("name", [MUSL, CONF])
def test_text_of_the_image_is_parsed_and_written_anew(trap: Trap, gpu_host: Host, name: str) -> None:
    """Even on the rootfs's own mount: a file there may be one that only root may read."""
    trap.write(PLACES[name] or "etc/x", b"")
    trap.write(name, b"/opt/lib\nroot:$6$secret\n/opt/\x1b[2Jb\n../up\n/" + b"x" * 5000)
    ask(trap, gpu_host)
    assert trap.run().returncode == 0
    lines = (trap.root / name).read_text().splitlines()
    assert f"/{LIBS}" in lines
    assert ("/opt/lib" in lines) == (name == MUSL or trap.way == "cdi")  # by its name the other one is ours
    assert all(line.startswith("/usr/lib/") and len(line) < 100 for line in lines if line != "/opt/lib")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_copy_has_no_more_readers(trap: Trap, gpu_host: Host, mode: int) -> None:
    (trap.root / CACHE).chmod(mode)
    ask(trap, gpu_host)
    assert trap.run().returncode == 0
    assert b"libcuda.so.1" in (trap.root / CACHE).read_bytes()
    assert stat.S_IMODE((trap.root / CACHE).stat().st_mode) == mode


def private(trap: Trap) -> dict[str, Any]:
    """A volume with a directory that root alone may look into."""
    mount = volume(trap)
    folder = trap.work / "volume" / "private"
    folder.mkdir()
    folder.chmod(0o700)
    (folder / "link").symlink_to(f"/{trap.token}")
    return mount


@pytest.mark.parametrize("link", ["/volume/private/link", "/proc/1/exe", "/proc/1/cwd", "/proc/1/fd/5"])
def test_what_a_link_says_shows_nowhere(trap: Trap, gpu_host: Host, link: str) -> None:
    """To follow a link is to read it: files came to lie where the runtime's open files, or a volume's links, led."""
    trap.link("etc/ld.so.conf.d", link)
    ask(trap, gpu_host, private(trap))
    assert trap.run().returncode == 0
    (trap.root / "etc/ld.so.conf.d").unlink()
    assert not [path for path in (trap.work / "upper").rglob("*") if path.name in (trap.token, "zz-gpushim.conf")]


@pytest.mark.parametrize("name", ["there", "not"])
def test_that_a_file_is_there_does_not_show(trap: Trap, gpu_host: Host, name: str) -> None:
    """A file was made in the place of a link if that led nowhere; also in a directory that root alone may enter."""
    trap.link("etc/ld.so.conf", f"/volume/private/{name}")
    ask(trap, gpu_host, private(trap))
    (trap.work / "volume/private/there").touch()
    assert trap.run().returncode == 0
    assert not (trap.root / "etc/ld.so.conf").is_symlink()
