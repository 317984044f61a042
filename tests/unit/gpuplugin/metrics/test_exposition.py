"""Names, labels and values of metrics, from a state to what a scraper reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from gpuplugin.kubelet.podresources import Listed
from gpuplugin.metrics import exposition, metrics, readings
from gpuplugin.metrics.container_memory import Holding
from gpuplugin.metrics.exposition import FrontState, State
from gpuplugin.metrics.meter import Readings
from gpuplugin.metrics.metrics import GPU, INSTANCE, PLUGIN
from gpuplugin.settings.resources import GONE, Device
from gpuplugin.snapshot.release import PROBLEM
from gpushim.containers.kubelet import Claim
from gpushim.containers.memory_use import Use
from unit.gpuplugin.snapshots import gpu, mig, snapshot, uuid

TOP = Path(__file__).parents[4]
RESOURCE = "nvidia.com/gpu"
OWN: dict[str, float] = {
    "sm_clock": 1410,
    "power": 61234,
    "memory_used": 5 << 30,
    "memory_free": 3 << 30,
    "throttle": 5,
    "ecc corrected volatile": 7,
}
ITS: dict[str, float] = {"memory_used": 1 << 30, "memory_total": 5 << 30, "processes": 2, "sm_clock": 1}


def samples(state: State, name: str) -> list[tuple[dict[str, str], float]]:
    text = exposition.write(state, "")[0].decode()
    return [(one.labels, one.value) for family in parse(text) for one in family.samples if one.name == name]


def row(pod: str, *ids: str, resource: str = RESOURCE) -> dict[str, Any]:
    return {"namespace": "ns", "pod": pod, "container": "main", "resource": resource, "devices": [*ids]}


def device(name: str, of: str, **more: Any) -> Device:
    return Device(name, of, "0", 0, **more)


def state(**more: Any) -> State:
    """Return one of a front, by members of both."""
    known = {uuid(0): Readings(OWN, {}, True, 1.5), uuid(1): Readings({}, {uuid(16, "MIG"): ITS}, True, 0.5)}
    found: dict[str, Any] = {
        "resources": [
            (RESOURCE, True, [device(uuid(0), uuid(0))]),
            ("nvidia.com/mig-1g.5gb", True, [device(uuid(16, "MIG"), uuid(16, "MIG"))]),
        ],
        "snapshot": snapshot([gpu(0), gpu(1, mig=True)], [mig(1, 0)]),
        "readings": known,
        "listed": Listed([], []),
        "hostname": "node-1",
    }
    found.update(more)
    front = {name: found.pop(name) for name in ("resources", "reasons", "looks") if name in found}
    return State([FrontState(**front)], **found)


IDENTITY = {
    "gpu": "0",
    "UUID": uuid(0),
    "device": "nvidia0",
    "modelName": "NVIDIA A100-SXM4-40GB",
    "Hostname": "node-1",
}
FREE = {"namespace": "", "pod": "", "container": ""}


@pytest.mark.parametrize(
    ("name", "own", "value"),
    [
        ("DCGM_FI_DEV_SM_CLOCK", {}, 1410),
        ("DCGM_FI_DEV_POWER_USAGE", {}, 61.234),
        ("DCGM_FI_DEV_FB_USED", {}, 5120),
        ("DCGM_FI_DEV_FB_FREE", {}, 3072),
        ("gpushim_gpu_ecc_errors", {"error": "corrected", "counter": "volatile"}, 7),
        ("gpushim_gpu_figures_age_seconds", {}, 1.5),
    ],
)
def test_a_gpu(name: str, own: dict[str, str], value: float) -> None:
    (found,) = [one for one in samples(state(), name) if one[0]["gpu"] == "0"]
    assert found[0] == {**IDENTITY, **FREE, **own}
    assert found[1] == pytest.approx(value)


def test_what_is_not_told_is_absent() -> None:
    assert samples(state(), "DCGM_FI_DEV_GPU_UTIL") == []
    none = state(readings={uuid(0): Readings(), uuid(1): Readings()})
    assert samples(none, "DCGM_FI_DEV_SM_CLOCK") == samples(none, "gpushim_gpu_figures_age_seconds") == []
    assert [value for _, value in samples(none, "gpushim_gpu_figures_up")] == [0, 0]


def test_reasons_of_clocks_are_bits() -> None:
    told = {labels["reason"]: value for labels, value in samples(state(), "gpushim_gpu_throttle_reason")}
    assert {reason for reason, value in told.items() if value} == {"gpu_idle", "sw_power_cap"}
    assert tuple(told) == metrics.THROTTLES


def test_a_mig_instance_has_what_is_its_own() -> None:
    found = samples(
        state(listed=Listed([row("p", uuid(16, "MIG"), resource="nvidia.com/mig-1g.5gb")], [])), "DCGM_FI_DEV_FB_USED"
    )
    labels, value = found[-1]
    assert value == 1024
    assert [labels[name] for name in INSTANCE] == ["1", "1g.5gb"]
    assert (labels["gpu"], labels["UUID"], labels["pod"]) == ("1", uuid(1), "p")
    assert not any("GPU_I_ID" in one for one, _ in samples(state(), "DCGM_FI_DEV_SM_CLOCK"))


def test_a_gpu_has_its_pod() -> None:
    (found,) = samples(state(listed=Listed([row("p", uuid(0))], [])), "DCGM_FI_DEV_SM_CLOCK")
    assert found[0] == {**IDENTITY, "namespace": "ns", "pod": "p", "container": "main"}


def test_a_container_that_has_a_gpu_by_claim() -> None:
    claims = [Claim("ns", "mine", "gpu.nvidia.com", "node", one, (), "p", "c") for one in ("gpu-0", "gpu-77")]
    (found,) = samples(state(listed=Listed([], claims)), "DCGM_FI_DEV_SM_CLOCK")
    assert {"namespace": "ns", "pod": "p", "container": "c", "claim": "mine", "driver": "gpu.nvidia.com"}.items() <= {
        *found[0].items()
    }


def test_a_shared_gpu_has_a_series_for_each_replica_that_is_held() -> None:
    shared = [(RESOURCE, True, [device(f"{uuid(0)}::{one}", uuid(0)) for one in range(4)])]
    held = [row("a", f"{uuid(0)}::0", f"{uuid(0)}::2"), row("b", f"{uuid(0)}::1")]
    found = samples(state(resources=shared, listed=Listed(held, [])), "DCGM_FI_DEV_SM_CLOCK")
    assert {(one["pod"], one["vgpu"]) for one, _ in found} == {("a", "0"), ("a", "2"), ("b", "1")}
    assert [value for _, value in found] == [1410] * 3
    (free,) = samples(state(resources=shared), "DCGM_FI_DEV_SM_CLOCK")
    assert "vgpu" not in free[0]


PAIR = [Claim("ns", "c", "gpu.nvidia.com", "node", "gpu-0", (), pod, "main") for pod in ("p", "q")]
OWNERS: dict[str, tuple[list[Any], list[Claim], int]] = {
    "none": ([], [], 0),
    "a container": ([row("p", uuid(0))], [], 1),
    "two containers": ([row("p", uuid(0)), row("q", uuid(0))], [], 2),
    "replicas": ([row("p", f"{uuid(0)}::0"), row("q", f"{uuid(0)}::1")], [], 1),
    "pods of one claim": ([], PAIR, 1),
    "a container and a claim": ([row("p", uuid(0))], PAIR, 2),
    "who only looks": ([row("p", uuid(0))], [PAIR[0]._replace(name="look")], 1),
}


@pytest.mark.parametrize(("held", "claims", "owners"), OWNERS.values(), ids=OWNERS)
def test_a_gpu_that_was_given_out_twice(held: list[Any], claims: list[Claim], owners: int) -> None:
    names = [uuid(0), *(f"{uuid(0)}::{one}" for one in range(2))]
    resources = [(RESOURCE, True, [device(one, uuid(0)) for one in names])]
    told = state(resources=resources, listed=Listed(held, claims), looks={("ns", "look", "gpu-0")})
    assert [value for labels, value in samples(told, "gpushim_gpu_owners") if labels["gpu"] == "0"] == [owners]


@pytest.mark.parametrize(("problem", "reason"), [("claim d/c of gpu.nvidia.com has it", "giver"), ("broken", "host")])
def test_what_a_claim_has_is_not_ill(problem: str, reason: str) -> None:
    told = state(resources=[(RESOURCE, True, [device(uuid(0), uuid(0), problem=problem)])])
    assert [one["reason"] for one, value in samples(told, "gpushim_device_plugin_devices") if value] == [reason]


def test_the_state_of_a_shared_gpu_is_told_once() -> None:
    shared = [(RESOURCE, True, [device(f"{uuid(0)}::{one}", uuid(0)) for one in range(4)])]
    held = [row("a", f"{uuid(0)}::0", f"{uuid(0)}::2")]
    found = samples(state(resources=shared, listed=Listed(held, [])), "gpushim_gpu_figures_up")
    assert [labels for labels, _ in found if labels["gpu"] == "0"] == [{**IDENTITY, **FREE}]


def test_replicas_without_end_are_bounded() -> None:
    many = [f"{uuid(0)}::{one}" for one in range(5000)]
    shared = [(RESOURCE, True, [device(one, uuid(0)) for one in many])]
    assert (
        len(samples(state(resources=shared, listed=Listed([row("a", *many)], [])), "DCGM_FI_DEV_SM_CLOCK"))
        == metrics.SERIES
    )


def test_devices_are_counted_by_health_and_kind_of_reason() -> None:
    class Why:
        kind = "xid"

    problems = {"a": "", "b": "XID 79", "c": GONE, "d": PROBLEM, "e": "no node"}
    devices = [device(name, name, problem=problem) for name, problem in problems.items()]
    reasons: Any = {"b": [Why]}
    found = samples(state(resources=[(RESOURCE, True, devices)], reasons=reasons), "gpushim_device_plugin_devices")
    told = {labels["reason"]: (labels["health"], value) for labels, value in found}
    sick = ("unhealthy", 1)
    assert told == {"": ("healthy", 1), "xid": sick, "removed": sick, "released": sick, "host": sick}


@pytest.mark.parametrize(
    ("accept", "reader"), [("", parse), ("application/openmetrics-text; version=1.0.0", parse_open)]
)
def test_all_of_it_can_be_read(accept: str, reader: Any) -> None:
    nasty = 'a"b\\c\nd'
    body, kind = exposition.write(state(hostname=nasty, listed=Listed([row(nasty, uuid(0))], [])), accept)
    assert kind.startswith("application/openmetrics-text" if accept else "text/plain; version=")
    found = [one for family in reader(body.decode()) for one in family.samples]
    assert {one.labels["Hostname"] for one in found if "Hostname" in one.labels} == {nasty}
    assert len({(one.name, *sorted(one.labels.items())) for one in found}) == len(found)


def test_each_figure_has_a_metric() -> None:
    states = {"throttle", *(f"ecc {error} {counter}" for error, counter in readings.ECC)}
    assert {one.key for one in GPU} - {"xid", ""} == {*readings.KEYS} - states


def test_the_dashboard_asks_for_these() -> None:
    text = (TOP / "packaging" / "kubernetes" / "dashboard.json").read_text()
    asked = set(re.findall(r"\b(?:DCGM_FI|gpushim_)\w+", text))
    whole = {f"{one.name}{end}" for one in (*GPU, *PLUGIN) for end in ("", *("_count", "_bucket") * bool(one.key))}
    assert asked
    assert asked <= whole


MAIN = {"namespace": "ns", "container": "main"}


def test_what_a_limited_container_uses_has_its_labels() -> None:
    found = state(
        uses={Holding(uuid(0), "ns", "a", "main"): Use(1 << 30, 8 << 30), Holding("gone", "", "", ""): Use(1, 2)}
    )
    for name, value in (("used", 1 << 30), ("limit", 8 << 30)):
        labels = {**IDENTITY, **MAIN, "pod": "a"}
        assert samples(found, f"gpushim_gpu_container_memory_{name}_bytes") == [(labels, value)]


def test_containers_of_one_gpu_have_so_many_series() -> None:
    uses = {Holding(uuid(0), "ns", f"pod-{number}", "main"): Use(0, 1) for number in range(metrics.SERIES + 1)}
    assert len(samples(state(uses=uses), "gpushim_gpu_container_memory_limit_bytes")) == metrics.SERIES


def test_a_container_counts_where_it_alone_of_its_pod_has_a_gpu_that_answers() -> None:
    replicas = [device(f"{uuid(0)}::{number}", uuid(0)) for number in range(4)]
    rows = [row("a", replicas[0].id, replicas[1].id), row("b", replicas[2].id)]
    listed = Listed([*rows, {**row("b", replicas[3].id), "container": "side"}], [])
    resources = [(RESOURCE, True, replicas)]
    assert exposition.holdings(state(resources=resources, listed=listed)) == [Holding(uuid(0), "ns", "a", "main")]
    assert exposition.holdings(state(resources=resources, listed=listed, readings={uuid(0): Readings()})) == []
