"""A hook that is killed, or refused by the kernel, at any of its system calls.

Each file that it writes is the image's or the new one, whole. What it cannot do it says, in one sentence or in the
log. The next hook of the same container gives what a clean one gives, and takes away what a killed one has left.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import recorder
from e2e.engines import SYSTEM_PATH
from e2e.faults import KILL, Call, Done, calls, shorten, some, split, strike, telling, tree
from e2e.leftovers import until
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from fakehost import Host
from gpushim.ground.errors import BUNDLE, FAILED, INVENTORY, ROOTFS
from gpushim.inventory.loader import libraries
from gpushim.oci.edits import hook_args
from unit.gpuhook.sandbox import HOOK, as_root

CAPABILITIES = {"shim": "all", "hook": "compute"}
CACHE, FOLDERS = "etc/ld.so.cache", "etc/ld.so.conf.d/00-gpushim.conf"
LIBS = "usr/lib/x86_64-linux-gnu"
ERRORS = ("ENOSPC", "EIO", "EMFILE", "ENFILE", "ENOMEM", "EDQUOT", "EINTR", "EROFS", "EXDEV")
FAILING = ("openat", "read", "write", "renameat", "mkdirat", "symlinkat", "readlinkat", "fchmod", "fchown", "fsync")
NEW = ".gpushim-"
STEPS = {"shim": 12, "hook": 200}  # of the calls that change no file, each so manieth
CODES = {"shim": (FAILED, ROOTFS), "hook": (FAILED, INVENTORY, BUNDLE, ROOTFS)}


class Lab:
    """A root filesystem, and the hook that gpushim-runtime would have runc call for it.

    Args:
        work: empty directory.
        host: the simulated host.
        image: a Debian root filesystem.
        way: who applies the plan, the shim or the hook alone.
    """

    def __init__(self, work: Path, host: Host, image: Path, way: str) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.way = way
        self.stdin = work / "stdin"
        self.root, self.image, self.log = work / "root", work / "image", work / "gpushim.log"
        for name in (LIBS, "etc/ld.so.conf.d", "lib64", "proc", "dev"):
            (self.image / name).mkdir(parents=True)
        (self.image / "lib").symlink_to("usr/lib")
        (self.image / "lib64/ld-linux-x86-64.so.2").touch()
        (self.image / LIBS / "libcuda.so.1").symlink_to("libcuda.so.1.0")  # of another driver: to be replaced
        shutil.copyfile(image / "etc/ld.so.cache", self.image / "etc/ld.so.cache")
        self.env = settings(work, host.root, str(recorder.build(work))) | {"PATH": SYSTEM_PATH}
        subprocess.run([TOP / "bin" / "gpushim", "refresh"], env=self.env, check=True, capture_output=True)
        subprocess.run([RUNC, "spec", "--bundle", work], check=True)
        spec = json.loads((work / "config.json").read_text())
        spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={CAPABILITIES[way]}"]
        spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]  # the hook need not change rules
        (work / "config.json").write_text(json.dumps({**spec, "root": {"path": str(self.root)}}))
        plain = (work / "config.json").read_text()
        subprocess.run([TOP / "bin" / "gpushim-runtime", "create", "--bundle", work, "x"], env=self.env, check=True)
        edited = json.loads((work / "config.json").read_text())
        (hook,) = edited["hooks"]["prestart"]
        for mount in edited["mounts"]:  # as runc makes places for them
            (self.image / mount["destination"][1:]).parent.mkdir(parents=True, exist_ok=True)
        self.command = [str(HOOK), *hook_args(hook)]
        if way == "hook":
            self.command = self.command[:2]
            (work / "config.json").write_text(plain)
        self.lay()
        with self.stdin.open() as stdin:
            start, ours = split(calls(self.command, stdin=stdin, env=self.env), str(HOOK))
        imports, work_calls = split(ours, "/dev/null")
        self.made = [*some(start, 20), *some(imports, 5), *telling(work_calls[:-1], STEPS[way])]
        self.failing = [call for call in work_calls if call.name in FAILING]
        self.before, self.done = tree(self.image), tree(self.root)

    def lay(self) -> None:
        """Put the image's files back, and let a new process be the container's."""
        self.end()
        command = ["/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sleep", "1000"]
        self.process = subprocess.Popen(command)
        ours, theirs = (Path(f"/proc/{pid}/ns/mnt") for pid in ("self", self.process.pid))
        assert until(lambda: theirs.readlink() != ours.readlink(), 20)
        state = {"pid": self.process.pid, "status": "created", "bundle": str(self.stdin.parent)}
        self.stdin.write_text(json.dumps(state))
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.image, self.root, symlinks=True)
        as_root(self.process.pid, self.root)
        self.log.unlink(missing_ok=True)

    def end(self) -> None:
        """End the container's process, and with it what is mounted in its namespace."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def strike(self, call: Call, what: str) -> Done | None:
        """Call the hook with a fault at a call."""
        self.lay()
        with self.stdin.open() as stdin:
            return strike(self.command, call, what, stdin=stdin, env=self.env)

    def works(self, **env: str) -> None:
        """Assert that the next hook gives what a clean one gives."""
        options: dict[str, Any] = {"env": self.env | env, "capture_output": True, "text": True, "timeout": 60}
        with self.stdin.open() as stdin:
            done = subprocess.run(self.command, stdin=stdin, check=False, **options)
        assert (done.returncode, done.stderr) == (0, "")
        assert tree(self.root) == self.done

    def whole(self) -> dict[str, tuple[int, bytes]]:
        """Assert that each file is the image's or the new one; return them, a killed one's under one name."""
        left = {NEW if NEW in name else name: what for name, what in tree(self.root).items()}
        for name in left.keys() - {NEW, CACHE, FOLDERS}:
            assert left[name] in (self.before.get(name), self.done.get(name)), name
        # Without a link, the cache has the path of what that leads to, and maybe nothing of its folder is left.
        named, every = ({*files.get(FOLDERS, (0, b""))[1].splitlines()} for files in (left, self.done))
        assert named <= every
        least, names, most = (set(dict(libraries(files[CACHE][1]))) for files in (self.before, left, self.done))
        assert least <= names <= most
        return left


@pytest.fixture(scope="module", params=STEPS)
def lab(
    request: pytest.FixtureRequest, gpu_host: Host, debian_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """A root filesystem that is to be struck."""
    made = Lab(tmp_path_factory.mktemp("lab"), gpu_host, debian_tree, request.param)
    yield made
    made.end()


def test_killed_at_any_call(lab: Lab) -> None:
    seen: list[object] = [lab.before, lab.done]
    killed = 0
    for call in lab.made:
        killed += lab.strike(call, KILL) is not None
        left = lab.whole()
        if left not in seen:
            seen.append(left)
            lab.works()
    assert len(seen) > 10
    assert killed > 0.9 * len(lab.made)


@pytest.mark.parametrize("error", ERRORS)
def test_refused_by_the_kernel_at_any_call(lab: Lab, error: str) -> None:
    struck = 0
    for call in some(lab.failing[ERRORS.index(error) :], len(lab.failing) // 20):
        done = lab.strike(call, f"error={error}")
        if done is None:
            continue
        struck += 1
        left = lab.whole()
        assert NEW not in left
        if done.returncode:
            assert done.stderr.startswith("gpushim-hook: ")
            assert done.stderr.count("\n") == 1, (call, done.stderr)
            assert done.returncode in CODES[lab.way], done.stderr
        elif left != lab.done:
            assert b"skipped" in lab.log.read_bytes(), call
    lab.works()
    assert struck > 10


def test_short_writes(lab: Lab, tmp_path: Path) -> None:
    lab.lay()
    lab.works(LD_PRELOAD=str(shorten(tmp_path)))
