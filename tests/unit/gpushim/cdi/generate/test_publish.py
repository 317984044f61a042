from __future__ import annotations

import copy
import itertools
import json
import os
import posix
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushim.cdi import specs
from gpushim.cdi.generate import output, publish
from gpushim.cdi.generate import written as record
from gpushim.ground import bounds, system
from unit.gpushim import labels
from unit.gpushim.cdi import hosts
from unit.gpushim.decision.inventories import gpu
from unit.gpushim.paths import meanwhile


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where refresh records what it writes."""
    monkeypatch.setitem(posix.environ, b"GPUSHIM_STATE", os.fsencode(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cdi"


BESIDE = ["gds", "imex-channel-3"]  # what the usual host gives beside GPUs
# The two whole GPUs of the usual host, bound in the other order.
SWAPPED = hosts.mixed(
    gpus=[{**gpu(0, 2), "uuid": gpu(0, 1)["uuid"]}, {**gpu(1, 1), "uuid": gpu(1, 2)["uuid"]}], mig=[]
)


def refresh(directory: Path, host: Any = None, **policy: Any) -> list[str]:
    """Publish a snapshot; returns the notes that this brings."""
    host = host or hosts.mixed()
    host["policy"]["cdi"].update({"output-directory": str(directory), **policy})
    publish.on_refresh(host)
    notes: list[str] = host["notes"]
    return notes


def written(directory: Path) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((directory / "nvidia.com-gpu.json").read_text())
    return spec


def names(directory: Path) -> list[str]:
    return [device["name"] for device in written(directory)["devices"]]


def test_spec_is_written_for_everyone_to_read(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        assert refresh(directory) == []
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert stat.S_IMODE((directory / "nvidia.com-gpu.json").stat().st_mode) == 0o644
    assert [path.name for path in directory.iterdir()] == ["nvidia.com-gpu.json"]
    assert "2:0" in names(directory)


def test_kind_of_the_policy_names_the_file(directory: Path) -> None:
    refresh(directory, kind="example.org/accelerator")
    assert json.loads((directory / "example.org-accelerator.json").read_text())["kind"] == "example.org/accelerator"


@pytest.mark.parametrize(
    ("state", "policy", "path"),
    [
        (None, "", "/var/run/cdi/nvidia.com-gpu.json"),
        (b"/run/gpushim", "", "/var/run/cdi/nvidia.com-gpu.json"),
        (b"/x/state", "", "/x/state/cdi/nvidia.com-gpu.json"),
        (b"/x/state", "/etc/cdi", "/etc/cdi/nvidia.com-gpu.json"),
    ],
)
def test_where_it_goes(monkeypatch: pytest.MonkeyPatch, state: bytes | None, policy: str, path: str) -> None:
    monkeypatch.delitem(posix.environ, b"GPUSHIM_STATE", raising=False)
    if state:
        monkeypatch.setitem(posix.environ, b"GPUSHIM_STATE", state)
    settings = hosts.mixed()["policy"]
    settings["cdi"]["output-directory"] = policy
    assert output.path_of(settings) == path


def test_same_spec_is_not_written_again(directory: Path) -> None:
    refresh(directory)
    before = (directory / "nvidia.com-gpu.json").stat()
    refresh(directory)
    after = (directory / "nvidia.com-gpu.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_gpu_that_is_gone_goes_from_the_spec(directory: Path) -> None:
    refresh(directory)
    assert refresh(directory, hosts.mixed(gpus=[gpu(0, 1)], mig=[])) == []
    assert names(directory) == ["0", "GPU-01111111-1111-1111-1111-111111111111", "all", *BESIDE]


def test_without_nvml_a_good_spec_stays(directory: Path) -> None:
    refresh(directory)
    (note,) = refresh(directory, hosts.proc())
    assert "stays as it was: it has 2, 2:0, GPU-01111111" in note
    assert "2:0" in names(directory)


def test_without_nvml_a_spec_goes_that_would_give_another_gpu(directory: Path) -> None:
    refresh(directory)
    assert refresh(directory, copy.deepcopy(SWAPPED) | {"source": "proc"}) == []
    assert "2:0" not in names(directory)
    assert [node["minor"] for node in written(directory)["devices"][0]["containerEdits"]["deviceNodes"]] == [2]


def test_without_nvml_a_first_spec_is_written(directory: Path) -> None:
    assert refresh(directory, hosts.proc()) == []
    assert names(directory) == ["0", "1", "all", *BESIDE]


def test_without_nvml_a_spec_goes_that_has_a_feature_too_many(directory: Path) -> None:
    refresh(directory, hosts.mixed(gpus=[gpu(0, 1)], mig=[]), **{"device-names": ["index"]})
    without = hosts.mixed(gpus=[gpu(0, 1, uuid="")], mig=[], source="proc", features={}, imex=[])
    assert refresh(directory, without, **{"device-names": ["index"]}) == []
    assert names(directory) == ["0", "all"]


@pytest.mark.parametrize(
    "host",
    [
        hosts.mixed(gpus=[], mig=[]),
        hosts.mixed(nodes={}),
    ],
)
def test_without_a_gpu_a_good_spec_stays(directory: Path, host: dict[str, Any]) -> None:
    refresh(directory)
    notes = refresh(directory, host)
    assert "stays as it was, for there is nothing to put in its place" in notes[-1]
    assert "2:0" in names(directory)


def test_host_without_a_driver_and_a_spec_says_nothing_more(directory: Path) -> None:
    assert refresh(directory, hosts.mixed(error={"sentence": "no driver", "code": 12})) == []
    assert not directory.exists()


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_same_devices_in_another_file_are_a_conflict(directory: Path, name: str) -> None:
    directory.mkdir()
    theirs = hosts.foreign(kind=hosts.KIND)
    (directory / name).write_text(json.dumps(theirs))  # JSON is YAML too
    (note,) = refresh(directory)
    assert f"is not written: {directory}/{name} has nvidia.com/gpu=0 too" in note
    assert f"remove {directory}/{name}" in note
    assert [path.name for path in directory.iterdir()] == [name]


OURS = "nvidia.com-gpu.json"
NONE: dict[str, Any] = {"write-spec": False}


def another(directory: Path, name: str = "nvidia.yaml") -> Path:
    """Write the spec of somebody else with the same devices."""
    path = directory / name
    path.write_text(json.dumps(hosts.foreign(kind=hosts.KIND)))
    return path


def test_a_spec_of_others_takes_the_place_of_ours_until_it_goes(directory: Path) -> None:
    """Engines take neither of two."""
    refresh(directory)
    theirs = another(directory)
    (note,) = refresh(directory)
    assert f"{directory}/{OURS} is removed: {theirs} has nvidia.com/gpu=0 too" in note
    assert [path.name for path in directory.iterdir()] == ["nvidia.yaml"]
    theirs.unlink()
    assert refresh(directory) == []
    assert "0" in names(directory)


def test_ours_goes_too_when_there_is_nothing_to_write(directory: Path) -> None:
    refresh(directory)
    another(directory)
    refresh(directory, hosts.mixed(error={"sentence": "no driver", "code": 12}))
    assert [path.name for path in directory.iterdir()] == ["nvidia.yaml"]


def test_a_spec_that_somebody_has_changed_is_not_ours(directory: Path) -> None:
    refresh(directory)
    path = directory / OURS
    path.write_text(path.read_text() + "\n")
    another(directory)
    (note,) = refresh(directory)
    assert f"{path} is not as refresh wrote it, and stays" in note
    assert path.exists()


def test_a_spec_of_our_name_without_a_record_is_not_ours(directory: Path, state: Path) -> None:
    refresh(directory)
    (state / "specs").unlink()
    refresh(directory, **NONE)
    assert (directory / OURS).exists()


def test_a_spec_of_our_name_that_somebody_wrote_is_not_replaced(directory: Path) -> None:
    refresh(directory)
    path = directory / OURS
    path.write_text(path.read_text().replace("nvidia0", "nvidia9", 1))
    theirs = path.read_bytes()
    (note,) = refresh(directory)
    assert f"{path} is not as refresh wrote it, and stays" in note
    assert path.read_bytes() == theirs
    path.unlink()
    assert refresh(directory) == []


def test_64_gpus_with_seven_instances_each_make_a_spec_that_is_read(directory: Path) -> None:
    host = hosts.eight_by_seven(64)
    assert refresh(directory, host) == []
    assert specs.load([str(directory)])[1] == []


def test_write_spec_false_takes_away_what_refresh_has_written(directory: Path) -> None:
    refresh(directory)
    (note,) = refresh(directory, **NONE)
    assert note == f"{directory}/{OURS}, which refresh had written, is removed: write-spec under [cdi] is false"
    assert list(directory.iterdir()) == []
    assert refresh(directory, **NONE) == []


@pytest.mark.parametrize("policy", [{}, NONE])
def test_an_earlier_directory_keeps_nothing(directory: Path, tmp_path: Path, policy: dict[str, Any]) -> None:
    refresh(directory)
    (note,) = refresh(tmp_path / "other", **policy)
    assert f"{directory}/{OURS}, which refresh had written, is removed" in note
    assert list(directory.iterdir()) == []
    assert (tmp_path / "other" / OURS).exists() is not bool(policy)


def test_an_earlier_kind_goes(directory: Path) -> None:
    refresh(directory)
    refresh(directory, kind="example.org/accelerator")
    assert [path.name for path in directory.iterdir()] == ["example.org-accelerator.json"]


def test_an_earlier_directory_stays_while_there_is_nothing_new(directory: Path, tmp_path: Path) -> None:
    refresh(directory)
    (note,) = refresh(tmp_path / "other", hosts.mixed(gpus=[], mig=[]))
    assert note.startswith("no CDI spec is written")
    assert "0" in names(directory)


def test_killed_before_the_spec_is_in_place_both_are_ours(directory: Path) -> None:
    refresh(directory)
    record.note(str(directory / OURS), "the new one")
    assert record.ours(str(directory / OURS))
    (directory / OURS).write_text("the new one")
    assert record.ours(str(directory / OURS))


@pytest.mark.parametrize("content", ["[]", '{"/etc/passwd": 1}', "{", '{"relative": []}'])
def test_a_record_that_is_none(directory: Path, state: Path, content: str) -> None:
    refresh(directory)
    (state / "specs").write_text(content)
    assert record.others("") == []
    assert refresh(directory) == []


def test_a_record_that_others_may_have_written(directory: Path, state: Path) -> None:
    refresh(directory)
    (state / "specs").chmod(0o666)
    assert record.others("") == []


def test_the_systems_record_outlives_a_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(posix.environ, b"GPUSHIM_STATE", b"/run/gpushim")
    assert record._record_paths()[0] == "/var/lib/gpushim/specs"


@pytest.mark.parametrize(
    "theirs",
    [
        hosts.foreign(),
        hosts.foreign(kind=hosts.KIND, devices=[{"name": "special", "containerEdits": {"env": ["A=b"]}}]),
        {"no": "spec"},
    ],
)
def test_neighbours_with_other_devices_are_none(directory: Path, theirs: dict[str, Any]) -> None:
    directory.mkdir()
    (directory / "neighbour.json").write_text(json.dumps(theirs))
    assert refresh(directory) == []
    assert "0" in names(directory)


def a_link(path: Path) -> None:
    (path.parent / "elsewhere").write_text("theirs")
    path.symlink_to("elsewhere")


THEIRS: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda path: path.write_text("{"),
    "no spec": lambda path: path.write_text("{}"),
    "empty": lambda path: path.touch(),
    "too large": lambda path: path.write_bytes(b" " * (bounds.SPEC + 1)),
    "a link": a_link,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a directory": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
}


def there(path: Path) -> tuple[int, int, str]:
    status = path.lstat()
    return status.st_ino, status.st_mtime_ns, os.readlink(path) if path.is_symlink() else ""


@pytest.mark.parametrize("recorded", [False, True], ids=["new", "recorded"])
@pytest.mark.parametrize("name", THEIRS)
def test_what_somebody_put_at_our_name_stays(name: str, recorded: bool, directory: Path) -> None:
    path = directory / OURS
    refresh(directory)
    if not recorded:
        record.remove(str(path))
    path.unlink(missing_ok=True)
    THEIRS[name](path)
    before = there(path)
    (note,) = refresh(directory)
    assert f"{path} is not as refresh wrote it, and stays" in note
    assert there(path) == before
    path.rename(directory / "mine")  # as it says
    assert refresh(directory) == []
    assert "0" in names(directory)


def test_what_somebody_put_at_our_name_is_kept_by_a_setting(directory: Path) -> None:
    """The other fix of the sentence."""
    directory.mkdir()
    (directory / OURS).write_text("{")
    assert "set write-spec = false under [cdi]" in refresh(directory)[0]
    assert refresh(directory, **NONE) == []
    assert (directory / OURS).read_text() == "{"


def test_a_spec_beside_ours_that_cannot_be_read_may_have_its_devices(directory: Path) -> None:
    directory.mkdir()
    (directory / "nvidia.json").write_text(json.dumps(hosts.foreign(kind=hosts.KIND))[:-1])
    (note,) = refresh(directory)
    assert note.startswith(f"{directory}/nvidia.json: ")
    assert f"may find a device of {directory}/{OURS} twice" in note
    assert "0" in names(directory)


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, 0), (0o775, 0), (0o755, 1234)])
def test_directory_of_others_is_refused(directory: Path, mode: int, owner: int) -> None:
    directory.mkdir()
    os.chown(directory, owner, owner)
    directory.chmod(mode)
    (note,) = refresh(directory)
    assert note.startswith(f"no CDI spec is written: {directory} cannot be trusted with CDI specs: user {owner}")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/gpushim/cdi", "/proc/sys/kernel", "/dev/null", "/dev/null/cdi"])
def test_place_that_cannot_be_written_is_a_note(place: str) -> None:
    (note,) = refresh(Path(place))
    assert note.startswith("no CDI spec is written: ")


def test_full_or_failing_disk_leaves_the_old_spec_and_no_litter(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh(directory)
    monkeypatch.setattr(os, "fsync", lambda _: posix.close(-1))
    notes = refresh(directory, hosts.mixed(gpus=[gpu(0, 1)], mig=[]))
    assert notes == [f"no CDI spec is written: {directory}/nvidia.com-gpu.json: Bad file descriptor"]
    assert [path.name for path in directory.iterdir()] == ["nvidia.com-gpu.json"]
    assert "2:0" in names(directory)


def test_a_failing_disk_takes_away_a_spec_that_would_give_another_gpu(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh(directory)
    monkeypatch.setattr(os, "fsync", lambda _: posix.close(-1))
    notes = refresh(directory, copy.deepcopy(SWAPPED))
    assert "is removed: the nodes in it are of other devices now" in notes[0]
    assert list(directory.iterdir()) == []


def test_another_directory_that_is_refused_keeps_no_untrue_spec_in_the_earlier_one(
    directory: Path, tmp_path: Path
) -> None:
    refresh(directory)
    refresh(Path("/dev/null/cdi"))
    assert "2:0" in names(directory)
    refresh(Path("/dev/null/cdi"), copy.deepcopy(SWAPPED))
    assert list(directory.iterdir()) == []


def test_eight_gpus_with_seven_instances_each_take_less_than_half_a_second(directory: Path) -> None:
    host = hosts.eight_by_seven()
    start = time.process_time()
    assert refresh(directory, host) == []
    assert time.process_time() - start < 0.5
    assert len(names(directory)) == 8 * 2 + 8 * 7 * 2 + 1 + len(BESIDE)


def test_without_a_record_there_is_no_spec(directory: Path, state: Path) -> None:
    """No later refresh could replace it."""
    (state / "specs").mkdir(parents=True)
    (note,) = refresh(directory)
    assert note.startswith("no CDI spec is written: ")
    assert note.endswith("/specs: Is a directory")
    assert [*directory.iterdir()] == []


def test_a_full_disk_makes_no_spec_a_strangers(
    directory: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "STATE_DIR", str(state))
    monkeypatch.setattr(record, "DIRECTORY", str(tmp_path / "full"))
    (tmp_path / "full").touch()
    (note,) = refresh(directory)
    assert note.startswith(f"{tmp_path}/full/specs cannot be written (File exists), so after the next boot")
    assert names(directory)
    refresh(directory, copy.deepcopy(SWAPPED))
    (tmp_path / "full").unlink()
    assert refresh(directory, hosts.mixed()) == []
    assert record.ours(str(directory / OURS))
    assert json.loads((tmp_path / "full/specs").read_text()) == record._read_records()


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["", "killed then"])
@pytest.mark.parametrize("policy", [{}, NONE], ids=["replaced", "removed"])
def test_what_somebody_puts_there_at_any_call_is_kept(near: Path, policy: dict[str, Any], kill: bool) -> None:
    directory = near / "cdi"

    def theirs() -> None:
        (directory / "new").write_bytes(meanwhile.THEIRS)
        (directory / "new").rename(directory / OURS)

    for at in itertools.count(1):
        shutil.rmtree(directory, ignore_errors=True)
        refresh(directory)
        with meanwhile.Steps(at, theirs, kill) as steps:
            refresh(directory, hosts.eight_by_seven(1), **policy)
        if steps.count < at:
            break
        refresh(directory, **policy)
        assert meanwhile.THEIRS in [path.read_bytes() for path in directory.iterdir()]
    assert at > 10


FAILS = {"sentence": "no NVIDIA driver is loaded", "code": 12}


def test_a_host_that_can_give_no_gpu_has_no_spec_until_it_can(directory: Path) -> None:
    """Twice is as once; what other engines' users wrote into the directory stays."""
    refresh(directory)
    other = directory / "theirs.json"
    other.write_text("{}")
    first: list[bool] = []
    host = hosts.mixed(error=FAILS)
    host["policy"]["cdi"]["output-directory"] = str(directory)
    publish.on_refresh(host, lambda: first.append((directory / "nvidia.com-gpu.json").exists()))
    assert host["notes"] == [f"{directory}/nvidia.com-gpu.json is removed, until a refresh succeeds"]
    publish.on_refresh(host, lambda: first.append(False))
    assert first == [True]  # not where there is nothing to take away
    assert [*directory.iterdir()] == [other]
    other.unlink()
    assert refresh(directory) == []
    assert "2:0" in names(directory)


def test_a_spec_of_an_earlier_directory_goes_with_it(directory: Path, tmp_path: Path) -> None:
    refresh(tmp_path / "before")
    host = hosts.mixed(error=FAILS)
    refresh(directory, host)
    assert not [*(tmp_path / "before").iterdir()]


def test_a_spec_that_somebody_changed_stays_without_a_driver(directory: Path) -> None:
    refresh(directory)
    path = directory / "nvidia.com-gpu.json"
    path.write_text(path.read_text() + "\n")
    (note,) = refresh(directory, hosts.mixed(error=FAILS))
    assert note.startswith(f"{path} is not as refresh wrote it, and stays")
    assert path.exists()


def test_a_spec_that_cannot_be_taken_away_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh(directory)

    def fails(_: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(record, "remove", fails)
    (note,) = refresh(directory, hosts.mixed(error=FAILS))
    assert "cannot be removed (Read-only file system)" in note


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which gives files away")
def test_a_hook_that_others_could_change_is_not_named(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh(directory)
    hook = tmp_path / "gpushim-hook"
    hook.touch(0o755)
    os.chown(hook, 1000, 1000)
    with monkeypatch.context() as patch:
        patch.setattr(publish, "hook_program", lambda: str(hook))
        removed, why = refresh(directory)
        assert (removed.endswith("until a refresh succeeds"), [*directory.iterdir()]) == (True, [])
        assert why.startswith(f"no CDI spec is written: {hook} runs with every container")
    assert refresh(directory) == []
    assert names(directory)


@pytest.mark.parametrize("made", [False, True])
def test_selinux_labels_the_spec_as_its_directory_and_that_as_the_one_above(
    directory: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    labels.label(directory.parent, labels.RUN)
    if made:
        directory.mkdir()
        labels.label(directory, "etc_t")
    labels.new_files(monkeypatch, "container_var_run_t")
    refresh(directory)
    assert labels.of(directory / "nvidia.com-gpu.json") == labels.of(directory)
    assert labels.of(directory).split(":")[2] == ("etc_t" if made else labels.RUN)
