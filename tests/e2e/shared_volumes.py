"""A host on which mounts propagate, as with systemd, with a volume on it and images whose links lead there.

Many containers are run in one mount namespace. While they are, the host's mounts are read each time that the kernel
tells of a change: what was mounted for a moment is seen too.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import select
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import pytest

from e2e import engines, views
from e2e.hostile import HOOK, LIBS
from e2e.hostile_places import Place
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from fakehost import Host

# Of the root directory and of a volume. runc knows `runbindable` for volumes alone.
ROOTS = (None, "private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable")
VOLUMES = (*ROOTS, "runbindable")
CONFINED = (None, "rprivate", "rslave")
# What an image makes a link to the volume, by what it is after.
LINKS: dict[str, list[str]] = {
    "nothing": [],
    "library directory": [LIBS],
    "a parent of it": ["usr/lib"],
    "the parent of all": ["usr"],
    "programs": ["usr/bin"],
    "firmware": ["lib/firmware"],
    "run": ["run"],
    "socket directories": ["run/nvidia-persistenced", "tmp/nvidia-mps"],
    "all": [LIBS, "usr/bin", "lib/firmware", "run", "tmp"],
}
INSIDE = "/data"
# Ours, and the kernel's of a source on an unbindable mount.
REASONS = ("rslave or rprivate", "shared with the host", "invalid argument")
SHARED = """
mount --make-rshared /
mkdir -p "$0/rootfs" "$0/volume"
mount -t tmpfs none "$0/rootfs"
mount -t tmpfs none "$0/volume"
mkdir "$0/volume/below"
mount -t tmpfs none "$0/volume/below"
"""
PLACES = [("hybrid", RUNC), *([("v1", views.CRUN)] if "GPUSHIM_SHARED_CASES" in os.environ else [])]


@dataclass
class Outcome:
    """What came of a container.

    Args:
        status: exit status of the runtime.
        said: stdout, and stderr.
        reached: lines of mountinfo that the host had meanwhile, or has now, and had not before.
        left: files below the volume that hold something.
    """

    status: int
    said: tuple[str, str]
    reached: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)


def mounts(pid: str, *theirs: str) -> set[str]:
    """List the mounts that a process sees, as lines of mountinfo, but for namespaces and what engines make.

    Args:
        pid: of the process.
        theirs: beginnings of the engines' mount points.
    """
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return {line for line in lines if not line.split()[4].startswith(theirs) and " - nsfs " not in line}


@contextlib.contextmanager
def watched(listed: Callable[[], set[str]], pid: str, outcome: Outcome) -> Iterator[None]:
    """Note each mount that a host gets during the block.

    Args:
        listed: lists them.
        pid: of a process that sees them.
        outcome: where they are noted.
    """
    before, over = listed(), threading.Event()
    with open(f"/proc/{pid}/mountinfo", "rb", buffering=0) as file:
        changes = select.poll()
        changes.register(file, select.POLLPRI | select.POLLERR)

        def watch() -> None:
            while not over.is_set():
                if changes.poll(20):
                    outcome.reached |= listed() - before

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            outcome.reached |= listed() - before


class Shared:
    """The host.

    Args:
        work: empty directory, on which it all is mounted.
        place: low-level runtime, and the namespace.
        prefix: what to put before a command that shall run on this host.
    """

    def __init__(self, work: Path, place: Place, prefix: tuple[str, ...]) -> None:
        self.work, self.place, self.prefix = work, place, prefix
        self.pid = prefix[1].split("/")[2]
        self.bundle = work / "bundle"
        self.bundle.mkdir()
        subprocess.run([RUNC, "spec", "--bundle", str(self.bundle)], check=True)
        self.plain = json.loads((self.bundle / "config.json").read_text())
        self.plain["process"]["terminal"] = False
        self.plain["root"] = {"path": str(work / "rootfs")}
        del self.plain["hostname"]
        kept = ("/proc", "/dev", "/dev/shm")
        self.plain["mounts"] = [mount for mount in self.plain["mounts"] if mount["destination"] in kept]
        self.plain["linux"] = {
            "namespaces": [{"type": "mount"}, {"type": "pid"}],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        }

    def of(self, place: Place) -> Shared:
        """Return the same host with the programs of another place."""
        other = copy.copy(self)
        other.place = place
        return other

    def on(self, path: str) -> Path:
        """Return where a path of this host is for the test."""
        return Path(f"/proc/{self.pid}/root{path}")

    def mounts(self) -> set[str]:
        """List the host's mounts, as lines of mountinfo, but for the runtime's of itself when it starts."""
        return mounts(self.pid, f"{self.work}/state/", "/tmp/crun.")

    def image(self, links: list[str], target: str = INSIDE) -> None:
        """Lay down a small image, with these links to the volume, whose directories are there."""
        root, volume = self.on(str(self.work / "rootfs")), self.on(str(self.work / "volume"))
        for path in [*root.iterdir(), *volume.iterdir(), *(volume / "below").iterdir()]:
            if path.is_dir() and not path.is_symlink() and path.name != "below":
                shutil.rmtree(path)
            elif path.name != "below":
                path.unlink()
        for name in ("bin", "proc", "dev", "data", "tmp", "run", "etc", "usr"):
            (root / name).mkdir()
        shutil.copyfile("/bin/busybox", root / "bin/busybox")
        (root / "bin/busybox").chmod(0o755)
        for number, name in enumerate(links):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if (root / name).is_dir():
                (root / name).rmdir()
            (root / name).symlink_to(f"{target}/{number}")
            (volume / target.removeprefix(INSIDE).strip("/") / str(number)).mkdir()

    def run(
        self,
        host: Host,
        *mounts: dict[str, Any],
        propagation: Optional[str] = None,
        way: str = "shim",
        wants: str = "NVIDIA_VISIBLE_DEVICES=0",
    ) -> Outcome:
        """Run a container that asks for a GPU, and has these mounts behind the usual ones."""
        spec = json.loads(json.dumps(self.plain))
        library = f"/{LIBS}/libcuda.so.{host.driver}"
        spec["process"]["args"] = ["/bin/busybox", "stat", "-c", "%i", library]
        spec["process"]["env"] += [wants, "NVIDIA_DRIVER_CAPABILITIES=all"]
        spec["mounts"] += mounts
        if propagation:
            spec["linux"]["rootfsPropagation"] = propagation
        if way == "CDI":
            self.inject(spec)
        if way == "hook":
            variables = [f"{key}={value}" for key, value in self.place.env.items()]
            hook = {"path": str(self.place.top / "bin" / HOOK.name), "args": [HOOK.name, "prestart"]}
            spec["hooks"] = {"prestart": [{**hook, "env": ["PATH=/usr/bin", *variables]}]}
        return self.start(spec, str(self.place.top / "bin/gpushim-runtime") if way == "shim" else self.place.program)

    def inject(self, spec: dict[str, Any]) -> None:
        """Do what engines do with gpushim's spec, for its first device; their library puts mounts by depth."""
        written = json.loads(Path(self.place.env["GPUSHIM_STATE"], "cdi/nvidia.com-gpu.json").read_text())
        for edits in (written["containerEdits"], written["devices"][0]["containerEdits"]):
            spec["process"]["env"] += edits.get("env", ())
            for mount in edits.get("mounts", ()):
                given = {"destination": mount["containerPath"], "source": mount["hostPath"], "type": "bind"}
                spec["mounts"].append({**given, "options": mount["options"]})
            for hook in edits.get("hooks", ()):
                named = {key: value for key, value in hook.items() if key != "hookName"}
                spec.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(named)
        spec["mounts"].sort(key=lambda mount: mount["destination"].count("/"))

    def start(self, spec: dict[str, Any], program: str) -> Outcome:
        """Run a container, and look at what the host has of it."""
        (self.bundle / "config.json").write_text(json.dumps(spec))
        outcome = Outcome(-1, ("", ""))
        command = [*self.prefix, program, f"--root={self.work}/state", "run", "--bundle", str(self.bundle)]
        with watched(self.mounts, self.pid, outcome):
            done = subprocess.run(
                [*command, uuid.uuid4().hex],
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **self.place.env},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        outcome.status, outcome.said = done.returncode, (done.stdout, done.stderr)
        if done.returncode and self.place.program == views.CRUN:  # it has no words of a hook
            outcome.said = (done.stdout, f"{done.stderr} invalid argument")
        volume = self.on(str(self.work / "volume"))
        outcome.left = [str(path) for path in volume.rglob("*") if path.is_file() and path.stat().st_size]
        return outcome

    def volume(self, option: Optional[str], destination: str = INSIDE, kind: str = "rbind") -> dict[str, Any]:
        """Describe the volume, as engines do."""
        options = [kind, option] if option else [kind]
        return {"destination": destination, "source": str(self.work / "volume"), "type": "bind", "options": options}


def kept(outcome: Outcome, host: Host) -> bool:
    """Assert that the host has nothing of a container, which has the driver or was refused; tell whether it ran."""
    assert not outcome.reached, outcome
    assert not outcome.left, outcome
    if outcome.status:
        assert "Traceback" not in outcome.said[1]
        assert "internal error" not in outcome.said[1]
        assert any(reason in outcome.said[1] for reason in REASONS), outcome.said
        return False
    library = Path(host.root, LIBS, f"libcuda.so.{host.driver}")
    assert int(outcome.said[0]) == library.stat().st_ino
    return True


@contextlib.contextmanager
def shared(work: Path, place: Place, view: str = "hybrid") -> Iterator[Shared]:
    """Hold such a host.

    Args:
        work: empty directory.
        place: low-level runtime; its prefix plays no part.
        view: of the cgroup file systems.
    """
    script = SHARED.replace('"$0/', f'"{work}/')
    with views.view(view, script) as prefix:
        yield Shared(work, place, prefix)


@pytest.fixture(scope="module")
def shared_by(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A view of the cgroup file systems, and a low-level runtime."""
    view, program = getattr(request, "param", PLACES[0])
    return str(view), str(program)


@pytest.fixture(scope="module")
def place(gpu_host: Host, shared_by: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Place:
    """That runtime, and settings for it."""
    env = settings(tmp_path_factory.mktemp("place"), gpu_host.root, shared_by[1])
    engines.run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": engines.SYSTEM_PATH, **env})
    return Place(env, shared_by[1])


@pytest.fixture(scope="module")
def host(place: Place, shared_by: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A host with it."""
    with shared(tmp_path_factory.mktemp("shared"), place, shared_by[0]) as held:
        yield held
