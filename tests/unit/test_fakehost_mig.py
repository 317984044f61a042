"""MIG of the simulated host, made and removed through the real nvidia-ml-py. Needs root and gcc."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakehost import A30, A100_80, B200, H100, H200, RTX_PRO_6000, Host, build, ci_cap, gi_cap
from fakehost.client import ask as look
from fakehost.session import Session, opened

pytestmark = pytest.mark.slow

INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, RESET_REQUIRED, IN_USE, INSUFFICIENT = 2, 3, 4, 6, 16, 19, 23
# nvidia-smi mig -lgipp
SEVENTHS = """
19 {0,1,2,3,4,5,6}:1
20 {0,1,2,3,4,5,6}:1
15 {0,2,4,6}:2
14 {0,2,4}:2
9 {0,4}:4
5 {0}:4
0 {0}:8
"""
QUARTERS = "14 {0,1,2,3}:1\n21 {0,1,2,3}:1\n5 {0,2}:2\n6 {0,2}:2\n0 {0}:4\n"
# nvidia-smi mig -lgip: id, name, instances, slices, multiprocessors, GiB
MODELS: dict[str, tuple[dict[str, Any], str, str]] = {
    "A100 40GB": (
        {},
        SEVENTHS,
        "19 1g.5gb 7 1 14 4.75, 14 2g.10gb 3 2 28 9.62, 9 3g.20gb 2 3 42 19.50, 5 4g.20gb 1 4 56 19.50,"
        "0 7g.40gb 1 7 98 39.25, 20 1g.5gb+me 1 1 14 4.75, 15 1g.10gb 4 1 14 9.62",
    ),
    "A100 80GB": (
        A100_80,
        SEVENTHS,
        "19 1g.10gb 7 1 14 9.50, 14 2g.20gb 3 2 28 19.50, 9 3g.40gb 2 3 42 39.25, 5 4g.40gb 1 4 56 39.25,"
        "0 7g.80gb 1 7 98 78.50, 20 1g.10gb+me 1 1 14 9.50, 15 1g.20gb 4 1 14 19.50",
    ),
    "A30": (
        A30,
        QUARTERS,
        "14 1g.6gb 4 1 14 5.81, 5 2g.12gb 2 2 28 11.69, 0 4g.24gb 1 4 56 23.44, 21 1g.6gb+me 1 1 14 5.81,"
        "6 2g.12gb+me 1 2 28 11.69",
    ),
    "H100 80GB": (
        H100,
        SEVENTHS,
        "19 1g.10gb 7 1 16 9.75, 14 2g.20gb 3 2 32 19.62, 9 3g.40gb 2 3 60 39.50, 5 4g.40gb 1 4 64 39.50,"
        "0 7g.80gb 1 7 132 79.25, 20 1g.10gb+me 1 1 16 9.75, 15 1g.20gb 4 1 26 19.62",
    ),
    "H200": (
        H200,
        SEVENTHS,
        "19 1g.18gb 7 1 16 16.00, 14 2g.35gb 3 2 32 32.25, 9 3g.71gb 2 3 60 69.50, 5 4g.71gb 1 4 64 69.50,"
        "0 7g.141gb 1 7 132 139.75, 20 1g.18gb+me 1 1 16 16.00, 15 1g.35gb 4 1 26 32.25",
    ),
    "B200": (
        B200,
        SEVENTHS,
        "19 1g.23gb 7 1 18 20.50, 14 2g.45gb 3 2 36 44.25, 9 3g.90gb 2 3 64 89.00, 5 4g.90gb 1 4 72 89.00,"
        "0 7g.180gb 1 7 148 178.50, 20 1g.23gb+me 1 1 18 20.50, 15 1g.45gb 4 1 30 44.25",
    ),
}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """An A100 and an H100, neither of them divided."""
    return build(str(tmp_path / "h"), [{}, H100], driver="570.124.06", cuda="12.8")


@pytest.fixture
def ask(host: Host) -> Iterator[Session]:
    with opened(host) as session:
        assert [session("mode(0, 1)"), session("mode(1, 1)")] == [0, 0]
        yield session


@pytest.mark.parametrize("name", MODELS)
def test_profiles_and_placements_are_the_models(tmp_path: Path, name: str) -> None:
    model, places, profiles = MODELS[name]
    with opened(build(str(tmp_path / "h"), [model])) as ask:  # MIG is off: they are told all the same
        told = [[id_, name[4:], *counts, f"{mib / 1024:.2f}"] for id_, name, *counts, mib in ask("profiles(0)")]
        for line in places.split("\n"):
            for id_, starts, size in re.findall(r"(\d+) {(.*)}:(\d)", line):
                assert ask(f"placements(0, {id_})") == [[int(start), int(size)] for start in starts.split(",")]
    assert [" ".join(map(str, row)) for row in told] == [row.strip() for row in profiles.split(",")]


@pytest.mark.parametrize("name", MODELS)
def test_each_profile_fills_a_gpu_to_its_count(tmp_path: Path, name: str) -> None:
    with opened(build(str(tmp_path / "h"), [MODELS[name][0]])) as ask:
        assert ask("mode(0, 1)") == 0
        for id_, _, count, *_ in ask("profiles(0)"):
            for room in range(count, 0, -1):
                assert ask(f"left(0, {id_})") == room
                assert isinstance(ask(f"make(0, {id_})"), int)
            assert ask(f"left(0, {id_})") == 0
            assert ask(f"make(0, {id_})") == {"error": INSUFFICIENT}
            for gi, *_ in ask(f"made(0, {id_})"):
                assert ask(f"remove(0, {gi})") == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_place_is_given_once_however_a_gpu_is_divided(tmp_path: Path, name: str) -> None:
    chance, media = random.Random(name), (20, 21, 6)
    taken: dict[int, tuple[int, int, int]] = {}
    with opened(build(str(tmp_path / "h"), [MODELS[name][0]])) as ask:
        ask("mode(0, 1)")
        ids = [row[0] for row in ask("profiles(0)")]
        places = [(id_, start, size) for id_ in ids for start, size in ask(f"placements(0, {id_})")]
        for _ in range(120):
            if taken and chance.random() < 0.4:
                gi = chance.choice(list(taken))
                assert ask(f"remove(0, {gi})") == 0
                del taken[gi]
                continue
            id_, start, size = chance.choice(places)
            slices = {slice_ for _, first, count in taken.values() for slice_ in range(first, first + count)}
            fits = slices.isdisjoint(range(start, start + size))
            fits &= not (id_ in media and any(other in media for other, *_ in taken.values()))
            answer = ask(f"make(0, {id_}, {start}, {size})")
            assert (answer != {"error": INSUFFICIENT}) == fits
            if fits:
                assert answer not in taken
                taken[answer] = (id_, start, size)
            listed = [[gi, *place] for id_ in ids for gi, *place in ask(f"made(0, {id_})")]
            assert sorted(listed) == sorted([gi, first, count] for gi, (_, first, count) in taken.items())


def test_the_driver_places_what_leaves_most(ask: Session) -> None:
    """As the guide shows it: small ones at the end first, and ids by the place."""
    assert [ask("make(0, 19)") for _ in range(7)] == [13, 11, 12, 7, 8, 9, 10]
    assert [ask(f"make(1, {profile})") for profile in (9, 14, 19, 19)] == [2, 3, 9, 10]
    assert ask("made(1, 9)") == [[2, 4, 4]]
    assert ask("made(1, 19)") == [[9, 2, 1], [10, 3, 1]]


def test_what_lies_in_the_way_leaves_no_room(ask: Session) -> None:
    assert ask("make(0, 9, 0, 4)") == 1
    assert ask("make(0, 5, 0, 4)") == {"error": INSUFFICIENT}  # the 4g lies at 0 only
    assert ask("make(0, 0)") == {"error": INSUFFICIENT}
    assert [ask(f"left(0, {profile})") for profile in (19, 15, 14, 9, 5, 0)] == [3, 2, 1, 1, 0, 0]
    assert ask("make(0, 9, 0, 4)") == {"error": INSUFFICIENT}
    assert ask("make(0, 9, 4, 4)") == 2


def test_media_are_given_once(tmp_path: Path) -> None:
    with opened(build(str(tmp_path / "h"), [A30])) as ask:
        ask("mode(0, 1)")
        assert ask("make(0, 21)") == 3
        assert ask("make(0, 6)") == {"error": INSUFFICIENT}  # the other with media
        assert ask("left(0, 6)") == 0
        assert ask("make(0, 5)") == 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("make(0, 9, 1, 4)", INVALID),
        ("make(0, 9, 0, 3)", INVALID),
        ("make(0, 9, 8, 4)", INVALID),
        ("make(0, 77)", INVALID),
        ("left(0, 77)", INVALID),
        ("placements(0, 77)", INVALID),
        ("n.nvmlDeviceGetGpuInstanceProfileInfo(gpus[0], 99)", INVALID),
        ("n.nvmlDeviceGetGpuInstanceProfileInfo(gpus[0], n.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX)", NOT_SUPPORTED),
        ("instance(0, 5)", NOT_FOUND),
        ("n.nvmlGpuInstanceDestroy(gpus[0])", INVALID),
        ("compute(0, make(0, 14), 2)", INVALID),  # three slices of two
        ("n.nvmlGpuInstanceGetComputeInstanceById(instance(0, make(0, 14)), 3)", NOT_FOUND),
        ("mode(0, 2)", INVALID),
    ],
)
def test_what_cannot_be_is_refused(ask: Session, words: str, code: int) -> None:
    assert ask(words) == {"error": code}


@pytest.mark.parametrize("words", ["make(0, 19)", "left(0, 19)", "made(0, 19)"])
def test_without_mig_mode_there_are_no_instances(host: Host, words: str) -> None:
    with opened(host) as ask:
        assert ask(words) == {"error": NOT_SUPPORTED}


@pytest.mark.parametrize("model", [{"mig_mode": None}, RTX_PRO_6000])
def test_a_model_that_is_not_divided_here(tmp_path: Path, model: dict[str, Any]) -> None:
    with opened(build(str(tmp_path / "h"), [model])) as ask:
        assert ask("profiles(0)") == []
        assert (ask("mode(0, 1)") == {"error": NOT_SUPPORTED}) == ("mig_mode" in model)


@pytest.mark.parametrize(("container", "uid"), [(False, 65534), (True, 0)])
def test_only_root_of_the_host_changes_anything(host: Host, container: bool, uid: int) -> None:
    with opened(host) as root:
        root("mode(0, 1)")
        root("compute(0, make(0, 19), 0)")
    os.chmod(host.root, 0o755)
    for folder in Path(host.root).parents[:-2]:
        folder.chmod(0o755)
    with opened(host, container=container, uid=uid) as ask:
        words = [
            "mode(0, 0)",
            "make(0, 19)",
            *([] if container else ["left(0, 19)", "made(0, 19)", "instance(0, 13)"]),
        ]
        assert [ask(word) for word in words] == [{"error": NO_PERMISSION}] * len(words)
        assert len(ask("migs(0)")) == 1


def test_changes_need_the_capability_to_configure(host: Host, ask: Session) -> None:
    host.remove_node("nvidia-caps/nvidia-cap1")
    assert [ask("mode(0, 0)"), ask("make(0, 19)")] == [{"error": NO_PERMISSION}] * 2
    host.update()
    assert ask("make(0, 19)") == 13


def test_destroying_goes_from_within(ask: Session) -> None:
    gi = ask("make(0, 9)")
    assert [ask(f"compute(0, {gi}, 0)"), ask(f"compute(0, {gi}, 1)")] == [0, {"error": INSUFFICIENT}]
    assert [ask(f"compute(0, {gi}, 0)") for _ in range(3)] == [1, 2, {"error": INSUFFICIENT}]
    assert ask(f"remove(0, {gi})") == {"error": IN_USE}
    assert [ask(f"remove(0, {gi}, {ci})") for ci in range(3)] == [0, 0, 0]
    assert [ask(f"remove(0, {gi})"), ask(f"remove(0, {gi})")] == [0, {"error": NOT_FOUND}]
    assert ask("migs(0)") == []


def test_parts_of_an_instance(ask: Session) -> None:
    gi = ask("make(1, 0)")
    assert ask(f"computes(1, {gi})") == [
        [0, "MIG 1c.7g.80gb", 7, 16],
        [1, "MIG 2c.7g.80gb", 3, 32],
        [2, "MIG 3c.7g.80gb", 2, 48],
        [3, "MIG 4c.7g.80gb", 1, 64],
        [4, "MIG 7g.80gb", 1, 132],
    ]
    assert [ask(f"compute(1, {gi}, {profile})") for profile in (3, 2)] == [0, 1]
    info = f"n.nvmlComputeInstanceGetInfo(n.nvmlGpuInstanceGetComputeInstanceById(instance(1, {gi}), 1))"
    assert ask(f"(lambda i: [i.id, i.profileId, i.placement.start, i.placement.size])({info})") == [1, 2, 4, 3]
    assert ask("n.nvmlDeviceGetName(n.nvmlDeviceGetMigDeviceHandleByIndex(gpus[1], 1))") == (
        "NVIDIA H100 80GB HBM3 MIG 3c.7g.80gb"
    )


def test_one_made_again_is_another(ask: Session) -> None:
    seen = set()
    for _ in range(3):
        assert ask("compute(0, make(0, 19, 0, 1), 0)") == 0
        (uuid,) = ask("migs(0)")
        seen.add(uuid)
        handle = f"n.nvmlDeviceGetHandleByUUID({uuid!r})"
        assert ask(f"[n.nvmlDeviceGetGpuInstanceId({handle}), n.nvmlDeviceGetComputeInstanceId({handle})]") == [7, 0]
        assert [ask("remove(0, 7, 0)"), ask("remove(0, 7)")] == [0, 0]
        assert ask(handle) == {"error": NOT_FOUND}
    assert len(seen) == 3


def capabilities(host: Host) -> dict[str, str]:
    """Return what /proc shows of instances: minor by place."""
    base = Path(host.root, "proc/driver/nvidia/capabilities")
    files = sorted(base.glob("gpu*/mig/gi*/**/access"))
    return {str(file.relative_to(base)): file.read_text().split("\n")[0].split(": ")[1] for file in files}


def test_proc_and_nodes_follow(host: Host, ask: Session) -> None:
    minor = host.gpus[0].minor
    before = set(os.listdir(host.node("nvidia-caps")))
    ask("compute(0, make(0, 9, 0, 4), 2)")
    ask("make(0, 19, 4, 1)")
    caps = [gi_cap(minor, 1), ci_cap(minor, 1, 0), gi_cap(minor, 11)]
    shown = capabilities(host)
    assert set(shown.values()) == {str(cap) for cap in caps}
    minors = Path(host.root, "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert {f"{place.replace('/mig', '')} {cap}" for place, cap in shown.items()} <= set(minors)
    assert {f"nvidia-cap{cap}" for cap in caps} == set(os.listdir(host.node("nvidia-caps"))) - before
    nodes = [os.stat(host.node(f"nvidia-caps/nvidia-cap{cap}")) for cap in (2, *caps)]
    assert len({(os.major(node.st_rdev), node.st_mode, node.st_uid, node.st_gid) for node in nodes}) == 1
    ask("[remove(0, 1, 0), remove(0, 1), remove(0, 11)]")
    assert (capabilities(host), set(os.listdir(host.node("nvidia-caps")))) == ({}, before)


def test_a_container_sees_what_was_made(host: Host, ask: Session) -> None:
    ask("compute(0, make(0, 9), 2)")
    ask("make(0, 19)")
    seen = [look(host, container=container)["gpus"] for container in (False, True)]
    assert seen[0] == seen[1]
    (device,) = seen[1][0]["migs"]
    assert [device["uuid"]] == ask("migs(0)")
    assert seen[1][0]["mig_mode"] == [1, 1]


def test_mode_takes_a_reset_on_ampere_only(host: Host) -> None:
    host.refuse_reset(0)
    host.refuse_reset(1)
    with opened(host) as ask:
        assert [ask("mode(0, 1)"), ask("mode(0)")] == [RESET_REQUIRED, [0, 1]]
        assert [ask("mode(1, 1)"), ask("mode(1)")] == [0, [1, 1]]
        host.reset(0)
        assert ask("mode(0)") == [1, 1]
        assert [ask("mode(0, 0)"), ask("mode(0, 1)"), ask("mode(0)")] == [RESET_REQUIRED, 0, [1, 1]]


def test_mode_waits_for_instances_and_clients(host: Host, ask: Session) -> None:
    gis = [ask(f"make({gpu}, 9)") for gpu in (0, 1)]
    assert [ask(f"mode({gpu}, 0)") for gpu in (0, 1)] == [IN_USE, IN_USE]
    assert [ask("mode(0)"), ask("mode(1)")] == [[1, 0], [1, 1]]
    assert [ask(f"remove({gpu}, {gi})") for gpu, gi in enumerate(gis)] == [0, 0]
    with subprocess.Popen(["sleep", "60"]) as client:
        host.use(host.gpus[1].uuid, client.pid)
        assert ask("mode(1, 0)") == IN_USE
        client.kill()
    assert [ask("mode(1, 0)"), ask("mode(0, 0)"), ask("mode(0)"), ask("mode(1)")] == [0, 0, [0, 0], [0, 0]]


def test_an_instance_in_use_stays(host: Host, ask: Session) -> None:
    gi = ask("make(0, 9)")
    ask(f"compute(0, {gi}, 0)")
    ask(f"compute(0, {gi}, 0)")
    with subprocess.Popen(["sleep", "60"]) as client:
        host.use(ask("migs(0)")[1], client.pid)
        assert [ask(f"remove(0, {gi}, {ci})") for ci in (0, 1)] == [0, {"error": IN_USE}]
        assert ask(f"remove(0, {gi})") == {"error": IN_USE}
        client.kill()
        deadline = time.monotonic() + 20
        while (answer := ask(f"remove(0, {gi}, 1)")) != 0:  # not yet a zombie
            assert answer == {"error": IN_USE}
            assert time.monotonic() < deadline
    assert ask(f"remove(0, {gi})") == 0


def test_two_processes_share_a_gpu_without_a_loss(host: Host, ask: Session) -> None:
    words = "[compute(0, make(0, 19, start, 1), 0) for start in {}]"
    with opened(host) as other:
        for _ in range(5):
            ask.send(words.format([0, 2, 4, 6]))
            other.send(words.format([1, 3, 5]))
            assert [ask.answer(), other.answer()] == [[0] * 4, [0] * 3]
            assert sorted(gi for gi, *_ in ask("made(0, 19)")) == list(range(7, 14))
            assert ask("migs(0)") == other("migs(0)")
            assert len(set(ask("migs(0)"))) == 7
            ask.send("[[remove(0, gi, 0), remove(0, gi)] for gi in (7, 9, 11, 13)]")
            other.send("[[remove(0, gi, 0), remove(0, gi)] for gi in (8, 10, 12)]")
            assert [ask.answer(), other.answer()] == [[[0, 0]] * 4, [[0, 0]] * 3]
            assert (ask("migs(0)"), capabilities(host)) == ([], {})


def test_one_place_is_one_process_s(host: Host, ask: Session) -> None:
    with opened(host) as other:
        for _ in range(5):
            for session in (ask, other):
                session.send("make(0, 0)")
            assert sorted([ask.answer(), other.answer()], key=str) == [0, {"error": INSUFFICIENT}]
            assert other("remove(0, 0)") == 0


def test_what_a_killed_process_made_stays(host: Host, ask: Session) -> None:
    with opened(host) as other:
        gi = other("make(0, 9)")  # and no compute instance
    assert (ask("made(0, 9)"), ask("migs(0)")) == ([[gi, 4, 4]], [])
    assert list(capabilities(host)) == [f"gpu{host.gpus[0].minor}/mig/gi{gi}/access"]
    assert ask(f"compute(0, {gi}, 2)") == 0


def test_a_kill_at_any_moment_leaves_what_the_next_change_brings_in_order(host: Host, ask: Session) -> None:
    fill, empty = (
        "compute(0, make(0, 19), 0) for _ in range(7)",
        "[remove(0, gi, 0), remove(0, gi)] for gi in range(7, 14)",
    )
    for turn in range(8):
        with opened(host) as other:
            other.send(f"[[{fill}] and [{empty}] for _ in range(1000)]")
            time.sleep(0.007 * turn)
        ask("make(0, 15)")  # or there is no room for it
        instances, devices = ask("made(0, 19) + made(0, 15)"), ask("migs(0)")
        host.adopt()
        assert [gi for gi, *_ in instances] == [made.gi for made in host.gpus[0].instances]
        assert len(capabilities(host)) == len(instances) + len(devices)
        assert look(host, container=True)["gpus"][0]["migs"] == look(host)["gpus"][0]["migs"]
        assert set(ask(f"[remove(0, gi, 0) for gi in {[mig.gi for mig in host.gpus[0].mig]}]")) <= {0}
        assert set(ask(f"[remove(0, gi) for gi in {[gi for gi, *_ in instances]}]")) <= {0}


@pytest.mark.parametrize(
    "change",
    [
        lambda host: host.lose(1),
        lambda host: host.update(),
        lambda host: host.behave(delay_ms=1),
        lambda host: host.set_mig(1, ["1g.10gb"]),
    ],
)
def test_a_change_of_the_host_keeps_what_nvml_made(host: Host, ask: Session, change: Callable[[Host], None]) -> None:
    ask("compute(0, make(0, 9), 2)")
    ask("make(0, 19)")
    before = (ask("migs(0)"), ask("made(0, 9)"), ask("made(0, 19)"))
    files = {path: os.stat(path).st_ino for path in Path(host.root, "proc/driver").glob("**/gi*/**/access")}
    assert len(files) == 3
    change(host)
    assert (ask("migs(0)"), ask("made(0, 9)"), ask("made(0, 19)")) == before
    assert {path: os.stat(path).st_ino for path in files} == files
    assert [mig.uuid for mig in host.gpus[0].mig] == before[0]


def test_set_mig_is_a_division_of_its_own(host: Host, ask: Session) -> None:
    ask("compute(0, make(0, 9), 2)")
    host.set_mig(0, ["4g.20gb", "2g.10gb", "1g.5gb"])
    assert ask("migs(0)") == [mig.uuid for mig in host.gpus[0].mig]
    assert [ask("made(0, 5)"), ask("made(0, 14)"), ask("made(0, 19)")] == [[[1, 0, 4]], [[3, 4, 2]], [[7, 6, 1]]]
    assert ask("make(0, 19)") == {"error": INSUFFICIENT}
    assert ask("[remove(0, 3, 0), remove(0, 3)]") == [0, 0]
    assert [ask("make(0, 19)"), ask("made(0, 5)")] == [11, [[1, 0, 4]]]


def test_a_function_can_be_made_to_fail(host: Host, ask: Session) -> None:
    host.lack("nvmlGpuInstanceCreateComputeInstance", code=999)
    gi = ask("make(0, 9)")
    assert ask(f"compute(0, {gi}, 2)") == {"error": 999}
    host.lack()
    assert ask(f"compute(0, {gi}, 2)") == 0


def test_a_device_is_as_large_as_its_profile_says(host: Host, ask: Session) -> None:
    rows = {name[4:]: (multiprocessors, mib) for _, name, _, _, multiprocessors, mib in ask("profiles(1)")}
    gi = ask("make(1, 15)")
    ask(f"compute(1, {gi}, 0)")
    handle = "n.nvmlDeviceGetMigDeviceHandleByIndex(gpus[1], 0)"
    words = f"(lambda a: [a.multiprocessorCount, a.memorySizeMB])(n.nvmlDeviceGetAttributes({handle}))"
    assert ask(words) == list(rows["1g.20gb"])
    host.update()
    assert ask(words) == list(rows["1g.20gb"])
    assert ask(f"n.nvmlDeviceGetMemoryInfo({handle}).total") == rows["1g.20gb"][1] << 20
