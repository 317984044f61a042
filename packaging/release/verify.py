"""What a release must be, looked at by the programs that will use it: apt, rpm, lintian, rpmlint, gpg."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from release.checkout import Commit
from release.repositories import ARCHITECTURES, COMPONENT, SUITE
from release.signing import Key
from release.steps import ReleaseError, digest, run, say

APT = """Dir "{root}";
Dir::Bin::methods "/usr/lib/apt/methods";
Dir::State::status "{root}/status";
APT::Architecture "{architecture}";
APT::Sandbox::User "root";
Acquire::Languages "none";
"""
SOURCES = "Types: deb\nURIs: file:{tree}\nSuites: {suite}\nComponents: {component}\n{trust}\n"
LINTIAN = ("lintian", "--allow-root", "--pedantic", "--display-info")
REPO = "{http://linux.duke.edu/metadata/repo}"
COMMON = "{http://linux.duke.edu/metadata/common}"


def everything(commit: Commit, out: Path, work: Path, key: Key | None) -> None:
    """Check a release.

    Args:
        commit: that it was made of.
        out: its directory.
        work: directory for what the checks need.
        key: that it is signed with.

    Raises:
        ReleaseError: something is not as it should be.
    """
    say("checking versions, checksums, repositories, packages, layouts" + (" and signatures" if key else ""))
    checks: list[Callable[[], None]] = [
        lambda: versions(commit, out),
        lambda: sums(out),
        lambda: apt(out, work, key),
        lambda: dnf(out),
        lambda: linted(out),
        lambda: layout(out / "oci/image"),
        lambda: layout(out / "oci/chart"),
    ]
    if key:
        checks.append(lambda: signatures(out, work))
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(check) for check in checks]:
            done.result()


def versions(commit: Commit, out: Path) -> None:
    """Hold the version of each part against the commit's."""
    found = {f"apt/pool/{deb.name}": _deb(deb, "Version") for deb in out.glob("apt/pool/*.deb")}
    for package in (*out.glob("rpm/*.rpm"), *out.glob("*.src.rpm")):
        found[package.name] = run("rpm", "-qp", "--queryformat", "%{VERSION}-%{RELEASE}", package)
    wanted = dict.fromkeys(found, f"{commit.version}-1")
    with tarfile.open(out / f"gpushim-{commit.version}.tgz") as archive:
        text = archive.extractfile("gpushim/Chart.yaml")
        assert text is not None
        found |= dict(re.findall(r'^(version|appVersion): "?([^"\n]+)', text.read().decode(), re.MULTILINE))
    (image,) = json.loads((out / "oci/image/index.json").read_text())["manifests"]
    found["image"] = image["annotations"]["org.opencontainers.image.ref.name"].rpartition(":")[2]
    found["gpushim.yaml"] = "".join(
        set(re.findall(r"image: \"?gpushim:([^\"\s]+)", (out / "gpushim.yaml").read_text()))
    )
    wanted |= {name: commit.version for name in found if name not in wanted}
    # Before a version's own sign dpkg and rpm have a tilde, and Helm a hyphen.
    other = [f"{name}: {text}" for name, text in found.items() if _plain(text) != _plain(wanted[name])]
    if other or len(found) < 10:
        raise ReleaseError(f"not of version {commit.version}: {', '.join(other) or found}")


def sums(out: Path) -> None:
    """Check SHA256SUMS, and that it has every file."""
    run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=out)
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    missing = (
        files
        - {"SHA256SUMS", "SHA256SUMS.asc"}
        - {line[66:] for line in (out / "SHA256SUMS").read_text().splitlines()}
    )
    if missing:
        raise ReleaseError(f"SHA256SUMS lacks {', '.join(sorted(missing))}")


def apt(out: Path, work: Path, key: Key | None) -> None:
    """Let an apt that knows nothing else fetch each package from the repository."""
    trust = f"Signed-By: {out}/gpushim.asc" if key else "Trusted: yes"
    debs = sorted(out.glob("apt/pool/*.deb"))
    for architecture in ARCHITECTURES:
        root = work / f"apt-{architecture}"
        for name in ("etc/apt/sources.list.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
            (root / name).mkdir(parents=True)
        (root / "status").touch()
        (root / "apt.conf").write_text(APT.format(root=root, architecture=architecture))
        source = SOURCES.format(tree=out / "apt", suite=SUITE, component=COMPONENT, trust=trust)
        (root / "etc/apt/sources.list.d/gpushim.sources").write_text(source)
        env = {"APT_CONFIG": str(root / "apt.conf")}
        said = run("apt-get", "update", "--error-on=any", env=env)
        if not re.search("^Get:.*InRelease" if key else "^Get:.* Release", said, re.MULTILINE):
            raise ReleaseError(f"apt does not read the repository as it should:\n{said}")
        wanted = [f"{_deb(deb, 'Package')}={_deb(deb, 'Version')}" for deb in debs]
        run("apt-get", "download", *wanted, cwd=root, env=env)
        if sorted(map(digest, root.glob("*.deb"))) != sorted(map(digest, debs)):
            raise ReleaseError("apt gets other packages from the repository than those that were built")


def dnf(out: Path) -> None:
    """Follow the repository's metadata to every file; tests/e2e/test_release.py has dnf do it."""
    tree = out / "rpm"
    for each in _xml(tree / "repodata/repomd.xml").iter(f"{REPO}data"):
        _same(tree, each, REPO)
        if each.get("type") == "primary":
            place = each.find(f"{REPO}location")
            assert place is not None
            packages = [*_xml(tree / place.attrib["href"]).iter(f"{COMMON}package")]
            for package in packages:
                _same(tree, package, COMMON)
            if len(packages) != len([*tree.glob("*.rpm")]):
                raise ReleaseError(f"{tree} has packages that its metadata lacks")


def linted(out: Path) -> None:
    """Let lintian and rpmlint say what they have against the packages."""
    said = run(*LINTIAN, *sorted(out.glob("apt/pool/*.deb")))
    if found := [line for line in said.splitlines() if not line.startswith("N:")]:
        raise ReleaseError("lintian says:\n" + "\n".join(found))
    rules = Path(__file__).resolve().parents[1] / "rpm/rpmlint.toml"
    said = run("rpmlint", "--config", rules, *sorted(out.glob("rpm/*.rpm")), *out.glob("*.src.rpm"))
    if "4 packages and 0 specfiles checked; 0 errors, 0 warnings" not in said:
        raise ReleaseError(f"rpmlint says:\n{said}")


def layout(place: Path) -> None:
    """Follow an OCI layout from its index to every blob."""
    seen = set()

    def blob(descriptor: dict[str, Any]) -> bytes:
        name: str = descriptor["digest"].removeprefix("sha256:")
        content = (place / "blobs/sha256" / name).read_bytes()
        if digest(place / "blobs/sha256" / name) != name or len(content) != descriptor["size"]:
            raise ReleaseError(f"{place}: the blob {name} is not what its descriptor says")
        seen.add(name)
        return content

    (entry,) = json.loads((place / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry))
    for descriptor in (manifest["config"], *manifest["layers"]):
        blob(descriptor)
    if {path.name for path in (place / "blobs/sha256").iterdir()} != seen:
        raise ReleaseError(f"{place}: there are blobs that nothing names")


def signatures(out: Path, work: Path) -> None:
    """Check each signature by the public key that is published, and nothing else."""
    home = work / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ("gpg", "--batch", "--quiet", "--no-autostart", "--homedir", home)
    run(*gpg, "--import", out / "gpushim.asc")
    for signature in (*out.rglob("*.asc"), *out.rglob("*.gpg")):
        if signature.name != "gpushim.asc":
            run(*gpg, "--verify", signature, signature.with_suffix(""))
    run(*gpg, "--verify", out / f"apt/dists/{SUITE}/InRelease")
    database = ("--dbpath", work / "rpmdb")
    run("rpmkeys", *database, "--import", out / "gpushim.asc")
    for package in (*out.glob("rpm/*.rpm"), *out.glob("*.src.rpm")):
        said = run("rpmkeys", *database, "--checksig", "--verbose", package)
        if not re.search("Signature, key ID [0-9a-f]+: OK", said):
            raise ReleaseError(f"{package.name} is not signed:\n{said}")


def _plain(version: str) -> str:
    return re.sub(r"~|-(?=\D)|\.(?=dev)", "", version)


def _deb(package: Path, field: str) -> str:
    return run("dpkg-deb", "--field", package, field).strip()


def _xml(file: Path) -> ElementTree.Element:
    content = file.read_bytes()
    return ElementTree.fromstring(gzip.decompress(content) if file.suffix == ".gz" else content)  # noqa: S314 # ours


def _same(tree: Path, told: ElementTree.Element, space: str) -> None:
    place, checksum = told.find(f"{space}location"), told.find(f"{space}checksum")
    assert place is not None
    assert checksum is not None
    if digest(tree / place.attrib["href"]) != checksum.text:
        raise ReleaseError(f"{tree}: {place.attrib['href']} is not what the metadata say")
