"""More of vulnerable.py: GPUs of an earlier create, locks that others hold, printed commands."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

from e2e.changing import Scene, gpus, nodes
from e2e.hostile_places import Place
from e2e.vulnerable import CREATE, Build

USER = 1000
OPEN_LOCK = """
def _open_lock(state):
    os.makedirs(state, 0o755, exist_ok=True)
    lock = os.open(f"{state}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.fchmod(lock, 0o644)
    return lock
"""
BESIDE = """
def away(path):
    return shlex.join(["mv", path, path + ".old"])
"""


def _the_same_bundle_where_no_variable_asks_any_more(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 2, place.top)
    assert gpus(scene.ask("0")[1]) == {scene.given(0)}
    with open(scene.env["GPUSHIM_CONFIG"], "a") as settings:
        settings.write("[requests]\naccept-env-when-unprivileged = false\n")
    config, record = scene.work / "bundles/one/config.json", str(scene.work / "record")
    assert not scene.call("gpushim-runtime", "create", "--bundle", config.parent, "one", RECORD=record).returncode
    assert gpus(nodes(json.loads(config.read_text()))) == set()


def _a_lock_that_others_can_open(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 1, place.top)
    assert scene.ask("0")[0].returncode == 0
    assert not stat.S_IMODE((scene.state / "lock").stat().st_mode) & 0o077


def _a_destination_that_a_stranger_has_made(place: Place, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "scene", 1, place.top)
    scene.refresh()
    log, theirs = scene.work / "gpushim.log", tmp_path / "theirs"
    theirs.mkdir()
    log.touch()
    os.chown(log, USER, USER)
    Path(f"{log}.old").symlink_to(theirs)
    found = json.loads(scene.call("gpushim", "doctor", "--format", "json").stdout)
    (fix,) = [each["fix"] for each in found["findings"] if each["check"] == "log"]
    subprocess.run(["/bin/sh", "-c", fix], check=True)
    assert not log.exists()
    assert [*theirs.iterdir()] == []


BUILDS = {
    "T-AGAIN starts from what an earlier create has written": Build(
        {CREATE: "find_original = lambda path, data, folder: data"},
        _the_same_bundle_where_no_variable_asks_any_more,
        "== set()",
    ),
    "T-LOCK everybody can open the lock": Build(
        {"shim/gpushim/inventory/renew.py": OPEN_LOCK}, _a_lock_that_others_can_open, "0o077"
    ),
    "T-DOCTOR moves to where a stranger may have made a name": Build(
        {"shim/gpushim/doctor/untrusted.py": BESIDE}, _a_destination_that_a_stranger_has_made, "theirs.iterdir()"
    ),
}
