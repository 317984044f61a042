"""What tests of hostile images share: the trap, the canary it is after, and the proof that nothing came of it.

The canary is a tree of the host outside the root file system, with a token in each file. The runtime runs in a
mount namespace that shares its mounts with nobody else, so that what it and the hook leave mounted can be told from
what other tests mount. Every image is run by both appliers of a plan: the shim, and the hook alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sample
from e2e.bundles import Bundle
from e2e.expect import PROBE
from e2e.hostile_places import Place
from e2e.trees import TOP
from fakehost import Host
from gpuhook.loader import ldcache

HOOK = TOP / "bin" / "nvidia-container-runtime-hook"
LIBS = "usr/lib/x86_64-linux-gnu"
WAYS = ("shim", "hook")
# A leaked mount shows in the namespace itself only where mounts propagate, as they do on a host with systemd.
SHARED = """
/bin/mount --make-rshared /
/bin/cat /proc/self/mountinfo >"$0/before"
"$@" || code=$?
/bin/cat /proc/self/mountinfo >"$0/after"
exit ${code:-0}
"""
NO_FILE = ("directory", "character special file", "symbolic link")
HOSTS = ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/sbin/ldconfig", "/usr/sbin/runc"]
HOSTS += ["/usr/bin/python3", str(TOP / "bin")]
# What a container sees, in words that need nothing of the image: mounts, what is on them, its fds, and the token in
# whatever is younger than the trap.
LOOK = """
b=/busybox
$b cat /proc/self/mountinfo
echo -- identities
while read -r _ _ _ _ place _; do $b stat -c '%d:%i %F %n' "$place"; done </proc/self/mountinfo
echo -- fds
$b ls -l /proc/$$/fd
echo -- token
$b find / '(' -path /proc -o -path /sys -o -path /dev ')' -prune -o -type f -newer $b -exec $b grep -lF TOKEN '{}' +
[ ! -f /etc/ld.so.cache ] || $b head -c 1000000 /etc/ld.so.cache | $b tr '\\0' '\\n' | $b grep -F TOKEN
echo -- end
"""


def snapshot(*tops: str) -> dict[str, object]:
    """Return what is below some directories: names, contents, owners and times."""
    found: dict[str, object] = {}
    for top in map(Path, map(os.path.realpath, tops)):
        for path in sorted([top, *top.rglob("*")]):
            status = path.lstat()
            facts: list[object] = [status.st_mode, status.st_uid, status.st_gid, status.st_ino, status.st_mtime_ns]
            if path.is_symlink():
                facts.append(path.readlink())
            elif path.is_file():
                facts.append(digest(str(path), status.st_dev, status.st_ino, status.st_ctime_ns))
            found[str(path)] = facts
    return found


@functools.cache
def digest(path: str, *identity: int) -> str:
    """Hash a file, once for each ctime: nobody can set that back."""
    del identity
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def mounted(mountinfo: str) -> dict[tuple[str, ...], str]:
    """Return mount points by the mounts' id, parent and device; paths change while others remove what is mounted."""
    return {tuple(line.split()[:3]): line.split()[4] for line in mountinfo.splitlines()}


def small_image(tree: Path, root: Path, *more: str) -> None:
    """Make an image of few files: what the hook looks for, and nothing that it would execute.

    Args:
        tree: of a Debian.
        root: the image's directory; what is in it goes.
        more: directories to make besides.
    """
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "busybox":
            path.unlink()
    shutil.copytree(tree / "etc", root / "etc", symlinks=True)
    for name in ("usr/bin", LIBS, "usr/lib64", "usr/local/cuda", "run", "proc", "sys", "dev", "var", *more):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/lib64/ld-linux-x86-64.so.2").touch()


class Trap:
    """An image that is about to be run, and the canary that it is after.

    Args:
        work: empty directory.
        root: the image's files.
        env: the engine's environment, or the place with its environment.
        way: who applies the plan, of WAYS.
    """

    def __init__(self, work: Path, root: Path, env: dict[str, str] | Place, way: str = "shim") -> None:
        self.place = env if isinstance(env, Place) else Place(env)
        self.root, self.work, self.way, self.canary = root, work, way, work / "canary"
        shutil.copyfile("/bin/busybox", root / "busybox")  # static: it runs whatever the image has lost
        (root / "busybox").chmod(0o755)
        os.utime(root / "busybox", times=(0, time.time() - 2))  # its find(1) takes whole seconds alone for a time
        self.watched = [str(self.canary), *HOSTS]
        self.creates = not self.place.prefix and sample.turn_of(work.name)
        self.token = secrets.token_hex(16)
        (self.canary / "etc/ld.so.conf.d").mkdir(parents=True)
        (self.canary / "lib").mkdir()
        for name in ("secret", "x", "etc/passwd", "etc/ld.so.conf"):
            (self.canary / name).write_text(f"the host's own {name}, {self.token}\n")
        entry = (f"lib{self.token}.so.1".encode(), b"/usr/lib/libsecret.so")  # so that reading it shows, too
        (self.canary / "etc/ld.so.cache").write_bytes(ldcache.merge(None, [entry], ldcache.FLAGS["x86_64"]) or b"")
        prefix = ("/usr/bin/unshare", "--mount", "--propagation=private", "/bin/sh", "-c", SHARED, str(work))
        self.bundle = Bundle(work / "bundle", root, self.place.env, (*self.place.prefix, *prefix))

    def up(self, inside: str) -> str:
        """The canary's path by as many steps up as lead out of any root."""
        return "../" * 40 + str(self.canary / inside)[1:]

    def link(self, name: str, target: object) -> None:
        """Put a link into the image, in the place of what is there."""
        place = self.root / name
        self.remove(name)
        place.symlink_to(str(target))

    def remove(self, name: str) -> None:
        """Make place for something else, with the directories above it."""
        place = self.root / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Put a file into the image, in the place of what is there."""
        self.remove(name)
        (self.root / name).write_bytes(data)

    def ask(self, *env: str, args: list[str], before: tuple[dict[str, Any], ...] = (), **members: Any) -> None:
        """Write config.json as an engine does for the shim, or for the hook; `before` are hooks that come first."""
        hooks = list(before)
        if self.way == "hook":
            variables = [f"{key}={value}" for key, value in self.bundle.env.items()]
            hook = str(self.place.top / "bin" / HOOK.name)
            hooks.append({"path": hook, "args": [HOOK.name, "prestart"], "env": ["PATH=/usr/bin", *variables]})
        self.bundle.ask(*env, args=args, **{"hooks": {"prestart": hooks}, **members})

    def look(self, *env: str, **members: Any) -> None:
        """Ask for a container that looks around."""
        script = LOOK.replace("TOKEN", self.token)
        self.ask(*env, args=["/busybox", "sh", "-c", script], **members)

    def run(self, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the container with the runtime that belongs to the way; through the shim by `create`, or by `run`.

        There the child of the create does the hook's work, here gpushim-hook.
        """
        if self.way == "shim" and self.creates:
            self.bundle.runtime = self.place.top / "bin/gpushim-runtime"
            return self.bundle.live(check=False, prefix=(), **options)
        program = self.place.top / "bin/gpushim-runtime" if self.way == "shim" else self.place.program
        state = [f"--root={self.bundle.directory}/state", "--log", str(self.bundle.log), "--log-format", "json"]
        command = [*self.bundle.prefix, str(program), *state, "run", "--bundle", str(self.bundle.directory)]
        options = {"env": self.bundle.env, "stdin": subprocess.DEVNULL, "timeout": 60, **options}
        return subprocess.run([*command, self.bundle.id], check=False, capture_output=True, text=True, **options)

    @contextlib.contextmanager
    def harmless(self, host: Host) -> Iterator[None]:
        """Assert that the block changes nothing of the host and leaves nothing mounted."""
        before = snapshot(host.root, *self.watched)
        yield
        assert snapshot(host.root, *self.watched) == before
        had, has = (mounted((self.work / name).read_text()) for name in ("before", "after"))
        assert not has.keys() - had.keys()
        # Other tests remove mount points meanwhile; with its directory a mount goes from every namespace.
        assert not [had[mount] for mount in had.keys() - has.keys() if os.path.lexists(had[mount])]

    def saw_nothing(self, done: subprocess.CompletedProcess[str], host: Host) -> None:
        """Assert that a container which ran, with `look`, has the driver's files and nothing else of the host."""
        parts = done.stdout.split("\n-- ")
        assert len(parts) == 5, f"{done.returncode}: {done.stdout}{done.stderr}"
        mounts, identities, fds, token, _ = parts
        lines = [line.split() for line in mounts.splitlines()]
        libraries = Path(self.bundle.env["GPUSHIM_CONFIG"]).with_name("libraries")  # as one mount, if it is there
        assert sum(host.driver in line[3] or f"/{libraries.name}/" in line[3] for line in lines) > 3, mounts
        # The root of each mount in its file system: of the canary's, nothing but what belongs to the container.
        system, _ = place_in_system(self.canary)
        places = (host.root, libraries, PROBE, self.root, self.work / "volume", self.bundle.directory / "state")
        given = [place_in_system(Path(path)) for path in places]  # crun covers with directories of its state
        own = tuple(place for where, place in given if where == system)
        assert all(line[3].startswith(own) for line in lines if line[2] == system), mounts
        ours = {identity(path) for path in [str(PROBE), *map(str, Path(host.root).rglob("*"))]}
        for words in [line.split(" ", 1) for line in identities.splitlines()[1:]]:
            kind, _, place = words[1].rpartition(" ")  # what is on /proc is of runc's masks; links come in races
            assert words[0] in ours or kind in NO_FILE or place.startswith("/proc/"), words
        assert token.splitlines() == ["token"]
        names = [line.split() for line in fds.splitlines()[1:] if "->" in line]
        assert {words[words.index("->") - 1] for words in names} <= {"0", "1", "2"}, fds

    def refused(self, done: subprocess.CompletedProcess[str]) -> str:
        """Assert that a container which did not run was refused with a reason, and return that."""
        assert done.returncode
        assert "Traceback" not in done.stderr
        assert "internal error" not in done.stderr
        assert isinstance(self.bundle.spec, dict)
        reason = f"{self.bundle.log.read_text()}\n{done.stderr}"
        assert "error" in reason or "fatal" in reason
        return reason


def place_in_system(path: Path) -> tuple[str, str]:
    """Return a file system's major:minor and the place of a path in it, as mountinfo has them (proc(5))."""
    top = next(above for above in [path, *path.parents] if above.is_mount())
    device = top.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}", "/" + "/".join(path.relative_to(top).parts)


def identity(path: str) -> str:
    """Name a file as busybox's stat does in LOOK."""
    facts = os.lstat(path)
    return f"{facts.st_dev}:{facts.st_ino}"
