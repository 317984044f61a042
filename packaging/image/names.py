"""Name the image in an OCI layout, for every engine that loads it: `names.py LAYOUT NAME`.

containerd reads the name in an annotation of its own, Podman in OCI's, Docker before version 25 in its manifest.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


def main(layout: Path, name: str) -> None:
    """Write index.json and manifest.json.

    Args:
        layout: directory with one image.
        name: with registry and tag.
    """
    index = json.loads((layout / "index.json").read_text())
    (entry,) = index["manifests"]
    entry["annotations"] = dict.fromkeys(NAMES, name)
    manifest = json.loads((layout / _blob(entry)).read_text())
    layers = [_blob(layer) for layer in manifest["layers"]]
    docker = [{"Config": _blob(manifest["config"]), "RepoTags": [name], "Layers": layers}]
    (layout / "index.json").write_text(json.dumps(index))
    (layout / "manifest.json").write_text(json.dumps(docker))


def _blob(descriptor: dict[str, Any]) -> str:
    algorithm, digest = descriptor["digest"].split(":")
    return f"blobs/{algorithm}/{digest}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
