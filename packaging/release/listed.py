"""List what the packages of a release contain, in the form of packaging/image/sbom.py: SPDX 2.3 as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from release.checkout import Commit
from release.steps import digest, run

sys.path.append(str(Path(__file__).resolve().parents[1] / "image"))
import sbom

LICENSE = "Apache-2.0"  # of our own part; what is bundled is listed with its licences
RPM = r"%{NAME}\n%{VERSION}-%{RELEASE}\n%|SOURCERPM?{%{ARCH}}:{src}|\n"
DEB = r"${Package}\n${Version}\n${Architecture}\n"


def packages(commit: Commit, files: list[Path], bundled: Path, place: Path) -> None:
    """Write the list.

    Args:
        commit: that is released.
        files: debs and rpms.
        bundled: the Python packages that each `gpushim` of them has.
        place: of the list.
    """
    brought = [*sbom.bundled(bundled)]
    listed = [described(file) for file in files]
    relations = [sbom.related("SPDXRef-DOCUMENT", "DESCRIBES", each["SPDXID"]) for each in listed]
    for each in listed:
        if each["name"] == "gpushim":
            relations += [sbom.related(each["SPDXID"], "CONTAINS", part["SPDXID"]) for part in brought]
    told = "What is in the debs and rpms. What they depend on is the distribution's, and not listed."
    key = hashlib.sha256("".join(map(digest, files)).encode()).hexdigest()
    name = f"gpushim-packages-{commit.version}"
    found = sbom.listing(name, key, told, [*listed, *brought], relations, commit.epoch)
    place.write_text(json.dumps(found, indent=1) + "\n")


def described(file: Path) -> dict[str, Any]:
    """Return what is listed of a deb or an rpm."""
    kind = file.suffix[1:]
    asked = ("dpkg-deb", "--show", f"--showformat={DEB}") if kind == "deb" else ("rpm", "-qp", f"--queryformat={RPM}")
    name, version, arch = run(*asked, file).split()
    purl = f"pkg:{kind}/gpushim/{name}@{version}?arch={arch}"
    found: dict[str, Any] = sbom.package(f"{kind}-{name}-{arch}", name, version, LICENSE, purl)
    checksum = {"algorithm": "SHA256", "checksumValue": digest(file)}
    return found | {"packageFileName": file.name, "checksums": [checksum]}
