"""Where tests keep their files: not below /tmp, in which gpushim trusts nothing, for anybody may make files there."""

from __future__ import annotations

import os
from pathlib import Path

TOP = Path("/opt/gpushim-tests") if os.geteuid() == 0 else Path.home() / ".cache/gpushim-tests"


def top() -> Path:
    """Return the directory, made."""
    TOP.mkdir(mode=0o755, parents=True, exist_ok=True)
    return TOP
