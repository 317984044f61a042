"""packaging/image/sbom.py: the contents of an image in SPDX; tests/e2e/test_image.py has a whole one validated."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

SBOM = Path(__file__).resolve().parents[2] / "packaging/image/sbom.py"
DIGEST = "ab" * 32
DPKG = """Package: libx1
Status: install ok installed
Source: x (1:2-3)
Version: 1:2-3+b1
Architecture: amd64

Package: gone
Status: deinstall ok config-files
Version: 1
Architecture: all
"""


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that lists an image with some files, by their paths."""
    spec = importlib.util.spec_from_file_location("sbom", SBOM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [{"digest": f"sha256:{DIGEST}"}]}))

    def document(files: dict[str, str]) -> Any:
        for name, text in files.items():
            (tmp_path / "rootfs" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "rootfs" / name).write_text(text)
        return module.document(tmp_path / "rootfs", tmp_path, "1.2.3")

    return document


def test_a_base_that_dpkg_knows(listed: Any) -> None:
    release = 'ID=debian\nVERSION_ID="12"\n'
    packages = listed({"var/lib/dpkg/status": DPKG, "usr/lib/os-release": release})["packages"]
    (found,) = (row for row in packages if row["SPDXID"].startswith("SPDXRef-deb-"))
    assert (found["name"], found["versionInfo"], found["sourceInfo"]) == ("libx1", "1:2-3+b1", "built from x 1:2-3")
    (reference,) = found["externalRefs"]
    purl = "pkg:deb/debian/libx1@1%3A2-3%2Bb1?arch=amd64&distro=debian-12&upstream=x"
    assert reference["referenceLocator"] == purl


def test_a_base_that_dpkg_does_not_know_is_said_to_be_missing(listed: Any) -> None:
    told = listed({})
    assert [row["SPDXID"] for row in told["packages"]] == ["SPDXRef-image", "SPDXRef-gpushim"]
    assert told["comment"].startswith("0 packages are in the base as dpkg tells")
    assert told["creationInfo"]["created"] == "1970-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("License: GPL-2+", "GPL-2.0-or-later"),
        ("License: Expat\nLicense: MIT", "MIT"),
        ("License: Artistic or GPL-1+", "(Artistic-1.0-Perl OR GPL-1.0-or-later)"),
        ("License: house's own", "LicenseRef-house-s-own"),
        ("License:", "NOASSERTION"),
    ],
)
def test_licences_are_named_as_spdx_does(listed: Any, told: str, expected: str) -> None:
    head = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
    document = listed({"var/lib/dpkg/status.d/libx1": DPKG, "usr/share/doc/libx1/copyright": head + told + "\n"})
    (found,) = (row for row in document["packages"] if row["name"] == "libx1")
    assert found["licenseDeclared"] == expected
    (*own,) = (row["licenseId"] for row in document["hasExtractedLicensingInfos"])
    assert own == [expected] * expected.startswith("LicenseRef-")


def test_what_is_bundled_has_the_licence_of_its_metadata(listed: Any) -> None:
    metadata = "Metadata-Version: 2.4\nName: A_b\nVersion: 7\nLicense-Expression: MIT\n"
    told = listed({"usr/lib/gpushim/1.2.3/vendor/a_b-7.dist-info/METADATA": metadata})
    found = told["packages"][-1]
    assert (found["name"], found["licenseDeclared"]) == ("A_b", "MIT")
    assert found["externalRefs"][0]["referenceLocator"] == "pkg:pypi/a-b@7"
