"""The packages' module of SELinux: it has the labels that gpushim gives, and its installation fails no package's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpuplugin.mps.mps import Folders
from gpushim.ground import system
from gpushim.paths import selinux

PACKAGING = Path(__file__).parents[2] / "packaging"
CONTEXTS = re.findall(
    r'\(filecon "([^"]+)" (any|file|dir) \((?:system_u object_r (\w+) \(\(s0\) \(s0\)\))?\)\)',
    (PACKAGING / "selinux/gpushim.cil").read_text(),
)
PLACE = Folders(system.STATE_DIR, "gpu-0.x")
GIVEN = {
    system.STATE_DIR: selinux.STATE,
    f"{system.STATE_DIR}/inventory.json": selinux.STATE,
    f"{system.STATE_DIR}/refresh.sock": selinux.STATE,
    f"{system.STATE_DIR}/params": selinux.READABLE,
    f"{system.STATE_DIR}/empty": selinux.READABLE,
    PLACE.log: selinux.STATE,
    PLACE.pipe: selinux.WRITABLE,
    f"{PLACE.pipe}/control": selinux.WRITABLE,
    # What clients write is left alone: they could lead restorecon, which goes by paths, to any file of the host's.
    PLACE.shm: "",
    f"{PLACE.shm}/directory/shadow": "",
}
FAKE = """#!/bin/sh
printf '%s\\n' "$*" >>{log}
[ $1 != -l ] || exec printf '{modules}'
exit {code}
"""


@pytest.mark.parametrize("run", ["/run", "/var/run"])  # as the policy names it
@pytest.mark.parametrize("path", GIVEN)
def test_restorecon_keeps_what_gpushim_gives(path: str, run: str) -> None:
    name = path.replace("/run", run, 1)
    # The one that is no expression counts, or the longest (file_contexts(5)).
    matching = [("(" not in each, len(each), kind) for each, _, kind in CONTEXTS if re.fullmatch(each, name)]
    assert max(matching)[-1] == GIVEN[path]


def called(folder: Path, function: str, modules: str, code: int = 0, **more: str) -> tuple[list[str], str]:
    """Call a function of the packages' scripts, where semodule knows modules; return what that was called with."""
    for name in ("semodule", "restorecon"):
        (folder / name).write_text(FAKE.format(log=folder / f"{name}.log", modules=modules, code=code))
        (folder / name).chmod(0o755)
    (folder / "targeted/policy").mkdir(parents=True, exist_ok=True)
    (folder / "targeted/policy/policy.33").touch()
    functions = (PACKAGING / "deb/debian/selinux.sh").read_text().replace("/etc/selinux", str(folder))
    script = f"set -e\n{functions}\n{function}"
    environment = {"PATH": f"{folder}:/usr/bin:/bin", **more}
    done = subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True, text=True, env=environment)
    log = folder / "semodule.log"
    assert done.stderr == ""
    return log.read_text().splitlines() if log.exists() else [], done.stdout


FILE = "/usr/share/gpushim/selinux/gpushim.cil"


@pytest.mark.parametrize(
    ("function", "modules", "done"),
    [
        ("keep_labels", r"base\ncontainer\n", [f"-n -X 200 -i {FILE}"]),
        ("keep_labels", r"base\t1.0\n", [f"-n -X 200 -i {FILE}"]),
        ("keep_labels", r"", []),
        ("drop_labels", r"base\ngpushim\n", ["-n -X 200 -r gpushim"]),
        ("drop_labels", r"base\ngpushim-other\n", []),
    ],
)
def test_the_module_comes_and_goes_where_there_is_a_policy(
    tmp_path: Path, function: str, modules: str, done: list[str]
) -> None:
    assert called(tmp_path, function, modules) == (["-l", *done], "")


def test_a_policy_that_does_not_take_it_fails_no_package(tmp_path: Path) -> None:
    assert "restorecon undoes its labels" in called(tmp_path, "keep_labels", r"base\n", 1)[1]
    assert called(tmp_path, "drop_labels", r"gpushim\n", 1)[1] == ""


def test_where_there_is_no_policy_semodule_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "targeted").touch()
    script = (PACKAGING / "deb/debian/selinux.sh").read_text().replace("/etc/selinux", str(tmp_path))
    semodule = f"semodule() {{ echo called >{tmp_path}/called; }}"
    subprocess.run(["/bin/sh", "-ec", f"{semodule}\n{script}\nkeep_labels; drop_labels"], check=True)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("function", ["keep_labels", "drop_labels"])
def test_another_root_is_left_alone(tmp_path: Path, function: str) -> None:
    assert called(tmp_path, function, r"base\ngpushim\n", DPKG_ROOT="/mnt") == ([], "")
