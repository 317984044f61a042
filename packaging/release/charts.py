"""The chart as Helm packs it, and as an OCI artifact in a layout."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

from release.checkout import Commit

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# As helm.sh/helm/v4/pkg/registry has them.
CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def told(chart: Path) -> dict[str, Any]:
    """Return what a chart's Chart.yaml says."""
    import yaml  # the distribution's, which setup.sh has installed by now

    found: dict[str, Any] = yaml.safe_load((chart / "Chart.yaml").read_text())
    return found


def packed(commit: Commit, chart: Path, directory: Path) -> Path:
    """Pack a chart; return the archive, NAME-VERSION.tgz.

    Args:
        commit: whose time the files get.
        chart: its directory.
        directory: for the archive.
    """
    about = told(chart)
    name, version = about["name"], about["version"]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted((path for path in chart.rglob("*") if path.is_file()), key=_order):
            member = tarfile.TarInfo(f"{name}/{file.relative_to(chart)}")
            member.size, member.mode, member.mtime = file.stat().st_size, 0o644, commit.epoch
            archive.addfile(member, io.BytesIO(file.read_bytes()))
    place = directory / f"{name}-{version}.tgz"
    place.write_bytes(gzip.compress(stream.getvalue(), mtime=0))
    return place


def artifact(commit: Commit, chart: Path, archive: Path, layout: Path) -> None:
    """Lay a packed chart out as `helm push` does in a registry.

    Args:
        commit: whose time it has.
        chart: its directory.
        archive: the packed chart.
        layout: absent directory.
    """
    (layout / "blobs/sha256").mkdir(parents=True)
    config = told(chart)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(commit.epoch))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _blob(layout, CONFIG, _json(config)),
        "layers": [_blob(layout, CONTENT, archive.read_bytes())],
        "annotations": {
            "org.opencontainers.image.title": config["name"],
            "org.opencontainers.image.version": config["version"],
            "org.opencontainers.image.description": config["description"],
            "org.opencontainers.image.created": created,
        },
    }
    entry = _blob(layout, MANIFEST, _json(manifest))
    entry["annotations"] = {"org.opencontainers.image.ref.name": config["version"]}
    (layout / "index.json").write_bytes(_json({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def _order(file: Path) -> tuple[bool, str]:
    return file.name != "Chart.yaml", str(file)  # which Helm puts first


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _blob(layout: Path, kind: str, content: bytes) -> dict[str, Any]:
    """Write a blob; return its descriptor."""
    found = hashlib.sha256(content).hexdigest()
    (layout / "blobs/sha256" / found).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{found}", "size": len(content)}
