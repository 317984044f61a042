"""Archives of images whose configuration asks for GPUs."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

VARIABLE, ANNOTATION = "NVIDIA_VISIBLE_DEVICES", "cdi.k8s.io/image"
GPUS = "nvidia.com/gpu=all"
NAME = "localhost/words:local"
# What the places of an image say, each in words of its own.
SAID = {"variable": "all", "manifest": GPUS, "index": "of-the-index", "label": "of-the-label"}


def _blob(folder: Path, kind: str, data: bytes, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    path = folder / "blobs/sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    media = f"application/vnd.oci.image.{kind}"
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data), **more}


def _image(tree: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the layer and the configuration."""
    layer = subprocess.run(["/bin/tar", "-C", tree, "-c", "."], check=True, capture_output=True).stdout
    words = {
        "Env": ["PATH=/bin", f"{VARIABLE}={SAID['variable']}"],
        "Cmd": ["true"],
        "Labels": {ANNOTATION: SAID["label"], VARIABLE: SAID["label"]},
    }
    rootfs = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}
    return layer, {"architecture": "amd64", "os": "linux", "config": words, "rootfs": rootfs}


def _packed(folder: Path) -> Path:
    archive = folder.with_suffix(".tar")
    subprocess.run(["/bin/tar", "-C", folder, "-cf", archive, "."], check=True)
    return archive


def archive(tree: Path, folder: Path) -> Path:
    """Write an image that says everything, as an archive of an OCI layout."""
    layer, config = _image(tree)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _blob(folder, "config.v1+json", json.dumps(config).encode()),
        "layers": [_blob(folder, "layer.v1.tar+gzip", gzip.compress(layer, 1))],
        "annotations": {ANNOTATION: SAID["manifest"]},
    }
    names = {"org.opencontainers.image.ref.name": NAME, "io.containerd.image.name": NAME, ANNOTATION: SAID["index"]}
    entry = _blob(folder, "manifest.v1+json", json.dumps(manifest).encode(), annotations=names)
    index = {"schemaVersion": 2, "manifests": [entry], "annotations": {ANNOTATION: SAID["index"]}}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return _packed(folder)
