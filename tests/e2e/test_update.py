"""Changing a running container's resources over the real crun, whose `update` applies device rules, unlike runc's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.bundles import Bundle
from e2e.expect import probe, sees_exactly
from e2e.hostile_places import Place
from e2e.views import CRUN, PLACES, PLACES_OF_CRUN, low_level, name_of, view
from e2e.witness import settings
from fakehost import Host

# What an engine's own spec has: no device of ours.
ENGINES_RULES = [
    {"allow": False, "access": "rwm"},
    {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
    {"allow": True, "type": "c", "major": 1, "minor": 5, "access": "rwm"},
]
# A node that crun does not allow by itself; no driver answers there, so what opening it says tells about its rule.
THING = {"path": "/dev/thing", "type": "c", "major": 10, "minor": 250}
LOOK = ["sh", "-c", ": </dev/thing"]


def changed(bundle: Bundle, way: str, resources: dict[str, Any]) -> None:
    """Update the container in one of the ways that engines and people have."""
    file = bundle.directory / "resources.json"
    file.write_text(json.dumps(resources))
    words = {
        "file": ["--resources", str(file)],
        "joined": [f"--resources={file}"],
        "short": ["-r", str(file)],
        "stdin": ["--resources=-"],
    }[way]
    with file.open() as stdin:
        bundle.call("update", *words, bundle.id, stdin=stdin)


@pytest.mark.parametrize(
    ("where", "way"),
    [*((place, "stdin") for place in PLACES), *((PLACES_OF_CRUN[0], way) for way in ("file", "joined", "short"))],
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_a_container_keeps_its_gpus(
    debian_root: Path, tmp_path: Path, gpu_host: Host, place: Place, where: tuple[str, str], way: str
) -> None:
    env = settings(tmp_path, gpu_host.root, str(low_level(where, tmp_path)))
    with view(where[0]) as prefix:
        bundle = Bundle(tmp_path / "bundle", debian_root, env, prefix, place.top / "bin" / "gpushim-runtime")
        bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2", args=["sleep", "1000"])
        with bundle.created():
            bundle.call("start", bundle.id)
            changed(bundle, way, {"devices": ENGINES_RULES})
            output = bundle.call("exec", bundle.id, *probe(gpu_host, [0, 2])).stdout
    sees_exactly(output, gpu_host, [0, 2])


@pytest.mark.parametrize("env", [(), ("X=NVIDIA_VISIBLE_DEVICES",)], ids=["no word", "a word"])
def test_what_has_no_gpu_is_updated_as_by_crun_alone(
    debian_root: Path, tmp_path: Path, gpu_host: Host, env: tuple[str, ...]
) -> None:
    with view("v1") as prefix:
        bundle = Bundle(tmp_path / "bundle", debian_root, settings(tmp_path, gpu_host.root, CRUN), prefix)
        bundle.plain["linux"]["devices"] = [THING]
        bundle.plain["linux"]["resources"]["devices"] += [{"allow": True, **THING, "access": "rwm"}]
        bundle.ask(*env, args=["sleep", "1000"])
        with bundle.created():
            bundle.call("start", bundle.id)
            assert "Operation not permitted" not in bundle.call("exec", bundle.id, *LOOK, check=False).stderr
            changed(bundle, "stdin", {"devices": ENGINES_RULES})
            assert "Operation not permitted" in bundle.call("exec", bundle.id, *LOOK, check=False).stderr
