"""A claim's part of a GPU is its containers' limit, in force at their first instruction.

The driver keeps it by the simulated NVML; kubelet, the API server and the engine are the test's. Real ones:
test_dra_parts.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.cdihooks import run
from e2e.dranode import Driver, becomes, folder
from e2e.limited import GIB, LOOK, Scene, scene

__all__ = ["folder", "scene"]
SHARING = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 4}]}}\n"
IDS = [f"{number:08x}-1234-4234-8234-123456789012" for number in range(2)]


@pytest.fixture
def one(scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A driver on a host whose driver keeps limits, and whose first GPU is given out in parts."""
    (folder / "sharing.yaml").write_text(SHARING)
    found = Driver(folder, scene.bundle.env, prefix=scene.bundle.prefix)
    found.start(f"--config-file={folder}/sharing.yaml")
    try:
        found.register()
        becomes(found, lambda: len(found.devices()) == 2)
        yield found
    finally:
        found.stop()


def take(one: Driver, uid: str, device: str, memory: str) -> list[str]:
    """Have a claim with a part of a device prepared; return its names by CDI."""
    one.allocate(uid, device, shareID=uid, consumedCapacity={"memory": memory, "threads": "0"})
    (answer,) = one.prepare(uid)[uid]
    assert answer["share_id"] == uid
    return list(answer["cdi_device_ids"])


def mounts(state: str, names: list[str]) -> list[dict[str, Any]]:
    """Return the mounts that an engine makes of the names in claims' specs."""
    specs = [json.loads(path.read_text()) for path in Path(state, "cdi").glob("gpushim-claim-*.json")]
    return [
        {
            "destination": mount["containerPath"],
            "source": mount["hostPath"],
            "type": "bind",
            "options": mount["options"],
        }
        for spec in specs
        for device in spec["devices"]
        if f"{spec['kind']}={device['name']}" in names
        for mount in device["containerEdits"]["mounts"]
    ]


def test_two_claims_of_16_gib_have_their_limits_at_their_first_instruction(one: Driver, scene: Scene) -> None:
    """Whatever the pod's variable says."""
    gpu, state, bundle = scene.host.gpus[0], scene.bundle.env["GPUSHIM_STATE"], scene.bundle
    device = one.devices()[gpu.uuid]
    assert device["attributes"]["memoryLimit"]["string"] == "container"
    names = [take(one, uid, device["name"], "16Gi") for uid in IDS]
    assert len({name for row in names for name in row}) == 3  # the GPU's, and one of each part
    in_force = []
    for row in names:
        limits = mounts(state, row)
        assert len(limits) == 1
        bundle.id += "-next"
        members = {**scene.injected(), "mounts": [*bundle.plain["mounts"], *limits]}
        bundle.ask("GPUSHIM_MEMORY_LIMIT=30Gi", args=LOOK, **members)
        done = run(bundle, scene.low, check=False)
        assert done.returncode == 0, done.stderr
        told, _, groups = done.stdout.partition("\n\n")
        (path,) = [line.partition("::")[2] for line in groups.splitlines() if line.startswith("0::")]
        in_force.append(f"{gpu.uuid} /sys/fs/cgroup{path} {16 * GIB}")
        assert told.splitlines() == in_force
    assert one.unprepare(IDS[0]) == {IDS[0]: ""}
    assert [path.name for path in Path(state, "cdi").glob("gpushim-claim-*")] == [f"gpushim-claim-{IDS[1]}.json"]
