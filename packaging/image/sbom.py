"""List what an image contains, in SPDX 2.3 as JSON: `sbom.py image VERSION ROOTFS LAYOUT`; or what debs and rpms
contain: `sbom.py packages VERSION BUNDLED FILE...`, where BUNDLED is a folder that tools/vendor made.

Debian's packages come from what dpkg says of them (/var/lib/dpkg/status, or status.d of images without dpkg), ours
and those bundled from their own metadata. Single files are not listed. Licences are those declared by the packages,
under SPDX's names where Debian's mean the same; whoever concludes more from them reads the copyright files, which
are in the image. What a base has that dpkg does not know is not listed, which the list then says.
"""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import quote

NONE = "NOASSERTION"
LICENSE = "Apache-2.0"  # of our own part
# What asks a deb and an rpm for name, version and architecture.
DEB = ("dpkg-deb", "--show", r"--showformat=${Package}\n${Version}\n${Architecture}\n")
RPM = ("rpm", "-qp", r"--queryformat=%{NAME}\n%{VERSION}-%{RELEASE}\n%|SOURCERPM?{%{ARCH}}:{src}|\n")
# Debian's (and PyPI's) words for licences, and SPDX's.
LICENSES = {
    **{name: name for name in ("Apache-2.0", "ISC", "MIT", "MPL-1.1", "Zlib")},
    "Apache-2.0 with LLVM exception": "Apache-2.0 WITH LLVM-exception",
    "Artistic": "Artistic-1.0-Perl",
    "BSD-2-clause": "BSD-2-Clause",
    "BSD-3-clause": "BSD-3-Clause",
    "BSD-4-clause": "BSD-4-Clause",
    "Expat": "MIT",
}
for family in ("GPL", "LGPL"):
    for number in ("1", "2", "2.1", "3"):
        spdx = f"{family}-{number if '.' in number else number + '.0'}"
        LICENSES |= {f"{family}-{number}": f"{spdx}-only", f"{family}-{number}+": f"{spdx}-or-later"}


def document(rootfs: Path, layout: Path, version: str) -> dict[str, Any]:
    """Return the whole list.

    Args:
        rootfs: directory in which the image is mounted.
        layout: directory with the image as OCI lays it out.
        version: of gpushim.
    """
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    digest = entry["digest"].partition(":")[2]
    known = [*debian(rootfs)]
    parts = [*known, *python(rootfs, version)]
    image = package("image", "gpushim", version, LICENSE, f"pkg:oci/gpushim@sha256%3A{digest}")
    image |= {"primaryPackagePurpose": "CONTAINER", "checksums": [{"algorithm": "SHA256", "checksumValue": digest}]}
    contained = [related("SPDXRef-image", "CONTAINS", part["SPDXID"]) for part in parts]
    told = f"{len(known)} packages are in the base as dpkg tells; what it does not know is not listed."
    relations = [related("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image"), *contained]
    return listing(f"gpushim-{version}", digest, told, [image, *parts], relations)


def of_packages(version: str, vendored: Path, files: list[Path]) -> dict[str, Any]:
    """Return the list of what debs and rpms contain.

    Args:
        version: of gpushim.
        vendored: the Python packages that each `gpushim` of them has.
        files: debs and rpms.
    """
    brought, listed = [*bundled(vendored)], [described(file) for file in files]
    relations = [related("SPDXRef-DOCUMENT", "DESCRIBES", each["SPDXID"]) for each in listed]
    for each in listed:
        if each["name"] == "gpushim":
            relations += [related(each["SPDXID"], "CONTAINS", part["SPDXID"]) for part in brought]
    told = "What is in the debs and rpms. What they depend on is the distribution's, and not listed."
    digests = "".join(each["checksums"][0]["checksumValue"] for each in listed)
    key = hashlib.sha256(digests.encode()).hexdigest()
    return listing(f"gpushim-packages-{version}", key, told, [*listed, *brought], relations)


def described(file: Path) -> dict[str, Any]:
    """Return what is listed of a deb or an rpm."""
    kind = file.suffix[1:]
    asked = DEB if kind == "deb" else RPM
    said = subprocess.run([*asked, str(file)], check=True, stdout=subprocess.PIPE, text=True).stdout
    name, version, arch = said.split()
    purl = f"pkg:{kind}/gpushim/{name}@{version}?arch={arch}"
    found = package(f"{kind}-{name}-{arch}", name, version, LICENSE, purl)
    checksum = {"algorithm": "SHA256", "checksumValue": hashlib.sha256(file.read_bytes()).hexdigest()}
    return found | {"packageFileName": file.name, "checksums": [checksum]}


def listing(
    name: str, key: str, comment: str, packages: list[dict[str, Any]], relations: list[dict[str, str]]
) -> dict[str, Any]:
    """Return a list of packages as a document.

    Args:
        name: of the document.
        key: digest of what it is about, which makes its namespace its own.
        comment: what it leaves out.
        packages: as `package` makes them.
        relations: as `related` makes them.
    """
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "comment": comment,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{key}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))),
            "creators": ["Organization: gpushim developers", "Tool: sbom.py"],
        },
        "packages": packages,
        "relationships": relations,
        "hasExtractedLicensingInfos": extracted(packages),
    }


def debian(rootfs: Path) -> Iterator[dict[str, Any]]:
    """List the packages that dpkg would name."""
    database, release = rootfs / "var/lib/dpkg", rootfs / "usr/lib/os-release"  # to which the link in /etc leads
    lines = release.read_text().replace('"', "").splitlines() if release.is_file() else []
    system = dict(line.split("=", 1) for line in lines if "=" in line)
    distro = "-".join(system[key] for key in ("ID", "VERSION_ID") if key in system)
    for file in sorted([*database.glob("status"), *database.glob("status.d/*")]):
        for paragraph in file.read_text().split("\n\n"):
            fields = email.message_from_string(paragraph)
            if not fields.get("Status", "").endswith(" installed"):
                continue
            name, version = fields["Package"], fields["Version"]
            source, _, other = fields.get("Source", name).partition(" ")
            query = f"arch={fields['Architecture']}&distro={distro}&upstream={quote(source)}"
            place = f"usr/share/doc/{name}/copyright"
            found = package(
                f"deb-{name}",
                name,
                version,
                copyright_of(rootfs / place),
                f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?{query}",
            )
            told = f"built from {source} {other.strip('()') or version}"
            yield found | {
                "sourceInfo": told,
                "licenseComments": f"/{place} in the image",
                "supplier": "Organization: Debian",
            }


def python(rootfs: Path, version: str) -> Iterator[dict[str, Any]]:
    """List gpushim itself and what is bundled with it."""
    yield package("gpushim", "gpushim", version, LICENSE, f"pkg:generic/gpushim@{version}")
    yield from bundled(rootfs / "usr/lib/gpushim" / version / "vendor")


def bundled(folder: Path) -> Iterator[dict[str, Any]]:
    """List the Python packages in a folder that tools/vendor made."""
    for file in sorted(folder.glob("*.dist-info/METADATA")):
        fields = email.message_from_string(file.read_text())
        name = fields["Name"].lower().replace("_", "-")
        purl = f"pkg:pypi/{name}@{fields['Version']}"
        yield package(f"pypi-{name}", fields["Name"], fields["Version"], declared(fields), purl)


def package(key: str, name: str, version: str, license_: str, purl: str) -> dict[str, Any]:
    """Return one package, whose files are not listed."""
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", key.replace("+", "plus")),
        "name": name,
        "versionInfo": version,
        "downloadLocation": NONE,
        "filesAnalyzed": False,
        "licenseConcluded": NONE,
        "licenseDeclared": license_,
        "copyrightText": NONE,
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    }


def related(one: str, how: str, other: str) -> dict[str, str]:
    """Return a relationship."""
    return {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}


def copyright_of(file: Path) -> str:
    """Return the licences that a copyright file of Debian names, if it is one that machines read."""
    text = file.read_text(errors="replace") if file.is_file() else ""
    if not text.startswith("Format: http"):
        return NONE
    names = sorted({name.strip() for name in re.findall(r"^License:[ \t]*(\S[^\n,]{0,60})$", text, re.MULTILINE)})
    return " AND ".join(dict.fromkeys(expression(name) for name in names)) or NONE


def declared(fields: Message) -> str:
    """Return the licence of a Python package's metadata."""
    return fields.get("License-Expression") or (expression(fields["License"]) if fields["License"] else NONE)


def expression(name: str) -> str:
    """Return a licence's name, or names joined by "or", as SPDX has them."""
    names = [
        LICENSES.get(word) or "LicenseRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", word) for word in name.split(" or ")
    ]
    return f"({' OR '.join(names)})" if len(names) > 1 else names[0]


def extracted(packages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return where the texts of licences are that SPDX does not know."""
    users: dict[str, list[str]] = {}
    for found in packages:
        for name in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", found["licenseDeclared"]):
            users.setdefault(name, []).append(found["name"])
    told = "The text is in the copyright file, or beside the metadata, of: "
    return [
        {"licenseId": name, "extractedText": told + ", ".join(sorted(set(users[name])))} for name in sorted(users)
    ]


if __name__ == "__main__":
    what, number, *places = sys.argv[1:]
    paths = [*map(Path, places)]
    found = document(paths[0], paths[1], number) if what == "image" else of_packages(number, paths[0], paths[1:])
    json.dump(found, sys.stdout, indent=1)
    print()
