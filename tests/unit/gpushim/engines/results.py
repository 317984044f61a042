"""How `gpushim configure` ended, in a process of the test's."""

from __future__ import annotations

from click.testing import Result

from gpushim.ground.errors import GpushimError


def ok(result: Result) -> str:
    """Return what it printed; it has to have ended well."""
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(result: Result) -> str:
    """Return the sentence that it was refused with."""
    assert isinstance(result.exception, GpushimError), (result.output, result.exception)
    return str(result.exception)
