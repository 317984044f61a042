"""More of vulnerable.py: builds whose snapshot is not doubted where it must be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from e2e import test_fresh
from e2e.changing import Scene
from e2e.hostile_places import Place
from e2e.vulnerable import Build
from fakehost import tree


def _mounted(scene: Scene) -> set[str]:
    scene.ask("0")
    spec = json.loads((scene.work / "bundles/one/config.json").read_text())
    return {mount["destination"] for mount in spec["mounts"]}


def _another_directory_of_the_same_time(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 1, place.top)
    assert scene.refresh().returncode == 0
    folder = Path(scene.host.root, "usr/bin")
    shutil.copytree(folder, f"{folder}2", symlinks=True)
    Path(f"{folder}2/nvidia-debugdump").unlink()
    folder.rename(f"{folder}1")
    Path(f"{folder}2").rename(folder)
    shutil.copystat(f"{folder}1", folder)
    assert "/usr/bin/nvidia-debugdump" not in _mounted(scene)


def _a_program_that_was_not_there(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 1, place.top)
    assert scene.refresh().returncode == 0
    tree.write(f"{scene.host.root}/usr/sbin/nv-fabricmanager", "a program")
    assert "/usr/sbin/nv-fabricmanager" in _mounted(scene)


def _a_tenant_with_little(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 1, place.top)
    limit = "--fsize=5000"  # bytes, more than a failure has and less than the snapshot
    assert scene.ask("0", before=("/usr/bin/prlimit", limit))[0].returncode
    assert not (scene.state / "failure").exists()  # which tells all who wait


STAMP = "shim/gpushim/inventory/ensure.py"
TIMES_ALONE = """
_real = node
def node(path):
    facts = _real(path)
    return facts and facts[:4]
"""
BUILDS = {
    "T-fresh takes a GPU's address for its number": Build(
        {STAMP: "_inode = lambda path: 1"},
        test_fresh.test_a_uuid_is_that_gpu_after_both_were_bound_in_the_other_order,
        "scene.given(index)",
        {"index": 0},
    ),
    "T-fresh takes majors for settled": Build(
        {STAMP: "_majors = lambda proc: []"},
        test_fresh.test_a_node_with_the_major_of_others_is_not_handed_out,
        "== {507}",
    ),
    "T-fresh takes a MIG instance for its place": Build(
        {STAMP: "_entry_identity = lambda *_: []"},
        test_fresh.test_instances_made_anew_in_the_same_places_are_others,
        "divided.ask(old)",
    ),
    "T-fresh has snapshots live for ever": Build(
        {STAMP: "alive = lambda *_: True"}, test_fresh.test_a_suspend_counts, "before=SUSPENDED"
    ),
    "T-fresh numbers GPUs as NVML does now": Build(
        {"shim/gpushim/inventory/earlier.py": "settled = lambda state: []"},
        test_fresh.test_an_index_is_no_other_gpus_while_its_own_is_missing,
        "(REQUEST, set())",
    ),
    "T-fresh gives fewer for all": Build(
        {"shim/gpushim/oci/selection.py": "unusable = lambda inventory: []"},
        test_fresh.test_a_suspend_counts,
        "before=SUSPENDED",
    ),
    "T-fresh takes what has the same time for the same": Build(
        {STAMP: TIMES_ALONE}, _another_directory_of_the_same_time, "_mounted(scene)"
    ),
    "T-fresh looks for nothing new": Build(
        {"shim/gpushim/inventory/data_files.py": "list_watched = lambda *_: set()"},
        _a_program_that_was_not_there,
        "_mounted(scene)",
    ),
    "T-fresh passes a tenant's limits on": Build(
        {"shim/gpushim/inventory/failure.py": "scarce = lambda error: None"}, _a_tenant_with_little, "failure"
    ),
}
