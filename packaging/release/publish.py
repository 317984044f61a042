"""Everything of a release in its place, with checksums and signatures; docs/releasing.md has the table."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from release import charts, listed, repositories
from release.checkout import Commit
from release.make import Made
from release.signing import Key
from release.steps import digest, run, say

MANIFESTS = ("gpushim.yaml", "uninstall.yaml")


def laid(commit: Commit, made: Made, work: Path, key: Key | None) -> Path:
    """Lay out the release; return its directory.

    Args:
        commit: that is released.
        made: what was made of it.
        work: directory for that of the release.
        key: to sign with.
    """
    say("laying out repositories, image and chart" + (f", signing by {key.fingerprint}" if key else ""))
    out, name = work / "release", f"gpushim-{commit.version}"
    out.mkdir()
    if key:
        key.public(out / "gpushim.asc")
        for package in made.rpms.glob("*.rpm"):
            key.rpm(package)
    shutil.copyfile(made.sources.with_name(f"{name}.tar.gz"), out / f"{name}.tar.gz")
    for manifest in MANIFESTS:
        shutil.copyfile(made.sources / "packaging/kubernetes" / manifest, out / manifest)
    repositories.apt(commit, sorted(made.debs.glob("*.deb")), out / "apt", key)
    repositories.rpm(commit, sorted(made.rpms.glob("*.noarch.rpm")), out / "rpm", key)
    for package in made.rpms.glob("*.src.rpm"):
        shutil.copyfile(package, out / package.name)
    for file in made.image.iterdir():
        shutil.copyfile(file, out / file.name)
    shutil.copyfile(made.base, out / f"{name}-x86_64-base.tar")
    _unpacked(out / f"{name}-x86_64.tar", out / "oci/image")
    chart = made.sources / "packaging/kubernetes/chart"
    charts.artifact(commit, chart, charts.packed(commit, chart, out), out / "oci/chart")
    packages = [*sorted(out.glob("apt/pool/*.deb")), *sorted(out.glob("rpm/*.rpm")), *sorted(out.glob("*.rpm"))]
    listed.packages(commit, packages, made.bundled, out / f"{name}.spdx.json")
    _summed(commit, out, key)
    return out


def _unpacked(archive: Path, layout: Path) -> None:
    """Unpack an image's archive, without what belongs to Docker alone."""
    layout.mkdir(parents=True)
    run("tar", "--extract", f"--file={archive}", f"--directory={layout}", "--exclude=manifest.json")


def _summed(commit: Commit, out: Path, key: Key | None) -> None:
    """Write SHA256SUMS of all files, sign it, and give all files the commit's time."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    lines = [f"{digest(path)}  {path.relative_to(out)}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines))
    if key:
        key.detached(out / "SHA256SUMS", out / "SHA256SUMS.asc")
    for path in (out, *out.rglob("*")):
        os.utime(path, (commit.epoch, commit.epoch))
