"""Whether a real API server takes the slices that are made of a snapshot, and gives back what it was sent."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e import pages
from e2e.apiserver import Api, api
from gpuplugin.dra.offered import GPU, TAINTS, Parts, devices, slices
from gpushim.containers.kubelet import OWN_DRIVER as DRIVER
from unit.gpuplugin.snapshots import gpu, mig, snapshot

PAGE = pages.TOP / "docs/dra.md"
ODD = "\x00 \u2028é\ud800 " + "A" * 99 + ".00.01"
ODD_DRIVER = {"version": "1.02.03-é", "cuda": ODD}
WHOLE, PARTS = [gpu(n) for n in range(64)], [gpu(n, mig=True) for n in range(8)]
INSTANCES = [mig(parent, place) for parent in range(8) for place in range(8)]
# What each of them says, an odd driver says oddly.
SAID_ODDLY: dict[str, Any] = {
    **dict.fromkeys(("model", "brand", "arch", "fabric", "pci"), ODD),
    "memory": (1 << 64) >> 20,
    "numa": -(1 << 31),
}
COUNTED_ODDLY = {"multiprocessors": 1000, "engines.copy": (1 << 32) - 1, "engines.decoder": 2048}


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    with api() as found:
        yield found


def taints(count: int) -> list[dict[str, Any]]:
    effects = ("NoSchedule", "NoExecute", "None")
    return [
        {"key": f"{DRIVER}/cause-{n}", "value": str(n), "effect": effects[n % len(effects)]} for n in range(count)
    ]


def posted(server: Api, name: str, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices of a slice as the API server has them, without what it adds."""
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    one = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}}
    one["spec"] = {"driver": DRIVER, "nodeName": "a", "pool": pool, "devices": listed}
    done = server.kubectl("create", "--validate=strict", "--filename=-", "--output=json", objects=[one])
    assert not done.returncode, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["spec"].get("devices", [])
    for taint in (taint for device in found for taint in device.get("taints", ())):
        assert taint.pop("timeAdded")
    return found


@pytest.mark.parametrize(
    ("name", "host", "sizes"),
    [
        ("gpus", snapshot(WHOLE), [64]),
        ("instances", snapshot(PARTS, INSTANCES), [64]),
        ("both", snapshot([*WHOLE[8:], *PARTS], INSTANCES), [64, 56]),
        ("none", snapshot([]), [0]),
        (
            "odd",
            snapshot(
                [*({**one, **SAID_ODDLY} for one in WHOLE[8:]), *({**one, **SAID_ODDLY} for one in PARTS)],
                [
                    {**one, "uuid": f"{n}{ODD}", "profile": ODD, "attributes": COUNTED_ODDLY}
                    for n, one in enumerate(INSTANCES)
                ],
                driver=ODD_DRIVER,
            ),
            [64, 56],
        ),
    ],
)
def test_slices_come_back_as_they_were_sent(server: Api, name: str, host: Any, sizes: list[int]) -> None:
    offered = devices(host)
    parts = slices(offered, {one.name: taints(TAINTS) for one in offered})
    assert [len(part) for part in parts] == sizes
    for number, part in enumerate(parts):
        assert posted(server, f"{name}-{number}", part) == part


def test_parts_come_back_as_they_were_sent(server: Api) -> None:
    host = snapshot([*WHOLE[8:10], *PARTS[:1]], INSTANCES[:2])
    parts = {
        one.uuid: Parts("process", "gpu.mps") if one.body["attributes"]["type"]["string"] == GPU else Parts("none")
        for one in devices(host)
    }
    offered = devices(host, parts=parts)
    (part,) = slices(offered, {})
    assert all(device["allowMultipleAllocations"] for device in part)
    assert posted(server, "parts", part) == part


def test_it_takes_what_the_page_shows(server: Api) -> None:
    """All but pods, which need a service account here, and the device plugin's file."""
    texts = [block.text for block in pages.blocks(PAGE.read_text()) if block.info == "yaml"]
    objects = [one for text in texts for one in yaml.safe_load_all(text) if one.get("kind") not in ("Pod", None)]
    done = server.kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", objects=objects)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 8), done.stderr


def line(begins: str) -> list[str]:
    """Return kubectl's arguments of the page's line that begins so."""
    (found,) = {row for row in pages.commands(PAGE, "sh not-here") if row.startswith(begins)}
    return shlex.split(found)[1:]


def test_the_page_s_line_shows_taints_alone(server: Api) -> None:
    offered = devices(snapshot(WHOLE[:2]))
    posted(server, "ill", slices(offered, {offered[0].name: taints(2)})[0])
    rows = [row.split() for row in server.kubectl(*line("kubectl get resourceslices -o 'custom")).stdout.splitlines()]
    assert ["a", offered[0].name, f"{DRIVER}/cause-0,{DRIVER}/cause-1"] in rows


def test_the_page_s_line_takes_a_class_over_and_back(server: Api) -> None:
    (block,) = [one.text for one in pages.blocks(PAGE.read_text()) if "kind: DeviceClass" in one.text]
    server.kubectl("create", "--filename=-", objects=[*yaml.safe_load_all(block)])
    there = line("kubectl patch deviceclass")
    back = [word.replace('"nvidia.com/gpu"', "null") for word in there]
    for words, resource in ((there, "nvidia.com/gpu"), (back, ""), (there, "nvidia.com/gpu")):
        assert server.kubectl(*words).returncode == 0
        asked = server.kubectl("get", "deviceclass", "gpu.nvidia.com", "-o", "jsonpath={.spec.extendedResourceName}")
        assert asked.stdout == resource


def test_the_api_server_would_refuse_more(server: Api) -> None:
    offered = devices(snapshot(WHOLE))
    ((*most,),) = slices(offered, {offered[0].name: taints(TAINTS)})
    one_more = {**offered[0].body, "name": "gpu-x"}
    for listed in ([*most, one_more], [{**one_more, "taints": taints(TAINTS + 1)}]):
        with pytest.raises(AssertionError, match="Too many"):
            posted(server, "refused", listed)
