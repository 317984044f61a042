"""GPUs in trouble while a process has NVML open: events, errors, hangs, and MIG made again."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakehost import Host, build

ASK = """
import ctypes, json, sys, pynvml as n
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
n.nvmlInit()
gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
events = n.nvmlEventSetCreate()
def wait(ms):
    data = n.nvmlEventSetWait_v2(events, ms)
    uuid = n.nvmlDeviceGetUUID(data.device)
    return [uuid, data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId]
def register(i):
    n.nvmlDeviceRegisterEvents(gpus[i], n.nvmlDeviceGetSupportedEventTypes(gpus[i]), events)
def field(i):
    (value,) = n.nvmlDeviceGetFieldValues(gpus[i], [230])
    return value.value.uiVal if value.nvmlReturn == 0 else -value.nvmlReturn
def migs(i):
    most = n.nvmlDeviceGetMaxMigDeviceCount(gpus[i])
    found = []
    for k in range(most):
        try: found.append(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpus[i], k)))
        except n.NVMLError_NotFound: break
    return found
for line in sys.stdin:
    try: answer = eval(line)
    except n.NVMLError as error: answer = {"error": error.value}
    print(json.dumps(answer), flush=True)
"""


class Session:
    """A process that has NVML open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, words: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def __call__(self, words: str) -> Any:
        self.send(words)
        return self.answer()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return build(str(tmp_path / "host"), 2)


@contextlib.contextmanager
def opened(host: Host) -> Iterator[Session]:
    command = [sys.executable, "-c", ASK, host.nvml]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            session = Session(process)
            session("1")
            yield session
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("gi", "ci", "told"), [(None, None, [2**32 - 1] * 2), (3, None, [3, 2**32 - 1]), (3, 0, [3, 0])]
)
def test_an_xid_wakes_who_waits(host: Host, gi: Any, ci: Any, told: list[int]) -> None:
    with opened(host) as ask:
        ask("register(1)")
        ask.send("wait(9000)")
        host.xid(0, 13)  # of a GPU that is not registered
        began = time.monotonic()
        host.xid(1, 79, gi, ci)
        assert ask.answer() == [host.gpus[1].uuid, 8, 79, *told]
        assert time.monotonic() - began < 5  # of 9
        assert ask("wait(1)") == {"error": 10}


@pytest.mark.parametrize(
    ("change", "words", "before", "after"),
    [
        (lambda host: host.recovery(1, 1), "field(1)", -3, 1),
        (lambda host: host.rows(1, 1, 0), "n.nvmlDeviceGetRemappedRows(gpus[1])", [0, 0, 0, 0], [0, 0, 1, 0]),
        (lambda host: host.rows(1, 0, 1), "n.nvmlDeviceGetRemappedRows(gpus[1])", [0, 0, 0, 0], [0, 0, 0, 1]),
        (lambda host: host.refuse_events(1, 3), "register(1)", None, {"error": 3}),
        (lambda host: host.lack("nvmlEventSetCreate"), "bool(n.nvmlEventSetCreate())", True, {"error": 3}),
        (lambda host: host.lack("nvmlDeviceGetRemappedRows", code=13), "field(1)", -3, -3),
    ],
)
def test_what_changes_is_told_at_once(
    host: Host, change: Callable[[Host], None], words: str, before: Any, after: Any
) -> None:
    with opened(host) as ask:
        assert ask(words) == before
        change(host)
        assert ask(words) == after
