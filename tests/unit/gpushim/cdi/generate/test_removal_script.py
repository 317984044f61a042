"""The packages' removal: what it does to CDI specs that refresh has not written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

WRITTEN = Path(__file__).parents[5] / "packaging/deb/debian/written.sh"


@pytest.mark.parametrize("record", [False, True], ids=["no record", "record"])
def test_each_removal_keeps_an_edited_spec(record: bool, tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "cdi"
    folder.mkdir(parents=True)
    (tmp_path / "var/lib/gpushim").mkdir(parents=True)
    for text in ("one", "two"):
        (folder / "nvidia.com-gpu.json").write_text(f"{text}: /usr/bin/gpushim-hook")
        if record:
            (tmp_path / "var/lib/gpushim/specs").write_text("{}")
        command = ["/bin/sh", "-euc", f". {WRITTEN}; remove_specs"]
        subprocess.run(command, env={"PATH": "/usr/bin:/bin", "DPKG_ROOT": str(tmp_path)}, check=True)
    names = ["nvidia.com-gpu.json.kept-gpushim", "nvidia.com-gpu.json.kept-gpushim.2"]
    assert [(folder / name).read_text()[:3] for name in names] == ["one", "two"]
