"""Hostile images under the real runc: whatever is in one, nothing of the host changes.

Each image lays its traps for one route that is known from a published escape. The canary is a tree of the host
outside the root file system; runc runs in a mount namespace that shares its mounts with nobody else, so that
what it and the hook leave mounted can be told from what other tests mount.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.bundles import Bundle
from e2e.trees import TOP
from fakehost import Host

LIBS = "usr/lib/x86_64-linux-gnu"
# A leaked mount shows in the namespace itself only where mounts propagate, as they do on a host with systemd.
SHARED = """
mount --make-rshared /
cat /proc/self/mountinfo >"$0/before"
"$@" || code=$?
cat /proc/self/mountinfo >"$0/after"
exit ${code:-0}
"""
HOSTS = ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/sbin/ldconfig", "/usr/sbin/runc"]
HOSTS += ["/usr/bin/python3", str(TOP / "bin")]


def snapshot(*tops: str) -> dict[str, object]:
    """Say what is below some directories: names, contents, owners and times."""
    found: dict[str, object] = {}
    for top in map(Path, map(os.path.realpath, tops)):
        for path in sorted([top, *top.rglob("*")]):
            status = path.lstat()
            facts: list[object] = [status.st_mode, status.st_uid, status.st_gid, status.st_ino, status.st_mtime_ns]
            if path.is_symlink():
                facts.append(path.readlink())
            elif path.is_file():
                facts.append(hashlib.sha256(path.read_bytes()).hexdigest())
            found[str(path)] = facts
    return found


class Trap:
    """An image that is about to be run, and the canary that it is after."""

    def __init__(self, work: Path, root: Path, env: dict[str, str]) -> None:
        self.root, self.work, self.canary = root, work, work / "canary"
        (self.canary / "etc/ld.so.conf.d").mkdir(parents=True)
        (self.canary / "lib").mkdir()
        for name in ("secret", "x", "etc/passwd", "etc/ld.so.conf"):
            (self.canary / name).write_text(f"the host's own {name}\n")
        shutil.copy2("/etc/ld.so.cache", self.canary / "etc/ld.so.cache")
        shutil.copy2("/bin/busybox", root / "busybox")  # static: it runs whatever the image has lost
        prefix = ("/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-c", SHARED, str(work))
        self.bundle = Bundle(work / "bundle", root, env, prefix)

    def up(self, inside: str) -> str:
        """The canary's path by as many steps up as lead out of any root."""
        return "../" * 40 + str(self.canary / inside)[1:]

    def link(self, name: str, target: object) -> None:
        """Put a link into the image, in the place of what is there."""
        place = self.root / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(str(target))

    @contextlib.contextmanager
    def harmless(self, host: Host) -> Iterator[None]:
        """Assert that the block changes nothing of the host and leaves nothing mounted."""
        before = snapshot(str(self.canary), host.root, *HOSTS)
        yield
        assert snapshot(str(self.canary), host.root, *HOSTS) == before
        assert (self.work / "after").read_text() == (self.work / "before").read_text()


@pytest.fixture
def trap(debian_root: Path, tmp_path: Path, gpushim_env: dict[str, str]) -> Trap:
    """A Debian image to lay traps in."""
    return Trap(tmp_path, debian_root, gpushim_env)


def compat(trap: Trap, host: Host) -> None:
    """CVE-2024-0132: the first mount changes what the path of the second one means."""
    place = trap.root / "usr/local/cuda/compat"
    (place / "libnvidia-ml.so.6").mkdir(parents=True)
    (place / "libnvidia-ml.so.6/libnvidia-ml.so.7").symlink_to("../../../../..")
    (place / "libnvidia-ml.so.7").touch()
    trap.link(f"{LIBS}/libnvidia-ml.so.6", "../../../usr/local/cuda/compat")
    trap.link(f"{LIBS}/libnvidia-ml.so.{host.driver}", "../../../usr/local/cuda/compat")


def fifo(trap: Trap, host: Host) -> None:
    """Reading it would wait for ever."""
    (trap.root / "etc/ld.so.cache").unlink()
    os.mkfifo(trap.root / "etc/ld.so.cache")


def sparse(trap: Trap, host: Host) -> None:
    """Reading it would fill the memory."""
    os.truncate(trap.root / "etc/ld.so.cache", 10 << 30)


def loop(trap: Trap, host: Host) -> None:
    """Links without an end."""
    trap.link("etc", "etc2")
    trap.link("etc2", "etc")


def ldconfig(trap: Trap, host: Host) -> None:
    """CVE-2024-0136: an ldconfig of the image's own."""
    for name in ("usr/sbin/ldconfig", "usr/bin/sh", "usr/bin/python3"):
        trap.link(name, "/busybox-trap")
    (trap.root / "busybox-trap").write_text(f"#!/busybox sh\n/busybox touch {trap.canary}/new\n")
    (trap.root / "busybox-trap").chmod(0o755)


def out(name: str, inside: str) -> Callable[[Trap, Host], None]:
    """A link in the image to a place of the canary, by its absolute path."""
    return lambda trap, host: trap.link(name.format(host), trap.canary / inside)


def up(name: str, inside: str) -> Callable[[Trap, Host], None]:
    """The same by way of the root's parent."""
    return lambda trap, host: trap.link(name.format(host), trap.up(inside))


TRAPS: dict[str, Callable[[Trap, Host], None]] = {
    "driver library": out(f"{LIBS}/libcuda.so.{{0.driver}}", "new"),
    "driver library, existing": up(f"{LIBS}/libcuda.so.{{0.driver}}", "x"),
    "SONAME": out(f"{LIBS}/libcuda.so.1", "new"),
    "SONAME, existing": up(f"{LIBS}/libcuda.so.1", "x"),
    "library directory": out(LIBS, "lib"),
    "library directory, up": up("usr/lib", "lib"),
    "program": out("usr/bin/nvidia-smi", "new2"),
    "programs": up("usr/bin", "etc"),
    "etc": out("etc", "etc"),
    "etc, up": up("etc", "etc"),
    "cache": out("etc/ld.so.cache", "x"),
    "cache, up": up("etc/ld.so.cache", "etc/ld.so.cache"),
    "cache, new": out("etc/ld.so.cache", "new"),
    "conf.d": out("etc/ld.so.conf.d", ""),
    "conf.d, up": up("etc/ld.so.conf.d", "etc/ld.so.conf.d"),
    "conf": out("etc/ld.so.conf", "new"),
    "our conf": up("etc/ld.so.conf.d/00-gpushim.conf", "x"),
    "endless conf": lambda trap, host: trap.link("etc/ld.so.conf", "/dev/zero"),
    "firmware": up("usr/lib/firmware/nvidia/{0.driver}", ""),
    "all firmware": out("usr/lib/firmware", ""),
    "socket directory": out("run/nvidia-persistenced", ""),
    "loop": loop,
    "compat": compat,
    "fifo": fifo,
    "sparse": sparse,
    "ldconfig": ldconfig,
}


@pytest.mark.parametrize("lay", TRAPS.values(), ids=TRAPS.keys())
def test_an_image_of_links_harms_nothing(trap: Trap, gpu_host: Host, lay: Callable[[Trap, Host], None]) -> None:
    lay(trap, gpu_host)
    trap.bundle.ask("NVIDIA_VISIBLE_DEVICES=all", args=["/busybox", "cat", "/proc/self/mountinfo"])
    given = trap.bundle.spec["mounts"]
    with trap.harmless(gpu_host):
        done = trap.bundle.run(check=False)
    # Either it runs, and nothing of the canary is mounted in it; or it is refused with a reason.
    assert (done.stdout.count("nvidia") > 5) if done.returncode == 0 else trap.bundle.logged()["msg"], done.stderr
    roots = [line.split()[3] for line in done.stdout.splitlines()]  # of each mount in its file system (proc(5))
    assert not [root for root in roots if "/canary" in root]
    assert "Traceback" not in done.stderr
    added = [mount for mount in trap.bundle.spec["mounts"] if mount not in given]
    assert added
    assert all(mount["source"].startswith(f"{gpu_host.root}/") for mount in added)


@pytest.mark.parametrize("inside", ["etc", "etc/ld.so.conf.d"])
def test_what_the_user_mounts_is_not_written_to(trap: Trap, gpu_host: Host, inside: str) -> None:
    mount = {"destination": f"/{inside}", "source": str(trap.canary / inside), "type": "bind", "options": ["rbind"]}
    mounts = [*trap.bundle.plain["mounts"], mount]
    log = Path(trap.bundle.env["GPUSHIM_CONFIG"]).with_name("gpushim.log")
    known = len(log.read_bytes()) if log.exists() else 0
    with trap.harmless(gpu_host):
        report = trap.bundle.look(gpu_host, [1], "NVIDIA_VISIBLE_DEVICES=1", mounts=mounts)
    seen = json.loads(report)
    assert set(seen["libraries"].values()) == {"loads"}
    assert seen["uuids"] == [gpu_host.gpus[1].uuid]
    assert f"skipped /{inside}".encode() in log.read_bytes()[known:]


# Every variable by which a dynamic program, a shell or Python can be led to foreign code.
VARIABLES = {
    "/proc/self/cwd/poc.so": ["LD_PRELOAD", "LD_AUDIT"],
    "/proc/self/cwd": ["LD_LIBRARY_PATH", "GCONV_PATH", "LOCPATH", "NLSPATH", "HOME", "TMPDIR", "PYTHONHOME",
                       "PYTHONPATH", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "XDG_CONFIG_HOME", "PERL5LIB"],
    "/proc/self/cwd/trap.py": ["PYTHONSTARTUP"],
    "/proc/self/cwd/trap.sh": ["BASH_ENV", "ENV"],
    "/proc/self/cwd/traps": ["PATH"],
    "os.trap": ["PYTHONBREAKPOINT"],
    "error::os.Trap": ["PYTHONWARNINGS"],
    "1": ["PYTHONINSPECT", "PYTHONVERBOSE", "SHELLOPTS", "IFS", "GPUSHIM_CONFIG", "GPUSHIM_STATE"],
}  # fmt: skip


def arm(root: Path, marker: Path) -> None:
    """Fill an image with code that makes the marker when a process of the host runs it."""
    library = ["/usr/bin/gcc", "-shared", "-fPIC", f'-DMARKER="{marker}"', "-o", str(root / "poc.so")]
    subprocess.run([*library, str(Path(__file__).with_name("poc.c"))], check=True)
    python = f"import _io\ntry: _io.open({str(marker)!r}, 'w')\nexcept OSError: pass\n"
    names = ("json", "os", "posix", "sitecustomize", "encodings/__init__", "site", "trap", "gpuhook/__init__", "stub")
    for name in (*names, "gpushim/__init__", "lib/python3.11/os"):
        (root / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.py").write_text(python)
    shell = f"#!/bin/sh\n: >{marker}\n"
    (root / "traps").mkdir()
    for name in ("trap.sh", *(f"traps/{program}" for program in ("python3", "sh", "grep", "runc", "ldconfig"))):
        (root / name).write_text(shell)
        (root / name).chmod(0o755)


@pytest.mark.parametrize(("value", "names"), VARIABLES.items(), ids=VARIABLES.keys())
def test_the_variables_of_an_image_reach_no_process_of_the_host(
    trap: Trap, gpu_host: Host, value: str, names: list[str]
) -> None:
    marker = trap.work / "owned"
    arm(trap.root, marker)
    env = [f"{name}={value}" for name in names]
    trap.bundle.ask("NVIDIA_VISIBLE_DEVICES=0", *env, args=["/busybox", "env"])
    with trap.harmless(gpu_host):
        done = trap.bundle.run(check=False)
    assert not marker.exists()
    assert done.returncode == 0, done.stderr
    assert set(env) <= set(done.stdout.splitlines())


def test_the_traps_would_work(trap: Trap) -> None:
    marker = trap.work / "owned"
    arm(trap.root, marker)
    for entry in ("LD_PRELOAD=/proc/self/cwd/poc.so", "LD_AUDIT=/proc/self/cwd/poc.so", "PYTHONPATH=/proc/self/cwd"):
        name, _, value = entry.partition("=")
        subprocess.run(["/usr/bin/python3", "-c", "import trap"], env={name: value}, cwd=trap.root, check=False)
        assert marker.exists(), entry
        marker.unlink()


def test_the_engines_directory_may_be_the_image(trap: Trap, gpu_host: Host) -> None:
    marker = trap.work / "owned"
    arm(trap.root, marker)
    trap.bundle.ask("NVIDIA_VISIBLE_DEVICES=1", args=["/busybox", "ls", "/dev"])
    with trap.harmless(gpu_host):
        done = trap.bundle.run(cwd=trap.root)
    assert f"nvidia{gpu_host.gpus[1].minor}" in done.stdout.split()
    assert not marker.exists()
