"""More of vulnerable.py: builds that take other programs' files for gpushim's own, and the loss that each brings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from e2e import test_faults_configure
from e2e.changing import Scene
from e2e.configure_lab import Lab
from e2e.hostile_places import Place
from e2e.vulnerable import Build

FILES, PUBLISH = (f"shim/gpushim/{name}.py" for name in ("engines/settings/files", "cdi/generate/publish"))


def _of(test: Callable[[Lab], None]) -> Callable[[Place, Path], None]:
    def attack(place: Place, tmp_path: Path) -> None:
        (tmp_path / "lab").mkdir()
        test(Lab(tmp_path / "lab", place.top))

    return attack


def _a_spec_of_others(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 1, place.top)
    path = scene.state / "cdi" / "nvidia.com-gpu.json"
    path.parent.mkdir(parents=True)
    path.write_text("{ theirs")
    said = scene.refresh().stderr
    assert path.read_text() == "{ theirs"
    assert f"{path} is not as refresh wrote it, and stays" in said


BUILDS = {
    "T-FILES does not look again before it replaces a file": Build(
        {FILES: "_check = lambda *_: None"},
        _of(partial(test_faults_configure.test_another_writes_until_the_last_look, "configure")),
        "theirs",
    ),
    "T-FILES replaces whatever bears its spec's name": Build(
        {PUBLISH: "_foreign_reason = lambda *_: ''"}, _a_spec_of_others, "path.read_text()"
    ),
}
