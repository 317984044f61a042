"""What a release is made of: packages, the image and its base, each by its own script, side by side."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from release.checkout import TOP, Commit
from release.steps import run, say

ARCH = "x86_64"  # the other has run in an emulated machine only


@dataclass(frozen=True)
class Made:
    """Directories with what was made.

    Args:
        sources: the commit's files; their archive is beside them.
        bundled: the Python packages that are bundled.
        debs: Debian's packages.
        rpms: rpms, and that of the source.
        image: the image's archive and its list of contents.
        base: archive of what the image begins with.
    """

    sources: Path
    bundled: Path
    debs: Path
    rpms: Path
    image: Path
    base: Path


def everything(commit: Commit, sources: Path, work: Path, base: Path | None) -> Made:
    """Make packages and image.

    Args:
        commit: whose time all files get.
        sources: its files.
        work: an empty directory.
        base: what the image begins with; None for Debian's packages of today.

    Raises:
        ReleaseError: a script fails.
    """
    say("installing what is missing of the programs for it")
    run(TOP / "tools/setup.sh", "release")
    bundled = Path(os.environ.get("GPUSHIM_BUNDLED") or work / "bundled")
    if not bundled.is_dir():
        run(sources / "tools/vendor", bundled)
    made = Made(sources, bundled, work / "debs", work / "rpms", work / "image", work / "base.tar")
    env = {"SOURCE_DATE_EPOCH": str(commit.epoch), "GPUSHIM_BUNDLED": str(bundled)}

    def image() -> None:
        if base is None:
            run(sources / "packaging/image/base", made.base, ARCH)
        else:
            shutil.copyfile(base, made.base)
        run(
            sources / "packaging/image/build",
            "--base",
            f"oci-archive:{made.base}",
            "--arch",
            ARCH,
            made.image,
            env=env,
        )

    say(f"building packages and image of gpushim {commit.version}")
    with ThreadPoolExecutor() as pool:
        steps: list[Future[object]] = [
            pool.submit(run, sources / "packaging/deb/build", made.debs, env=env),
            pool.submit(run, sources / "packaging/rpm/build", made.rpms, env=env),
            pool.submit(image),
        ]
    for step in steps:
        step.result()
    return made
