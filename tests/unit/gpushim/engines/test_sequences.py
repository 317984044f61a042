"""Random orders of configure, edits by others, replacement, force, remove and purge, for all engines.

Files become links and files again, and others write at any call of gpushim's (tests/long/run has the long form).

Whatever somebody else writes carries a mark of its own. No step of gpushim's may lose a line that has one, but for an
entry that --force replaces, which comes back.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines import containerd, crio, docker, hooksd, podman
from gpushim.engines.containerd import process
from gpushim.engines.containerd.imports import CRI
from gpushim.engines.docker import dockerd, on_path
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import Options, is_ours
from gpushim.engines.settings.text import Json, Toml
from gpushim.ground.errors import GpushimError
from unit.gpushim.engines.settings.meanwhile import Steps

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("GPUSHIM_SEQUENCES", "25"))  # of each engine; a run by hand may take more
WRITTEN = Path(__file__).parents[4] / "packaging/deb/debian/written.sh"
RUNTIMES = ("plugins", CRI[2], "containerd", "runtimes")
NVIDIAS = "/usr/bin/nvidia-container-runtime"
MARK = re.compile(r'(?:# (?:nvidias )?|"(?:--nvidias-)?)?mark\d+x(?:"?(?:: | = )[^\s,}]+)?')


class Place:
    """An engine's settings in a directory of their own, and what others have written into them."""

    def __init__(self, folder: Path, program: str, rng: random.Random) -> None:
        self.config = folder / "etc" / self.path
        self.config.parent.mkdir(parents=True)
        self.program, self.rng, self.count = program, rng, 0
        self.shelved: set[str] = set()  # marks of an entry that --force has replaced; NVIDIAS among them
        self.known = False  # whether a record made since the last --remove has NVIDIA's entry
        self.cdi = False  # whether others have turned it on, and no record is older
        self.history: list[bytes] = []
        self.named = str(self.config)

    path = ""
    engine: Any
    hooks = False  # whether it can be told of the hook too

    def usual(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the file the one that the engine reads: hooks and links belong to it."""
        monkeypatch.setenv("CONTAINERS_CONF", str(self.config))
        monkeypatch.setattr(dockerd, "SYSTEM_CONFIG", str(self.config))
        monkeypatch.setattr(crio, "CONFIG", f"{self.config.parents[1]}/crio.conf")
        monkeypatch.setattr(crio, "DIRECTORY", str(self.config.parent))
        self.named = self.named if self.engine is containerd else ""

    def begin(self) -> str:
        raise NotImplementedError

    def entry(self, text: str) -> str:
        """Write NVIDIA's entry into a text."""
        raise NotImplementedError

    def others(self, text: str) -> str:
        """Write something of others into a text."""
        raise NotImplementedError

    def within(self, text: str) -> str:
        """Write something of others into gpushim's entry, or nothing if there is none."""
        raise NotImplementedError

    def mark(self) -> str:
        self.count += 1
        return f"mark{self.count}x"

    @property
    def text(self) -> str:
        return self.config.read_bytes().decode() if self.config.exists() else ""

    @property
    def leftovers(self) -> list[Path]:
        """All but the file, the copies of what others wrote, and what they left."""
        files = [path for path in self.config.parents[1].parent.rglob("*") if path.is_file()]
        own = (self.config, self.config.resolve())
        return [path for path in files if path not in own and ".kept-gpushim" not in path.name]

    @property
    def marked(self) -> set[str]:
        return {*self.theirs(self.text), *MARK.findall(self.text), *re.findall(NVIDIAS, self.text)}

    @property
    def kept(self) -> str:
        return "".join(path.read_text() for path in self.config.parents[1].rglob("*.kept-gpushim*"))

    def write(self, text: str) -> None:
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_bytes(text.encode())
        self.history.append(text.encode())

    # What happens to it, one method each.

    def configure(self) -> None:
        rng, before, text = self.rng, self.marked, self.text
        force = rng.random() < 0.4
        name = rng.choice(["nvidia", "nvidia", "gpu"])
        hook = "/usr/bin/gpushim-hook" if self.hooks and rng.random() < 0.4 else ""
        default, cdi = rng.random() < 0.4, rng.random() < 0.4
        options = Options(self.program, name, self.named, default, cdi, hook, force=force)
        try:
            plan = self.engine.plan(options)
            files.apply(plan.changes)
            on_path.apply(plan.links)
            self.known = self.known or NVIDIAS in text
        except GpushimError as refusal:
            if "--force" not in str(refusal):
                raise
            return
        if NVIDIAS in text and NVIDIAS not in self.text:
            self.shelved |= {NVIDIAS, *(mark for mark in before - self.marked if not mark.startswith("# "))}
        self.has(before - self.shelved)
        self.history.append(self.config.read_bytes())

    def remove(self) -> None:
        before, text = self.marked, self.text
        plan = self.engine.plan(Options(config=self.named, remove=True))
        files.apply(plan.changes, undo=True)
        on_path.apply(plan.links)
        self.is_without_ours(before, text)
        assert self.known or NVIDIAS in text or NVIDIAS not in self.text
        assert not self.hooks or "gpushim" not in hook_text(self.engine)
        assert (self.leftovers, on_path.made()) == ([], [])
        self.known = self.cdi = False

    def is_without_ours(self, marked: set[str], text: str) -> None:
        assert "gpushim" not in self.text
        self.has(marked | (self.shelved if "gpushim-runtime" in text else set()))
        self.shelved.clear()

    def has(self, marked: set[str]) -> None:
        lost = {mark for mark in marked - self.marked if mark not in self.kept}
        assert not lost, (lost, self.text)

    def edit(self) -> None:
        self.write(self.others(self.text or self.begin()))

    def become_a_link(self) -> None:
        """Somebody keeps the settings elsewhere, and has a link where they were."""
        if self.config.exists() and not self.config.is_symlink():
            elsewhere = self.config.parents[1] / "elsewhere" / self.config.name
            elsewhere.parent.mkdir(exist_ok=True)
            self.config.rename(elsewhere)
            self.config.symlink_to(elsewhere)

    def become_a_file(self) -> None:
        if self.config.is_symlink():
            self.config.resolve().replace(self.config)

    def meddle(self) -> None:
        """Another program writes while `configure` or `--remove` runs, at any call."""
        before, text, remove = self.marked, self.text, self.rng.random() < 0.5
        options = Options(config=self.named, remove=True) if remove else Options(self.program, config=self.named)
        with Steps(self.rng.randint(1, 90), lambda: before.update(self.written())):
            try:
                plan = self.engine.plan(options)
                files.apply(plan.changes, undo=remove)
                on_path.apply(plan.links)
            except GpushimError as refusal:
                if not re.search("changed by somebody else meanwhile|--force", str(refusal)):
                    raise
                self.has(before)
                return
        if remove:
            self.has(before | (self.shelved if "gpushim-runtime" in text else set()))
            self.known = self.cdi = False
            self.shelved.clear()
        else:
            self.has(before)
            self.known = self.known or NVIDIAS in text

    def written(self) -> set[str]:
        """Write something, in place or as an editor does; return the marks that are there."""
        text = self.others(self.text or self.begin())
        if self.rng.random() < 0.5:
            self.write(text)
        else:
            fresh = self.config.resolve().with_name("theirs")
            fresh.write_bytes(text.encode())
            fresh.replace(self.config.resolve())
            self.history.append(text.encode())
        return self.marked

    def edit_within(self) -> None:
        if self.config.exists():
            self.write(self.within(self.text))

    def drop_line(self) -> None:
        """Somebody takes a line of others out."""
        lines = self.text.splitlines(keepends=True)
        marked = [
            place for place, line in enumerate(lines) if MARK.search(line) and not re.search("nvidias|ours", line)
        ]
        if marked and self.path.endswith("toml"):
            del lines[self.rng.choice(marked)]
            if takes("".join(lines)):
                self.write("".join(lines))

    def replace(self) -> None:
        """An older file comes back, or a new one takes its place."""
        text = self.others(self.begin())
        text = self.entry(text) if self.rng.random() < 0.4 else text
        self.write(self.rng.choice([text, *(old.decode() for old in self.history[-6:])]))
        self.shelved.clear()
        self.cdi = False

    def delete(self) -> None:
        for path in {self.config, self.config.resolve()}:
            path.unlink(missing_ok=True)
        self.shelved.clear()
        self.cdi = False

    def write_ours(self) -> None:
        """Others write what `configure --cdi` would; without a record, none of it but the entry is gpushim's."""
        text = self.others(self.begin())
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.write(self.with_ours(text))
        self.shelved.clear()
        self.cdi = not self.leftovers

    def with_ours(self, text: str) -> str:
        """Write gpushim's entry into a text."""
        raise NotImplementedError

    def theirs(self, text: str) -> list[str]:
        """List settings of others that have no mark."""
        return []

    def purge(self) -> None:
        """The package goes, and says how to take its entries out; the records go if nothing names it any more."""
        before, text = self.marked, self.text
        commands = files.prepare(self.engine.plan(Options(config=self.named, remove=True)).changes[:1])
        assert self.marked == before
        purge(self.config.parents[1].parent)
        if self.rng.random() < 0.5:
            for command in commands:
                subprocess.run(["/bin/sh", "-euc", command], check=True)
            self.is_without_ours(before, text)


def hook_text(engine: Any) -> str:
    file = Path(engine.HOOKS, hooksd.FILE)
    return file.read_text() if file.exists() else ""


def purge(root: Path) -> None:
    """Run what the package's script does to records."""
    function = re.search(r"(?ms)^remove_records\(\) \{.*?^\}", WRITTEN.read_text())
    assert function
    script = f"set -e\n{function[0]}\nremove_records"
    subprocess.run(["/bin/sh", "-c", script], check=True, env={"PATH": "/usr/bin:/bin", "DPKG_ROOT": str(root)})


class Docker(Place):
    path, engine = "docker/daemon.json", docker

    def begin(self) -> str:
        return self.rng.choice(["{}\n", '{\n    "debug": true\n}\n', '{"runtimes": {}}'])

    def entry(self, text: str) -> str:
        entry = {"path": NVIDIAS, "runtimeArgs": [f"--nvidias-{self.mark()}"]}
        return Json(text).put(("runtimes", "nvidia"), entry).text

    def others(self, text: str) -> str:
        keys = self.rng.choice([(), ("runtimes",), ("features",), ("log-opts",)])
        values: list[Any] = ["x", True, ["y"]]
        if keys in (("runtimes",), ("features",)):  # others would keep dockerd from its start
            values = [{"path": "/x"}, {}] if keys == ("runtimes",) else [True, False]
        return Json(text).put((*keys, self.mark()), self.rng.choice(values)).text

    def with_ours(self, text: str) -> str:
        text = Json(text).put(("runtimes", "nvidia"), {"path": self.program}).text
        return Json(text).put(("features", "cdi"), True).text

    def theirs(self, text: str) -> list[str]:
        return ["cdi"] if self.cdi and Json(text).get(("features", "cdi")) else []

    def within(self, text: str) -> str:
        ours = is_ours(Json(text).get(("runtimes", "nvidia", "path")))
        return Json(text).put(("runtimes", "nvidia", self.mark()), True).text if ours else text


class InToml(Place):
    tables: tuple[str, ...] = ()
    nvidias = ""
    ours = ""

    def begin(self) -> str:
        return self.rng.choice(["", f"# {self.mark()}\n", f'\n[a . "b"] # {self.mark()}\n{self.mark()} = 1\n'])

    def entry(self, text: str) -> str:
        gap = "" if not text or text.endswith("\n") else "\n"
        more = text + gap + self.nvidias.format(NVIDIAS, self.mark(), self.mark(), self.mark())
        return more if takes(more) else text

    def others(self, text: str) -> str:
        """A comment, or a key with a comment, behind any line; or a table before another."""
        rng = self.rng
        lines = text.splitlines(keepends=True)
        comment, setting = f"  # {self.mark()}\n", f"{self.mark()} = [ # {self.mark()}\n  1]\n"
        table = f"\n[{rng.choice(self.tables)}.{self.mark()}] # {self.mark()}\n"
        if rng.random() < 0.25:
            places = [place for place, line in enumerate(lines) if line.startswith("[")]
            lines.insert(rng.choice([*places, len(lines)]), table)
        else:
            lines.insert(rng.randint(0, len(lines)), rng.choice([comment, setting]))
        return "".join(lines) if takes("".join(lines)) else text + comment

    def with_ours(self, text: str) -> str:
        return self.entry(text).replace(NVIDIAS, self.program).replace("nvidias", "ours")

    def within(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        places = [place for place, line in enumerate(lines) if self.ours and self.ours in line]
        for place in places[:1]:
            lines.insert(place, f"{self.mark()} = 1 # {self.mark()}\n")
        return "".join(lines)


def takes(text: str) -> bool:
    try:
        Toml.parse(text.encode(), "")
    except GpushimError:
        return False
    return True


class Containerd(InToml):
    path, engine = "containerd/config.toml", containerd
    tables = ("timeouts", f'plugins."{CRI[2]}"', f'plugins."{CRI[2]}".containerd.runtimes')
    nvidias = f"""[plugins.'{CRI[2]}'.containerd.runtimes.nvidia] # nvidias {{1}}
runtime_type = "io.containerd.runc.v2"
[plugins.'{CRI[2]}'.containerd.runtimes."nvidia".options]
# nvidias {{2}}
BinaryName = "{{0}}" # nvidias {{3}}
"""
    ours = "BinaryName"

    def with_ours(self, text: str) -> str:
        return super().with_ours(text if "version" in text else f"version = 2\n{text}")


class Crio(InToml):
    path, engine, hooks = "crio/crio.conf.d/99-gpushim.toml", crio, True
    tables = ("crio", "crio.runtime", "crio.runtime.runtimes")
    nvidias = """[crio . runtime.runtimes."nvidia"] # nvidias {1}
runtime_path = "{0}" # nvidias {2}
# nvidias {3}
"""
    ours = "runtime_path"


class Podman(InToml):
    path, engine, hooks = "containers/containers.conf", podman, True
    tables = ("containers", "engine", "network")
    nvidias = """[engine.'runtimes'] # nvidias {1}
nvidia = ["{0}"] # nvidias {2}
# nvidias {3}
"""


STEPS = ["configure"] * 4 + ["edit"] * 4 + [
    "edit_within", "drop_line", "replace", "replace", "delete", "write_ours", "remove", "remove", "purge"
] + ["become_a_link", "become_a_file", "meddle", "meddle"]  # fmt: skip


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "_version", lambda *_: (1, 7))
    monkeypatch.setattr(podman, "SYSTEM_DIRECTORIES", (f"{tmp_path}/share", f"{tmp_path}/containers"))
    for engine in (crio, podman):
        monkeypatch.setattr(engine, "HOOKS", f"{tmp_path}/hooks.d")
    monkeypatch.setenv("GPUSHIM_CONFIG", f"{tmp_path}/config.toml")


@pytest.mark.parametrize("kind", [Docker, Containerd, Crio, Podman])
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
                steps.append(rng.choice(STEPS))
                getattr(place, steps[-1])()
            place.remove()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {' '.join(steps)}") from error


@pytest.mark.parametrize("kind", [Docker, Containerd, Crio, Podman])
def test_what_nobody_edits_comes_back_byte_for_byte(
    kind: type[Place], tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any number of configures, with or without a replacement before."""
    for seed in range(COUNT):
        place = kind(tmp_path / str(seed), program, random.Random(seed))
        place.usual(monkeypatch)
        for _ in range(place.rng.randint(0, 3)):
            place.configure()
            place.rng.choice([place.edit, place.replace, place.delete])()
        place.remove()
        there, content = place.config.exists(), place.text
        for _ in range(place.rng.randint(1, 3)):
            place.configure()
        place.remove()
        assert (place.config.exists(), place.text) == (there, content), seed
