"""What is laid down, and in which order; whose files are in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplugin.node import host, owners
from gpuplugin.node import payload as payloads
from gpushim.config import policy
from gpushim.ground.errors import GpushimError

TOP = Path(__file__).parents[4]

FILES = (
    "usr/bin/gpushim",
    "usr/lib/gpushim/1.2/whole",
    "usr/lib/gpushim/1.2/zz.py",
    "usr/lib/gpushim/1.2/gpushim/a.py",
    "usr/lib/gpushim/1.2/gpushim/__pycache__/a.pyc",
    "usr/lib/systemd/system/gpushim-mps@.service",
    "usr/lib/systemd/system/gpushim-refresh.service",
    "usr/lib/udev/rules.d/60-gpushim.rules",
    "usr/lib/sysusers.d/gpushim-dra-driver.conf",
    "etc/gpushim/config.toml",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for file in FILES:
        (path := tmp_path / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    return tmp_path / "tree"


def test_the_version_s_files_come_first_and_programs_last(tree: Path) -> None:
    found = payloads.read_payload(str(tree))
    assert (found.version, found.lib) == ("1.2", "/usr/lib/gpushim/1.2/")
    assert [*found.files] == [
        "/usr/lib/gpushim/1.2/gpushim/a.py",
        "/usr/lib/gpushim/1.2/zz.py",
        "/usr/lib/gpushim/1.2/whole",
        "/etc/gpushim/config.toml",
        "/usr/lib/systemd/system/gpushim-mps@.service",
        "/usr/bin/gpushim",
    ]


def test_config_toml_gets_the_driver_root_that_is_asked_for(tree: Path) -> None:
    """As the package has the file, which says nothing of it."""
    (tree / "etc/gpushim/config.toml").write_bytes((TOP / "packaging/config.toml").read_bytes())
    for root, said in (("", "/"), ('/run/nvidia/dr"iver', '/run/nvidia/dr"iver')):
        found = payloads.read_payload(str(tree), root)
        config = tree / "config"
        config.write_bytes(found.files[payloads.CONFIG].data)
        assert (policy.load(str(config))["driver"]["root"], found.root) == (said, root)


def test_two_versions_are_none(tree: Path) -> None:
    (tree / "usr/lib/gpushim/1.3").mkdir()
    (tree / "usr/lib/gpushim/1.3/whole").touch()
    with pytest.raises(GpushimError, match="has no version of gpushim for nodes"):
        payloads.read_payload(str(tree))


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("gpushim: /usr/bin/gpushim", "gpushim"),
        ("gpushim, other: /usr/bin/gpushim", "gpushim"),
        ("diversion by dash from: /usr/bin/x", ""),
        ("file /usr/bin/gpushim is not owned by any package", ""),
        ("", ""),
    ],
)
def test_the_package_that_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, name: str) -> None:
    (program := tmp_path / "query").write_text(f"#!/bin/sh\necho '{answer}'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(owners, "QUESTIONS", (("/gone", ["/bin/false"]), (str(tmp_path), [str(program)])))
    assert owners.find_package(["/usr/bin/gpushim"]) == name


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ((), "is not the root of a node: it has no etc; mount the node's /"),
        (("etc", "run", "usr/bin", "var/lib"), "is not the root of a node: it has no proc/1/ns"),
        (host.NEEDED, "proc/1/ns/pid: No such file or directory; the container must be privileged"),
    ],
)
def test_a_directory_that_is_no_node_s_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    for folder in made:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(GpushimError) as told:
        host.check_root(str(tmp_path))
    assert sentence in str(told.value)
