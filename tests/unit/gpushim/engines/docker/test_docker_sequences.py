"""Random orders of configure, edits by others, replacement, remove and purge of a daemon.json.

Whatever somebody else writes carries a mark of its own. No step of gpushim's loses one: it stays in the file, or in a
copy beside it; and of the settings only gpushim's change (tests/long/run has the long form).
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines import docker
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import Options
from gpushim.ground.errors import GpushimError

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("GPUSHIM_SEQUENCES", "25"))  # a run by hand may take more
MARK = re.compile(r"mark\d+x")
STYLES: list[dict[str, Any]] = [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}]


class Place:
    """A daemon.json in a directory of its own, and what others have written into it."""

    def __init__(self, folder: Path, program: str, rng: random.Random) -> None:
        self.path, self.program, self.rng, self.count = folder / "daemon.json", program, rng, 0
        self.history: list[bytes] = []

    def mark(self) -> str:
        self.count += 1
        return f"mark{self.count}x"

    @property
    def settings(self) -> dict[str, Any]:
        text = self.path.read_bytes().decode() if self.path.exists() else ""
        settings: dict[str, Any] = json.loads(text or "{}")
        return settings

    def marks(self) -> set[str]:
        """Return all marks that are in the file, where it leads, or in a copy of what gpushim took out."""
        paths = [path for path in self.path.parent.iterdir() if not path.name.endswith(files.BEFORE)]
        return {mark for path in paths for mark in MARK.findall(path.read_bytes().decode())}

    def write(self, settings: dict[str, Any]) -> None:
        """Write settings as others do, each in a style of their own."""
        end = self.rng.choice(["", "\n", "\r\n"])
        text = json.dumps(settings, **self.rng.choice(STYLES))
        self.path.write_bytes((text.replace("\n", "\r\n") if end == "\r\n" else text).encode() + end.encode())
        self.history.append(self.path.read_bytes())

    def is_ours(self, entry: dict[str, Any]) -> bool:
        return str(entry.get("path")).endswith("/gpushim-runtime")

    # What happens to it, one method each.

    def configure(self) -> None:
        rng, before, marks = self.rng, self.settings, self.marks()
        name = rng.choice(["nvidia", "nvidia", "gpu"])
        default, cdi = rng.random() < 0.4, rng.random() < 0.4
        options = Options(self.program, name, str(self.path), default, cdi, force=rng.random() < 0.5)
        try:
            files.apply(docker.plan(options).changes)
        except GpushimError as refusal:
            if not re.search("--force|which is the default-runtime", str(refusal)):
                raise
            assert (self.settings, self.marks()) == (before, marks)
            return
        after = self.settings
        assert self.marks() == marks
        assert self.is_ours(after["runtimes"].pop(name))
        before.get("runtimes", {}).pop(name, None)
        if default:
            assert after.pop("default-runtime") == name
            before.pop("default-runtime", None)
        if cdi:
            assert after["features"].pop("cdi") is True
            before.get("features", {}).pop("cdi", None)
        assert {"runtimes": {}, "features": {}, **after} == {"runtimes": {}, "features": {}, **before}
        assert not docker.plan(options).changed

    def remove(self) -> None:
        before, marks = self.settings, self.marks()
        files.apply(docker.plan(Options(config=str(self.path), remove=True)).changes)
        assert self.marks() == marks
        self.is_without_ours(before)
        was_link = self.path.with_name("elsewhere.json").exists()
        assert was_link or not [*self.path.parent.glob(f"*{files.BEFORE}")]
        assert not docker.plan(Options(config=str(self.path), remove=True)).changed

    def is_without_ours(self, before: dict[str, Any]) -> None:
        ours = [name for name, entry in before.get("runtimes", {}).items() if self.is_ours(entry)]
        for name in ours:
            del before["runtimes"][name]
        if before.get("default-runtime") in ours:
            del before["default-runtime"]
        assert {"runtimes": {}, **self.settings} == {"runtimes": {}, **before}

    def purge(self) -> None:
        """The package goes, and says how to take its entries out."""
        plan, marks = docker.plan(Options(config=str(self.path), remove=True)), self.marks()
        before = self.settings
        for command in plan.by_hand:
            subprocess.run(["/bin/sh", "-euc", command], check=True)
        assert self.marks() == marks
        self.is_without_ours(before)

    def edit(self) -> None:
        settings, rng = self.settings, self.rng
        where = rng.choice(["", "log-opts", "features", "runtimes"])
        value = {"runtimes": {"path": "/x"}, "features": rng.random() < 0.5}.get(where, rng.choice(["x", ["y"], 1e3]))
        (settings.setdefault(where, {}) if where else settings)[self.mark()] = value
        self.write(settings)

    def edit_default(self) -> None:
        settings = self.settings
        settings["default-runtime"] = self.rng.choice([*settings.get("runtimes", {}), "runc"])
        self.write(settings)

    def edit_within(self) -> None:
        """Somebody writes into gpushim's own entry."""
        settings = self.settings
        for entry in settings.get("runtimes", {}).values():
            if self.is_ours(entry):
                entry[self.mark()] = True
        self.write(settings)

    def force_theirs(self) -> None:
        """As NVIDIA's own command does, whatever stands there."""
        entry = {"path": "/usr/bin/nvidia-container-runtime", "args": [self.mark()]}
        self.write({**self.settings, "runtimes": {**self.settings.get("runtimes", {}), "nvidia": entry}})

    def replace(self) -> None:
        """An older file comes back, or a new one takes its place."""
        fresh = json.dumps({self.mark(): True}).encode()
        self.path.write_bytes(self.rng.choice([fresh, *self.history[-6:]]))

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def become_a_link(self) -> None:
        """Somebody keeps the settings elsewhere, and has a link where they were."""
        if self.path.exists() and not self.path.is_symlink():
            elsewhere = self.path.with_name("elsewhere.json")
            self.path.rename(elsewhere)
            self.path.symlink_to(elsewhere.name)


STEPS = ["configure"] * 4 + ["edit"] * 3 + ["remove"] * 2
STEPS += ["edit_default", "edit_within", "force_theirs", "replace", "delete", "become_a_link", "purge"]


@pytest.mark.parametrize("part", range(4))
def test_nothing_that_somebody_else_wrote_is_lost(part: int, tmp_path: Path, program: str) -> None:
    for seed in range(part, COUNT * 4, 4):
        rng = random.Random(seed)
        (tmp_path / str(seed)).mkdir()
        place = Place(tmp_path / str(seed), program, rng)
        steps: list[str] = []
        try:
            for _ in range(rng.randint(3, 14)):
                steps.append(rng.choice(STEPS))
                getattr(place, steps[-1])()
            place.remove()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {' '.join(steps)}") from error


def test_what_nobody_edits_comes_back_byte_for_byte(tmp_path: Path, program: str) -> None:
    for seed in range(COUNT):
        (tmp_path / str(seed)).mkdir()
        place = Place(tmp_path / str(seed), program, random.Random(seed))
        place.write({place.mark(): {"a": [1.50, "é"]}, "runtimes": {}})
        before = place.path.read_bytes()
        for name in ("nvidia", "gpu")[: place.rng.randint(1, 2)]:
            options = Options(program, name, str(place.path), default=place.rng.random() < 0.5)
            files.apply(docker.plan(options).changes)
        place.remove()
        assert place.path.read_bytes() == before, seed
        assert os.listdir(place.path.parent) == ["daemon.json"]
