"""Each test of hostile images can fail: it does with the build that lacks what it is for (vulnerable*.py)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import changing, engines, trees
from e2e.hostile import Trap
from e2e.hostile_code import arm
from e2e.hostile_places import Place
from e2e.races import Race
from e2e.services import services as services
from e2e.shared_volumes import host as host
from e2e.shared_volumes import place as place
from e2e.shared_volumes import shared_by as shared_by
from fakehost import Host
from sample import share

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("vulnerable*.py"))
BUILDS = {name: build for each in MODULES for name, build in importlib.import_module(f"e2e.{each}").BUILDS.items()}
TRIED = share(BUILDS, 5)  # all of them in five minutes; that each can be made says unit/test_vulnerable_builds


@pytest.fixture(autouse=True)
def _listed_by_this_checkout(gpushim_env: dict[str, str], cdi_dir: Path, tmp_path: Path) -> Iterator[None]:
    """List the GPUs again if a build has: its CDI spec names its own hook, which goes with it."""
    yield
    if any(bytes(tmp_path) in spec.read_bytes() for spec in cdi_dir.glob("*.json")):
        environment = {"PATH": engines.SYSTEM_PATH, **gpushim_env}
        engines.run([str(trees.TOP / "bin" / "gpushim"), "refresh", "--force"], env=environment)


@pytest.mark.parametrize("name", TRIED)
def test_a_vulnerable_build_is_found_out(
    request: pytest.FixtureRequest, tmp_path: Path, gpushim_env: dict[str, str], gpu_host: Host, name: str
) -> None:
    build = BUILDS[name]
    place = Place(gpushim_env, top=build.make(tmp_path / "top"))
    arguments: dict[str, Any] = {"gpu_host": gpu_host, "place": place, **build.arguments}
    names = set(inspect.signature(build.test).parameters)
    if "race" in names:
        arguments["race"] = Race(request.getfixturevalue("debian_tree"), tmp_path / "race", place, build.way)
    elif "trap" in names:
        arguments["trap"] = trap = Trap(tmp_path, request.getfixturevalue("debian_root"), place, build.way)
    for each in names & {*changing.HOSTS}:
        arguments[each] = changing.listed(each, tmp_path / each, place.top)
    if "services" in names:
        arguments["services"] = request.getfixturevalue("services").of(place)
    if "host" in names:
        arguments["host"] = request.getfixturevalue("host").of(place)
    if "marker" in names and "trap" in names:
        arm(trap.root, trap.work / "owned")
        arguments["marker"] = trap.work / "owned"
    arguments.update((each, request.getfixturevalue(each)) for each in names - arguments.keys())
    with pytest.raises(AssertionError) as caught:
        build.test(**{key: value for key, value in arguments.items() if key in names})
    assert build.fails in str(caught.traceback[-1].statement), caught.getrepr()
    assert "internal error" not in str(caught.value), "the build is broken, not vulnerable"
