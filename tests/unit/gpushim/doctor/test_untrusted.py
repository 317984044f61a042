"""What others have written, or may write, is never made root's by a fix: they play along, with their files open."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushim.doctor import checks, untrusted
from gpushim.paths import trust
from unit.gpushim.doctor.fault import State
from unit.gpushim.doctor.general_states import BY_NAME
from unit.gpushim.doctor.patient import REPOSITORY, Patient

pytestmark = pytest.mark.slow
EVIL = b"\n# of a stranger's\n"
USER = 1000
OPEN = (
    *("a_config_of_everybodys", "a_config_of_a_users", "spec_of_a_users", "directory_of_specs_of_everybodys"),
    *("spec_in_a_directory_of_everybodys", "spec_of_before_in_a_directory_of_everybodys", "untrusted_spec"),
    *("a_dockerd_of_everybodys", "a_dockerd_in_a_directory_of_its_group"),
)


def files(place: Path) -> Iterator[Path]:
    yield from (Path(above, name) for above, _, names in os.walk(place) for name in names)


def a_strangers(folder: Path) -> Path:
    """A file that a stranger has put into a directory in which he may."""
    path = folder / "dockerd.json"
    path.write_bytes(EVIL)
    os.chown(path, USER, USER)
    return path


@pytest.mark.parametrize("state", [BY_NAME[name] for name in OPEN], ids=str)
def test_a_stranger_with_a_file_open_wins_nothing(patient: Patient, state: State) -> None:
    state.plant(patient)
    for folder in {path.parent for path in files(patient.folder)}:
        if trust.others_may(folder.stat()):
            a_strangers(folder)
    theirs = [path for path in files(patient.folder) if not path.is_symlink() and trust.others_may(path.stat())]
    held = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in theirs if path.is_file()]
    found = next(each for each in checks.GENERAL[state.check](patient.host) if each.fix)
    assert "chown" not in found.fix
    _, then, command = found.fix.rpartition("; then ")
    if not state.by or then:
        environment = {"PATH": f"{REPOSITORY}/bin:/usr/bin:/bin:/usr/sbin"}
        environment.update(GPUSHIM_CONFIG=patient.config, GPUSHIM_STATE=patient.state)
        subprocess.run(["/bin/sh", "-c", command], env=environment, input=b"y\n", check=False, capture_output=True)
    for fd in held:
        os.write(fd, EVIL)
        os.close(fd)
    assert not [path for path in files(patient.folder) if _ours(path) and EVIL in path.read_bytes()]


def _ours(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and not trust.others_may(path.stat())


@pytest.mark.parametrize("answer", ["", "n\n"])
def test_nothing_is_put_in_place_unseen(tmp_path: Path, answer: str) -> None:
    file = tmp_path / "a file"
    file.write_text("\033[2Jof a stranger's")
    file.chmod(0o666)
    command = ["/bin/sh", "-c", untrusted.file(str(file))]
    ran = subprocess.run(command, input=answer, capture_output=True, text=True, check=False)
    assert ran.stdout == "^[[2Jof a stranger's"
    assert file.stat().st_mode & 0o777 == 0o666


def test_what_others_have_put_into_a_directory_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    folder.chmod(0o2775)
    theirs = a_strangers(folder)
    (folder / "ours").touch()
    (folder / "open").touch()
    (folder / "open").chmod(0o666)
    ran = subprocess.run(
        ["/bin/sh", "-c", untrusted.directory(str(folder))], capture_output=True, text=True, check=True
    )
    assert sorted(line.split("/")[-1] for line in ran.stdout.splitlines()) == sorted([theirs.name, "open"])
    assert not trust.others_may(folder.stat())


def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home/u"
    home.joinpath("bin").mkdir(parents=True)
    for path in (home, home / "bin"):
        os.chown(path, USER, USER)
    known = type("Entry", (), {"pw_dir": str(home)})
    monkeypatch.setattr("pwd.getpwuid", lambda uid: known)
    return home


def test_no_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = homes(tmp_path, monkeypatch)
    program = home / "bin/dockerd"
    program.touch(0o755)
    link = tmp_path / "podman"
    link.symlink_to(program)
    assert untrusted.program(str(program)) == untrusted.program(str(link)) == untrusted.REINSTALL
    for folder in (home, home / "bin", home.parent):
        os.chown(folder, USER, USER)
        assert untrusted.directory(str(folder)) == ""


def test_a_link_of_a_strangers_is_removed(tmp_path: Path) -> None:
    link = tmp_path / "podman"
    link.symlink_to("/bin/true")
    os.chown(link, USER, USER, follow_symlinks=False)
    assert untrusted.program(str(link)) == f"remove {link} and install it from its package"
    assert untrusted.file(str(link)) == untrusted.away(str(link))


@pytest.mark.parametrize("take", [untrusted.file, untrusted.directory, untrusted.away])
def test_no_name_beside_what_is_moved_leads_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[str], str]
) -> None:
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path / "state"))
    theirs, path = tmp_path / "theirs", tmp_path / "all" / "it"
    theirs.mkdir()
    path.parent.mkdir(mode=0o777)
    path.mkdir() if take is untrusted.directory else path.write_bytes(EVIL)
    os.chown(path, USER, USER)
    for name in ("it.untrusted", "it.old", "it.checked", "it.1"):
        path.with_name(name).symlink_to(theirs)
    command = ["/bin/sh", "-c", take(str(path))]
    for _ in range(2):  # the same command, as two fixes of one report are for files of one name
        subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin"})
        assert not path.exists()
        path.mkdir()
    assert not [*theirs.iterdir()]
    assert [entry.name for entry in (tmp_path / "state/moved").glob("*/*")] == ["it", "it"]


def _linked(conf: Path) -> None:
    theirs = conf.parents[2] / "theirs"
    conf.parent.rename(theirs)
    conf.parent.symlink_to(theirs)
    theirs.chmod(0o777)


@pytest.mark.parametrize("open_up", [
    lambda conf: conf.chmod(0o666),
    lambda conf: os.chown(conf, USER, USER),
    lambda conf: conf.parent.chmod(0o775),
    lambda conf: os.chown(conf.parent, USER, USER),
    _linked,
], ids=["everybodys", "a user's", "a group's directory", "a user's directory", "behind a link"])  # fmt: skip
def test_no_cluster_is_asked_with_a_kubeconfig_of_others(patient: Patient, open_up: Callable[[Path], None]) -> None:
    open_up(patient.top / "etc/kubernetes/admin.conf")
    (found,) = patient.said("kubernetes-runtime-class")
    assert (found.verdict, found.fix) == ("skipped", "")
    assert "can name programs to execute" in found.evidence


def test_what_lies_behind_a_link_of_roots_is_listed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o777)
    (tmp_path / "there").chmod(0o777)
    a_strangers(tmp_path / "there")
    (tmp_path / "link").symlink_to("there")
    command = ["/bin/sh", "-c", untrusted.directory(str(tmp_path / "link"))]
    assert "dockerd.json" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
