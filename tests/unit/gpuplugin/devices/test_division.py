"""Groups of sharing on a host: what each selector means, and what becomes of the devices."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.devices import division
from gpuplugin.devices.mps_group import MpsGpu, MpsGroup
from gpuplugin.settings import resources, settings, sharing
from gpuplugin.settings.resources import Share
from gpuplugin.settings.sharing import MPS, TIME_SLICING, Group
from gpushim.ground import bounds
from gpushim.ground.errors import CONFIG, GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

T4: dict[str, Any] = {"model": "Tesla T4", "arch": "7.5", "memory": 15360}
FOUR = snapshot([gpu(0), gpu(1), gpu(2, **T4), gpu(3, **T4)])
DIVIDED = snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0), mig(1, 1), mig(1, 2, "3g.20gb")])


def groups(*rows: Any, kind: str = "timeSlicing") -> tuple[Group, ...]:
    return sharing.read({kind: {"resources": [{"name": "gpu", **row} for row in rows]}}, "f", [])


def divide(host: Any, found: tuple[Group, ...], strategy: str = "none") -> tuple[dict[str, list[str]], list[str]]:
    """The ids of each resource, with indices of GPUs and MIG instances for their UUIDs; and the notes."""
    notes: list[str] = []
    there = resources.find(host, strategy, [], [])
    divided = division.divide(there, host, found, notes)
    ids = {
        name.partition("/")[2]: [one.index + one.id[len(one.uuid) :] for one in devices]
        for name, devices in divided.items()
    }
    return ids, notes


def refused(host: Any, found: tuple[Group, ...], strategy: str = "none") -> str:
    with pytest.raises(GpushimError) as told:
        divide(host, found, strategy)
    assert told.value.exit_code == CONFIG
    return str(told.value)


def daemons(host: Any, *rows: Any) -> list[MpsGroup]:
    said = settings.resolve({}, {}, {}, "")
    said.sharing = groups(*rows, kind="mps")
    return division.mps_groups(host, said)


@pytest.mark.parametrize(
    ("devices", "taken"),
    [
        (None, "0123"),
        ("all", "0123"),
        (2, "01"),
        ([0], "0"),
        (["1-2"], "12"),
        (["3", 1], "13"),
        ([uuid(2)], "2"),
        (["GPU-00000003"], "3"),
        (["0000:12:00.0"], "2"),
        (["*T4"], "23"),
        (["nvidia a100-*", "3"], "013"),
    ],
)
def test_whole_gpus_are_chosen(devices: Any, taken: str) -> None:
    ids, notes = divide(FOUR, groups({"devices": devices, "replicas": 2, "rename": "x"}))
    rest = [index for index in "0123" if index not in taken]
    assert ids == {"x": [f"{index}::{n}" for index in taken for n in (0, 1)], **({"gpu": rest} if rest else {})}
    assert notes == []


@pytest.mark.parametrize(
    ("devices", "taken"),
    [(["1:0"], ["1:0"]), (["1g.5gb"], ["1:0", "1:1"]), ([uuid(18, "MIG")], []), ([1], ["1:0", "1:1"])],
)
def test_mig_instances_are_chosen(devices: Any, taken: list[str]) -> None:
    row = {"name": "mig-1g.5gb", "devices": devices, "replicas": 2, "rename": "x"}
    ids, notes = divide(DIVIDED, groups(row), "mixed")
    assert ids.get("x", []) == [f"{index}::{n}" for index in taken for n in (0, 1)]
    assert ids.get("mig-1g.5gb", []) == [index for index in ("1:0", "1:1") if index not in taken]
    assert len(notes) == (not taken)


def test_each_gpu_has_replicas_of_its_own_under_one_name() -> None:
    ids, notes = divide(FOUR, groups({"devices": [1], "replicas": 3}, {"devices": ["0", "2-3"], "replicas": 2}))
    assert ids == {"gpu": ["0::0", "0::1", "1::0", "1::1", "1::2", "2::0", "2::1", "3::0", "3::1"]}
    assert notes == []


def test_one_replica_is_the_device_itself() -> None:
    assert divide(FOUR, groups({"devices": [0], "replicas": 1, "rename": "x"}))[0]["x"] == ["0"]
    assert divide(FOUR, groups({"replicas": 1}))[0] == {"gpu": ["0", "1", "2", "3"]}


def test_slices_are_resources_of_their_own() -> None:
    slices = [{"name": "large", "memory": "20Gi"}, {"name": "small", "memory": "10Gi", "count": 2}]
    ids, _ = divide(FOUR, groups({"devices": [0, 1], "slices": slices}, kind="mps"))
    assert ids["large"] == ["0::0", "1::0"]
    assert ids["small"] == ["0::0", "0::1", "1::0", "1::1"]
    assert ids["gpu"] == ["2", "3"]


def test_what_counts_of_a_group_is_with_its_devices() -> None:
    both = sharing.read(
        {
            "timeSlicing": {"resources": [{"name": "gpu", "devices": [0], "replicas": 2, "distinct": True}]},
            "mps": {"resources": [{"name": "gpu", "devices": [1], "replicas": 4, "rename": "m", "threads": 30}]},
        },
        "f", [],
    )  # fmt: skip
    there = resources.find(FOUR, "none", [], [])
    found = division.divide(there, FOUR, both, [])
    first, whole = found["nvidia.com/gpu"][0].share, found["nvidia.com/gpu"][-1].share
    assert first == Share(TIME_SLICING, distinct=True)
    assert whole is None
    share = Share(MPS, single=True, group="m", memory=10240, threads=30)
    assert {one.share for one in found["nvidia.com/m"]} == {share}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"devices": ["7"]}, 'devices of nvidia.com/gpu has "7", which is none of nvidia.com/gpu on this node; that'),
        ({"devices": ["*H100*", 0]}, 'has "\\*H100\\*", which is none of'),
        ({"devices": ["*H100*"]}, "that has 0, 1, 2, 3 (NVIDIA "),
        ({"devices": 5}, "nvidia.com/gpu is to have 5 devices, and nvidia.com/gpu has 4"),
        (
            {"name": "gup"},
            "nvidia.com/gup is to be shared, and this node has no such resource",
        ),
        ({"devices": [0]}, "nvidia.com/gpu has whole devices and shared ones, or"),
    ],
)
def test_what_pods_may_miss_is_said(row: dict[str, Any], said: str) -> None:
    _, notes = divide(FOUR, groups({"replicas": 2, **row}))
    assert [note for note in notes if said.replace("\\", "") in note]


def test_two_daemons_behind_one_name_are_said() -> None:
    rows = [{"devices": [f"{n}-{n + 1}"], "replicas": 2} for n in (0, 2)]
    assert len(divide(FOUR, groups(*rows, kind="mps"))[1]) == 1
    assert divide(FOUR, groups(*rows))[1] == []


def test_a_device_in_two_groups_is_refused() -> None:
    rows = {"devices": ["*A100*"], "replicas": 2, "rename": "a"}, {"devices": [1], "replicas": 3, "rename": "b"}
    said = f"sharing has {uuid(1)} in two entries, of nvidia.com/b and of nvidia.com/a; name it"
    assert refused(FOUR, groups(*rows)).startswith(said)


@pytest.mark.parametrize(
    ("strategy", "host"), [("none", DIVIDED), ("single", snapshot([gpu(0, mig=True)], [mig(0, 0)]))]
)
def test_mps_and_mig_do_not_go_together(strategy: str, host: Any) -> None:
    assert "is in MIG mode" in refused(host, groups({"replicas": 2}, kind="mps"), strategy)


def test_mps_where_all_gpus_are_one() -> None:
    host = snapshot([gpu(0)], platform="wsl")
    assert "which is not on this platform" in refused(host, groups({"replicas": 2}, kind="mps"))


@pytest.mark.parametrize(
    ("arch", "replicas", "most"), [("8.0", 48, 48), ("7.5", 49, 48), ("7.0", 17, 16), ("", 48, 48), ("6.1", 16, 16)]
)
def test_a_daemon_takes_so_many_clients(arch: str, replicas: int, most: int) -> None:
    found = groups({"replicas": replicas}, kind="mps")
    host = snapshot([gpu(0, arch=arch)])
    if replicas <= most:
        assert len(divide(host, found)[0]["gpu"]) == replicas
    else:
        assert f"has {replicas} clients on GPU 0, and MPS takes {most} there" in refused(host, found)


def sliced(*parts: tuple[str, int]) -> dict[str, Any]:
    return {"slices": [{"name": f"s{n}", "memory": size, "count": count} for n, (size, count) in enumerate(parts)]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"replicas": 2, "memory": "16Gi"},
            "has 16384 MiB a client, and GPU 2 has 15360 MiB; lower memory",
        ),
        (sliced(("41Gi", 1)), "has 41984 MiB a client, and GPU 0 has 40960 MiB"),
        (sliced(("8Gi", 1), ("4Gi", 2)), "have 16384 MiB together, and GPU 2 has 15360 MiB; make them fewer"),
        (sliced(("1Gi", 30), ("512Mi", 19)), "has 49 clients on GPU 0, and MPS takes 48 there"),
    ],
)
def test_what_a_gpu_does_not_have_is_refused(row: dict[str, Any], said: str) -> None:
    assert said in refused(FOUR, groups(row, kind="mps"))


def test_clients_may_have_all_of_a_gpu_between_them() -> None:
    host = snapshot([gpu(0, **T4)])
    assert divide(host, groups({"replicas": 2, "memory": "7680Mi"}, kind="mps"))[1] == []
    ids, notes = divide(host, groups({"replicas": 2, "memory": "15360Mi"}, kind="mps"))
    assert (len(ids["gpu"]), len(notes)) == (2, 1)


def test_oversubscription_is_a_choice_and_said() -> None:
    ids, notes = divide(FOUR, groups({"replicas": 4, "memory": "12Gi", "devices": [0]}, kind="mps"))
    assert len(ids["gpu"]) == 7
    assert "gives out 12288 MiB 4 times, and GPU 0 has 40960 MiB" in notes[0]


@pytest.mark.parametrize(
    ("row", "memory", "threads"),
    [
        ({"replicas": 3, "devices": [0]}, 13653, 33),
        ({"replicas": 3}, 5120, 33),  # of the smallest
        ({"replicas": 3, "memory": "1Gi", "threads": 90}, 1024, 90),
        (
            {"slices": [{"name": "a", "memory": "2Gi", "threads": 2}, {"name": "b", "memory": "1Gi", "threads": 6}]},
            2048,
            6,
        ),
        ({"slices": [{"name": "a", "threads": 20}, {"name": "b", "memory": "1Gi"}]}, 15360, 100),
    ],
)  # fmt: skip
def test_limits_of_a_daemon(row: dict[str, Any], memory: int, threads: int) -> None:
    (found,) = daemons(FOUR, row)
    assert (found.memory, found.threads) == (memory, threads)


def test_a_size_that_is_not_known_is_no_limit() -> None:
    host = snapshot([gpu(0, memory=0)])
    assert daemons(host, {"replicas": 2})[0].memory is None
    (note,) = divide(host, groups({"replicas": 2}, kind="mps"))[1]
    assert note == "nvidia.com/gpu has no limit of memory on GPU 0, whose size is not known; set memory"


def test_each_group_has_a_daemon_with_a_name_of_its_own() -> None:
    rows = [{"devices": [n], "replicas": 2} for n in (0, 1, 2)]
    more = {"devices": [3], "replicas": 2, "rename": "gpu-2", "multiUser": True}, {"devices": ["9"], "replicas": 2}
    found = daemons(FOUR, *rows, *more)
    assert [one.name for one in found] == ["gpu", "gpu-2", "gpu-3", "gpu-2-2"]
    assert found[3].gpus == (MpsGpu(uuid(3), 3, 15360),)
    assert [one.multi_user for one in found] == [False, False, False, True]


def test_no_daemon_without_mps() -> None:
    said = settings.resolve({}, {}, {}, "")
    said.sharing = groups({"replicas": 2})
    assert division.mps_groups(FOUR, said) == []


def test_all_devices_of_a_node_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"replicas": 1000}]
    host = snapshot([gpu(index) for index in range(17)])
    assert refused(host, groups(rows[0])) == "sharing makes more than 16384 devices; give out fewer"
    monkeypatch.setattr(bounds, "PLUGIN_SHARES", 4000)
    assert len(divide(FOUR, groups(rows[0]))[0]["gpu"]) == 4000
    monkeypatch.setattr(bounds, "PLUGIN_SHARES", 3999)
    assert "more than 3999 devices" in refused(FOUR, groups(rows[0]))
