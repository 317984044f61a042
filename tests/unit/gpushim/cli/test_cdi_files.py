from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushim.cli.cdi import output
from gpushim.config import policy
from unit import ordinary
from unit.gpushim.cdi import hosts
from unit.gpushim.cli.commands import run


def spec_file(directory: Path, name: str, **changes: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(hosts.foreign(**changes)))
    return directory / name


def test_list_sorts_and_counts(tmp_path: Path) -> None:
    edits = {"env": ["A=b"]}
    spec_file(tmp_path, "b.json", devices=[{"name": name, "containerEdits": edits} for name in ("1", "0", "all")])
    spec_file(tmp_path, "a.yaml", kind="a.com/x")
    result = run("list", "--spec-dir", str(tmp_path))
    assert result.stdout.split() == ["a.com/x=0", "vendor.com/x=0", "vendor.com/x=1", "vendor.com/x=all"]
    assert result.stderr == "Found 4 CDI devices\n"


def test_list_names_what_is_in_the_way(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        spec_file(tmp_path, name)
    (tmp_path / "c.json").write_text("{")
    result = run("list", "--spec-dir", str(tmp_path))
    assert result.stdout == ""
    assert f"warning: {tmp_path}/c.json: " in result.stderr
    assert f"warning: vendor.com/x=0 is in both {tmp_path}/a.json and {tmp_path}/b.json" in result.stderr
    assert result.stderr.endswith("Found 0 CDI devices\n")


def test_list_takes_the_later_directory_and_tells_the_file(tmp_path: Path) -> None:
    for directory in ("etc", "run"):
        spec_file(tmp_path / directory, "x.json")
    result = run("list", "--format", "json", NVIDIA_CTK_CDI_SPEC_DIRS=f"{tmp_path}/etc,{tmp_path}/run")
    assert json.loads(result.stdout) == [{"name": "vendor.com/x=0", "spec": f"{tmp_path}/run/x.json"}]


def test_list_looks_where_the_policy_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = policy.defaults()
    settings["cdi"]["spec-dirs"] = [str(tmp_path)]
    monkeypatch.setattr(policy, "load", lambda _: settings)
    spec_file(tmp_path, "x.json")
    assert run("list").stdout == "vendor.com/x=0\n"


def test_validate_passes_what_is_good(tmp_path: Path) -> None:
    spec_file(tmp_path, "x.json")
    result = run("validate", str(tmp_path), str(tmp_path / "x.json"))
    assert (result.stdout, result.stderr) == ("", "2 specs checked, 0 errors\n")


@pytest.mark.parametrize(
    ("changes", "level", "code"), [({"cdiVersion": "0.3.0"}, "error", 1), ({"cdiVersion": "0.6.0"}, "warning", 0)]
)
def test_validate_says_a_line_per_finding(tmp_path: Path, changes: Any, level: str, code: int) -> None:
    file = spec_file(tmp_path, "x.json", **changes)
    assert run("validate", str(file), code=code).stdout.startswith(f"{file}: {level}: cdiVersion is ")


def test_validate_of_a_directory_sees_conflicts_mistrust_and_ruins(tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "c.json"):
        spec_file(tmp_path, name)
    (tmp_path / "c.json").chmod(0o666)
    (tmp_path / "d.yaml").write_text("a: [")
    lines = run("validate", str(tmp_path), code=1).stdout.splitlines()
    assert (
        f"{tmp_path}/b.json: error: vendor.com/x=0 is in {tmp_path}/a.json too: engines take neither; remove one"
        in lines
    )
    assert any(
        line.startswith(f"{tmp_path}/c.json: warning: gpushim does not use it: its mode is 0666") for line in lines
    )
    assert any(line.startswith(f"{tmp_path}/d.yaml: error: it is not YAML") for line in lines)


@pytest.mark.parametrize("named", [True, False])
def test_validate_of_a_directory_with_a_fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    spec_file(tmp_path, "a.json")
    os.mkfifo(tmp_path / "b.json")
    monkeypatch.setattr(output, "spec_dirs", lambda _: [str(tmp_path)])
    with ending():
        said = run("validate", *([str(tmp_path)] if named else []), code=1)
    assert said.stdout == f"{tmp_path}/b.json: error: it is not a regular file\n"


def test_a_fifo_that_nobody_writes_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.json")
    with ending():
        assert "None is not of type" in run("validate", f"{tmp_path}/b.json", code=1).stdout


def test_what_a_shell_substitutes_is_read(tmp_path: Path) -> None:
    """As in `gpushim cdi validate <(gpushim cdi generate)`."""
    read, write = os.pipe()
    os.write(write, spec_file(tmp_path, "x.json").read_bytes())
    os.close(write)
    assert run("validate", f"/dev/fd/{read}").stderr == "1 specs checked, 0 errors\n"
    os.close(read)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Let what hangs in the body fail."""

    def late(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_validate_without_the_usual_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host need not have both; a directory that somebody names must be there."""
    spec_file(tmp_path / "here", "a.json")
    monkeypatch.setattr(output, "spec_dirs", lambda _: [f"{tmp_path}/none", f"{tmp_path}/here"])
    assert run("validate").stderr == "1 specs checked, 0 errors\n"
    assert "cannot be read: No such file" in run("validate", f"{tmp_path}/none", code=1).stdout


def test_validate_of_a_directory_that_this_user_may_not_look_into() -> None:
    with ordinary.folder() as folder:
        (folder / "cdi").mkdir()
        with ordinary.hidden(folder / "cdi"), ordinary.user():
            said = run("validate", f"{folder}/cdi", code=1).stdout
    assert said == f"{folder}/cdi: error: it cannot be read: Permission denied\n"


def test_validate_as_json(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, "a.json", devices=[])
    (found,) = json.loads(run("validate", "--format=json", str(spec), code=1).stdout)
    assert found["file"] == str(spec)
    assert (found["level"], "devices" in found["sentence"]) == ("error", True)


def test_validate_reads_stdin() -> None:
    assert "error: the spec: [] is not" in run("validate", "-", code=1, stdin="[]").stdout


def test_validate_without_jsonschema_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    file = spec_file(tmp_path, "x.json")
    assert "validating needs jsonschema, which is not installed" in run("validate", str(file), code=1).stderr


STRANGER = 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is another user's")
@pytest.mark.parametrize("how", ["link", "link in a sticky directory", "file"])
def test_no_spec_goes_where_somebody_else_leads_it(tmp_path: Path, how: str) -> None:
    victim, place = tmp_path / "victim", tmp_path / "place"
    victim.mkdir()
    if how == "link in a sticky directory":
        (tmp_path / "sticky").mkdir()
        (tmp_path / "sticky").chmod(0o1777)
        place = tmp_path / "sticky/place"
    if "link" in how:
        place.symlink_to(victim)
    else:
        place.mkdir()
        (place / "x.json").touch()
    os.chown(place / "x.json" if how == "file" else place, STRANGER, STRANGER, follow_symlinks=False)
    source = spec_file(tmp_path, "x.json")
    said = moved("--input", str(source), "--output", str(place / "x.json"), code=1)
    assert "is not touched" in said or "belongs to user 1000" in said
    assert [*victim.iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is another user's")
@pytest.mark.parametrize(("owner", "mode"), [(0, 0o1777), (0, 0o777), (STRANGER, 0o700)])
def test_a_spec_goes_into_directories_of_others_and_where_links_of_ones_own_lead(
    tmp_path: Path, owner: int, mode: int
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(mode)
    os.chown(tmp_path / "home", owner, owner)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    source = spec_file(tmp_path, "x.json")
    moved("--input", str(source), "--output", str(tmp_path / "link/new/y.json"))
    assert (tmp_path / "home/new/y.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_spec_replaces_nothing_but_a_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "y.json")
    source = spec_file(tmp_path, "x.json")
    assert "is not a regular file" in moved("--input", str(source), "--output", str(tmp_path / "y.json"), code=1)


def moved(*args: str, stdin: str | None = None, code: int = 0) -> str:
    result = run("transform", "root", "--from", "/host", "--to", "/", *args, stdin=stdin, code=code)
    return result.stdout if code == 0 else result.stderr


def test_transform_keeps_the_format_from_stdin_to_stdout() -> None:
    for dumps, loads in ((json.dumps, json.loads), (yaml.safe_dump, yaml.safe_load)):
        text = moved("--relative-to", "host", stdin=dumps(hosts.foreign()))
        edits = loads(text)["devices"][0]["containerEdits"]
        assert (edits["mounts"][0]["hostPath"], edits["hooks"][0]["path"]) == ("/lib/x.so", "/bin/x")
        assert text.startswith("{") == (loads is json.loads)


def test_transform_in_place_and_to_the_format_of_the_name(tmp_path: Path) -> None:
    file = spec_file(tmp_path, "x.json")
    moved("--input", str(file), "--output", str(file))
    moved("--input", str(file), "--output", str(tmp_path / "x.yaml"))
    assert json.loads(file.read_text()) == yaml.safe_load((tmp_path / "x.yaml").read_text())


@pytest.mark.parametrize(("text", "says"), [("[]", "not an object"), ('{"x": 1}', "unknown"), ("{", "JSON")])
def test_transform_refuses_what_is_no_spec(text: str, says: str) -> None:
    assert says in moved(stdin=text, code=1)


def test_transform_wants_absolute_paths() -> None:
    assert "host is not absolute" in run("transform", "root", "--from", "host", "--to", "/", code=2).stderr
