from __future__ import annotations

from typing import Any

import pytest

from gpuplugin.dra.offered import devices
from gpuplugin.matching.manifests import EXACT, Class, Request
from gpuplugin.matching.tolerations import untolerated
from gpuplugin.matching.verdicts import FAILS, NO, UNSURE, YES, verdict
from unit.gpuplugin.snapshots import gpu, snapshot

A = "device.attributes['gpu.nvidia.com']"
C = "device.capacity['gpu.nvidia.com']"
(DEVICE,) = devices(snapshot([gpu(0)]))


def request(*selectors: str, tolerations: tuple[dict[str, Any], ...] = ()) -> Request:
    return Request("r", "x", selectors, EXACT, 1, False, tolerations)


@pytest.mark.parametrize(
    ("found", "selectors", "answer", "why"),
    [
        (Class(()), (), YES, ""),
        (Class((f"{A}.type == 'gpu'",)), (f"{A}.numaNode == 0",), YES, ""),
        (Class(()), (f"{A}.migEnabled",), NO, f"{A}.migEnabled is false: its migEnabled is false"),
        (
            Class((f"{A}.type == 'mig'",)),
            (f"{A}.nothing == 'x'",),
            NO,
            f"{A}.type == 'mig' is false: its type is gpu",
        ),
        (Class(()), (f"{A}.nothing == 'x'",), FAILS, f"no such key: nothing, in {A}.nothing == 'x'"),
        (Class(()), ("f()",), UNSURE, "gpushim does not know f() in f()"),
        (Class(()), ("f()", f"{A}.nothing == 'x'"), UNSURE, "gpushim does not know f() in f()"),
        (Class(()), ("f()", "false"), NO, "false is false"),
        (Class((), (), ("spec.x is not known here",)), (), UNSURE, "spec.x is not known here"),
    ],
)
def test_a_device(found: Class, selectors: tuple[str, ...], answer: str, why: str) -> None:
    assert verdict(request(*selectors), found, "gpu.nvidia.com", DEVICE.body)[:2] == (answer, why)


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (f"{A}.productname == 'x'", "no such key: productname (is productName meant?), in"),
        (f"{A}.index == 0", "no such key: index (is uuid meant?), in"),
        (f"{A}.memory == 0", f"no such key: memory (is {C}.memory meant?), in"),
        (f"{C}.productName == quantity('1')", f"no such key: productName (is {A}.productName meant?), in"),
        (f"{A}.pcieRoot == 'x'", "(is device.attributes['resource.kubernetes.io'].pcieRoot meant?), in"),
        (
            "device.attributes['gpu.nvida.com'].productName == 'x'",
            "productName (no device here has the domain gpu.nvida.com; is gpu.nvidia.com meant?), in",
        ),
        (f"{A}.zzz == 'x'", "no such key: zzz, in"),
        (f"{C}.memory >= quantity('40Gi')", "gpushim does not know >= of such values in"),
        (f"{C}.memory >= quantity('40Gi')", "; write .compareTo(quantity('40Gi')) >= 0"),
        (f"{C}.memory > 5", "; write .compareTo(quantity('40Gi')) > 0"),
        (f"{C}.memory == '40Gi'", "; write quantity('40Gi')"),
        (f"{A}.driverVersion < semver('580.0.0')", "; write .compareTo(semver('8.0.0')) < 0"),
        ("device.attributes.type == 'gpu'", "; a domain comes first, as in device.attributes['gpu.nvidia.com'].type"),
        (f"{A}.productName = 'x'", "; write =="),
        (f"{A}.type == 'gpu' and true", "; write &&"),
        ("quantity('40GB') == quantity('1')", "; write 40G or 40Gi"),
        ("quantity('40kb') == quantity('1')", "; write 40k or 40Ki"),
    ],
)
def test_what_may_be_meant(selector: str, words: str) -> None:
    found = verdict(request(selector), Class(()), "gpu.nvidia.com", DEVICE.body)
    assert found.answer in (FAILS, UNSURE)
    assert words in found.why


def test_a_no_may_be_doubtful_and_so_may_be_the_claim() -> None:
    assert verdict(request("f()", "false"), Class(()), "gpu.nvidia.com", DEVICE.body).doubt
    assert not verdict(request("false", "f()"), Class(()), "gpu.nvidia.com", DEVICE.body).doubt


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "taint", "kept"),
    [
        (None, TAINT, True),
        (None, {**TAINT, "effect": "None"}, False),
        ({"key": "k", "value": "v"}, TAINT, False),
        ({"key": "k", "operator": "Equal", "value": "w"}, TAINT, True),
        ({"key": "k", "operator": "Exists"}, TAINT, False),
        ({"operator": "Exists"}, TAINT, False),
        ({"operator": "Exists", "effect": "NoExecute"}, TAINT, True),
        ({"key": "other", "operator": "Exists"}, TAINT, True),
        ({}, TAINT, True),
    ],
)
def test_taints(toleration: dict[str, Any] | None, taint: dict[str, str], kept: bool) -> None:
    tolerations = () if toleration is None else (toleration,)
    assert bool(untolerated(tolerations, [taint])) is kept


@pytest.mark.parametrize("text", ["'{}' == ''", "{}", f"{A}['{{}}'] == ''"])
def test_a_long_selector_is_not_said_again_for_each_device(text: str) -> None:
    found = verdict(request(text.format("x" * 10_000)), Class(()), "gpu.nvidia.com", DEVICE.body)
    assert "xxx..." in found.why
    assert len(found.why) < 1000
