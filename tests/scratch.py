"""Where tests keep their files: not below /tmp, in which gpushim trusts nothing, for anybody may make files there."""

from __future__ import annotations

import os
from pathlib import Path

# What is made once for all checkouts of this machine, and costs nothing but time to remove.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpushim-tests"
TOP = Path("/opt/gpushim-tests") if os.geteuid() == 0 else CACHE / "scratch"


def top() -> Path:
    """Return the directory, made."""
    TOP.mkdir(mode=0o755, parents=True, exist_ok=True)
    return TOP
