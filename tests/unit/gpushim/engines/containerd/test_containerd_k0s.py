"""`gpushim configure containerd` on a node of k0s, which makes containerd's settings: in both of its layouts."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from click.testing import Result

from gpushim.engines.containerd import imports, process, services
from gpushim.engines.processes.running import Engine
from gpushim.engines.settings import toml
from unit.gpushim.engines.results import ok

Call = Callable[..., Result]
RUNC = {"runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}}


class K0s:
    """Its settings, made as it makes them at each start."""

    def __init__(self, top: Path, version: int) -> None:
        self.main, self.folder = top / "k0s/containerd.toml", top / "k0s/containerd.d"
        self.made, self.version = top / "run/containerd-cri.toml", version
        self.folder.mkdir(parents=True)
        self.made.parent.mkdir()

    def start(self) -> None:
        """Write what containerd reads; with version 2 the directory's files are merged into one."""
        pattern = self.made if self.version == 2 else self.folder / "*.toml"
        data: dict[str, Any] = {
            "version": self.version,
            "plugins": {imports.CRI[self.version]: {"containerd": {"runtimes": deepcopy(RUNC)}}},
        }
        if self.version == 2:
            for path in sorted(self.folder.glob("*.toml")):
                toml.merge(data, tomlkit.parse(path.read_text()).unwrap())
            self.made.write_text(tomlkit.dumps(data))
        self.main.write_text(f'{services.K0S}\n# k0s\nversion = {self.version}\nimports = ["{pattern}"]\n')

    def files(self) -> dict[Path, bytes]:
        """Return all files."""
        tops = (self.main.parent, self.made.parent)
        return {path: path.read_bytes() for top in tops for path in top.rglob("*") if path.is_file()}


@pytest.fixture(params=[(2, (1, 7)), (2, (2, 1)), (3, (2, 1))], ids=str)
def k0s(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> K0s:
    version, containerd = request.param
    monkeypatch.setattr(process, "_version", lambda *_: containerd)
    found = K0s(tmp_path, version)
    found.start()
    return found


def test_its_directory_gets_a_file_that_lasts_and_goes(k0s: K0s, call: Call, program: str) -> None:
    before = k0s.files()
    ok(call("containerd", k0s.main))
    ours = k0s.folder / "99-gpushim.toml"
    assert {path: text for path, text in k0s.files().items() if "gpushim" not in path.name} == before
    entry: dict[str, Any] = tomlkit.parse(ours.read_text()).unwrap()
    assert entry["version"] == k0s.version
    runtime = entry["plugins"][imports.CRI[k0s.version]]["containerd"]["runtimes"]["nvidia"]
    assert runtime["options"]["BinaryName"] == program
    k0s.start()
    after = k0s.files()
    assert "nothing to change" in ok(call("containerd", k0s.main))
    assert k0s.files() == after
    ok(call("containerd", k0s.main, "--remove"))
    assert not ours.exists()
    k0s.start()
    assert k0s.files() == before


def test_a_file_of_others_in_that_place(k0s: K0s, call: Call) -> None:
    theirs = k0s.folder / "99-gpushim.toml"
    theirs.write_text("# mine\n[debug]\nlevel = 'info'\n")
    before = k0s.files()
    assert "is not gpushim's" in str(call("containerd", k0s.main).exception)
    ok(call("containerd", k0s.main, "--remove"))
    assert k0s.files() == before


def test_settings_that_k0s_leaves_alone_are_as_any_others(k0s: K0s, call: Call) -> None:
    k0s.main.write_text(f"version = {k0s.version}\n[plugins.'{imports.CRI[k0s.version]}']\n")
    ok(call("containerd", k0s.main))
    assert "gpushim-runtime" in (k0s.main.parent / "conf.d/99-gpushim.toml").read_text()
    assert os.listdir(k0s.folder) == []


@pytest.mark.parametrize("unit", ["k0sworker.service", "k0scontroller.service"])
def test_its_unit_and_that_it_is_installed(unit: str, tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / unit).touch()
    (tmp_path / "etc/k0s").mkdir()
    assert services.installed(str(tmp_path)) == []  # a controller has its settings there
    (tmp_path / services.CONFIGS["k0s"][1:]).touch()
    assert (services.installed(str(tmp_path)), services.unit("k0s", str(tmp_path))) == (["k0s"], unit)
    (folder / unit).unlink()
    assert services.installed(str(tmp_path)) == []  # as `k0s reset` leaves it


@pytest.mark.parametrize("later", [0.01, 0.2])
def test_settings_that_a_start_has_made_do_not_say_that_it_was_before(
    k0s: K0s, call: Call, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    """After a removal nothing else is left to compare its time with."""
    ok(call("containerd", k0s.main))
    ok(call("containerd", k0s.main, "--remove"))
    k0s.start()
    monkeypatch.setattr(process, "dump", lambda _: {})
    monkeypatch.setattr(process, "ask_cri", lambda *_: (None, ""))
    started = os.lstat(k0s.main).st_ctime - later
    engines.append(Engine("containerd", 7, config=str(k0s.main), started=started))
    assert "no longer has the runtime" in ok(call("containerd", k0s.main, "--remove", "--verify"))
