"""Make a release and check it; docs/releasing.md says what it has and what to do with it.

Out of scope: testing the commit, tagging it, and publishing anything.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release import checkout, make, publish, verify
from release.signing import Key
from release.steps import ReleaseError, say


def main(argv: list[str]) -> int:
    """Make the release in a directory that is absent or empty.

    Args:
        argv: as tools/release has them.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="tools/release", description="Make a release of what is committed.")
    parser.add_argument("--key", default=os.environ.get("GPUSHIM_RELEASE_KEY", ""), help="of gpg's, to sign with")
    parser.add_argument("--base", type=Path, help="an archive of packaging/image/base, for the image to begin with")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the release goes; absent or empty")
    given = parser.parse_args(argv)
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        _release(given.directory.resolve(), given.base and given.base.resolve(), given.key)
    except (ReleaseError, OSError) as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    return 0


def _release(directory: Path, base: Path | None, key_id: str) -> None:
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise ReleaseError(f"{directory} is there and not empty; name another, or remove it")
    if base is not None and not base.is_file():
        raise ReleaseError(f"--base: there is no file {base}; packaging/image/base makes one")
    commit = checkout.ready()
    key = Key.of(key_id)
    with checkout.scratch(directory.parent) as work:
        sources = checkout.unpacked(commit, work)
        made = make.everything(commit, sources, work, base)
        out = publish.laid(commit, made, work, key)
        verify.everything(commit, out, work, key)
        if directory.exists():
            directory.rmdir()
        out.rename(directory)
    how = f"signed by {key.fingerprint}" if key else "NOT signed: there was no --key"
    say(f"{directory} has gpushim {commit.version}, {how}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
