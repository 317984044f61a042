"""The rpms as files: what rpmlint says, and what is in them; that builds are equal, a release shows."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from e2e import built, pages, rpm_packages, trees
from e2e.rpm_packages import COMPAT, MAIN, PLUGIN, RPM, SOURCE

# Differences between two machines on which the same commit is built.
BUILD = trees.TOP / "packaging/rpm"
SCRIPTS = {
    MAIN: ("POSTIN", "PREUN", "POSTUN", "TRIGGERSCRIPTS"),
    COMPAT: ("POSTIN", "PREUN"),
    PLUGIN: ("POSTIN", "PREUN", "POSTUN"),
}
LIB = f"/usr/lib/gpushim/{built.version_here()}"


@pytest.fixture(scope="module")
def rpms() -> dict[str, Path]:
    return built.packages("rpm")


def ask(package: Path, *words: str) -> list[str]:
    command = [RPM, "--query", "--package", *words, str(package)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def what(package: Path, words: list[str]) -> set[str]:
    """Ask a package for what does not depend on when and by which rpm it was built."""
    lines = [re.sub(r" 1[0-9]{9} ", " TIME ", line) for line in ask(package, *words)]
    return {line for line in lines if not line.startswith("rpmlib(PayloadIs")}


def test_the_source_rpm_gives_the_same_files_without_a_network(rpms: dict[str, Path], tmp_path: Path) -> None:
    defines = [word for name in ("_topdir", "_rpmdir") for word in ("--define", f"{name} {tmp_path}")]
    command = ["/usr/bin/unshare", "--net", rpm_packages.RPMBUILD, "--rebuild", "--nodeps", "--quiet", *defines]
    subprocess.run([*command, str(rpms[SOURCE])], check=True, capture_output=True)
    for name in (MAIN, COMPAT, PLUGIN):
        (rebuilt,) = tmp_path.glob(f"noarch/{name}-[0-9]*.rpm")
        for words in (["--dump"], ["--scripts", "--triggers"], ["--requires", "--provides", "--conflicts"]):
            now, then = (what(package, words) for package in (rebuilt, rpms[name]))
            assert now ^ then == set()


def test_rpmlint_has_nothing_to_say(rpms: dict[str, Path]) -> None:
    command = ["/usr/bin/rpmlint", "--config", str(BUILD / "rpmlint.toml"), *map(str, rpms.values())]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "4 packages and 0 specfiles checked; 0 errors, 0 warnings" in done.stdout, done.stdout


@pytest.mark.parametrize(("name", "tag"), [(name, tag) for name in SCRIPTS for tag in SCRIPTS[name]])
def test_shellcheck_has_nothing_to_say_about_scripts(rpms: dict[str, Path], name: str, tag: str) -> None:
    script = "\n".join(ask(rpms[name], "--queryformat", f"%{{{tag}}}"))
    command = ["/usr/bin/shellcheck", "--shell=sh", "--exclude=SC2317", "-"]  # a function that this script leaves out
    done = subprocess.run(command, input=script, check=False, capture_output=True, text=True)
    assert script
    assert done.stdout == ""


def test_the_version_comes_from_the_source(rpms: dict[str, Path]) -> None:
    (version,) = ask(rpms[MAIN], "--queryformat", "%{VERSION}")
    assert version.replace("~", "") == built.version_here()
    assert f"gpushim = {version}-1" in ask(rpms[COMPAT], "--requires")


@pytest.mark.parametrize(("version", "wanted"), [("1.2.3rc1", "1.2.3~rc1"), ("1.2.dev3", "1.2~dev3"), ("1.2", "1.2")])
def test_what_is_before_a_version_is_before_it_for_rpm(version: str, wanted: str) -> None:
    found = re.search(
        r"^version=\$\(echo \"\$python_version\" \| (.*)\)$", (BUILD / "build").read_text(), re.MULTILINE
    )
    assert found is not None
    done = subprocess.run(["/bin/sh", "-c", found[1]], input=version, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == wanted


def test_everything_is_in_its_place(rpms: dict[str, Path]) -> None:
    rows = ask(rpms[MAIN], "--queryformat", "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}\n]")
    modes = {row.split()[0]: row.split()[1:] for row in rows}
    for path in (
        f"{LIB}/gpushim/create/create.py",
        f"{LIB}/gpuhook/prestart.py",
        f"{LIB}/vendor/pynvml.py",
        f"{LIB}/whole",
    ):
        assert modes[path] == ["-rw-r--r--", "root"]
    for path in ("/usr/bin/gpushim", "/usr/bin/gpushim-runtime", "/usr/bin/gpushim-hook"):
        assert modes[path] == ["-rwxr-xr-x", "root"]
    assert not [path for path in modes if path.endswith(".pyc") or path.startswith(("/lib/", "/usr/local/"))]
    assert ask(rpms[MAIN], "--configfiles") == ["/etc/gpushim/config.toml", "/etc/logrotate.d/gpushim"]
    assert [path for path in modes if path.startswith(f"{LIB}/") and modes[path][0][0] != "d"][-1] == f"{LIB}/whole"


def test_no_file_is_in_two_packages(rpms: dict[str, Path]) -> None:
    inside = [path for name in (MAIN, COMPAT, PLUGIN) for path in ask(rpms[name], "--list")]
    assert len(inside) == len(set(inside))
    assert f"{LIB}/gpuplugin/daemon.py" in ask(rpms[PLUGIN], "--list")


def test_dependencies_are_those_of_every_distribution(rpms: dict[str, Path]) -> None:
    """None is guessed from the Python that builds, and what is bundled is named."""
    needed = [line for line in ask(rpms[MAIN], "--requires") if not line.startswith("rpmlib(")]
    assert sorted(set(needed)) == ["/bin/sh", "coreutils", "grep", "python3 >= 3.9", "python3-pyyaml", "sed"]
    needed = [line for line in ask(rpms[PLUGIN], "--requires") if not line.startswith("rpmlib(")]
    assert sorted(set(needed)) == ["/bin/sh", f"gpushim = {built.version_here()}-1", "python3-grpcio >= 1.46"]
    bundled = re.findall(r"^([a-z-]+)==([0-9.]+)", (BUILD.parent / "bundled.txt").read_text(), re.MULTILINE)
    provided = [line for line in ask(rpms[MAIN], "--provides") if line.startswith("bundled(")]
    assert sorted(provided) == sorted(f"bundled(python3dist({name})) = {version}" for name, version in bundled)


def test_links_of_the_pages_lead_somewhere(rpms: dict[str, Path], tmp_path: Path) -> None:
    """Where the package lays them, anchors too."""
    archive = subprocess.run(["/usr/bin/rpm2cpio", str(rpms[MAIN])], check=True, capture_output=True).stdout
    command = ["/usr/bin/cpio", "--extract", "--make-directories", "--quiet", "--no-absolute-filenames"]
    subprocess.run(command, input=archive, check=True, cwd=tmp_path)
    (top,) = (tmp_path / "usr/share/doc").glob("gpushim*")
    found = sorted(top.rglob("*.md"))
    assert {page.name for page in (*pages.PAGES, pages.TOP / "SECURITY.md")} <= {page.name for page in found}
    assert [link for page in found for link in pages.broken(page)] == []


def test_the_readme_installs_both_packages_at_once(rpms: dict[str, Path]) -> None:
    line = next(line for line in (pages.TOP / "README.md").read_text().splitlines() if "dnf install" in line)
    patterns = [word.strip("`./,") for word in line.split() if word.startswith("./")]
    built_here = [[name for name, path in rpms.items() if fnmatch(path.name, pattern)] for pattern in patterns]
    assert built_here == [[MAIN], [COMPAT]]
