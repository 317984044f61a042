"""How the tests run one command of `gpushim` by itself."""

from __future__ import annotations

from typing import Any

import click
from click.testing import Result

from gpushim.ground.errors import GpushimError
from unit.gpushim.cli.commands import apart


def run(command: click.Command, *args: str, code: int = 0, stdin: str | None = None, **env: Any) -> Result:
    """Run a command; `code` is what `gpushim` would exit with."""
    result = apart().invoke(command, args, input=stdin, env=env)
    error = result.exception
    got = error.exit_code if isinstance(error, GpushimError) else result.exit_code
    assert got == code, (result.stdout, result.stderr, error)
    return result
