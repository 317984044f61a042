"""Opaque configs of a claim: which counts for which device, what it says, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuplugin.dra.configs import API, Config, chosen, limits, mebibytes
from gpushim.ground.bounds import CLAIM_CONFIG
from gpushim.ground.errors import REQUEST, GpushimError

DRIVER, OTHER = "gpu.nvidia.com", "dra.example.org"
UUID = "GPU-00000000-0000-4000-8000-000000000000"
TYPES = {"gpu-a": "gpu", "gpu-b": "gpu", "mig-a": "mig"}
CLASS, CLAIM = "FromClass", "FromClaim"


def result(device: str, request: str, driver: str = DRIVER) -> dict[str, Any]:
    return {"driver": driver, "pool": "node", "device": device, "request": request}


def opaque(parameters: Any, *requests: str, source: str = CLAIM, driver: str = DRIVER) -> dict[str, Any]:
    found = {"source": source, "opaque": {"driver": driver, "parameters": parameters}}
    return {**found, "requests": [*requests]} if requests else found


def kind(name: str = "GpuConfig", **sharing: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": name, **({"sharing": sharing} if sharing else {})}


def slices(interval: str) -> dict[str, Any]:
    return kind(strategy="TimeSlicing", timeSlicingConfig={"interval": interval})


def mps(name: str = "GpuConfig", **fields: Any) -> dict[str, Any]:
    return kind(name, strategy="MPS", mpsConfig=fields)


def allocation(results: list[dict[str, Any]], *configs: dict[str, Any]) -> dict[str, Any]:
    return {"devices": {"results": results, "config": [*configs]}}


def got(parameters: Any, device: str = "gpu-a") -> Config:
    return chosen(allocation([result(device, "r")], opaque(parameters)), TYPES)[0]


# As NVIDIA's documentation has them: quickstart/v1/gpu-test4 to 6 of its driver.
PUBLIC = """
apiVersion: resource.nvidia.com/v1beta1
kind: GpuConfig
sharing:
  strategy: TimeSlicing
  timeSlicingConfig:
    interval: Long
---
apiVersion: resource.nvidia.com/v1beta1
kind: GpuConfig
sharing:
  strategy: MPS
  mpsConfig:
    defaultActiveThreadPercentage: 50
    defaultPinnedDeviceMemoryLimit: 10Gi
    defaultPerDevicePinnedMemoryLimit:
      "0": 5Gi
"""


def test_public_ones_are_read() -> None:
    assert [got(one) for one in yaml.safe_load_all(PUBLIC)] == [
        Config("TimeSlicing", "Long"),
        Config("MPS", "", 50, "10Gi", (("0", "5Gi"),)),
    ]


@pytest.mark.parametrize(
    ("parameters", "device", "config"),
    [
        (kind(), "gpu-a", Config()),
        (kind(strategy="TimeSlicing"), "gpu-a", Config("TimeSlicing", "Default")),
        (
            kind(strategy="TimeSlicing", timeSlicingConfig=None, mpsConfig=None),
            "gpu-a",
            Config("TimeSlicing", "Default"),
        ),
        (kind(strategy="TimeSlicing", timeSlicingConfig={}), "gpu-a", Config("TimeSlicing", "Default")),
        (slices("Short"), "gpu-a", Config("TimeSlicing", "Short")),
        (kind(strategy="MPS"), "gpu-a", Config("MPS")),
        (mps(defaultActiveThreadPercentage=100), "gpu-a", Config("MPS", threads=100)),
        (mps(multiUser=True), "gpu-a", Config("MPS", multi_user=True)),
        (mps(multiUser=False), "gpu-a", Config("MPS")),
        (mps(defaultPinnedDeviceMemoryLimit=1 << 20), "gpu-a", Config("MPS", memory="1048576")),
        (mps(defaultPerDevicePinnedMemoryLimit={UUID: "2G"}), "gpu-a", Config("MPS", per_device=((UUID, "2G"),))),
        (kind("MigDeviceConfig"), "mig-a", Config()),
        (kind("MigDeviceConfig", strategy="TimeSlicing"), "mig-a", Config("TimeSlicing")),
        (mps("MigDeviceConfig", defaultActiveThreadPercentage=1), "mig-a", Config("MPS", threads=1)),
    ],
)
def test_what_a_config_says(parameters: Any, device: str, config: Config) -> None:
    assert got(parameters, device) == config


def numbered(number: int, *requests: str, source: str = CLAIM, name: str = "GpuConfig") -> dict[str, Any]:
    return opaque(mps(name, defaultActiveThreadPercentage=number), *requests, source=source)


@pytest.mark.parametrize(
    ("configs", "numbers"),
    [
        ([], {}),
        ([numbered(1)], {0: 1, 1: 1}),
        ([numbered(1), numbered(2)], {0: 2, 1: 2}),
        ([numbered(1, "one"), numbered(2)], {0: 1, 1: 2}),
        ([numbered(1, "one"), numbered(2, "one")], {0: 2}),
        ([numbered(1, "g"), numbered(2, "g/two")], {1: 2}),
        ([numbered(2, "g/two"), numbered(1, "g")], {1: 1}),
        ([numbered(1, "g")], {1: 1}),
        ([numbered(1, "g/one", "two")], {}),
        ([numbered(1, "one", "g/two", source=CLASS)], {0: 1, 1: 1}),
        ([numbered(1, "one", "g/two", source=CLASS), numbered(2)], {0: 2, 1: 2}),
        ([numbered(2), numbered(1, "one", source=CLASS)], {0: 2, 1: 2}),
        ([numbered(3, name="MigDeviceConfig")], {2: 3}),
        ([numbered(1), numbered(3, name="MigDeviceConfig")], {0: 1, 1: 1, 2: 3}),
        ([numbered(4, "mig", source=CLASS, name="MigDeviceConfig"), numbered(1)], {0: 1, 1: 1, 2: 4}),
        ([opaque({"a": 1}, driver=OTHER), {"source": CLAIM}], {}),
    ],
)
def test_which_config_counts(configs: list[Any], numbers: dict[int, int]) -> None:
    results = [result("gpu-a", "one"), result("gpu-b", "g/two"), result("mig-a", "mig"), result("x", "x", OTHER)]
    found = chosen(allocation(results, *configs), TYPES)
    assert [*found] == [0, 1, 2]
    assert {place: config.threads for place, config in found.items() if config.strategy} == numbers


def test_a_claim_without_configs_or_devices_of_ours() -> None:
    assert chosen({"devices": {"results": [result("x", "x", OTHER)]}}, {}) == {}
    assert chosen({}, {}) == {}
    assert chosen(allocation([result("gone", "r")], numbered(7)), {})[0].threads == 7


def refused(found: dict[str, Any]) -> str:
    with pytest.raises(GpushimError) as info:
        chosen(found, TYPES)
    assert info.value.exit_code == REQUEST
    return str(info.value)


LIMIT = "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"
PERCENT = "sharing.mpsConfig.defaultActiveThreadPercentage"
AMOUNT = "write at least 1Mi, as a Kubernetes quantity such as 10Gi"
WRONG: list[tuple[Any, str]] = [
    (None, "the claim's config for gpu.nvidia.com: parameters is missing; write an object"),
    ([1], "the claim's config for gpu.nvidia.com: parameters is a list; write an object"),
    ({}, "the claim's config for gpu.nvidia.com: kind is missing; write GpuConfig or MigDeviceConfig"),
    (kind("Gpuconfig"), 'kind is "Gpuconfig"; write GpuConfig or MigDeviceConfig'),
    ({**kind(), "kind": ["GpuConfig"]}, "kind is a list; write GpuConfig or MigDeviceConfig"),
    ({"kind": "GpuConfig"}, f"the claim's GpuConfig: apiVersion is missing; write {API}"),
    ({**kind(), "apiVersion": "gpu.nvidia.com/v1"}, f'apiVersion is "gpu.nvidia.com/v1"; write {API}'),
    ({**kind(), "sharin": {}}, '"sharin" is unknown in parameters; is sharing meant?'),
    ({**kind(), "x": {}}, '"x" is unknown in parameters; it may have apiVersion, kind, sharing'),
    ({**kind(), "sharing": "MPS"}, 'sharing is "MPS"; write an object'),
    ({**kind(), "sharing": {}}, "sharing.strategy is missing; write TimeSlicing or MPS"),
    (kind(strategy="mps"), 'sharing.strategy is "mps"; write TimeSlicing or MPS'),
    (kind(strategy=True), "sharing.strategy is true; write TimeSlicing or MPS"),
    (slices("long"), 'timeSlicingConfig.interval is "long"; write Default, Short, Medium or Long'),
    (slices(""), 'timeSlicingConfig.interval is ""; write Default, Short, Medium or Long'),
    (kind(strategy="TimeSlicing", timeSlicingConfig={"intervall": 1}), "is interval meant?"),
    (
        kind(strategy="TimeSlicing", mpsConfig={}),
        "sharing.mpsConfig does not go with the strategy TimeSlicing; omit it, or write the strategy MPS",
    ),
    (
        kind(strategy="MPS", timeSlicingConfig={"interval": "Long"}),
        "sharing.timeSlicingConfig does not go with the strategy MPS; omit it, or write the strategy Time",
    ),
    (
        kind("MigDeviceConfig", strategy="TimeSlicing", timeSlicingConfig={}),
        '"timeSlicingConfig" is unknown in sharing; it may have strategy, mpsConfig',
    ),
    *(
        (mps(defaultActiveThreadPercentage=value), f"{PERCENT} is {shown}; write a whole number between 1 and 100")
        for value, shown in ((0, "0"), (101, "101"), (1.5, "1.5"), (True, "true"), ("50", '"50"'), ({}, "an object"))
    ),
    *(
        (mps(defaultPinnedDeviceMemoryLimit=value), f"{LIMIT} is {shown}; {AMOUNT}")
        for value, shown in (
            ("", '""'),
            ("10GB", '"10GB"'),
            ("-1Gi", '"-1Gi"'),
            ("1Ki", '"1Ki"'),
            (0, "0"),
            (1.5, "1.5"),
        )
    ),
    (mps(defaultPerDevicePinnedMemoryLimit={"0": "x"}), f'PinnedMemoryLimit["0"] is "x"; {AMOUNT}'),
    (
        mps(defaultPerDevicePinnedMemoryLimit={"a\n": "1Gi"}),
        r'"a\n" is unknown in sharing.mpsConfig.defaultPerDevice',
    ),
    (mps(defaultPerDevicePinnedMemoryLimit={"-1": "1Gi"}), "write a UUID, or an index among the claim's devices"),
    (mps(defaultActiveThreadsPercentage=1), "is defaultActiveThreadPercentage meant?"),
    (mps(multiUser=1), "sharing.mpsConfig.multiUser is 1; write true or false"),
    (
        kind("VfioDeviceConfig"),
        "the claim's VfioDeviceConfig is not supported by gpushim: it gives GPUs to containers",
    ),
    (
        kind("ComputeDomainChannelConfig"),
        "not supported by gpushim: NVIDIA's driver compute-domain.nvidia.com serves",
    ),
    (kind("ComputeDomainDaemonConfig"), "not supported by gpushim"),
]


@pytest.mark.parametrize(("parameters", "sentence"), WRONG)
def test_a_wrong_config_is_refused(parameters: Any, sentence: str) -> None:
    """Whether it would count or not."""
    for results in ([result("gpu-a", "r")], []):
        said = refused(allocation(results, numbered(1), opaque(parameters), numbered(2, "r")))
        assert sentence in said
        assert len(said) < 400
        assert "\n" not in said


def test_whose_config_it_is_stands_there() -> None:
    said = refused(allocation([], opaque(kind(strategy="x"), "g/two", source=CLASS)))
    assert said.startswith('the device class\'s GpuConfig of the request "g/two": sharing.strategy is "x"; ')


@pytest.mark.parametrize("names", [["r"], ["g", "r"], ["r/one"]])
def test_a_named_request_with_a_device_of_another_type_is_refused(names: list[str]) -> None:
    request = "r/one" if names == ["r/one"] else "r"
    said = refused(allocation([result("mig-a", request)], numbered(2), numbered(1, *names)))
    assert f'is for devices of type gpu, and the request "{request}" got one of type mig; name other requests' in said
    named_by_both = [numbered(1, *names), numbered(2, *names, name="MigDeviceConfig")]
    assert chosen(allocation([result("mig-a", request)], *named_by_both), TYPES)[0].threads == 2


def test_the_fix_names_the_alternative() -> None:
    """A config that names a request of several alternatives is for all of them."""
    results = [result("mig-a", "r/small")]
    assert "name other requests there, an alternative as in gpu/small" in refused(
        allocation(results, numbered(1, "r"))
    )
    assert chosen(allocation(results, numbered(1, "r/large")), TYPES)[0] == Config()


def filled(size: int) -> dict[str, Any]:
    found = {**kind(), "sharing": {"strategy": ""}}
    length = len(str(found).replace(" ", ""))
    found["sharing"]["strategy"] = "é" * ((size - length) // 2) + "x" * ((size - length) % 2)
    return found


def test_a_config_has_a_bound() -> None:
    """CLAIM_CONFIG, in bytes."""
    assert "sharing.strategy is" in refused(allocation([], opaque(filled(CLAIM_CONFIG))))
    assert "has more than 10 KiB; shorten it" in refused(allocation([], opaque(filled(CLAIM_CONFIG + 1))))
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert "has more than 10 KiB" in refused(allocation([], opaque({**kind(), "sharing": deep})))


@pytest.mark.parametrize(
    "found",
    [
        {"devices": []},
        {"devices": "x"},
        {"devices": {"config": {"a": 1}, "results": []}},
        {"devices": {"config": ["x"]}},
        {"devices": {"config": [], "results": "x"}},
        {"devices": {"config": [], "results": [1]}},
    ],
)
def test_what_no_scheduler_writes_is_refused(found: Any) -> None:
    if found["devices"] == []:
        assert chosen(found, TYPES) == {}
    else:
        assert "as the scheduler writes it; delete the claim and its pod" in refused(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)
NAMED = st.fixed_dictionaries(
    {},
    optional={
        "apiVersion": st.just(API) | JSON,
        "kind": st.sampled_from(["GpuConfig", "MigDeviceConfig"]) | JSON,
        "sharing": st.fixed_dictionaries(
            {}, optional={"strategy": st.sampled_from(["MPS", "TimeSlicing"]) | JSON, "mpsConfig": JSON}
        )
        | JSON,
    },
)


@given(NAMED | JSON, st.lists(st.text(max_size=9), max_size=2) | JSON, JSON)
def test_whatever_is_written_there_is_one_sentence(parameters: Any, requests: Any, source: Any) -> None:
    row = {"opaque": {"driver": DRIVER, "parameters": parameters}, "requests": requests, "source": source}
    allocated = {"devices": {"config": [row], "results": [result("gpu-a", "r")]}}
    said = ""
    try:
        chosen(allocated, TYPES)
    except GpushimError as error:
        said = str(error)
    assert said.isprintable()


@pytest.mark.parametrize(
    ("quantity", "mib"),
    [
        ("1Mi", 1),
        ("10Gi", 10240),
        ("1.5Gi", 1536),
        (".5Gi", 512),
        ("+2Gi", 2048),
        ("1073741824", 1024),
        ("1G", 953),
        ("1e9", 953),
        ("1E9", 953),
        ("1E+9", 953),
        ("2000000M", 1907348),
        ("1048576000m", 1),
        ("1048575999m", None),
        ("7Ei", 7 << 40),
        ("8Ei", None),
        ("9e99", None),
        ("1048575", None),
        ("0", None),
        ("", None),
        ("1gi", None),
        ("1K", None),
        ("1 Gi", None),
        ("1Gi\n", None),
        ("٣Gi", None),
        ("-1Gi", None),
    ],
)
def test_quantities(quantity: str, mib: int | None) -> None:
    assert mebibytes(quantity) == mib


A, B = UUID, UUID.replace("GPU-0", "GPU-1")


@pytest.mark.parametrize(
    ("memory", "per_device", "mib"),
    [
        ("", {}, {}),
        ("10Gi", {}, {A: 10240, B: 10240}),
        ("", {"1": "1Gi"}, {B: 1024}),
        ("10Gi", {A: "1Gi"}, {A: 1024, B: 10240}),
        ("", {"0": "1Gi", A: "2Gi"}, {A: 2048}),
    ],
)
def test_limits_of_each_device(memory: str, per_device: dict[str, str], mib: dict[str, int]) -> None:
    config = got(mps(defaultPinnedDeviceMemoryLimit=memory or None, defaultPerDevicePinnedMemoryLimit=per_device))
    assert limits(config, [A, B]) == mib


@pytest.mark.parametrize("key", ["2", "999", A])
def test_a_limit_for_another_device_is_refused(key: str) -> None:
    config = Config("MPS", per_device=((key, "1Gi"),))
    with pytest.raises(GpushimError, match=f"is unknown in .*; write a UUID of {B}, or an index below 1") as info:
        limits(config, [B])
    assert (info.value.exit_code, f'"{key}"' in str(info.value)) == (REQUEST, True)
    assert limits(Config("MPS", per_device=((B, "1Gi"),)), [B]) == limits(
        Config("MPS", per_device=(("0", "1Gi"),)), [B]
    )
