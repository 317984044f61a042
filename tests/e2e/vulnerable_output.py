"""More of vulnerable.py: what commands print of others' text, with one rule of it taken out."""

from __future__ import annotations

from e2e import test_output
from e2e.vulnerable import Build

BUILDS = {
    "T-TERMINAL lets the terminal break lines": Build(
        {"shim/gpushim/cli/show.py": "_broken = lambda words, first, columns: iter([first + words])"},
        test_output.test_no_row_is_theirs,
        "startswith(LINE)",
    )
}
