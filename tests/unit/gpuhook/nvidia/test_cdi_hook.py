"""Hooks from CDI specs of NVIDIA's tools, as processes that stand where a runtime would start them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpuhook.nvidia import cdi_hook
from gpushim.ground.errors import GpushimError
from unit.gpuhook.nvidia.cdicalls import call, done
from unit.gpuhook.sandbox import HOOK, container, picture
from unit.gpuhook.trees import DRV


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--link", "a::b", "--link=c::d,e::f"], {"link": ["a::b", "c::d", "e::f"]}),
        (["-folder", "/x", "-folder=/y, /z"], {"folder": ["/x", "/y", "/z"]}),
        (["--debug", "--quiet", "-d", "--debug=true", "--mode", "755"], {"mode": ["755"]}),
        (["--what", "ever", "--mode=7=7"], {"mode": ["7=7"]}),
        (["--mode", "--link"], {"mode": ["--link"]}),
        (["--link="], {"link": []}),
        (["stray", "-", "--"], {}),
        (["--container-spec", "a,b"], {"container-spec": ["a,b"]}),
    ],
)
def test_options(words: list[str], found: dict[str, list[str]]) -> None:
    assert cdi_hook.parse(words, ("link", "folder", "mode")) == found


def test_an_option_without_its_value() -> None:
    with pytest.raises(GpushimError, match="--link has no value"):
        cdi_hook.parse(["--link"], ("link",))


@pytest.mark.parametrize(
    ("name", "words", "code", "text"),
    [
        ("nvidia-cdi-hook", [], 0, "no hook is named"),
        ("nvidia-cdi-hook", ["foo", "--bar"], 0, "no hook 'foo'"),
        ("nvidia-cdi-hook", ["--quiet", "x\ny"], 0, r"x\\ny"),
        ("nvidia-cdi-hook", ["hook", "chmod"], 0, "no hook 'hook'"),
        ("nvidia-ctk", ["hook"], 0, "no hook is named"),
        ("nvidia-ctk", ["--debug", "hook", "-d", "new"], 0, "no hook 'new'"),
    ],
)
def test_other_words(root: Path, pid: int, name: str, words: list[str], code: int, text: str) -> None:
    before = picture(root)
    status, said = call(root, pid, *words, name=name, state=[])
    assert (status, said.count("\n")) == (code, 1)
    assert text in said
    assert picture(root) == before


@pytest.mark.parametrize(
    "words",
    [
        ["create-symlinks", "--link", "a"],
        ["create-symlinks", "--link", "a::b::c"],
        ["create-symlinks", "--link", "::b"],
        ["create-symlinks", "--link", "a::/b/.."],
        ["create-symlinks", "--link", "a::"],
        ["chmod", "--mode", "9", "--path", "/etc"],
        ["chmod", "--mode", "-1", "--path", "/etc"],
        ["chmod", "--mode", "77777", "--path", "/etc"],
        ["chmod", "--path", "/etc"],
        ["enable-cuda-compat", "--cuda-compat-container-root", "relative"],
    ],
)
def test_wrong_values(root: Path, pid: int, words: list[str]) -> None:
    before = picture(root)
    code, said = call(root, pid, *words)
    assert (code, said.count("\n")) == (2, 1)
    assert picture(root) == before


@pytest.mark.parametrize(
    "state",
    [[], {"bundle": "x"}, {"bundle": "/nowhere"}, {"pid": 1 << 30, "bundle": "BUNDLE"}, {"status": "running"}],
)
def test_states_that_name_no_container(root: Path, pid: int, state: object) -> None:
    text = json.loads(json.dumps(state).replace("BUNDLE", str(root.parent)))
    code, said = call(root, pid, "chmod", "--mode", "0", "--path", "/", state=text)
    assert code in (14, 16)
    assert said.count("\n") == 1


@pytest.mark.parametrize("path", ["/", "", "../../../../../../../../..", "root/up"])
@pytest.mark.parametrize("inside", [False, True])
def test_the_root_directory_itself_is_refused(root: Path, pid: int, path: str, inside: bool) -> None:
    (root / "up").symlink_to("/")
    (root.parent / "config.json").write_text(json.dumps({"root": {"path": path}}))
    for words in (["create-symlinks", "--link", "x::/gpushim-was-here"], ["chmod", "--mode", "777", "--path", "/"]):
        code, said = call(root, pid, *words, inside=pid if inside else 0)
        assert code in (14, 16), said
    assert not os.path.lexists("/gpushim-was-here")
    assert os.stat("/").st_mode & 0o777 != 0o777


@pytest.mark.parametrize("given", ["runc's", "crun's"])
def test_in_the_containers_namespace(root: Path, given: str) -> None:
    script = f"mount --bind '{root}' '{root}'; mount -t tmpfs none '{root}/opt'"
    with container(script) as made:
        number = 0 if given == "crun's" else made
        code, said = call(root, number, "create-symlinks", "--link", f"x::{DRV}/y,x::/opt/y", inside=made)
        assert code == 0
        assert "another mount" in said  # /opt, which only that namespace has
    assert os.readlink(root / DRV[1:] / "y") == "x"
    assert not os.path.lexists(root / "opt/y")


def test_the_containers_own_pid_namespace(root: Path) -> None:
    """There the state's pid is 1, which for the host's /proc is another process."""
    script = f"mount --bind '{root}' '{root}'; mount -t tmpfs none '{root}/opt'; "
    script += f'echo \'{{"pid": 1, "bundle": "{root.parent}"}}\' >\'{root.parent}/state\'; '
    words = f"'{HOOK.with_name('nvidia-cdi-hook')}' create-symlinks --link x::/opt/y,x::/z <'{root.parent}/state'"
    command = [
        "/usr/bin/unshare",
        "--mount",
        "--pid",
        "--fork",
        "/bin/sh",
        "-ec",
        f'{script} /bin/sh -c "{words}; :"',
    ]
    run = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "skipped /opt/y: lies on another mount" in run.stderr
    assert os.readlink(root / "z") == "x"


@pytest.mark.parametrize("form", ["-", "FILE"])
def test_the_state_from_a_file(root: Path, pid: int, form: str) -> None:
    (root.parent / "state").write_text(json.dumps({"pid": pid, "bundle": str(root.parent)}))
    path = form.replace("FILE", str(root.parent / "state"))
    assert done(root, pid, "create-symlinks", "--container-spec", path, "--link", "x::/y") == ""
    assert os.readlink(root / "y") == "x"


@pytest.mark.parametrize("path", ["/nowhere", "/dev/zero", "/etc", "FIFO", "LARGE"])
def test_odd_files_for_the_state(root: Path, pid: int, path: str) -> None:
    os.mkfifo(root.parent / "fifo")
    (root.parent / "large").touch()
    os.truncate(root.parent / "large", 1 << 32)
    path = path.replace("FIFO", str(root.parent / "fifo")).replace("LARGE", str(root.parent / "large"))
    code, said = call(root, pid, "chmod", "--mode", "1", "--container-spec", path)
    assert (code, said.count("\n")) == (16, 1)


@pytest.mark.parametrize("link", ["a/b/c", "/a/b/c", "../../a/b/c", "/a/../a/b/c", "//a//b//c"])
def test_links_and_their_directories(root: Path, pid: int, link: str) -> None:
    for _ in range(2):
        assert done(root, pid, "create-symlinks", "--link", f"../x::{link}") == ""
    assert os.readlink(root / "a/b/c") == "../x"
    assert (root / "a/b").stat().st_mode & 0o777 == 0o755


def test_what_is_in_the_place_of_a_link(root: Path, pid: int) -> None:
    (root / "file").write_text("x")
    (root / "folder").mkdir()
    (root / "link").symlink_to("elsewhere")
    said = done(root, pid, "create-symlinks", "--link", "t::file,t::folder,t::link")
    assert [os.readlink(root / name) for name in ("file", "link")] == ["t", "t"]
    assert "skipped /folder: Is a directory" in said


@pytest.mark.parametrize(
    ("name", "target"),
    {
        "etc": "CANARY",
        "usr": "../../canary",
        "usr/lib/drv": "CANARY",
        "etc/ld.so.conf.d": "../../canary",
        "etc/ld.so.cache": "loop",
        "etc/nvidia": "/nowhere/else",
        "opt": "/",
        "dev": "../../../../..",
    }.items(),
)
def test_links_that_lead_out(root: Path, pid: int, name: str, target: str) -> None:
    canary = root.parent / "canary"
    (canary / "file").write_text("x")
    before = picture(canary)
    place = root / name
    if os.path.lexists(place):
        place.rename(root / "moved")
    place.symlink_to(place.name if target == "loop" else target.replace("CANARY", str(canary)))
    for words in (
        ["create-symlinks", "--link", f"x::/{name}/file,x::/{name}/new/new"],
        ["update-ldcache", "--folder", f"/{name},{DRV}"],
        ["create-soname-symlinks", "--folder", f"/{name}"],
        ["enable-cuda-compat", "--host-driver-version", "550.1", "--cuda-compat-container-root", f"/{name}"],
        ["chmod", "--mode", "700", "--path", f"/{name},/{name}/file"],
        ["update-application-profile"],
        ["disable-device-node-modification"],
    ):
        done(root, pid, *words)
    assert picture(canary) == before


@pytest.mark.parametrize("mode", ["755", "0711", "1777"])
def test_chmod(root: Path, pid: int, mode: str) -> None:
    (root / "d").mkdir(mode=0o700)
    (root / "l").symlink_to("/d")
    assert done(root, pid, "chmod", "--mode", mode, "--path", "/l", "--path=/absent,/d/absent") == ""
    assert (root / "d").stat().st_mode & 0o7777 == int(mode, 8)


def test_chmod_of_the_users_mounts(root: Path, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir(mode=0o700)
    (root / "d").mkdir()
    with container(f"mount --bind '{tmp_path}/volume' '{root}/d'") as other:
        assert "another mount" in done(root, other, "chmod", "--mode", "777", "--path", "/d")
    assert (tmp_path / "volume").stat().st_mode & 0o777 == 0o700
