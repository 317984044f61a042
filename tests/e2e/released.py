"""Releases of this checkout, made by tools/release: without a key, and elsewhere with one; and a site for them.

They are of a commit of their own, with what lies in this checkout, and kept below `.cache/release`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import scratch
from e2e import built, image, trees

CACHE = trees.TOP / ".cache" / "release"
EPOCH = 1700000000
SECONDS = 600.0
GIT = ("/usr/bin/git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")
ELSEWHERE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8"}


def release(signed: bool) -> Path:
    """Return the directory of a release; all are of the same commit."""
    recipe, name = built.recipe(tuple(_listed())), "signed" if signed else "plain"
    place = CACHE / f"{recipe}-{name}"
    with trees.locked(CACHE), tempfile.TemporaryDirectory(dir=CACHE) as work:
        if not place.is_dir():
            commit(Path(work, "one"))
            if signed:
                subprocess.run([*GIT, "clone", "--quiet", Path(work, "one"), Path(work, "two")], check=True)
                _ready(Path(work, "two"))
                with key() as env:
                    make(Path(work, "two"), Path(work, "place"), "--key", "release@example.org", **env, **ELSEWHERE)
            else:
                make(Path(work, "one"), Path(work, "place"))
            for old in CACHE.glob("????????????*"):
                if not old.name.startswith(recipe):
                    shutil.rmtree(old)
            Path(work, "place").rename(place)
    return place


def commit(directory: Path) -> None:
    """Make a repository in an absent directory, of which a release can be made."""
    for name in _listed():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(trees.TOP / name, directory / name, follow_symlinks=False)
    log = directory / "CHANGELOG.md"
    heading = rf"^## {re.escape(built.version_here())} — .*$"
    log.write_text(re.sub(heading, f"## {built.version_here()} — 2026-01-01", log.read_text(), flags=re.MULTILINE))
    times = {f"GIT_{who}_DATE": f"{EPOCH} +0000" for who in ("AUTHOR", "COMMITTER")}
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "All"]):
        subprocess.run([*GIT, *words], cwd=directory, check=True, env={**os.environ, **times})
    _ready(directory)


def _listed() -> list[str]:
    words = [*GIT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=trees.TOP, check=True, capture_output=True).stdout.decode().split("\0")
    return [name for name in listed if name and os.path.lexists(trees.TOP / name)]


def _ready(directory: Path) -> None:
    with (directory / ".git/info/exclude").open("a") as ignored:
        ignored.write("/.venv\n")
    (directory / ".venv").symlink_to(trees.TOP / ".venv")


def make(top: Path, directory: Path, *words: str, **env: str) -> None:
    """Let a checkout's tools/release make a release, whose image begins as that of the other tests."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "GPUSHIM_BUNDLED": str(built.bundled()), **env}
    command: list[str | Path] = [top / "tools/release", "--base", image.base("x86_64"), *words, directory]
    umask = 0o077 if words else 0o022
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS, umask=umask
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("NOT signed" in done.stdout) != bool(words)


@contextlib.contextmanager
def key() -> Iterator[dict[str, str]]:
    """Make a key of gpg's, as docs/releasing.md does; yield the variables by which it is found."""
    home = tempfile.mkdtemp(prefix="gpg-", dir=scratch.top())  # a socket's path ends at 107 bytes
    gpg = ["/usr/bin/gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", ""]
    try:
        told = ["--quick-generate-key", "gpushim releases <release@example.org>", "rsa3072", "sign", "never"]
        subprocess.run([*gpg, *told], check=True, capture_output=True)
        yield {"GNUPGHOME": home}
    finally:
        subprocess.run(["/usr/bin/gpgconf", "--homedir", home, "--kill", "all"], check=True)
        shutil.rmtree(home)


@dataclass
class Site:
    """A web server with a release.

    Args:
        url: of its top.
        asked: the paths that were asked for.
    """

    url: str
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def site(directory: Path) -> Iterator[Site]:
    """Serve a release's files on the loopback interface, as any web server would."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # as it is called there
            found.asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory))) as server:
        found = Site(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
