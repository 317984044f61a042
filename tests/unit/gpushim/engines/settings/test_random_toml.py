"""`gpushim configure` on random TOML that is valid: nothing lost, nothing in a traceback."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from gpushim.engines import containerd, crio, podman
from gpushim.engines.containerd import process, removal
from gpushim.engines.containerd.imports import CRI
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import Options, Plan, is_ours
from gpushim.engines.settings.text import Toml
from gpushim.ground.errors import GpushimError
from unit.gpushim.engines.settings.randomtoml import Document, meaning

# A run by hand may take more: GPUSHIM_RANDOM_TOML=8000.
COUNT = int(os.environ.get("GPUSHIM_RANDOM_TOML", "240"))
PLUGIN: tuple[str, str, str] = ("plugins", CRI[2], "containerd")
PROGRAMS = ('"/usr/bin/nvidia-container-runtime"', "'/usr/bin/runc'", '"""/usr/bin/\\\n  kata"""')
NAMES = ('"runc"', "'nvidia'", '"kata"')
RUNC = ('"io.containerd.runc.v2"',)
Vocabulary = dict[tuple[str, ...], tuple[str, ...]]
ENGINES: dict[str, tuple[Any, Vocabulary]] = {
    "podman": (podman, {
        ("engine", "runtimes", "nvidia"): ('["/usr/bin/nvidia-container-runtime"]', '[ # {c}\n "/a", # {c}\n]'),
        ("engine", "runtimes", "kata"): ("['/usr/bin/kata']",),
        ("engine", "runtime"): NAMES,
    }),
    "crio": (crio, {
        ("crio", "runtime", "runtimes", "nvidia", "runtime_path"): PROGRAMS,
        ("crio", "runtime", "runtimes", "nvidia", "monitor_path"): PROGRAMS,
        ("crio", "runtime", "runtimes", "runc", "runtime_path"): PROGRAMS,
        ("crio", "runtime", "default_runtime"): NAMES,
    }),
    "containerd": (containerd, {
        ("version",): ("2",),
        (*PLUGIN, "runtimes", "nvidia", "runtime_type"): RUNC,
        (*PLUGIN, "runtimes", "nvidia", "options", "BinaryName"): PROGRAMS,
        (*PLUGIN, "runtimes", "runc", "options", "SystemdCgroup"): ("true", "false"),
        (*PLUGIN[:2], "enable_cdi"): ("true", "false"),
        (*PLUGIN, "default_runtime_name"): NAMES,
    }),
}  # fmt: skip


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_version", lambda *_: (1, 7))


def planned(engine: Any, options: Options) -> Plan | None:
    try:
        plan: Plan = engine.plan(options)
    except GpushimError:
        return None
    return plan


def names_ours(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(names_ours, value.values()))
    return any(map(names_ours, value)) if isinstance(value, list) else is_ours(value)


def orphan(engine: Any, text: str) -> bool:
    """Say whether a text's default runtime has no entry: configure makes that, and --remove takes both."""
    kind, found = removal.kind(PLUGIN[:2]) if engine is containerd else engine.KIND, Toml(text)
    return found.get(kind.default) == "nvidia" and "nvidia" not in found.get(kind.runtimes, ())


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_configure_then_remove(name: str, tmp_path: Path, program: str) -> None:
    """The bytes come back; or, where somebody has written something since, all but what is gpushim's."""
    engine, vocabulary = ENGINES[name]
    config = tmp_path / "config.toml"
    taken = 0
    for seed in range(COUNT // len(ENGINES)):
        rng = random.Random(seed)
        text = Document(rng, vocabulary).grown(rng.randint(0, 30))
        config.write_bytes(text.encode())
        options = Options(program, config=str(config), default=rng.random() < 0.5, cdi=rng.random() < 0.5, force=True)
        plan = planned(engine, options)
        if plan is None:
            assert config.read_bytes() == text.encode()
            continue
        taken += 1
        files.apply(plan.changes)
        assert not Toml(text).comments - Toml(config.read_bytes().decode()).comments, seed
        assert names_ours(meaning(config.read_bytes().decode())), seed
        edit = rng.choice(["", "\n# theirs\n[theirs]\nx = 1 # too\n"])
        config.write_bytes(config.read_bytes() + edit.encode())
        remove = planned(engine, Options(config=str(config), remove=True))
        assert remove is not None, seed
        files.apply(remove.changes, undo=True)
        left = config.read_bytes().decode()
        if orphan(engine, text):
            assert Toml(left).comments == Toml(text + edit).comments, seed
        elif edit:
            # A version stays, for what somebody wrote after it came depends on it.
            more = {"theirs": {"x": 1}, "version": meaning(left).get("version")}
            assert {"version": None, **meaning(left)} == {**meaning(text), **more}, seed
            assert Toml(left).comments == Toml(text + edit).comments, seed
        else:
            assert left == text, seed
        assert sorted(os.listdir(tmp_path)) == ["bin", "config.toml"], seed
    assert taken > COUNT // len(ENGINES) // 4
