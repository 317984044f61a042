"""Which profile of NVIDIA's file counts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.settings import profiles, settings
from gpushim.ground.errors import CONFIG, GpushimError

SMALL = {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 4}]}}}
BIG = {"version": "v1", "flags": {"gdsEnabled": True}}
BOTH = {"small": SMALL, "big": BIG}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Read a file of NVIDIA's with a profile file beside it, or none."""

    def said(file: Any, word: str | None = None) -> profiles.Part:
        (tmp_path / "file").write_text(json.dumps(file))
        if word is not None:
            (tmp_path / "profile").write_text(word)
        return profiles.read(str(tmp_path / "file"), str(tmp_path / "profile"))

    return said


@pytest.mark.parametrize(
    ("file", "word", "wanted"),
    [
        ({"profiles": BOTH}, "small", SMALL),
        ({"profiles": BOTH, "default": "big"}, " small\n", SMALL),
        ({"profiles": BOTH, "default": "big"}, None, BIG),
        ({"profiles": BOTH, "default": "big"}, "\n", BIG),
        ({"profiles": BOTH, "version": "v1"}, None, {"version": "v1"}),
        (BIG, None, BIG),
        (BIG, "", BIG),
        ({"profiles": {"none": {}}}, "none", {}),
    ],
)
def test_what_counts(read: Any, file: Any, word: str | None, wanted: Any) -> None:
    assert read(file, word).table == wanted


def test_what_is_beside_a_profile_that_counts_does_nothing_and_is_said(read: Any) -> None:
    found = read({"profiles": BOTH, "flags": {"gdsEnabled": True}}, "small")
    assert [note.partition(": ")[2] for note in found.notes] == [
        '"flags" does nothing beside the profile small, which counts'.replace('"', "")
    ]
    assert (found.profile, found.where.rpartition("/")[2]) == ("small", "file, profile small")


def test_that_no_profile_counts_is_said(read: Any) -> None:
    (note,) = read({"profiles": BOTH}).notes
    assert "file has profiles, but none applies; write default there, or into the profile file small or big" in note


@pytest.mark.parametrize(
    ("file", "word", "why"),
    [
        (
            {"profiles": BOTH},
            "huge",
            r'profile "huge", which .*file does not have; it has small, big',
        ),
        ({"profiles": BOTH, "default": "huge"}, "big", 'file: default names the profile "huge", which'),
        ({"profiles": BOTH, "default": 1}, None, 'default names the profile "1"'),
        ({"default": "big"}, None, "does not have; it has none"),
        (BIG, "big", 'names the profile "big", but .*file has no profiles; write them there, or remove .*profile'),
        ({"profiles": BOTH}, "small big", "profile is not one word; write the name"),
        ({"profiles": BOTH}, "x" * 254, "profile is not one word; write the name"),
        ({"profiles": BOTH}, "x" * (1 << 20) + "x", "is larger than 1 MiB; that is not a name of a profile"),
        ({"profiles": []}, None, "file: profiles is not a YAML or JSON mapping"),
        ({"profiles": {"a": []}}, None, 'file: the profile "a" is not a YAML or JSON mapping'),
        ({"profiles": {"a\x1b[1m": {}}}, None, "has a name that is not one word"),
        ({"profiles": {"a b": {}}}, None, 'the profile "a b" has a name that is not one word'),
        ({"profiles": {"a": {"profiles": {}}}}, None, 'the profile "a" has profiles in it; profiles are in the file'),
        ({"profiles": {"a": {"default": "a"}}}, None, 'the profile "a" has default in it'),
        ({"profiles": {"a": {"version": "v2"}}}, None, 'file, profile a has the version "v2"; only v1'),
    ],
)
def test_what_is_wrong(read: Any, file: Any, word: str | None, why: str) -> None:
    with pytest.raises(GpushimError, match=why) as told:
        read(file, word)
    assert told.value.exit_code == CONFIG


def test_without_a_file_no_profile_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("")
    assert profiles.read("", str(tmp_path / "profile")) == profiles.read("", "") == profiles.Part()
    (tmp_path / "profile").write_text("small")
    with pytest.raises(GpushimError, match="but no config-file is named"):
        profiles.read("", str(tmp_path / "profile"))


@pytest.mark.parametrize(
    ("file", "wanted", "note"),
    [
        ({"profiles": BOTH, "default": "big"}, BIG, "name one of them; until that is so, the default big applies"),
        (
            {"profiles": BOTH, "version": "v1"},
            {"version": "v1"},
            "name one of them; until that is so, no profile applies",
        ),
        (BIG, BIG, "file has no profiles; write them there, or remove .*; until that is so, no profile applies"),
    ],
)
def test_at_a_start_a_profile_that_does_not_exist_is_none_that_is_named(
    read: Any, tmp_path: Path, file: Any, wanted: Any, note: str
) -> None:
    with pytest.raises(GpushimError, match='profile names the profile "huge"'):
        read(file, "huge")
    found = profiles.read(str(tmp_path / "file"), str(tmp_path / "profile"), begins=True)
    assert found.table == wanted
    assert re.search(f'names the profile "huge", .*{note}', found.notes[0])


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_profile_file_of_others_is_refused(read: Any, tmp_path: Path, mode: int) -> None:
    (tmp_path / "profile").write_text("small")
    (tmp_path / "profile").chmod(mode)
    with pytest.raises(GpushimError, match=f"profile cannot be trusted: user 0 owns it, its mode is {mode:04o}"):
        read({"profiles": BOTH})


READ_ONLY = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; exec "$2" -c "$3" "$1"'
TELL = "import sys; from gpuplugin.settings import profiles; print(profiles.read_choice(sys.argv[1] + '/profile'))"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(("script", "said"), [(READ_ONLY, "small\n"), ('exec "$2" -c "$3" "$1"', "")])
def test_another_containers_profile_file_counts_where_it_is_read_only(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "profile").write_text("small")
    tmp_path.chmod(0o777)
    os.chown(tmp_path / "profile", 65532, 65532)
    command = ["/usr/bin/unshare", "--mount", "/bin/sh", "-euc", script, "sh", str(tmp_path), sys.executable, TELL]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, bool(done.returncode)) == (said, not said), done.stderr


def test_settings_are_those_of_the_profile_and_messages_say_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps({"profiles": {**BOTH, "odd": {"x": 1}}, "default": "big"}))
    section = {"config-file": str(tmp_path / "file"), "profile-file": str(tmp_path / "profile")}
    found = settings.resolve({}, {}, section)
    assert (found.values["gds"], found.profile) == (True, "big")
    (tmp_path / "profile").write_text("odd")
    assert settings.resolve({}, {}, section).notes == [f"{tmp_path}/file, profile odd: x is ignored"]
