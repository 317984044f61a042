"""Repositories for apt and dnf, as trees for a web server that serves files and knows nothing of either."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from pathlib import Path

from release.checkout import Commit
from release.signing import Key
from release.steps import digest, run

SUITE, COMPONENT = "stable", "main"
# The packages are of all; apt asks for its own, and not each of its versions for "all".
ARCHITECTURES = ("amd64", "arm64")
RELEASE = {
    "Origin": "gpushim",
    "Label": "gpushim",
    "Suite": SUITE,
    "Codename": SUITE,
    "Architectures": " ".join(ARCHITECTURES),
    "Components": COMPONENT,
    "Acquire-By-Hash": "yes",
    "Description": "NVIDIA GPUs for containers",
}
OTHER_DIGESTS = ("MD5", "SHA1", "SHA512")


def apt(commit: Commit, packages: list[Path], tree: Path, key: Key | None) -> None:
    """Make a repository for apt.

    Args:
        commit: whose time Release gets.
        packages: debs.
        tree: absent directory.
        key: to sign with.
    """
    pool, suite = tree / "pool", tree / "dists" / SUITE
    pool.mkdir(parents=True)
    for package in packages:
        shutil.copyfile(package, pool / package.name)
    digests = [f"--option=APT::FTPArchive::{name}=false" for name in OTHER_DIGESTS]
    index = run("apt-ftparchive", *digests, "packages", "pool", cwd=tree).encode()
    for architecture in ARCHITECTURES:
        place = suite / COMPONENT / f"binary-{architecture}"
        place.mkdir(parents=True)
        (place / "Packages").write_bytes(index)
        (place / "Packages.gz").write_bytes(gzip.compress(index, mtime=0))
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(commit.epoch))
    fields = [f"--option=APT::FTPArchive::Release::{name}={text}" for name, text in {**RELEASE, "Date": date}.items()]
    (suite / "Release").write_text(run("apt-ftparchive", *digests, *fields, "release", suite))
    for file in sorted(suite.rglob("Packages*")):  # by a name of its own, while a web server gets another release
        by_hash = file.parent / "by-hash/SHA256"
        by_hash.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, by_hash / digest(file))
    if key:
        key.clear(suite / "Release", suite / "InRelease")
        key.detached(suite / "Release", suite / "Release.gpg")


def rpm(commit: Commit, packages: list[Path], tree: Path, key: Key | None) -> None:
    """Make a repository for dnf.

    Args:
        commit: whose time the metadata get.
        packages: rpms, signed if they shall be.
        tree: absent directory.
        key: to sign with.
    """
    tree.mkdir()
    for package in packages:
        shutil.copyfile(package, tree / package.name)
        os.utime(tree / package.name, (commit.epoch, commit.epoch))
    revision = ("--set-timestamp-to-revision", f"--revision={commit.epoch}")
    run("createrepo_c", "--quiet", "--no-database", "--workers=1", *revision, tree)
    if key:
        key.detached(tree / "repodata/repomd.xml", tree / "repodata/repomd.xml.asc")
