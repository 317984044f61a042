"""What a create hands out is what is there now: GPUs bound again, majors, passing failures, MIG, lost state."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.changing import MIG, Scene, gpus, listed
from fakehost import Gpu
from gpushim.ground.errors import FAILED, INVENTORY, REQUEST

LOST = {1: 15}  # NVML_ERROR_GPU_IS_LOST


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return listed("scene", tmp_path)


@pytest.fixture
def divided(tmp_path: Path) -> Scene:
    return listed("divided", tmp_path)


def swap(scene: Scene) -> None:
    """Unbind two GPUs, and bind them in the other order."""
    one, other = scene.host.gpus
    one.minor, other.minor = other.minor, one.minor
    scene.host.update()


@pytest.mark.parametrize("index", [0, 1])
def test_a_uuid_is_that_gpu_after_both_were_bound_in_the_other_order(scene: Scene, index: int) -> None:
    uuid = scene.host.gpus[index].uuid
    before = scene.ask(uuid)[1]
    swap(scene)
    done, found = scene.ask(uuid)
    assert (done.returncode, gpus(found)) == (0, {scene.given(index)})
    assert gpus(found) != gpus(before)


def test_the_cdi_spec_follows_once_anybody_looks(scene: Scene) -> None:
    swap(scene)
    assert "the GPUs changed since" in scene.call("gpushim", "doctor").stdout
    scene.refresh()
    spec = json.loads((scene.state / "cdi/nvidia.com-gpu.json").read_text())
    named = {device["name"]: device["containerEdits"]["deviceNodes"] for device in spec["devices"]}
    assert [node["minor"] for node in named["0"]] == [scene.host.gpus[0].minor]


def test_a_node_with_the_major_of_others_is_not_handed_out(scene: Scene) -> None:
    devices = Path(scene.host.root, "proc/devices")
    devices.write_text(devices.read_text().replace("508 nvidia-uvm", "507 nvidia-uvm\n508 other"))
    done, found = scene.ask("0")
    assert done.returncode == 0
    assert {node[1] for node in found if "uvm" in node[0]} == {507}
    assert os.major(os.stat(scene.host.node("nvidia-uvm")).st_rdev) == 507


def test_a_node_with_the_major_of_others_that_cannot_be_mended_is_refused(scene: Scene) -> None:
    params = Path(scene.host.root, "proc/driver/nvidia/params")
    params.write_text(params.read_text().replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"))
    devices = Path(scene.host.root, "proc/devices")
    devices.write_text(devices.read_text().replace("508 nvidia-uvm", "507 nvidia-uvm\n508 other"))
    done, found = scene.ask("0")
    assert (done.returncode, found) == (INVENTORY, set())
    assert "/dev/nvidia-uvm is not on this host, or is not that device" in done.stderr


def test_the_mode_of_a_channel_is_that_of_the_moment(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1, imex=3)
    scene.refresh()
    os.chmod(scene.host.node("nvidia-caps-imex-channels/channel2"), 0o600)
    scene.plain["process"]["env"].append("NVIDIA_IMEX_CHANNELS=2")
    assert scene.ask("0")[0].returncode == 0
    spec = json.loads((tmp_path / "bundles/one/config.json").read_text())
    assert [node["fileMode"] for node in spec["linux"]["devices"] if "channel2" in node["path"]] == [0o600]


def test_one_failure_of_nvml_does_not_last(divided: Scene) -> None:
    uuid = divided.host.gpus[0].mig[0].uuid
    divided.host.behave(fail=999)
    done = divided.refresh()
    assert (done.returncode, divided.saved()["life"]) == (INVENTORY, pytest.approx(30, abs=20))
    assert "not all could be listed: the MIG instances of GPU 0 (" in done.stderr
    assert divided.ask(uuid)[0].returncode == REQUEST
    divided.host.behave()
    divided.age()
    done, found = divided.ask(uuid)
    assert (done.returncode, gpus(found)) == (0, {divided.given(0)})


def test_a_failing_host_is_not_looked_at_for_each_create(scene: Scene) -> None:
    scene.host.behave(fail_gpu=LOST)
    scene.age()
    assert scene.ask("0")[0].returncode == 0
    first = scene.saved()
    assert scene.ask("0")[0].returncode == 0
    assert (scene.saved(), first["life"]) == (first, pytest.approx(30, abs=20))


def test_all_is_refused_beside_a_lost_gpu_until_it_is_back(scene: Scene) -> None:
    scene.host.behave(fail_gpu=LOST)
    assert scene.refresh().returncode == INVENTORY
    done, found = scene.ask("all")
    healthy, lost = scene.host.gpus
    assert (done.returncode, found) == (INVENTORY, set())
    assert f"not all can be used: GPU 1 (0000{lost.pci}) does not answer NVML: " in done.stderr
    assert done.stderr.endswith(f"; fix that, or name those that can be used: {healthy.uuid}\n")
    assert scene.ask(healthy.uuid)[0].returncode == 0
    scene.host.behave()
    scene.age()
    assert len(gpus(scene.ask("all")[1])) == 2


def test_explain_and_cdi_say_the_same_of_all(scene: Scene) -> None:
    scene.host.behave(fail_gpu=LOST)
    scene.refresh()
    explained = scene.call("gpushim", "explain", "--env", "NVIDIA_VISIBLE_DEVICES=all")
    assert "not all can be used: GPU 1 (" in explained.stdout + explained.stderr
    spec = json.loads((scene.state / "cdi/nvidia.com-gpu.json").read_text())
    assert "all" not in {device["name"] for device in spec["devices"]}


def test_mig_mode_without_instances_is_noticed_when_the_life_is_over(scene: Scene) -> None:
    scene.host.set_mig(0, [])
    scene.age()
    assert gpus(scene.ask("all")[1]) == {scene.given(1)}
    assert scene.saved()["life"] == pytest.approx(30, abs=20)
    scene.host.gpus[0].mig_mode = (0, 0)
    scene.host.update()
    scene.age()
    assert len(gpus(scene.ask("all")[1])) == 2
    assert scene.saved()["life"] == pytest.approx(300, abs=20)


def test_instances_made_anew_in_the_same_places_are_others(divided: Scene) -> None:
    old = divided.host.gpus[0].mig[0].uuid
    new = "MIG-00000000-1111-2222-3333-444444444444"
    divided.host.set_mig(0, [(1, 0, "3g.20gb", new), MIG[1]])
    assert divided.ask(old)[0].returncode == REQUEST
    assert divided.ask(new)[0].returncode == 0


def test_whoever_asks_gets_a_look(scene: Scene) -> None:
    before = scene.saved()["looked"]
    assert scene.refresh().returncode == 0
    assert scene.saved()["looked"] > before


SUSPENDED = ("/usr/bin/unshare", "--time", "--boottime", "100000")


def test_a_suspend_counts(scene: Scene) -> None:
    scene.host.behave(fail_gpu=LOST)
    assert scene.ask("all", before=SUSPENDED)[0].returncode == INVENTORY


def test_the_clock_of_the_wall_does_not(scene: Scene) -> None:
    before = scene.saved()
    for when in (1, 4102444800):
        os.utime(scene.state / "inventory.json", (when, when))
        assert scene.ask("all")[0].returncode == 0
    assert scene.saved() == before


@contextlib.contextmanager
def beside(scene: Scene, workers: int = 4) -> Iterator[list[tuple[int, str, int]]]:
    """Create containers during the block; yields exit codes, what was said, and how many GPUs each got."""
    stop = threading.Event()
    ended: list[tuple[int, str, int]] = []

    def again(number: int) -> None:
        while not stop.is_set():
            done, found = scene.ask("all", f"c{number}")
            ended.append((done.returncode, done.stderr, len(gpus(found))))

    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(again, number) for number in range(workers)]
        try:
            yield ended
        finally:
            stop.set()
        for one in running:
            one.result()


def until(ended: list[tuple[int, str, int]], count: int) -> None:
    """Wait for so many more creates."""
    wanted = len(ended) + count
    deadline = time.monotonic() + 60
    while len(ended) < wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(ended) >= wanted


def sound(ended: list[tuple[int, str, int]], codes: set[int], count: int = 2) -> None:
    """Each create got all GPUs, or none and one sentence with one of these codes."""
    for code, said, found in ended:
        assert (code, found) == (0, count) or (code in codes and found == 0), (code, said, found)
        assert said.count("\n") == bool(code), said


def test_the_state_directory_goes_beside_creates(scene: Scene) -> None:
    with beside(scene) as ended:
        for _ in range(12):
            until(ended, 3)
            shutil.rmtree(scene.state, ignore_errors=True)
        until(ended, 8)
    sound(ended, {INVENTORY})  # the directory may go between a refresh and the look at what it wrote, twice
    assert [code for code, _, _ in ended[-4:]] == [0] * 4


@pytest.fixture
def small(scene: Scene) -> Iterator[Path]:
    """A state directory on a file system of its own, with little room."""
    shutil.rmtree(scene.state)
    scene.state.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "mode=755,size=256k", "gpushim", scene.state], check=True)
    scene.refresh()
    yield scene.state
    subprocess.run(["/bin/umount", scene.state], check=True)


def fill(folder: Path) -> None:
    """Leave no room."""
    with contextlib.suppress(OSError), open(folder / "fill", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_full_disk_beside_creates(scene: Scene, small: Path) -> None:
    fill(small)
    with beside(scene) as ended:
        until(ended, 8)
        sound(ended, set())  # the snapshot is there
        scene.host.set_mig(0, MIG)
        until(ended, 8)
        (small / "fill").unlink()
        until(ended, 12)
    assert {code for code, _, _ in ended} == {0, FAILED}
    assert all("the snapshot cannot be saved: " in said for code, said, _ in ended if code)
    assert [code for code, _, _ in ended[-4:]] == [0] * 4


def test_refresh_by_hand_says_that_the_disk_is_full(scene: Scene, small: Path) -> None:
    fill(small)
    done = scene.refresh()
    assert (done.returncode, done.stderr) == (
        FAILED,
        f"gpushim: the snapshot cannot be saved: {small}: No space left on device; gpushim doctor may know why\n",
    )


def test_a_state_directory_that_is_read_only_is_called_so(scene: Scene, small: Path) -> None:
    swap(scene)
    subprocess.run(["/bin/mount", "-o", "remount,ro", small], check=True)
    done, found = scene.ask("0")
    assert (done.returncode, found) == (INVENTORY, set())
    assert f"{small} is out of date, and the file system there is mounted read-only: mount it writable" in done.stderr


def test_a_boot_beside_creates(scene: Scene) -> None:
    scene.host.unload("nvidia", "nvidia_uvm", "nvidia_modeset")
    shutil.rmtree(scene.state)
    with beside(scene) as ended:
        until(ended, 8)
    sound(ended, {INVENTORY})
    assert ended[-1][0] == 0


def has(scene: Scene, *gpus: Gpu) -> None:
    """Let the host have these GPUs alone; NVML numbers them again."""
    scene.host.gpus[:] = gpus
    for number, gpu in enumerate(gpus):
        gpu.index = number
    scene.host.update()


def test_an_index_is_no_other_gpus_while_its_own_is_missing(scene: Scene) -> None:
    first, second = scene.host.gpus
    before = scene.ask("1")[1]
    has(scene, second)
    done, found = scene.ask("0")
    assert (done.returncode, gpus(found)) == (REQUEST, set())
    assert f"but the GPU of that index ({first.uuid}) is missing, and no other gets it; " in done.stderr
    assert done.stderr.rstrip().endswith(second.uuid)
    assert scene.ask("1")[1] == before
    spec = json.loads((scene.state / "cdi/nvidia.com-gpu.json").read_text())
    assert {device["name"] for device in spec["devices"]} >= {"1", second.uuid}
    assert "0" not in {device["name"] for device in spec["devices"]}
    listed = scene.call("gpushim", "list", "--format", "json")
    assert [(gpu["index"], gpu["nvml"]) for gpu in json.loads(listed.stdout)] == [(1, 0)]
    assert f"note: GPU 0 ({first.uuid}) is missing, and no other gets its index" in listed.stderr
    has(scene, first, second)
    assert [gpus(scene.ask(name)[1]) for name in ("0", "1")] == [{scene.given(0)}, {scene.given(1)}]


def test_the_order_of_now_is_taken_if_nvml_tells_one(scene: Scene) -> None:
    has(scene, scene.host.gpus[1])
    scene.host.behave(fail=9)
    done = scene.call("gpushim", "refresh", "--accept-indices")
    assert done.returncode == INVENTORY
    assert "the GPUs' indices stay as they were, because NVML reports no order: NVML cannot be used" in done.stderr
    assert scene.ask("0")[0].returncode == REQUEST
    scene.host.behave()
    assert scene.call("gpushim", "refresh", "--accept-indices").returncode == 0
    assert gpus(scene.ask("0")[1]) == {scene.given(0)}
    shutil.rmtree(scene.state)
    assert gpus(scene.ask("0")[1]) == {scene.given(0)}


def test_the_order_of_now_is_not_taken_unattended(scene: Scene) -> None:
    for other in ("--unattended", "--keep"):
        done = scene.call("gpushim", "refresh", "--accept-indices", other)
        assert done.returncode == 2, done.stderr
