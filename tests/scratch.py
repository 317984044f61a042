"""Where tests keep their files: not below /tmp, in which gpushim trusts nothing, for anybody may make files there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# What is made once for all checkouts of this machine, and costs nothing but time to remove.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpushim-tests"
TOP = Path("/opt/gpushim-tests") if os.geteuid() == 0 else CACHE / "scratch"


def top() -> Path:
    """Return the directory, made."""
    TOP.mkdir(mode=0o755, parents=True, exist_ok=True)
    return TOP


@contextlib.contextmanager
def nested() -> Iterator[dict[str, str]]:
    """Yield the environment of a pytest within a test, which would else close the outer one's directory to others."""
    with tempfile.TemporaryDirectory(prefix="nested-", dir=top()) as name:
        os.chmod(name, 0o755)
        yield {"PYTEST_DEBUG_TEMPROOT": name}
