"""Each test of hostile images can fail: it does with the build that lacks what it is for (vulnerable*.py)."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from e2e.hostile import Trap
from e2e.hostile_places import Place
from e2e.test_hostile_code import arm
from e2e.test_hostile_requests import specs as specs
from e2e.test_races import Race
from fakehost import Host

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("vulnerable*.py"))
BUILDS = {name: build for each in MODULES for name, build in importlib.import_module(f"e2e.{each}").BUILDS.items()}


@pytest.mark.parametrize("name", BUILDS)
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
    if "marker" in names and "trap" in names:
        arm(trap.root, trap.work / "owned")
        arguments["marker"] = trap.work / "owned"
    arguments.update((each, request.getfixturevalue(each)) for each in names - arguments.keys())
    with pytest.raises(AssertionError) as caught:
        build.test(**{key: value for key, value in arguments.items() if key in names})
    assert build.fails in str(caught.traceback[-1].statement), caught.getrepr()
    assert "internal error" not in str(caught.value), "the build is broken, not vulnerable"
