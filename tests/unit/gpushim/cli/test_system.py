"""`gpushim system`, with real device nodes below a directory. Needs root."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpushim.cli.system import nodes
from gpushim.config import policy
from gpushim.ground.errors import FAILED, INVENTORY
from gpushim.inventory.nodes import make
from unit.gpushim.cli.looking import run
from unit.gpushim.inventory.boot import Boot


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boot:
    found = Boot(tmp_path / "host")
    settings = policy.defaults()
    settings["driver"].update({"root": found.root, "dev-root": found.root})
    monkeypatch.setattr(policy, "load", lambda _: settings)
    return found


def test_nodes_are_made_once(boot: Boot) -> None:
    shown = run(nodes, "create-device-nodes", "--dry-run").stdout
    assert f"would make {boot.root}/dev/nvidia1\n" in shown
    assert boot.nodes() == {}
    made = run(nodes, "create-device-nodes").stdout
    assert made == shown.replace("would make", "made")
    assert "/dev/nvidia1" in boot.nodes()
    assert boot.links()["195:255"] == "../nvidiactl"
    assert run(nodes, "create-device-nodes").stdout == "nothing is missing\n"


def test_what_was_made_as_json(boot: Boot) -> None:
    shown = json.loads(run(nodes, "create-device-nodes", "--dry-run", "--format=json").stdout)
    assert f"{boot.root}/dev/nvidia1" in shown["missing"]
    assert shown["made"] == []
    assert json.loads(run(nodes, "create-device-nodes", "--format=json").stdout)["made"] == shown["missing"]
    assert json.loads(run(nodes, "create-device-nodes", "--format=json").stdout) == {"missing": [], "made": []}


def test_links_to_nodes_that_are_there(boot: Boot) -> None:
    assert run(nodes, "create-dev-char-links").stdout == "nothing is missing\n"
    make(boot.root, boot.proc)
    expected = boot.links()
    for name in expected:
        os.unlink(f"{boot.root}/dev/char/{name}")
    os.unlink(f"{boot.root}/dev/nvidia1")
    shown = run(nodes, "create-dev-char-links", "--dry-run").stdout
    assert boot.links() == {}
    assert run(nodes, "create-dev-char-links").stdout == shown.replace("would make", "made")
    assert boot.links() == {name: target for name, target in expected.items() if target != "../nvidia1"}
    assert "/dev/nvidia1" not in boot.nodes()


def test_another_dev_root(boot: Boot, tmp_path: Path) -> None:
    (tmp_path / "other/dev").mkdir(parents=True)
    run(nodes, "create-device-nodes", "--dev-root", f"{tmp_path}/other/")
    assert (tmp_path / "other/dev/nvidia0").exists()
    assert boot.nodes() == {}


def test_a_link_that_cannot_be_made(boot: Boot) -> None:
    make(boot.root, boot.proc)
    os.unlink(f"{boot.root}/dev/char/195:0")
    os.mkdir(f"{boot.root}/dev/char/195:0")
    os.mkdir(f"{boot.root}/dev/char/195:0/x")
    result = run(nodes, "create-dev-char-links", code=FAILED)
    assert f"{boot.root}/dev/char/195:0 cannot be made" in str(result.exception)


@pytest.mark.parametrize("command", ["create-device-nodes", "create-dev-char-links"])
def test_without_a_driver(boot: Boot, command: str) -> None:
    os.unlink(f"{boot.proc}/driver/nvidia/version")
    assert "no NVIDIA driver is loaded" in str(run(nodes, command, code=INVENTORY).exception)
    run(nodes, command, "--dev-root", "dev", code=2)
