"""What may be taken for a container's rootfs, its procfs and its process, by the real runc and by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.hostile import HOOK, LIBS, Trap
from e2e.hostile_reads import CACHE, COMPAT, PLACES, PROFILE, ask, volume
from e2e.hostile_reads import trap as trap
from fakehost import Host
from unit.gpuhook.sandbox import as_root, container, picture

PARAMS = "proc/driver/nvidia/params"
# Lets a process end and another one have its number, in a pid namespace where nobody else takes numbers.
REUSE = """
import os, subprocess, sys
sys.path[:0] = sys.argv[1:]
from gpushim.paths.rootfs import Rootfs
from gpushim.paths.mountinfo import held
first = subprocess.Popen(["/bin/sleep", "600"])
process = held(first.pid)
Rootfs(process, "/")
first.kill()
first.wait()
open("/proc/sys/kernel/ns_last_pid", "w").write(str(first.pid - 1))
second = subprocess.Popen(["/bin/sleep", "600"])
assert second.pid == first.pid
said = []
for name in ("mountinfo", "cgroup", "ns/mnt"):
    try:
        said.append(os.open(f"{process}/{name}", os.O_RDONLY))
    except OSError as error:
        said.append(error.strerror)
try:
    said.append(Rootfs(process, "/").mount)
except OSError as error:
    said.append(error.strerror)
print(said)
second.kill()
"""


@pytest.mark.parametrize("destination", ["/", "/x", "/x/y/.."])
def test_a_volume_in_the_place_of_the_rootfs(trap: Trap, gpu_host: Host, destination: str) -> None:
    """This runc mounts it over the rootfs, and takes it for that then."""
    if destination != "/":
        trap.link("x", "/")
    one = volume(trap, destination)
    for name in ("etc", "proc", "dev", "sys", "usr", "x/y"):
        (trap.work / "volume" / name).mkdir(parents=True)
    (trap.work / "volume/etc/ld.so.cache").write_bytes((trap.root / CACHE).read_bytes())
    ask(trap, gpu_host, one)
    done = trap.run()
    # The shim's mounts are runc's: where it finds no file to mount on, it makes an empty one.
    files = [
        path for name in ("etc", "usr") for path in (trap.work / "volume" / name).rglob("*") if not path.is_dir()
    ]
    assert [path.name for path in files if path.is_symlink() or path.stat().st_size] == ["ld.so.cache"]
    assert (trap.work / "volume" / CACHE).read_bytes() == (trap.root / CACHE).read_bytes()
    assert "is covered by a volume; let no volume's destination lead to /" in trap.refused(done)


def by_hand(
    trap: Trap, pid: int, root: Path, *words: str, under: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Call the hook for a process that waits, as the shim's hook is called, maybe under another program."""
    log = ["--log", str(trap.work / "hook.log")]
    command = [*under, str(trap.place.top / "bin" / HOOK.name), "prestart", "--rootfs", str(root), *log, *words]
    state = json.dumps({"pid": pid, "status": "created", "bundle": str(trap.bundle.directory)})
    return subprocess.run(command, input=state, env={}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("trap", ["hook"], indirect=True)
@pytest.mark.parametrize("inside", ["", "etc"])
def test_a_directory_that_is_no_root(trap: Trap, inside: str) -> None:
    """Neither one of the host nor one in the container is its rootfs."""
    other = trap.root / "etc" if inside else trap.canary
    with container() as pid:
        as_root(pid, trap.root)
        before = picture(other)
        done = by_hand(trap, pid, other, "--link", "x::/gpushim-was-here")
        assert picture(other) == before
    assert done.returncode == 16
    assert "is not a mount point, as the root of a container is" in done.stderr


@pytest.mark.parametrize("trap", ["hook"], indirect=True)
@pytest.mark.parametrize("place", [*list(PLACES)[:4], PROFILE, COMPAT, "usr/local/cuda"])
def test_the_kernels_log_is_not_even_opened(trap: Trap, place: str) -> None:
    """To open /proc/kmsg and read from it takes the lines away from the host. Here another file stands for it."""
    trap.link(place, "/proc/kmsg")
    if PLACES.get(place):
        trap.write(PLACES[place], b"")
    libraries = ["--lib", "libcuda.so.1=/opt/drv/libcuda.so.1", "--lib", f"libx.so.1=/{LIBS}/libx.so.1"]
    script = f"mount -t proc none '{trap.root}/proc'; mount --bind /proc/keys '{trap.root}/proc/kmsg'"
    with container(f"mount --bind '{trap.root}' '{trap.root}'; {script}") as pid:
        trace = ("/usr/bin/strace", "-y", "-e", "openat,read,pread64", "-o", str(trap.work / "trace"))
        done = by_hand(trap, pid, trap.root, *libraries, "--driver", "550.1", "--profile-mask", "0x1", under=trace)
    assert done.returncode == 0
    seen = (trap.work / "trace").read_text().splitlines()
    assert any("kmsg" in line for line in seen)
    assert not [line for line in seen if ("kmsg>" in line or "/keys>" in line) and "O_PATH" not in line]


@pytest.mark.parametrize("trap", ["hook"], indirect=True)
def test_an_images_own_proc(trap: Trap) -> None:
    """CVE-2025-52881: what lies at /proc is the image's, and no procfs."""
    trap.write(PARAMS, b"the image's\n")
    with container() as pid:
        as_root(pid, trap.root)
        done = by_hand(trap, pid, trap.root, "--cover", f"{trap.canary}/x::/{PARAMS}")
        assert Path(f"/proc/{pid}/root{trap.root}/{PARAMS}").read_text() == "the image's\n"
    assert done.returncode == 0
    assert "what is mounted there is not a procfs" in (trap.work / "hook.log").read_text()


@pytest.mark.parametrize("trap", ["hook"], indirect=True)
def test_a_process_that_gets_the_number_of_the_containers(trap: Trap) -> None:
    folders = [f"{trap.place.top}/{name}" for name in ("hook", "shim")]
    command = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-IBS", "-c", REUSE, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{['No such process'] * 4}\n"
