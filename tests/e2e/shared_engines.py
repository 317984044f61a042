"""Real engines on a host on which mounts propagate, with a volume on it and images whose links lead there.

All that can be combined is a table; a test runs some of it, `tests/long/run shared` all. MPS is on.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from e2e import chroots, cri, podman, trees
from e2e.engines import Containerd, Docker
from e2e.hostile import HOOK
from e2e.podman import Podman
from e2e.shared_volumes import INSIDE, LINKS, Outcome, kept, mounts, watched
from fakehost import Host

LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so."
MPS = "[mps]\nenabled = true\n"
LOWS = ("runc", "crun")
# What can be said of a volume. Each engine makes the root directory's propagation of it.
COMMON = (None, "private", "rprivate", "slave", "rslave", "shared", "rshared")
ENGINES: dict[str, tuple[tuple[str, ...], tuple[Optional[str], ...]]] = {
    "Docker": (("shim", "hook", "CDI"), COMMON),
    "Podman": (("shim", "hook", "CDI"), (*COMMON, "unbindable", "runbindable")),
    "containerd": (("shim", "CDI"), tuple(cri.PROPAGATIONS)),
}


@dataclass(frozen=True)
class Case:
    """A container.

    Args:
        engine: of ENGINES.
        way: who gives it the GPU.
        low: low-level runtime.
        option: propagation of the volume.
        links: of the image, a name in LINKS.
    """

    engine: str
    way: str
    low: str
    option: Optional[str]
    links: str

    @property
    def runs(self) -> bool:
        """Whether it must not be refused."""
        can_propagate = self.option in ("shared", "rshared")
        return self.links == "nothing" or (self.way == "shim" and not can_propagate)


def table(engine: str) -> list[Case]:
    """List what can be combined."""
    ways, options = ENGINES[engine]
    return [Case(engine, *one) for one in cross(ways, LOWS, options, tuple(LINKS))]


def cross(*lists: tuple[Optional[str], ...]) -> list[list[str]]:
    """Return the product of lists."""
    found: list[list[str]] = [[]]
    for values in lists:
        found = [[*one, value] for one in found for value in values]  # type: ignore[list-item]
    return found


def some(engine: str, seed: int, count: int = 0) -> list[Case]:
    """Choose cases.

    Args:
        engine: of ENGINES.
        seed: of the choice.
        count: how many; 0: an attack in each way, any other, and one that must run.
    """
    chosen = random.Random(f"{engine} {seed}")
    cases = table(engine)
    chosen.shuffle(cases)
    if count:
        print(f"{engine}: seed {seed}, {min(count, len(cases))} of {len(cases)} cases")
        return cases[:count]
    shared = [case for case in cases if case.option in ("shared", "rshared")]
    attacks = [
        next(one for one in shared if (one.way, one.low, one.links) == (way, low, "all"))
        for way, low in zip(ENGINES[engine][0], LOWS * 2)
    ]
    other = next(one for one in cases if one not in attacks)
    return [*attacks, other, next(one for one in shared if one.links == "nothing")]


def image(work: Path, links: str) -> Path:
    """Make an archive of an image whose links lead to the volume; its name is in `name_of`."""
    tree = work / name_of(links)
    if not tree.exists():
        trees.busybox(tree)
        for number, name in enumerate(LINKS[links]):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            if (tree / name).is_dir():
                (tree / name).rmdir()
            (tree / name).symlink_to(f"{INSIDE}/{number}")
    return trees.image(tree, f"{name_of(links)}:local", ["/bin/sh"])


def name_of(links: str) -> str:
    """Return the name of the image with these links."""
    return "linked-" + links.replace(" ", "-")


@dataclass
class Sea:
    """The host, and a volume on it.

    Args:
        work: empty directory.
        host: the simulated host's GPUs.
        env: the settings of gpushim for runc.
        shims: gpushim-runtime over each low-level runtime.
        lows: those.
    """

    work: Path
    host: Host
    env: dict[str, str]
    shims: dict[str, Path]
    lows: dict[str, Path]
    loaded: set[tuple[int, str]] = field(default_factory=set)

    @classmethod
    def made(cls, work: Path, host: Host, lows: dict[str, Path]) -> Sea:
        """Write the settings, and have the host's GPUs listed.

        Args:
            work: empty directory.
            host: the simulated host.
            lows: the low-level runtimes, by LOWS.
        """
        shims = {}
        for name, path in lows.items():
            (work / name).mkdir()
            shims[name] = chroots.shim(work / name, host.root, str(path), MPS)
        env = {"GPUSHIM_CONFIG": f"{work}/runc/config.toml", "GPUSHIM_STATE": f"{work}/runc/state"}
        sea = cls(work, host, env, shims, lows)
        sea.hooks.mkdir()
        (sea.hooks / "nvidia-container-runtime-hook").symlink_to(HOOK)
        return sea

    @property
    def hooks(self) -> Path:
        """A directory for the PATH of an engine that looks for the hook there."""
        return self.work / "path"

    @property
    def specs(self) -> Path:
        """The directory of the CDI spec."""
        return Path(self.env["GPUSHIM_STATE"], "cdi")

    @property
    def volume(self) -> Path:
        """The volume's directory."""
        return self.work / "volume"

    def program(self, case: Case) -> Path:
        """Return the runtime of a case."""
        return (self.shims if case.way == "shim" else self.lows)[case.low]

    @property
    def look(self) -> list[str]:
        """What the container does."""
        return ["/bin/busybox", "stat", "-c", "%i", f"{LIBRARY}{self.host.driver}"]

    def bound(self, case: Case) -> str:
        """Return the volume as Docker and Podman take it."""
        return f"--volume={self.volume}:{INSIDE}{':' + case.option if case.option else ''}"

    def docker(self, engine: Docker, case: Case) -> Outcome:
        """Run a case with Docker."""
        if (id(engine), case.links) not in self.loaded:
            engine.docker("load", f"--input={image(self.work, case.links)}")
            self.loaded.add((id(engine), case.links))
        asks = {"shim": "--env=NVIDIA_VISIBLE_DEVICES=0", "hook": "--gpus=all", "CDI": "--device=nvidia.com/gpu=0"}
        runtime = {"runc": "nvidia", "crun": "nvidia-crun"}[case.low] if case.way == "shim" else case.low
        options = ["--rm", "--network=none", f"--runtime={runtime}", asks[case.way], self.bound(case)]
        options += ["--env=NVIDIA_DRIVER_CAPABILITIES=all"]
        done = engine.docker("run", *options, f"{name_of(case.links)}:local", *self.look, check=False)
        return Outcome(done.returncode, (done.stdout, done.stderr))

    def podman(self, engine: Podman, case: Case, words: Sequence[str] = ()) -> Outcome:
        """Run a case with Podman; the words are for volume and image, if others are meant."""
        if (id(engine), case.links) not in self.loaded and not words:
            engine.podman("load", "--quiet", f"--input={image(self.work, case.links)}")
            self.loaded.add((id(engine), case.links))
        asks = ["--device=nvidia.com/gpu=0"] if case.way == "CDI" else ["--env=NVIDIA_VISIBLE_DEVICES=0"]
        asks += ["--env=NVIDIA_DRIVER_CAPABILITIES=all", "--rm"]
        hook = engine.state / "hooks/99-gpushim.json"
        hook.unlink(missing_ok=True)
        if case.way == "hook":
            podman.write_hook(engine.state, HOOK, self.env)
        called = dataclasses.replace(engine, runtime=self.program(case))
        of_image = words or [self.bound(case), f"localhost/{name_of(case.links)}:local"]
        done = called.run(*asks, *of_image, *self.look, check=False)
        return Outcome(done.returncode, (done.stdout, done.stderr))

    def cri(self, engine: Containerd, client: cri.Client, pods: dict[str, str], case: Case) -> Outcome:
        """Run a case with containerd, in a pod for each of its handlers."""
        if (id(engine), case.links) not in self.loaded:
            engine.load(image(self.work, case.links), ("k8s.io",))
            self.loaded.add((id(engine), case.links))
        handler = {"runc": "nvidia", "crun": "nvidia-crun"}[case.low] if case.way == "shim" else case.low
        if handler not in pods:
            pods[handler] = client.run_pod(handler)
        env = {"NVIDIA_DRIVER_CAPABILITIES": "all", **({"NVIDIA_VISIBLE_DEVICES": "0"} if case.way == "shim" else {})}
        asks = {"env": env, "cdi": ("nvidia.com/gpu=0",) if case.way == "CDI" else ()}
        volume = (self.volume, INSIDE, case.option)
        try:
            image_ = f"docker.io/library/{name_of(case.links)}:local"
            container = client.create(pods[handler], image_, self.look, volume=volume, **asks)  # type: ignore[arg-type]
            client.start(container)
            return Outcome(0, (client.output(container), ""))
        except cri.RefusedError as refused:
            return Outcome(1, ("", str(refused)))

    def run(self, case: Case, prefix: tuple[str, ...], state: Path, way: Callable[[Case], Outcome]) -> None:
        """Run a case, and assert that the host has nothing of it; crun's and Podman's words are not ours.

        Args:
            case: it.
            prefix: what enters the engine's mount namespace.
            state: the engine's directory, where it may mount what it likes.
            way: runs it.
        """
        shutil.rmtree(self.volume, ignore_errors=True)
        for number, _ in enumerate(LINKS[case.links] or [""]):
            (self.volume / str(number)).mkdir(parents=True)
        pid, outcome = prefix[1].split("/")[2], Outcome(-1, ("", ""))
        with watched(lambda: mounts(pid, f"{state}/"), pid, outcome):
            done = way(case)
        outcome.status, outcome.said = done.status, done.said
        # What engines mount besides, such as Podman's /run/.containerenv, they leave on the host.
        top = "/".join(Path(self.host.root).parts[-2:])
        outcome.reached = {line for line in outcome.reached if top in line.split()[3]}
        outcome.left = [str(path) for path in self.volume.rglob("*") if path.is_file() and path.stat().st_size]
        if outcome.status and (case.low == "crun" or case.engine == "Podman"):
            outcome.said = ("", f"{outcome.said[1]} invalid argument")
        assert kept(outcome, self.host) or not case.runs, (case, outcome)
