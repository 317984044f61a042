"""Each file that docs/sharing.md shows is one that the plugin reads, and means what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import pages
from gpuplugin.devices import division
from gpuplugin.settings import resources, settings
from unit.gpuplugin.snapshots import gpu, snapshot

SHOWN = [one.text for one in pages.blocks((pages.TOP / "docs/sharing.md").read_text()) if one.info == "yaml"]
SLICES = {"nvidia.com/gpu.20gb": 2, "nvidia.com/gpu.10gb": 4}


@pytest.mark.parametrize(
    ("text", "word", "names"),
    [
        (SHOWN[0], "", {"nvidia.com/gpu.dev": 4, "nvidia.com/gpu": 2}),
        (SHOWN[1], "", {"nvidia.com/gpu.mps": 4, **SLICES}),
        (SHOWN[2], "", {"nvidia.com/gpu": 6}),
        (SHOWN[2], "whole", {"nvidia.com/gpu": 3}),
        (SHOWN[2], "both", {"nvidia.com/gpu.mps": 4, "nvidia.com/gpu.shared": 4}),
    ],
)
def test_what_becomes_of_three_gpus(tmp_path: Path, text: str, word: str, names: dict[str, int]) -> None:
    file, profile = tmp_path / "device-plugin.yaml", tmp_path / "profile"
    file.write_text(text)
    profile.write_text(word)
    found = settings.resolve({"config-file": [str(file)], "profile-file": [str(profile)]}, {}, {})
    host = snapshot([gpu(0), gpu(1), gpu(2)])
    there = resources.find(host, "none", [], [])
    divided = division.divide(there, host, found.sharing, [])
    assert {name: len(devices) for name, devices in divided.items()} == names


def test_all_that_are_shown_are_read() -> None:
    assert len(SHOWN) == 3
