"""Ways to share a node's GPUs, as profiles of NVIDIA's file, for tests that change them at random."""

from __future__ import annotations

import json
from pathlib import Path

WHOLE = {"gpu": ("nvidia.com/gpu", 1)}
PROFILES = {  # what kubelet has by each, and NVIDIA's file
    "whole": ({}, {}),
    "shared": (
        {"gpu": ("nvidia.com/gpu", 2), "1g.5gb": ("nvidia.com/mig-1g.5gb", 2)},
        {"resources": [{"name": "gpu", "replicas": 2, "distinct": True}, {"name": "mig-1g.5gb", "replicas": 2}]},
    ),
    "named": (
        {"gpu": ("nvidia.com/gpu.dev", 3)},
        {"resources": [{"name": "gpu", "replicas": 3, "rename": "gpu.dev"}]},
    ),
}
LAYOUTS = ([(1, 0, "1g.5gb"), (2, 0, "1g.5gb")], [(1, 0, "1g.5gb")], [(1, 0, "2g.10gb"), (2, 0, "1g.5gb")])


def of(profile: str) -> dict[str, tuple[str, int]]:
    """Return what kubelet has by a profile, as truth.py's shares."""
    return {**WHOLE, **PROFILES[profile][0]}


def flags(folder: Path) -> tuple[str, ...]:
    """Write the file with all profiles, and that which names the node's; return a plugin's flags to go by them."""
    found = {name: {"version": "v1", "sharing": {"timeSlicing": file}} for name, (_, file) in PROFILES.items()}
    found["whole"] = {"version": "v1"}
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps({"version": "v1", "profiles": found}))
    choose(folder, "whole")
    return ("--mig-strategy=mixed", f"--config-file={folder}/config.yaml", f"--profile-file={folder}/profile")


def choose(folder: Path, profile: str) -> None:
    """Let another profile be the node's."""
    aside = folder / "profile.new"
    aside.write_text(profile)
    aside.rename(folder / "profile")
