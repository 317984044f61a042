"""What the child that changes partitions answers where there is nothing of them any more, and without NVML."""

from __future__ import annotations

import json
from typing import Any

import pynvml
import pytest

from gpuplugin.dra import partition_child
from gpuplugin.dra.partition_child import MAKE, REMOVE
from gpushim.inventory import nvml
from gpushim.mig import gpu_instances
from gpushim.mig.fit import State
from unit.gpuplugin.snapshots import uuid

WITHOUT_MIG = State(False, False, {}, {})


def find_no_gpu(_: bytes) -> object:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


@pytest.mark.parametrize("find", [lambda _: None, find_no_gpu], ids=["MIG mode is off", "the GPU was exchanged"])
def test_what_is_gone_with_its_gpu_is_removed_and_cannot_be_made(monkeypatch: pytest.MonkeyPatch, find: Any) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", find)
    monkeypatch.setattr(gpu_instances, "read", lambda *_: WITHOUT_MIG)
    name = "mig-1-1g-5gb-0"
    assert partition_child._carry_out(pynvml, REMOVE, uuid(0), name) == {"answer": None}
    assert "NVML refuses: " in partition_child._carry_out(pynvml, MAKE, uuid(0), name)["error"]


def test_each_request_gets_the_reason_why_nvml_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise nvml.UnusableError("the driver is away")

    monkeypatch.setattr(nvml, "session", fail)
    partition_child.main("library", json.dumps([[MAKE, uuid(0), "a"], [MAKE, uuid(0), "b"]]))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"error": "the driver is away"}
    ] * 2
