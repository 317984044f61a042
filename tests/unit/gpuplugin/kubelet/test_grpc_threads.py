"""gRPC's own threads."""

from __future__ import annotations

import subprocess
import sys

from gpuplugin.kubelet import grpc_threads

THREADS = """
import asyncio, os
from gpuplugin.kubelet import grpc_threads
asyncio.run(grpc_threads.begin())
for thread in os.listdir("/proc/self/task"):
    print(thread == str(os.getpid()), open(f"/proc/{thread}/timerslack_ns").read().strip())
"""


def test_grpc_s_threads_may_be_late_and_the_loop_may_not() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], env={"PYTHONPATH": ":".join(sys.path)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    found = [line.split() for line in done.stdout.splitlines()]
    assert [slack for main, slack in found if main == "True"] == ["50000"]
    assert {slack for main, slack in found if main != "True"} == {str(grpc_threads.SLACK_NS)}
