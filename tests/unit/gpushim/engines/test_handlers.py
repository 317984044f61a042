"""Which pods need which handler of CRI-O, by what it keeps of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.engines import handlers
from gpushim.ground.errors import GpushimError
from unit.gpushim.engines import kept


def test_pods_with_containers_need_their_handler(tmp_path: Path) -> None:
    """Also those whose own container is one, such as with a process namespace of the pod."""
    for name, handler, containers in (("b", "nvidia", 2), ("a", "nvidia", 1), ("none", "", 1), ("empty", "gpu", 0)):
        kept.pod(tmp_path, name, handler, containers)
    kept.pod(tmp_path, "own", "other", 0, {"spoofed.crio.io": "false"})
    (tmp_path / "overlay").mkdir()
    found = {"nvidia": ["default/a", "default/b"], "": ["default/none"], "other": ["default/own"]}
    assert handlers.pods(str(tmp_path)) == found
    assert handlers.pods(str(tmp_path / "none")) == {}


def test_what_is_podmans_and_what_is_damaged_is_nobodys(tmp_path: Path) -> None:
    kept.pod(tmp_path, "one", "nvidia", more={"io.container.manager": "libpod"})
    for number, text in enumerate((b"", b"{", b"[]", b'{"annotations": 1}', b"[" * 100_000, b"\xff")):
        kept.container(tmp_path, f"c{number}", "one")
        (tmp_path / f"overlay-containers/c{number}/userdata/config.json").write_bytes(text)
    assert handlers.pods(str(tmp_path)) == {}


def test_what_cannot_be_read_is_no_proof_that_nobody_needs_a_handler(tmp_path: Path) -> None:
    (tmp_path / "overlay-containers").touch()
    with pytest.raises(GpushimError, match="cannot be read, so it is unknown which handlers CRI-O needs"):
        handlers.pods(str(tmp_path))


def test_where_they_are_kept(tmp_path: Path) -> None:
    """By its command line, its environment, its settings, and those of all that keep images."""
    shared = [tmp_path / name for name in ("usr", "etc", "none")]
    for path in shared[:2]:
        path.write_text(f'[storage]\ngraphroot = "/{path.name}"\n')
    files = [str(path) for path in shared]
    assert handlers.root(["/given", "/named"], files) == "/given"
    assert handlers.root([None, "", "/named"], files) == "/named"
    assert handlers.root([], files) == "/etc"
    assert handlers.root([None], []) == "/var/lib/containers/storage"
