"""More of vulnerable.py: builds whose snapshot is not doubted where it must be."""

from __future__ import annotations

from pathlib import Path

from e2e.changing import Scene, gpus
from e2e.hostile_places import Place
from e2e.test_fresh import LOST, MIG, swap
from e2e.vulnerable import Build


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


STAMP = "shim/gpushim/stamp.py"
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
    "T-fresh gives fewer for all": Build(
        {"shim/gpushim/selection.py": "unusable = lambda inventory: []"}, _beside_a_lost_gpu, 'scene.ask("all")'
    ),
}
