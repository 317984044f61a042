from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from gpushim.cli.config import config
from gpushim.config import policy
from gpushim.ground.errors import CONFIG, INVENTORY
from unit.gpushim.cli.looking import run


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text('[driver]\nroot = "/run/nvidia/driver"\n[mps]\nenabled = false\n')
    monkeypatch.setattr("gpushim.ground.system.config_path", lambda: str(path))
    return path


def test_show_tells_where_each_value_comes_from(toml: Path) -> None:
    found = json.loads(run(config, "show", "--format", "json").stdout)
    assert found["driver.root"] == {"value": "/run/nvidia/driver", "from": str(toml)}
    assert found["driver.dev-root"] == {"value": "/run/nvidia/driver", "from": "driver.root"}
    assert found["mps.enabled"] == {"value": False, "from": str(toml)}
    assert found["runtime.low-level"] == {"value": ["runc", "crun"], "from": "default"}
    assert len(found) == sum(len(entries) for entries in cast(Any, policy.defaults()).values())


def test_show_tells_what_a_profile_sets(toml: Path) -> None:
    toml.write_text('[requests]\nprofile = "multi-tenant"\naccept-volume-mounts = true\n[cdi]\nforeign-kinds = []\n')
    found = json.loads(run(config, "show", "--format", "json").stdout)
    by_profile = {"value": False, "from": "profile multi-tenant"}
    assert found["requests.accept-env-when-unprivileged"] == by_profile
    assert found["requests.accept-volume-mounts"] == {"value": True, "from": str(toml)}
    assert found["cdi.foreign-kinds"] == {"value": [], "from": str(toml)}
    assert found["requests.disable-require"]["from"] == "default"


def test_show_as_a_table(toml: Path) -> None:
    assert "requests.disable-require  " in run(config, "show").stdout


def test_path_and_check(toml: Path) -> None:
    assert run(config, "path").stdout == f"{toml}\n"
    toml.write_text(toml.read_text().replace("/run/nvidia/driver", str(toml.parent)))
    assert run(config, "check").stdout == f"{toml} is right\n"
    toml.write_text("[driver]\nroot = 3\n")
    for command in ("check", "show"):
        assert "driver.root is 3, not a string" in str(run(config, command, code=CONFIG).exception)


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_link_that_leads_nowhere_is_wrong(toml: Path, command: str) -> None:
    toml.unlink()
    assert (run(config, "check").stdout) == f"{toml} does not exist; all settings have their defaults\n"
    toml.symlink_to("none")
    assert "is a link that leads nowhere" in str(run(config, command, code=CONFIG).exception)


@pytest.mark.parametrize("key", ["root", "dev-root"])
def test_check_names_a_directory_that_does_not_exist(toml: Path, key: str) -> None:
    toml.write_text(f'[driver]\n{key} = "{toml}.d"\n')
    error = str(run(config, "check", code=INVENTORY).exception)
    assert error.startswith(f"{toml}: driver.{key} is '{toml}.d', which is no directory of this host; correct it")


def test_no_configuration() -> None:
    assert run(config, "check").stdout == "/none.toml does not exist; all settings have their defaults\n"
    found = json.loads(run(config, "show", "--format", "json").stdout)
    assert {entry["from"] for entry in found.values()} == {"default", "driver.root"}
