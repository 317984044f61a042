"""`gpushim list`, `info` and `ps`, on a host that is only a snapshot."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import click
import pytest

from gpushim.cli.info import info
from gpushim.cli.list import list_gpus
from gpushim.cli.ps import ps
from gpushim.containers import holders, pods
from gpushim.ground.errors import DRIVER
from unit.gpushim.cli.commands import Host
from unit.gpushim.cli.looking import run
from unit.gpushim.decision import inventories

HELD = [
    {
        "id": "0123456789abcdef" * 4,
        "name": "ns/pod/c",
        "engine": "containerd (CRI)",
        "pid": 7,
        "bundle": "/b",
        "devices": ["0", "2:0"],
        "how": "spec",
        "cgroup": "",
        "memory": [],
        "namespace": "",
        "uid": "",
        "pod": "",
    }
]


@pytest.fixture(autouse=True)
def _complete(host: Host) -> None:
    host.snapshot.update(runtime="/usr/sbin/runc", written="2026-01-01T00:00:00Z")


@pytest.fixture
def numa(host: Host, tmp_path: Path) -> None:
    for address, node in (("0000:00:00.0", "1"), ("0000:01:00.0", "-1")):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(node + "\n")
    host.snapshot["driver"]["root"] = str(tmp_path)


def test_list_as_json(numa: None) -> None:
    gpus = json.loads(run(list_gpus, "--format", "json").stdout)
    assert [(gpu["index"], gpu["uuid"], gpu["minor"], gpu["memory"], gpu["numa"]) for gpu in gpus] == [
        (0, inventories.UUIDS[0], 1, 40960, 1),
        (1, inventories.UUIDS[1], 2, 40960, None),
        (2, inventories.UUIDS[2], 0, 40960, None),
    ]
    assert [mig["uuid"] for mig in gpus[2]["mig"]] == ["MIG-1"]


def test_list_as_csv(numa: None) -> None:
    rows = list(csv.DictReader(io.StringIO(run(list_gpus, "--format", "csv").stdout)))
    assert [row["INDEX"] for row in rows] == ["0", "1", "2", "2:0"]
    assert rows[0]["NUMA"] == "1"
    assert rows[3]["UUID"] == "MIG-1"
    assert rows[3]["NODES"] == f"{inventories.CAPS}12 {inventories.CAPS}13"


def test_list_has_both_numbers_where_nvml_has_others(host: Host) -> None:
    assert "NVML" not in run(list_gpus).stdout
    host.snapshot["gpus"][1]["nvml"] = 0
    lines = run(list_gpus).stdout.splitlines()
    assert (lines[0].split()[-1], lines[2].split()[0], lines[2].split()[-1]) == ("NVML", "1", "0")
    host.snapshot["gpus"][1]["nvml"] = -1
    assert json.loads(run(list_gpus, "--format", "json").stdout)[1]["nvml"] is None


def test_list_names_problems(host: Host) -> None:
    host.snapshot["gpus"][0]["problem"] = "it has fallen off the bus"
    host.snapshot["notes"] = ["NVML is of no use"]
    result = run(list_gpus)
    assert result.stdout.splitlines()[1].endswith("it has fallen off the bus")
    assert result.stderr == "note: NVML is of no use\n"


def test_list_without_a_gpu(host: Host) -> None:
    host.snapshot.update(gpus=[], mig=[])
    assert run(list_gpus).stdout == "this host has no GPU\n"
    assert json.loads(run(list_gpus, "--format", "json").stdout) == []


@pytest.mark.parametrize("command", [list_gpus, info, ps], ids=lambda command: command.name)
def test_a_host_that_cannot_serve(host: Host, command: click.Command) -> None:
    host.snapshot.update(error={"sentence": "module and libraries differ", "code": DRIVER}, files={})
    assert str(run(command, code=DRIVER).exception) == "module and libraries differ"


def test_info(host: Host) -> None:
    host.snapshot["notes"] = ["something is odd"]
    found = json.loads(run(info, "--format", "json").stdout)
    assert (found["driver"], found["cuda"], found["gpus"], found["mig_instances"]) == ("535.183.01", "12.2", 3, 1)
    assert found["files"] == {"any": 1, "compute": 1, "utility": 3}
    assert found["runtime"] == "/usr/sbin/runc"
    assert found["snapshot"]["written"] == ""
    out = run(info).stdout
    assert "535.183.01" in out
    assert "something is odd" in out


def test_info_lists_files() -> None:
    lines = [line.split() for line in run(info, "--files").stdout.splitlines()]
    assert ["utility", "binary", "/usr/bin/nvidia-smi"] in lines


def test_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def answer(_: Any, states: Any) -> tuple[list[dict[str, Any]], list[str]]:
        seen.append(states)
        return HELD, ["x cannot be read"]

    monkeypatch.setattr(holders, "holders", answer)
    result = run(ps, "--state", "/s")
    assert result.stdout.splitlines()[1].split("  ")[0] == "0123456789ab"
    assert "0,2:0" in result.stdout
    assert result.stderr == "note: x cannot be read\n"
    assert "0123456789abcdef" * 4 in run(ps, "--no-trunc").stdout
    assert json.loads(run(ps, "--format", "json").stdout) == HELD
    assert seen == [["/s"], None, None]


@pytest.mark.parametrize("name", ["a-name-of-more-than-12-letters", "f" * 63, "F" * 64, "../" * 21 + "x"])
def test_ps_shortens_no_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Who runs `runc run NAME` gets two of them by a common beginning."""
    monkeypatch.setattr(holders, "holders", lambda *_: ([{**HELD[0], "id": name}], []))
    assert run(ps).stdout.splitlines()[1].split("  ")[0] == name


def test_ps_shows_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    def claimed(rows: list[dict[str, Any]], *_: Any) -> list[str]:
        rows[0]["claims"] = [{"namespace": "ns", "name": "mine", "driver": "gpu.nvidia.com", "device": "gpu-0"}]
        return ["odd"]

    monkeypatch.setattr(holders, "holders", lambda *_: ([{**HELD[0]}], []))
    monkeypatch.setattr(pods, "claimed", claimed)
    result = run(ps)
    assert [line.split("  ")[-1].strip() for line in result.stdout.splitlines()] == [
        "CLAIM",
        "ns/mine of gpu.nvidia.com",
    ]
    assert result.stderr == "note: odd\n"
    assert json.loads(run(ps, "--format", "json").stdout)[0]["claims"][0]["name"] == "mine"


def test_ps_with_a_wrong_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What runs has its GPUs whatever is wrong with the next container's."""
    config = tmp_path / "config.toml"
    config.write_text("zzz = 1\n")
    monkeypatch.setattr("gpushim.ground.system.config_path", lambda: str(config))
    result = run(ps, "--state", str(tmp_path / "none"))
    assert result.stdout == "no running container has a GPU\n"
    assert result.stderr.startswith(f"note: {config}: zzz is not a known key; ")
    assert result.stderr.endswith("; the host is looked at as without a configuration\n")


def test_ps_without_containers(tmp_path: Path) -> None:
    assert run(ps, "--state", str(tmp_path)).stdout == "no running container has a GPU\n"
    assert json.loads(run(ps, "--state", str(tmp_path), "--format", "json").stdout) == []


@pytest.mark.parametrize(("stale", "words"), [("", "true now"), ("host", "the host has changed since")])
def test_info_tells_how_fresh_the_snapshot_is(
    host: Host, monkeypatch: pytest.MonkeyPatch, stale: str, words: str
) -> None:
    monkeypatch.setattr("gpushim.inventory.ensure.last", lambda *_: (host.snapshot, stale))
    found = json.loads(run(info, "--format", "json").stdout)["snapshot"]
    assert (found["written"], found["state"]) == ("2026-01-01T00:00:00Z", words)
