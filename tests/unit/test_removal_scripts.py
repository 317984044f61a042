"""What the packages' removal does to what refresh and configure have written, by the functions of its scripts."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

DEBIAN = Path(__file__).parents[2] / "packaging/deb/debian"
SPEC = '{"hooks": ["/usr/bin/gpushim-hook"]}'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("etc/cdi", "etc/docker", "var/run/cdi", "var/lib/gpushim", "else where"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def call(root: Path, file: str, function: str) -> str:
    text = (DEBIAN / file).read_text()
    (code,) = re.findall(rf"(?ms)^{function}\(\) \{{.*?^\}}", text)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DPKG_ROOT": str(root)}
    done = subprocess.run(
        ["/bin/sh", "-c", f"set -e\n{code}\n{function}"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=20,
    )
    assert done.stderr == ""
    return done.stdout


def record(root: Path, *paths: str) -> None:
    known = {f"/{path}": [hashlib.sha256((root / path).read_bytes()).hexdigest()] for path in paths}
    (root / "var/lib/gpushim/specs").write_text(json.dumps(known))


@pytest.mark.parametrize(
    "place", ["var/run/cdi/a.json", "etc/cdi/a.json", "else where/a'b.json", 'else where/é".json']
)
def test_a_spec_that_refresh_wrote_goes_wherever_it_is(root: Path, place: str) -> None:
    (root / place).write_text(SPEC)
    record(root, place)
    assert call(root, "written.sh", "remove_specs") == ""
    assert not (root / place).exists()
    assert not (root / "var/lib/gpushim/specs").exists()


def test_a_spec_that_somebody_changed_is_laid_aside_where_engines_look(root: Path) -> None:
    here, elsewhere = root / "etc/cdi/a.json", root / "else where/a.json"
    for path in (here, elsewhere):
        path.write_text(SPEC)
    record(root, "etc/cdi/a.json", "else where/a.json")
    for path in (here, elsewhere):
        path.write_text(SPEC + "\n")
    said = call(root, "written.sh", "remove_specs")
    assert f"{here} names gpushim-hook; it is {here}.kept-gpushim now" in said
    assert Path(f"{here}.kept-gpushim").read_text() == elsewhere.read_text() == SPEC + "\n"
    assert not here.exists()


def test_a_spec_of_others_stays(root: Path) -> None:
    (root / "etc/cdi/b.json").write_text("{}")
    (root / "etc/cdi/link.json").symlink_to(root / "etc/cdi/b.json")
    record(root)
    call(root, "written.sh", "remove_specs")
    assert sorted(path.name for path in (root / "etc/cdi").iterdir()) == ["b.json", "link.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"/x": 5}', '{"x": ["y"]}'])
def test_a_damaged_record_is_none(root: Path, text: str) -> None:
    (root / "var/lib/gpushim/specs").write_text(text)
    call(root, "written.sh", "remove_specs")
    assert not (root / "var/lib/gpushim/specs").exists()


def test_purge_takes_the_records_of_settings_that_no_longer_name_gpushim(root: Path) -> None:
    folder = root / "etc/docker"
    drop_ins = root / "etc/crio/crio.conf.d"
    drop_ins.mkdir(parents=True)
    (folder / "daemon.json").write_text("{}")
    (drop_ins / "99-gpushim.toml").write_text('runtime_path = "/usr/bin/gpushim-runtime"')
    for path in (folder / "daemon.json", root / "etc/crio/crio.conf.d.99-gpushim.toml"):
        for suffix in ("before", "after", "kept"):
            Path(f"{path}.{suffix}-gpushim").touch()
    call(root, "written.sh", "remove_records")
    assert sorted(path.name for path in folder.iterdir()) == ["daemon.json", "daemon.json.kept-gpushim"]
    assert len([*(root / "etc/crio").glob("*-gpushim")]) == 3


@pytest.fixture
def lock(root: Path) -> Path:
    """What a refresh locks."""
    (root / "run/gpushim").mkdir(parents=True)
    (root / "run/gpushim/lock").touch(0o600)
    return root / "run/gpushim/lock"


def test_an_upgrade_waits_for_who_lists_the_gpus(root: Path, lock: Path) -> None:
    with lock.open() as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(call, root, "written.sh", "wait_for_creates")
        waits = re.compile(rf"-> FLOCK .*:{lock.stat().st_ino} ")
        while not waits.search(Path("/proc/locks").read_text()):
            assert not waiting.done()
            time.sleep(0.05)
        fcntl.flock(held, fcntl.LOCK_UN)
        assert waiting.result() == ""


def test_an_upgrade_waits_for_no_process_by_what_it_calls_itself(root: Path, lock: Path) -> None:
    with subprocess.Popen(["/usr/lib/gpushim/0.1.0/gpushim/x", "60"], executable="/bin/sleep") as stranger:
        assert call(root, "written.sh", "wait_for_creates") == ""
        assert stranger.poll() is None
        stranger.kill()
