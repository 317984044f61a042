"""Kubelet's calls are answered from memory, and NVML stays out of the daemon: what keeps docs/performance.md true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[4]
MEMORY = {"brk", "mmap", "munmap", "mremap", "madvise"}
CALLS = """
import os
from gpuplugin import cli, daemon
from gpuplugin.allocation import offer
from gpuplugin.settings import resources, settings
from gpuplugin.allocation.allocation import STRATEGIES, Delivery
from gpuplugin.kubelet.v1beta1 import reader, writer
from gpushim.ground.errors import GpushimError
from unit.gpuplugin.snapshots import gpu, mig, snapshot

host = snapshot([gpu(n, mig=True) for n in range(8)], [mig(n, i) for n in range(8) for i in range(7)])
defaults = settings.resolve({}, {}, {}, "")
parts, whole = (offer.Resource("nvidia.com/gpu", defaults, Delivery(STRATEGIES)) for _ in "12")
parts.have(resources.replicated(resources.find(host, "single", [], [])["nvidia.com/gpu"], 10), {})
whole.have(resources.find(snapshot([gpu(n) for n in range(16)]), "none", [], [])["nvidia.com/gpu"], {})
os.write(1, b"begin")
for resource in parts, whole:
    ids = [*resource.devices]
    wish = {"available_deviceIDs": ids, "must_include_deviceIDs": ids[:1], "allocation_size": 4}
    sent = writer("PreferredAllocationRequest")({"container_requests": [wish]})
    wish = reader("PreferredAllocationRequest")(sent)
    chosen = resource.prefer(wish["container_requests"][0])
    asked = writer("AllocateRequest")({"container_requests": [{"devices_ids": chosen["deviceIDs"]}]})
    (one,) = reader("AllocateRequest")(asked)["container_requests"]
    writer("AllocateResponse")({"container_responses": [resource.allocate(one)]})
    try:
        resource.allocate({"devices_ids": ["unknown"]})
    except GpushimError as error:
        assert len(chosen["deviceIDs"]) == 4 and "has no device unknown" in str(error)
os.write(1, b"end")
"""
NVML = """
from gpuplugin import check, cli, daemon
from gpuplugin.allocation import plugin_front
assert not {"pynvml", "gpushim.inventory.nvml", "gpushim.inventory.survey"} & {*sys.modules}
"""


def run(program: str, *tracer: str) -> None:
    """Run a program in a Python of its own."""
    folders = [str(TOP / name) for name in ("plugin", "shim", "tests", "vendor")]
    words = [*tracer, sys.executable, "-IBc", f"import sys; sys.path[:0] = {folders!r}\n" + program]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert not done.returncode, done.stderr


def test_no_call_of_kubelets_needs_anything_but_memory(tmp_path: Path) -> None:
    run(CALLS, "strace", "-f", "-o", str(tmp_path / "calls"))
    after = (tmp_path / "calls").read_text().partition('write(1, "begin"')[2]
    within, end, _ = after.partition('write(1, "end"')
    assert end
    assert {*re.findall(r"^\d+ +(\w+)\(", within, re.MULTILINE)} <= MEMORY


def test_nvml_is_left_to_the_child_that_refreshes() -> None:
    run(NVML)
