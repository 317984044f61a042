"""Random orders of configure, edits by others, replacement, force, remove and purge, over real files of engines.

Whatever somebody else writes carries a mark of its own. No step of gpushim's may lose a line that has one: it is in
its file, or in a copy that is named. At the end all files of others are as if gpushim had never been there
(tests/long/run has the long form).
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines import containerd, crio, hooksd, podman
from gpushim.engines.containerd import process
from gpushim.engines.settings import files, toml
from gpushim.engines.settings.setup import Options
from gpushim.ground.errors import GpushimError

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("GPUSHIM_SEQUENCES", "25"))  # of each engine; a run by hand may take more
TOP = Path(__file__).parents[4]
WRITTEN = TOP / "packaging/deb/debian/written.sh"
DATA = Path(__file__).parents[3] / "data/engines"
NVIDIAS = "/usr/bin/nvidia-container-runtime"
MARK = re.compile(r"mark\d+x")
REFUSALS = (
    "--force|is not gpushim's|by hand|is not TOML|goes with gpushim's entry|is read after gpushim's file|not a table|"
    "is of version"
)


class Place:
    """An engine's settings in a directory of their own, and what others have written into them."""

    engine: Any
    main, drop_ins, ours = "", "", ""  # its file of settings, the directory that it reads, and gpushim's file there
    nvidias = ""
    hooks = False

    def __init__(self, folder: Path, program: str, rng: random.Random) -> None:
        self.folder, self.program, self.rng, self.count = folder, program, rng, 0
        (folder / self.drop_ins).mkdir(parents=True)
        self.path = folder / self.main
        self.write(self.path, self.real())

    def usual(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make these files the ones that the engine reads."""
        monkeypatch.setattr(crio, "CONFIG", f"{self.folder}/crio/crio.conf")
        monkeypatch.setattr(crio, "DIRECTORY", f"{self.folder}/crio/crio.conf.d")
        monkeypatch.setattr(podman, "SYSTEM_DIRECTORIES", (f"{self.folder}/share", f"{self.folder}/containers"))
        for engine in (crio, podman):
            monkeypatch.setattr(engine, "HOOKS", f"{self.folder}/hooks.d")

    def options(self, **more: Any) -> Options:
        return Options(config=str(self.path) if self.engine is containerd else "", **more)

    def real(self) -> str:
        """Return a file as a distribution or an administrator has written it, with a mark."""
        raise NotImplementedError

    def mark(self) -> str:
        self.count += 1
        return f"mark{self.count}x"

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def marked(self) -> dict[Path, list[str]]:
        """Return the lines with marks, by their file."""
        texts = {path: path.read_text() for path in self.folder.rglob("*") if path.is_file()}
        return {
            path: lines for path, text in texts.items() if (lines := [x for x in text.split("\n") if MARK.search(x)])
        }

    def step(self, plan: Callable[[], list[files.Change]]) -> bool:
        """Let gpushim do something, which loses nothing; return whether it did."""
        before = self.marked()
        try:
            files.apply(plan())
        except GpushimError as refusal:
            if not re.search(REFUSALS, str(refusal)) or self.marked() != before:
                raise
            return False
        after = self.marked()
        copies = {line for path, lines in after.items() if "-gpushim" in path.name for line in lines}
        for path, lines in before.items():
            assert "-gpushim" in path.name or path.name == self.ours or after.get(path) == lines, path
            assert path.name.endswith(files.BEFORE) or {*lines} <= {*after.get(path, ()), *copies}, path
        return True

    # What happens, one method each.

    def configure(self) -> None:
        rng = self.rng
        name, hook = rng.choice(["nvidia", "nvidia", "gpu"]), "/usr/bin/gpushim-hook" if self.hooks else ""
        options = self.options(
            program=self.program,
            name=name,
            default=rng.random() < 0.3,
            cdi=rng.random() < 0.3,
            hook=hook if rng.random() < 0.4 else "",
            force=rng.random() < 0.4,
        )
        if self.step(lambda: self.engine.plan(options).changes):
            assert self.engine.plan(options).changed == []

    def remove(self) -> None:
        def changes() -> list[files.Change]:
            plan = self.engine.plan(self.options(remove=True))
            plan.check()
            return list(plan.changes)

        if self.step(changes):
            assert not [path for path in self.folder.rglob(self.ours) if "Made by `gpushim" in path.read_text()]
            assert not (self.folder / "hooks.d" / hooksd.FILE).exists()
            assert (self.folder / "elsewhere").exists() or not [*self.folder.rglob("*.before-gpushim")]
            assert self.engine.plan(self.options(remove=True)).changed == []

    def edit(self) -> None:
        """Write a comment or a table at the end of a file, be it gpushim's, or a comment before its first line."""
        path = self.rng.choice([path for path in self.folder.rglob("*") if self.is_settings(path)] or [self.path])
        text = path.read_text() if path.exists() else ""
        if self.rng.random() < 0.5 and path.name != self.ours:
            self.write(path, f"# {self.mark()}\n{text}")
        else:
            more = self.rng.choice([f"# {self.mark()}\n", f"[{self.mark()}.x] # {self.mark()}\ny = 1\n"])
            self.write(path, text + ("" if not text or text.endswith("\n") else "\n") + more)

    def is_settings(self, path: Path) -> bool:
        return path.is_file() and "-gpushim" not in path.name and path.suffix in (".toml", ".conf")

    def replace(self) -> None:
        self.write(self.path, self.real())

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def drop_in(self) -> None:
        """Somebody writes a file into the directory, with NVIDIA's runtime in it or without."""
        text = self.nvidias.format(NVIDIAS) if self.rng.random() < 0.5 else ""
        self.write(
            self.folder / self.drop_ins / f"{self.rng.choice('19')}0-other.{self.ours[-4:]}",
            text + f"# {self.mark()}\n",
        )

    def become_a_link(self) -> None:
        if self.path.exists() and not self.path.is_symlink():
            elsewhere = self.folder / "elsewhere" / self.path.name
            elsewhere.parent.mkdir(exist_ok=True)
            self.path.rename(elsewhere)
            self.path.symlink_to(elsewhere)

    def purge(self) -> None:
        """The package goes: what its script takes away has nothing of others."""
        before = self.marked()
        function = re.search(r"(?ms)^remove_records\(\) \{.*?^\}", WRITTEN.read_text())
        assert function
        env = {"PATH": "/usr/bin:/bin", "DPKG_ROOT": str(self.folder)}
        subprocess.run(["/bin/sh", "-ec", f"{function[0]}\nremove_records"], check=True, env=env)
        assert {path: lines for path, lines in before.items() if "before-gpushim" not in path.name} == {
            path: lines for path, lines in self.marked().items() if "before-gpushim" not in path.name
        }


class Containerd(Place):
    engine, main, drop_ins, ours = (
        containerd,
        "etc/containerd/config.toml",
        "etc/containerd/conf.d",
        "99-gpushim.toml",
    )
    nvidias = """[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]
BinaryName = "{}"
"""

    def real(self) -> str:
        path = self.rng.choice(
            sorted(path for path in (DATA / "containerd").glob("*.toml") if "bad" not in path.name)
        )
        imports = self.rng.choice(["", "", "", 'imports = ["conf.d/*.toml"]\n'])
        return f"# {self.mark()}\n{imports}{path.read_text()}"


class Crio(Place):
    engine, main, drop_ins, ours, hooks = crio, "crio/crio.conf", "crio/crio.conf.d", "99-gpushim.toml", True
    nvidias = '[crio.runtime.runtimes.nvidia]\nruntime_path = "{}"\n'

    def real(self) -> str:
        text = '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nmonitor_path = "/x"\n'
        return f"# {self.mark()}\n" + self.rng.choice(["", text])


class Podman(Place):
    engine, main, drop_ins, ours, hooks = (
        podman,
        "containers/containers.conf",
        "containers/containers.conf.d",
        "99-gpushim.conf",
        True,
    )
    nvidias = '[engine.runtimes]\nnvidia = ["{}"]\n'

    def real(self) -> str:
        return f"# {self.mark()}\n" + self.rng.choice(["", '[engine]\nruntime = "crun" # mine\n'])


STEPS = (
    ["configure"] * 4 + ["edit"] * 4 + ["replace", "delete", "drop_in", "remove", "remove", "purge", "become_a_link"]
)


@pytest.fixture(autouse=True)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSHIM_CONFIG", f"{tmp_path}/config.toml")


@pytest.mark.parametrize("kind", [Containerd, Crio, Podman])
@pytest.mark.parametrize("part", range(4))
def test_nothing_that_somebody_else_wrote_is_lost(
    kind: type[Place], part: int, tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(part, COUNT, 4):
        rng = random.Random(seed)
        place = kind(tmp_path / str(seed), program, rng)
        place.usual(monkeypatch)
        steps: list[str] = []
        try:
            for _ in range(rng.randint(3, 14)):
                installed = rng.choice([(1, 7), (2, 1)])
                monkeypatch.setattr(process, "_version", lambda *_, installed=installed: installed)
                steps.append(rng.choice(STEPS))
                getattr(place, steps[-1])()
            place.remove()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {' '.join(steps)}") from error


@pytest.mark.parametrize("kind", [Containerd, Crio, Podman])
@pytest.mark.parametrize("installed", [(1, 7), (2, 1)])
def test_what_nobody_edits_comes_back_byte_for_byte(
    kind: type[Place], installed: Any, tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_version", lambda *_: installed)
    for seed in range(COUNT):
        place = kind(tmp_path / str(seed), program, random.Random(seed))
        place.usual(monkeypatch)
        place.rng.choice([place.replace, place.delete, place.drop_in])()
        before = {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()}
        for _ in range(place.rng.randint(1, 3)):
            place.configure()
        place.remove()
        assert {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()} == before, seed


def test_what_is_read_is_toml() -> None:
    """The real files are, or the walks would be of refusals alone."""
    for path in (DATA / "containerd").glob("*.toml"):
        if "bad" not in path.name:
            assert isinstance(toml.parse(path.read_bytes(), str(path)), dict)
