"""What tests of containerd's settings stand on: the version that is installed, its files, and k3s's directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from click.testing import Result

from gpushim.engines.containerd import imports, process

Call = Callable[..., Result]


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return which containerd is installed; 1.7 unless a test says otherwise."""

    def version(*numbers: int) -> None:
        monkeypatch.setattr(process, "_version", lambda *_: numbers)

    version(1, 7)
    return version


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "containerd").mkdir()
    return tmp_path / "containerd" / "config.toml"


@pytest.fixture
def k3s(tmp_path: Path) -> Path:
    """The directory of k3s's containerd."""
    folder = tmp_path / "k3s" / "agent" / "etc" / "containerd"
    folder.mkdir(parents=True)
    return folder


def ours(config: Path) -> Path:
    """Return gpushim's file of a containerd that imports no directory."""
    return config.parent / "conf.d" / "99-gpushim.toml"


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files of a directory."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def meaning(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = tomlkit.parse(path.read_bytes()).unwrap()
    return data


def plugin(data: dict[str, Any], number: int) -> dict[str, Any]:
    table: dict[str, Any] = data["plugins"][imports.CRI[number]]
    return table


def runtimes(path: Path, number: int = 2) -> dict[str, Any]:
    table: dict[str, Any] = plugin(meaning(path), number)["containerd"]["runtimes"]
    return table


def write(path: Path, *lines: str) -> bytes:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path.read_bytes()


def table(number: int, *more: str) -> str:
    return f"[plugins.'{imports.CRI[number]}'{''.join(f'.{name}' for name in more)}]"
