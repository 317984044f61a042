"""More of vulnerable.py: builds whose snapshot is not doubted where it must be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from e2e.changing import Scene, gpus
from e2e.hostile_places import Place
from e2e.test_fresh import LOST, MIG, has, swap
from e2e.vulnerable import Build
from fakehost import tree


def _bound_in_the_other_order(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 2, place.top)
    assert scene.refresh().returncode == 0
    swap(scene)
    assert gpus(scene.ask(scene.host.gpus[0].uuid)[1]) == {scene.given(0)}


def _another_major(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 1, place.top)
    assert scene.refresh().returncode == 0
    devices = Path(scene.host.root, "proc/devices")
    devices.write_text(devices.read_text().replace("508 nvidia-uvm", "507 nvidia-uvm"))
    assert {node[1] for node in scene.ask("0")[1] if "uvm" in node[0]} == {507}


def _made_anew(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", [{"mig": MIG}], place.top)
    assert scene.refresh().returncode == 0
    old = scene.host.gpus[0].mig[0].uuid
    scene.host.set_mig(0, [(*MIG[0], "MIG-00000000-1111-2222-3333-444444444444"), MIG[1]])
    assert scene.ask(old)[1] == set()


def _beside_a_lost_gpu(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 2, place.top)
    assert scene.refresh().returncode == 0
    scene.host.behave(fail_gpu=LOST)
    scene.age()
    assert scene.ask("all")[1] == set()


def _after_one_is_gone(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 2, place.top)
    assert scene.refresh().returncode == 0
    has(scene, scene.host.gpus[1])
    assert scene.ask("0")[1] == set()


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
    assert scene.ask("0", before=("/usr/bin/prlimit", "--fsize=1000"))[0].returncode
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
        {STAMP: "_inode = lambda path: 1"}, _bound_in_the_other_order, "scene.given(0)"
    ),
    "T-fresh takes majors for settled": Build({STAMP: "_majors = lambda proc: []"}, _another_major, "== {507}"),
    "T-fresh takes a MIG instance for its place": Build(
        {STAMP: "_made = lambda path: []"}, _made_anew, "scene.ask(old)"
    ),
    "T-fresh has snapshots live for ever": Build(
        {STAMP: "alive = lambda *_: True"}, _beside_a_lost_gpu, 'scene.ask("all")'
    ),
    "T-fresh numbers GPUs as NVML does now": Build(
        {"shim/gpushim/inventory/earlier.py": "settled = lambda state: []"}, _after_one_is_gone, 'scene.ask("0")'
    ),
    "T-fresh gives fewer for all": Build(
        {"shim/gpushim/oci/selection.py": "unusable = lambda inventory: []"}, _beside_a_lost_gpu, 'scene.ask("all")'
    ),
    "T-fresh takes what has the same time for the same": Build(
        {STAMP: TIMES_ALONE}, _another_directory_of_the_same_time, "_mounted(scene)"
    ),
    "T-fresh looks for nothing new": Build(
        {"shim/gpushim/inventory/data_files.py": "places = lambda *_: set()"},
        _a_program_that_was_not_there,
        "_mounted(scene)",
    ),
    "T-fresh passes a tenant's limits on": Build(
        {"shim/gpushim/inventory/failure.py": "scarce = lambda error: None"}, _a_tenant_with_little, "failure"
    ),
}
