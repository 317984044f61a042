"""More of vulnerable.py: a build that goes on with a config.toml that everybody may write since it was read."""

from __future__ import annotations

from pathlib import Path

from e2e.changing import Scene
from e2e.hostile_places import Place
from e2e.vulnerable import Build


def _of_everybodys(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 1, place.top)
    assert scene.refresh().returncode == 0
    Path(scene.env["GPUSHIM_CONFIG"]).chmod(0o666)
    for done in (scene.ask("0")[0], scene.refresh(), scene.call("gpushim", "config", "check")):
        assert done.returncode == 15, done.stderr


BUILDS = {
    "T-CONFIG takes who may write the configuration for settled": Build(
        {"shim/gpushim/paths/trust.py": "_real = identity\nidentity = lambda path: (_real(path) or [])[:4]"},
        _of_everybodys,
        "returncode == 15",
    )
}
