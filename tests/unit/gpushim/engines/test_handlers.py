"""Which pods need which handler of CRI-O, by what it keeps of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpushim.engines import handlers
from gpushim.ground import bounds
from gpushim.ground.errors import GpushimError
from unit.gpushim.engines import kept

UNKNOWN = "cannot be read, so it is unknown which handlers CRI-O needs: "


def test_pods_with_containers_need_their_handler(tmp_path: Path) -> None:
    """Also those whose own container is one, such as with a process namespace of the pod."""
    for name, handler, containers in (("b", "nvidia", 2), ("a", "nvidia", 1), ("none", "", 1), ("empty", "gpu", 0)):
        kept.pod(tmp_path, name, handler, containers)
    kept.pod(tmp_path, "own", "other", 0, {"spoofed.crio.io": "false"})
    (tmp_path / "overlay").mkdir()
    found = {"nvidia": ["default/a", "default/b"], "": ["default/none"], "other": ["default/own"]}
    assert handlers.pods(str(tmp_path)) == found
    assert handlers.pods(str(tmp_path / "none")) == {}


def test_what_is_podmans_or_goes_meanwhile_is_nobodys(tmp_path: Path) -> None:
    kept.pod(tmp_path, "theirs", "nvidia", more={"io.container.manager": "libpod"})
    kept.pod(tmp_path, "ours", "gpu")
    (tmp_path / "overlay-containers/containers.json").touch()
    (tmp_path / "overlay-containers/new").mkdir()
    for name in ("a", "z"):
        (tmp_path / f"{name}-containers").symlink_to("gone")
    assert handlers.pods(str(tmp_path)) == {"gpu": ["default/ours"]}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"annotations": 1}', b'{"annotations": {"x": []}}', b"[" * 100_000, b"\xff"]
)
def test_a_container_whose_file_is_damaged_may_need_any_handler(
    tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.container(tmp_path, "one", "pod")
    (tmp_path / "overlay-containers/one/userdata/config.json").write_bytes(text)
    monkeypatch.setattr(handlers, "WRITING", 0.0)
    with pytest.raises(GpushimError, match=f"one/userdata/config.json {UNKNOWN}it is damaged"):
        handlers.pods(str(tmp_path))


def test_a_file_that_is_being_written_is_read_when_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.pod(tmp_path, "one", "nvidia")
    path = tmp_path / "overlay-containers/one/userdata/config.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    monkeypatch.setattr(time, "sleep", lambda _: path.write_bytes(whole))
    assert handlers.pods(str(tmp_path)) == {"nvidia": ["default/one"]}


def test_a_container_may_not_hide_behind_what_it_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as gpushim-runtime reads of a container, such as its variables."""
    kept.pod(tmp_path, "one", "nvidia")
    path = tmp_path / "overlay-containers/one/userdata/config.json"
    path.write_text(path.read_text().ljust(5 << 20))
    assert handlers.pods(str(tmp_path)) == {"nvidia": ["default/one"]}
    monkeypatch.setattr(bounds, "CONFIG_JSON", 4 << 20)
    with pytest.raises(GpushimError, match=f"{UNKNOWN}File too large"):
        handlers.pods(str(tmp_path))


def test_names_of_pods_bring_nothing_to_a_terminal(tmp_path: Path) -> None:
    kept.pod(tmp_path, "one", "nvidia", more={"io.kubernetes.pod.name": "\x1b[2Jx\n"})
    assert r"the containers of default/\x1b[2Jx\n without" in handlers.why(handlers.pods(str(tmp_path)))


def test_what_cannot_be_read_is_no_proof_that_nobody_needs_a_handler(tmp_path: Path) -> None:
    (tmp_path / "overlay-containers").touch()
    with pytest.raises(GpushimError, match=UNKNOWN):
        handlers.pods(str(tmp_path))
    with pytest.raises(GpushimError, match=f"none {UNKNOWN}No such file"):
        handlers.pods(str(tmp_path / "none"), must_exist=True)


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
