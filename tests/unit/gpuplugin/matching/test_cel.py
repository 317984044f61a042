"""Selectors; tests/e2e/test_dra_explain.py has many more, held against the real scheduler."""

from __future__ import annotations

import pytest

from gpuplugin.dra.offered import devices
from gpuplugin.matching import cel
from gpuplugin.matching.cel_values import FailsError, UnsureError
from unit.gpuplugin.snapshots import gpu, snapshot

A = "device.attributes['gpu.nvidia.com']"
C = "device.capacity['gpu.nvidia.com']"
(DEVICE,) = devices(snapshot([gpu(0)]))
# What is not known here, whatever Kubernetes makes of it.
UNKNOWN = [
    "",
    "device",
    "device.name == 'x'",
    "device.allowMultipleAllocations",
    f"{A}.type == 'gpu' ? true : false",
    f"{A}.numaNode + 1 == 1",
    f"{A}.exists(name, name == 'type')",
    f"{C}.memory >= 5",
    f"{C}.memory.asInteger() > 5",
    "device.driver == 1",
    "device.driver && true",
    "device.driver.startsWith(1)",
    f"{A}.type.matches('(?i)GPU')",
    f"{A}.type.matches('g{{1}}pu')",
    f"{A}.type.matches('(g)+')",
    f"{A}.type.matches({A}.profile)",
    "quantity('x') == quantity('1')",
    "quantity('0.1n') == quantity('1')",
    "semver('1.2') == semver('1.2.0')",
    "semver('1.2.3-rc.1') == semver('1.2.3')",
    "'a' 'b' == 'ab'",
    "['a', 1] == ['a', 1]",
    "1 < 2 < 3",
    "1 == 1 == true",
    "x == 1",
    "true and true",
    "not false",
    "true if true else false",
    "(lambda: true)()",
    "(true,)",
    "[true,][0]",
    "0x10 == 16",
    "1.5 > 1",
    "1u == 1u",
    "9223372036854775808 > 1",
    r"'\x41' == 'A'",
    "'''a''' == 'a'",
    "b'a' == b'a'",
    "has(device.driver)",
    f"{A}.optional__type == 'gpu'",
    "cel.bind(device, 1, true)",
    "(" * 300 + "true" + ")" * 300,
    "!" * 2000 + "true",
    "true" + " || true" * 2000,
    f"{A}.driverVersion > semver('1.0.0')",
    f"'x' in ['x', {A}.type]",
]


def matches(text: str) -> bool:
    return cel.matches(text, "gpu.nvidia.com", DEVICE.body)[0]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_neither_true_nor_false(text: str) -> None:
    for whole in (text, f"({text}) || true", f"false && ({text})", f"({text}) == ({text})"):
        with pytest.raises(UnsureError):
            matches(whole)


@pytest.mark.parametrize("text", ["1", "'x'", f"cel.bind(x, {A}.nothing, true)"])
def test_what_is_not_known_as_it_stands(text: str) -> None:
    with pytest.raises(UnsureError):
        matches(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (f"device.driver == 'gpu.nvidia.com' && {A}.type == 'gpu'", True),
        (f"{C}.memory.compareTo(quantity('40Gi')) >= 0", True),
        (f"{C}.memory.isGreaterThan(quantity('40Gi'))", False),
        (f"{A}.driverVersion.compareTo(semver('580.65.6')) == 0", True),
        (f"{A}.productName.lowerAscii().matches('^.*h100.*$')", False),
        (f"{A}.?nothing.orValue('x') == 'x'", True),
        (f"cel.bind(a, {A}, a.type in ['mig', 'gpu'] && has(a.uuid))", True),
        (f"{A}.nothing == 'x' || true", True),
        (f"!{A}.migEnabled && {A}.numaNode <= 0", True),
    ],
)
def test_what_is_known(text: str, result: bool) -> None:
    assert matches(text) is result


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"{A}.nothing == 'x'", "no such key: nothing"),
        (f"{A}.nothing == 'x' || false", "no such key: nothing"),
        (f"{A}.driverVersion == '580.65.6'", "no such overload"),
        (f"{A}.type", "no such overload"),
    ],
)
def test_what_fails(text: str, error: str) -> None:
    with pytest.raises(FailsError, match=error):
        matches(text)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("([^_]|[^:])" * 30 + "_", False),
        ("(.|..)" * 30 + "_", False),
        ("[^_]*" * 60 + "_", False),
        ("((" * 60 + "." + "|.))" * 60, True),
    ],
)
def test_a_pattern_costs_no_more_the_more_ways_it_has(text: str, result: bool) -> None:
    assert matches(f"{A}.uuid.matches('{text}')") is result


def test_a_text_of_the_selector_may_be_longer_than_an_attribute() -> None:
    assert matches(f"'{'a' * 64}'.matches('a*b?$')")
    with pytest.raises(UnsureError):
        matches(f"'{'a' * 65}'.matches('a*b?$')")


@pytest.mark.usefixtures("bounded")
def test_what_a_list_may_contain_is_evaluated_once() -> None:
    text = "true"
    for _ in range(60):
        text = f"({text}) in [false, false, false, true]"
    assert matches(text)


def test_what_was_looked_up_is_told() -> None:
    _, seen = cel.matches(f"{A}.type == 'mig' && {A}.uuid == 'x'", "gpu.nvidia.com", DEVICE.body)
    assert [*seen] == ["type"]
