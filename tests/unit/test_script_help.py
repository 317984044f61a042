"""`--help` of a script that builds or runs something prints what the script is, and does nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
SCRIPTS = (
    *("packaging/deb/build", "packaging/rpm/build", "packaging/image/build", "packaging/image/base"),
    "tools/demo",
)


@pytest.mark.parametrize("word", ["--help", "-h"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_all_that_is_printed(script: str, word: str, tmp_path: Path) -> None:
    # With nothing of the repository beside it, it could do nothing else.
    copy = tmp_path / script
    copy.parent.mkdir(parents=True)
    copy.write_bytes((TOP / script).read_bytes())
    (tmp_path / "packaging/image").mkdir(parents=True, exist_ok=True)
    (tmp_path / "packaging/image/common.sh").write_text("")
    done = subprocess.run(["/bin/sh", copy, word], capture_output=True, text=True, check=True)
    first = (TOP / script).read_text().splitlines()[1].removeprefix("# ")
    assert (done.stdout.splitlines()[0], done.stderr) == (first, "")
    assert "set -eu" not in done.stdout
