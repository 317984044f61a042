"""The Debian packages as files: what is in them; that the same sources give the same bytes, a release shows.

Out of scope: what lintian says, for which test_release.py fails; so does tools/release.
"""

from __future__ import annotations

import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from e2e import built, pages, trees
from e2e.packages import COMPAT, MAIN, PLUGIN

# Differences between two machines on which the same commit is built.
BUILD = trees.TOP / "packaging/deb/build"


@pytest.fixture(scope="module")
def debs() -> dict[str, Path]:
    return built.packages("deb")


def field(package: Path, name: str) -> str:
    command = ["/usr/bin/dpkg-deb", "--field", str(package), name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def contents(package: Path) -> dict[str, list[str]]:
    """Return the words that tar has for each file: mode, owner, size, time."""
    command = ["/usr/bin/dpkg-deb", "--contents", str(package)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [line.split(maxsplit=5) for line in lines]
    return {row[5].removeprefix(".").partition(" -> ")[0]: row for row in rows}


def test_version_comes_from_the_source(debs: dict[str, Path]) -> None:
    assert field(debs[MAIN], "Version") == f"{built.version_here()}-1"
    for name in (COMPAT, PLUGIN):
        assert f"gpushim (= {built.version_here()}-1)" in field(debs[name], "Depends").split(", ")


@pytest.mark.parametrize(("version", "debian"), [("1.2.3rc1", "1.2.3~rc1-1"), ("1.2.dev3", "1.2~dev3-1")])
def test_what_is_before_a_version_is_before_it_for_dpkg(version: str, debian: str) -> None:
    line = next(line for line in BUILD.read_text().splitlines() if "a\\|b\\|rc" in line)
    script = line.strip().rstrip(")")
    done = subprocess.run(["/bin/sh", "-c", script], input=version, capture_output=True, text=True, check=True)
    assert f"{done.stdout.strip()}-1" == debian


def test_everything_is_in_its_place(debs: dict[str, Path]) -> None:
    inside = contents(debs[MAIN])
    lib = f"/usr/lib/gpushim/{built.version_here()}"
    for path in (
        f"{lib}/gpushim/create/create.py",
        f"{lib}/gpuhook/prestart.py",
        f"{lib}/vendor/pynvml.py",
        f"{lib}/whole",
    ):
        assert inside[path][:2] == ["-rw-r--r--", "root/root"]
    for path in ("/usr/bin/gpushim", "/usr/bin/gpushim-runtime", "/usr/bin/gpushim-hook"):
        assert inside[path][:2] == ["-rwxr-xr-x", "root/root"]
    assert not [path for path in inside if path.endswith(".pyc") or path.startswith(("/lib/", "/usr/local/"))]
    settings = {path for path in inside if path[:5] == "/etc/" and path[-1] != "/"}
    assert settings == {"/etc/gpushim/config.toml", "/etc/logrotate.d/gpushim"}


def test_the_device_plugin_is_in_its_own_package(debs: dict[str, Path]) -> None:
    inside = {name: {path for path in contents(path) if path[-1] != "/"} for name, path in debs.items()}
    named = {
        path for path in inside[MAIN] | inside[COMPAT] if "/gpuplugin/" in path or "gpushim-device-plugin" in path
    }
    assert named == {"/usr/share/man/man1/gpushim-device-plugin.1.gz"}  # of the command `gpushim device-plugin`
    assert f"/usr/lib/gpushim/{built.version_here()}/gpuplugin/daemon.py" in inside[PLUGIN]
    assert not inside[MAIN] & inside[PLUGIN]


def test_last_file_says_that_all_are_there(debs: dict[str, Path]) -> None:
    """The programs wait for it while an upgrade lays the files of their version down."""
    lib = f"/usr/lib/gpushim/{built.version_here()}/"
    private = [path for path in contents(debs[MAIN]) if path.startswith(lib) and path[-1] != "/"]
    assert private[-1] == lib + "whole"


def test_links_of_the_pages_lead_somewhere(debs: dict[str, Path], tmp_path: Path) -> None:
    """Where the package lays them, anchors too; the picture is not compressed."""
    subprocess.run(["/usr/bin/dpkg-deb", "--extract", str(debs[MAIN]), str(tmp_path)], check=True)
    found = sorted((tmp_path / "usr/share/doc/gpushim").rglob("*.md"))
    assert {page.name for page in found} == {page.name for page in (*pages.PAGES, pages.TOP / "SECURITY.md")}
    assert [link for page in found for link in pages.broken(page)] == []


def test_the_readme_installs_both_packages_at_once(debs: dict[str, Path]) -> None:
    line = next(line for line in (pages.TOP / "README.md").read_text().splitlines() if "apt install" in line)
    patterns = [word.strip("`./") for word in line.split() if word.startswith("./")]
    built_here = [[name for name, path in debs.items() if fnmatch(path.name, pattern)] for pattern in patterns]
    assert built_here == [[MAIN], [COMPAT]]


def test_two_sources_of_one_repository_need_one_key(tmp_path: Path) -> None:
    """What apt says of a leftover line beside the file that packages.md has."""
    (block,) = (b.text for b in pages.blocks((pages.TOP / "docs/packages.md").read_text()) if "Signed-By:" in b.text)
    (tmp_path / "gpushim.sources").write_text(block)
    line = block.replace("/gpushim.asc", "/other.asc")
    (tmp_path / "old.sources").write_text(line)
    command = ["/usr/bin/apt-get", "indextargets", "-o", "Dir::Etc::sourcelist=/dev/null"]
    command += ["-o", f"Dir::Etc::sourceparts={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "E: Conflicting values set for option Signed-By regarding source" in done.stderr
    (tmp_path / "old.sources").unlink()
    subprocess.run(command, check=True)
