from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushim import policy
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
