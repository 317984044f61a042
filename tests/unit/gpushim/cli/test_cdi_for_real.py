from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import fakehost
from gpushim.cdi import form, resolve, validate
from gpushim.decision.plan import plan
from gpushim.oci import edits, request
from unit.gpushim.cli.commands import REPOSITORY, names

pytestmark = pytest.mark.slow


def gpushim_for_real(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run bin/gpushim as people do, for a simulated host below this folder."""
    env = {
        "PATH": "/usr/sbin:/usr/bin",
        "GPUSHIM_CONFIG": f"{folder}/config.toml",
        "GPUSHIM_STATE": f"{folder}/state",
    }
    command = [sys.executable, "-IB", str(REPOSITORY / "bin/gpushim"), *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)


def test_refresh_generate_list_and_validate_on_a_simulated_host(tmp_path: Path) -> None:
    fakehost.build(f"{tmp_path}/host", 2, mig={1: ["1g.10gb", "2g.20gb"]})
    (tmp_path / "config.toml").write_text(f'[driver]\nroot = "{tmp_path}/host"\n')
    told = json.loads(gpushim_for_real(tmp_path, "refresh", "--format=json").stdout)
    assert {**told, "notes": []} == {"gpus": 2, "mig": 2, "driver": "535.183.01", "notes": []}
    written = json.loads((tmp_path / "state/cdi/nvidia.com-gpu.json").read_text())
    form.check(written)
    assert validate.findings(written) == []
    before = (tmp_path / "state/inventory.json").read_bytes()
    said = gpushim_for_real(tmp_path, "cdi", "generate", "--output", f"{tmp_path}/cdi/nvidia.yaml")
    assert "Traceback" not in said.stderr
    assert yaml.safe_load((tmp_path / "cdi/nvidia.yaml").read_text()) == written
    assert (tmp_path / "state/inventory.json").read_bytes() == before
    listed = gpushim_for_real(tmp_path, "cdi", "list", "--spec-dir", f"{tmp_path}/cdi").stdout.split()
    assert listed == sorted("nvidia.com/gpu=" + name for name in names(written))
    assert {"nvidia.com/gpu=0", "nvidia.com/gpu=1:0", "nvidia.com/gpu=1:1", "nvidia.com/gpu=all"} < set(listed)
    gpushim_for_real(tmp_path, "cdi", "validate", f"{tmp_path}/cdi", f"{tmp_path}/state/cdi")


def test_refresh_brings_a_removed_spec_back(tmp_path: Path) -> None:
    fakehost.build(f"{tmp_path}/host", 1)
    (tmp_path / "config.toml").write_text(f'[driver]\nroot = "{tmp_path}/host"\n')
    gpushim_for_real(tmp_path, "refresh")
    (tmp_path / "state/cdi/nvidia.com-gpu.json").unlink()
    gpushim_for_real(tmp_path, "refresh")
    assert (tmp_path / "state/cdi/nvidia.com-gpu.json").is_file()


@pytest.mark.parametrize("name", ["0", "1:0", "all"])
def test_container_gets_by_the_spec_what_the_shim_gives(tmp_path: Path, name: str) -> None:
    fakehost.build(f"{tmp_path}/host", 2, mig={1: ["1g.10gb", "2g.20gb"]}, node_mode=0o660, node_gid=44)
    config = f'[driver]\nroot = "{tmp_path}/host"\n[cdi]\nkind = "example.org/gpu"\n'
    (tmp_path / "config.toml").write_text(config)
    gpushim_for_real(tmp_path, "refresh")
    inventory = json.loads((tmp_path / "state/inventory.json").read_text())
    (tmp_path / "state/cdi/example.org-gpu.json").rename(tmp_path / "state/cdi/other.json")
    env = [f"NVIDIA_VISIBLE_DEVICES={name}", "NVIDIA_DRIVER_CAPABILITIES=all"]
    wanted = request.read({"process": {"env": env}}, inventory["policy"])
    assert wanted is not None
    bundle: Any = {"rootfs": "", "userns": False, "hook": str(REPOSITORY / "bin/gpushim-hook")}
    ours, theirs = (
        config_of(plan(wanted, inventory, bundle)[0]),
        config_of(resolve.edits([f"example.org/gpu={name}"], [f"{tmp_path}/state/cdi"], bundle)),
    )
    assert len(ours["nodes"]) >= 5
    assert theirs == ours


def config_of(decided: list[edits.Edit]) -> dict[str, Any]:
    """Apply edits to an empty config.json; returns what the order of its parts does not matter for.

    The shim's mounts are config.json's, those of a CDI spec are its hook's.
    """
    spec: dict[str, Any] = {"mounts": []}
    edits.apply(decided, spec)
    (hook,) = spec["hooks"]["prestart"]
    args = hook["args"]
    at = [number for number, word in enumerate(args) if word in ("--mount", "--socket")]
    mounted = [tuple(args[number + 1].split("::")) for number in at]
    hook["args"] = [word for number, word in enumerate(args) if number not in at and number - 1 not in at]
    return {
        "nodes": sorted(spec["linux"]["devices"], key=lambda node: str(node["path"])),
        "rules": sorted(spec["linux"]["resources"]["devices"], key=str),
        "mounts": sorted([*((mount["source"], mount["destination"]) for mount in spec["mounts"]), *mounted]),
        "gids": sorted(spec["process"]["user"]["additionalGids"]),
        "hook": hook,
    }
