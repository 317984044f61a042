"""How the tests run `gpushim cdi`: in this process, for a host that is only a snapshot."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import gpushim
from gpushim.cli import main
from unit.gpushim.cdi import hosts

REPOSITORY = Path(gpushim.__file__).parents[2]


class Host:
    """What the commands find: a snapshot, and the settings with which it was asked for."""

    def __init__(self) -> None:
        self.snapshot = {**hosts.mixed(), "runtime": "/bin/sh"}
        self.asked: dict[str, Any] = {}

    def look(self, settings: dict[str, Any]) -> dict[str, Any]:
        self.asked = settings
        return self.snapshot


def apart() -> CliRunner:
    """Return a runner that keeps stdout and stderr apart, as since click 8.2 all do; hosts' Python 3.9 has 8.1."""
    options: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**options)


def run(*args: str, code: int = 0, stdin: str | None = None, **env: Any) -> Result:
    result = apart().invoke(main, ["cdi", *args], input=stdin, env=env)
    assert result.exit_code == code, result.stdout + result.stderr
    return result


def names(spec: dict[str, Any]) -> list[str]:
    return [device["name"] for device in spec["devices"]]


def generated(*args: str, **env: Any) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(run("generate", "--format", "json", *args, **env).stdout)
    return spec
