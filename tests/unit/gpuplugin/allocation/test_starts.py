"""A container waits for pods that run with what is to be its alone, for none else, and not for ever."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.allocation import starts
from gpuplugin.allocation.starts import Starts
from gpuplugin.book import claimed
from gpuplugin.book.book import Book
from gpuplugin.book.by_device import ALLOCATED, PLUGIN, noted_entry
from gpuplugin.book.page import fresh
from gpuplugin.book.started import NAME
from gpuplugin.processes import instances
from gpuplugin.processes.instances import Instances
from gpuplugin.snapshot import release
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, snapshot

GPU, SLICES, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
ONE, TWO, PART = "GPU-1", "GPU-2", "MIG-1"
WAYS = {GPU: ("", GPU), SLICES: ("timeSlicing", SLICES), MIG: ("", MIG)}


class Cgroups:
    """Those of a node, as far as they are asked for: uids of pods that run."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.seen = True

    def sees(self, uid: str) -> bool:
        return self.seen and uid in self.running

    def runs(self, uid: str) -> bool:
        return self.seen and uid in self.running

    def there(self) -> bool:
        return self.seen


class Scene:
    """A node: its kubelet gives, its plugin lets containers start."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cgroups, self.given = folder, Cgroups(), dict[str, "tuple[str, str]"]()
        self.heeds = True  # claims
        (folder / "device-plugins").mkdir()
        self.plugin = self.started()

    def started(self) -> Starts:
        """Another process of the plugin."""
        shared = Book()
        shared.prepare()
        found: Any = self.cgroups
        return Starts(shared, lambda: str(self.folder), lambda: self.heeds, found)

    def give(self, uid: str, resource: str = GPU, name: str = ONE) -> None:
        """Have kubelet give a pod what no pod that it lists has, and make its sandbox."""
        self.given = {key: one for key, one in self.given.items() if one[1].partition("::")[0] != name}
        self.given[uid] = resource, name
        self.cgroups.running.add(uid)
        self.write()
        shared = Book()
        with shared.locked() as before:
            page: Any = shared.now(before) if before else fresh(system.boot() or "", "")
            home = page["gpus"].setdefault(TWO if name == TWO else ONE, {"divisions": {}, "entries": {}})
            stem = name.partition("::")[0]
            entry = noted_entry(PLUGIN, f"pod default/{uid}", stem, WAYS[resource], ALLOCATED, 1.0)
            home["entries"][f"{resource} {name}"] = entry
            shared.write(page)

    def write(self) -> None:
        rows = [
            {"PodUID": uid, "ContainerName": "main", "ResourceName": resource, "DeviceIDs": {"-1": [name]}}
            for uid, (resource, name) in self.given.items()
        ]
        aside = self.folder / "aside"
        aside.write_text(json.dumps({"Data": {"PodDeviceEntries": rows, "RegisteredDevices": {}}, "Checksum": 0}))
        aside.rename(self.folder / "device-plugins" / "kubelet_internal_checkpoint")

    def start(self, uid: str) -> float:
        """Start a container of a pod; say for how many seconds that waited."""
        resource, name = self.given[uid]
        began = time.monotonic()
        asyncio.run(self.plugin.start(resource, [name]))
        return time.monotonic() - began

    def delete(self, uid: str) -> None:
        """Have kubelet list a pod no more, which runs."""
        del self.given[uid]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path))
    monkeypatch.setattr(starts, "LONGEST", 0.3)
    monkeypatch.setattr(starts, "EACH", 0.01)
    return Scene(tmp_path)


BESIDE = {
    "another GPU": (GPU, TWO),
    "a share beside a share": (SLICES, f"{ONE}::1"),
}
EXCLUDED = {
    "the same": ((GPU, ONE), (GPU, ONE), f"cannot use {ONE} yet: pod default/old, which .* runs with it until"),
    "a share after all of it": ((GPU, ONE), (SLICES, f"{ONE}::0"), "runs with it until"),
    "all of it after a share": ((SLICES, f"{ONE}::0"), (GPU, ONE), "runs with it until"),
    "an instance after the GPU": ((GPU, ONE), (MIG, PART), f"cannot use {PART} yet: .* runs with {ONE} until"),
    "the GPU after an instance": ((MIG, PART), (GPU, ONE), f"cannot use {ONE} yet: .* runs with {PART} until"),
}


def replaced(scene: Scene, before: tuple[str, str], after: tuple[str, str]) -> None:
    """Have a pod run, be deleted by force, and another one be given something."""
    scene.give("old", *before)
    scene.start("old")
    scene.delete("old")
    scene.give("new", *after)


@pytest.mark.parametrize(("before", "after", "sentence"), EXCLUDED.values(), ids=EXCLUDED)
def test_what_is_one_containers_alone_is_waited_for(
    scene: Scene, before: tuple[str, str], after: tuple[str, str], sentence: str
) -> None:
    replaced(scene, before, after)
    with pytest.raises(
        GpushimError, match=f"^pod default/new {sentence if 'cannot' in sentence else f'.*{sentence}'}"
    ):
        scene.start("new")
    scene.cgroups.running.discard("old")
    assert scene.start("new") < 0.2
    assert "old" not in Path(scene.folder, "device-plugin", NAME).read_text()


@pytest.mark.parametrize("after", BESIDE.values(), ids=BESIDE)
def test_what_excludes_nothing_is_not_waited_for(scene: Scene, after: tuple[str, str]) -> None:
    replaced(scene, (SLICES, f"{ONE}::1") if after[0] == SLICES else (GPU, ONE), after)
    assert scene.start("new") < 0.2


CLAIM = {"namespace": "d", "name": "c", "devices": [{"request": "r", "device": "gpu-1", "uuid": ONE}]}


@pytest.mark.parametrize("row", [{**CLAIM}, {**CLAIM, "devices": [{**CLAIM["devices"][0], "admin": True}]}])  # type: ignore[dict-item]
def test_a_claim_that_its_driver_has_not_taken_back_is_waited_for(scene: Scene, row: dict[str, Any]) -> None:
    """As of a pod that was deleted by force; one that only looks has nothing to itself."""
    scene.give("new")
    with scene.plugin._book.locked():
        claimed.write({"uid": row})
    assert scene.start("new") < 0.2  # no driver runs, which would take it back
    driver = Instances()
    driver.join(release.prepare(), instances.DRIVERS)
    if "admin" not in row["devices"][0]:
        with pytest.raises(GpushimError, match=f"pod default/new cannot use {ONE} yet: claim d/c has it"):
            scene.start("new")
        scene.heeds = False  # as with other-givers = "serve"
        assert scene.start("new") < 0.2
        scene.heeds = True
        claimed.write({})
    assert scene.start("new") < 0.2
    driver.leave()


def test_it_goes_on_as_soon_as_the_other_has_ended(scene: Scene) -> None:
    replaced(scene, (GPU, ONE), (GPU, ONE))

    async def run() -> None:
        waiting = asyncio.create_task(scene.plugin.start(GPU, [ONE]))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        scene.cgroups.running.discard("old")
        await waiting

    asyncio.run(run())


def test_a_container_that_starts_again_waits_for_nobody(scene: Scene) -> None:
    """Its own pod runs, its sandbox at least."""
    scene.give("one")
    before = [scene.start("one") for _ in range(2)]
    scene.plugin = scene.started()
    assert max(*before, scene.start("one")) < 0.2


def test_a_restart_of_the_plugin_forgets_nobody(scene: Scene) -> None:
    replaced(scene, (GPU, ONE), (GPU, ONE))
    scene.plugin = scene.started()
    with pytest.raises(GpushimError, match=r"pod default/old"):
        scene.start("new")


def test_what_ran_before_the_first_start_that_was_asked_for_is_known(scene: Scene) -> None:
    """As after an upgrade of the plugin: kubelet's checkpoint has it."""
    scene.give("old")
    asyncio.run(scene.plugin.look())
    scene.delete("old")
    scene.give("new")
    with pytest.raises(GpushimError, match=r"pod default/old"):
        scene.start("new")


def test_a_pod_that_is_listed_no_more_and_has_ended_is_forgotten(scene: Scene) -> None:
    replaced(scene, (GPU, ONE), (GPU, ONE))
    scene.cgroups.running.discard("old")
    assert scene.start("new") < 0.2


def test_without_a_view_of_pods_containers_start_and_it_is_said_once(scene: Scene) -> None:
    replaced(scene, (GPU, ONE), (GPU, ONE))
    scene.cgroups.seen = False
    assert scene.start("new") < 0.2
    assert scene.plugin.problem.endswith("/sys/fs/cgroup has no cgroup of the pod that starts")
    scene.plugin.held(snapshot([gpu(0)]))
    assert scene.plugin.problem
    scene.cgroups.seen = True
    scene.plugin.held(snapshot([gpu(0)]))  # which is asked again and again, without another start
    assert scene.plugin.problem == ""


@pytest.mark.parametrize("content", [None, "", "{}", '{"Data": {"PodDeviceEntries": [1]}}'])
def test_without_kubelets_checkpoint_too(scene: Scene, content: str | None) -> None:
    replaced(scene, (GPU, ONE), (GPU, ONE))
    path = scene.folder / "device-plugins" / "kubelet_internal_checkpoint"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert scene.start("new") < 0.2
    assert scene.plugin.problem.endswith("kubelet's checkpoint does not say which pod starts")
    scene.plugin.held(snapshot([gpu(0)]))
    assert scene.plugin.problem
    scene.write()
    asyncio.run(scene.plugin.look())
    scene.plugin.held(snapshot([gpu(0)]))
    assert scene.plugin.problem == ""


DAMAGED = ["", "[", "[]", '{"form": 2}', "new"]


@pytest.mark.parametrize("content", [*DAMAGED, '{"form": 1, "boot": "x", "pods": 1}'])
def test_a_damaged_file_is_written_anew_and_told(
    scene: Scene, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One of another boot says nothing of this one, and is no damage."""
    scene.give("one")
    scene.start("one")
    path = Path(scene.folder, "device-plugin", NAME)
    before = path.read_bytes()
    path.write_text(before.decode().replace('"form":1', '"form":2') if content == "new" else content)
    scene.start("one")
    scene.start("one")
    assert path.read_bytes() == before
    assert caplog.text.count("was damaged") == (content in DAMAGED)
    assert ("in two containers" in scene.plugin.problem) == (content in DAMAGED)
    assert path.stat().st_mode & 0o777 == 0o600
