from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushim.cdi import form, specs
from gpushim.ground import bounds
from gpushim.ground.errors import INVENTORY, REQUEST, GpushimError

TOP = Path(__file__).parents[4]


def spec(kind: str = "vendor.com/device", *names: str, **members: Any) -> dict[str, Any]:
    devices = [{"name": name, "containerEdits": {"env": [f"NAME={name}"]}} for name in names or ("a",)]
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": devices, **members}


@pytest.fixture
def dirs(tmp_path: Path) -> list[str]:
    """An /etc/cdi and a /var/run/cdi."""
    for name in ("etc", "run"):
        (tmp_path / name).mkdir(mode=0o755)
    return [str(tmp_path / "etc"), str(tmp_path / "run")]


def write(directory: str, name: str, document: Any, mode: int = 0o644) -> Path:
    path = Path(directory) / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    path.chmod(mode)
    return path


def refusal(names: list[str], dirs: list[str]) -> GpushimError:
    with pytest.raises(GpushimError) as caught:
        specs.find(names, dirs)
    return caught.value


def test_devices_come_in_the_order_asked_for(dirs: list[str]) -> None:
    write(dirs[0], "a.json", spec("v/c", "a", "b"))
    write(dirs[1], "b.json", spec("w/c", "a"))
    found = specs.find(["v/c=b", "w/c=a", "v/c=a"], dirs)
    assert [(path.rpartition("/")[2], device["name"]) for path, _, device in found] == [
        ("a.json", "b"),
        ("b.json", "a"),
        ("a.json", "a"),
    ]


def test_a_later_directory_wins(dirs: list[str]) -> None:
    write(dirs[0], "x.json", spec())
    write(dirs[0], "other.json", spec("vendor.com/device", "b"))
    write(dirs[1], "x.json", spec())
    paths = [path for path, _, _ in specs.find(["vendor.com/device=a", "vendor.com/device=b"], dirs)]
    assert paths == [f"{dirs[1]}/x.json", f"{dirs[0]}/other.json"]
    assert specs.find(["vendor.com/device=a"], dirs[::-1])[0][0] == f"{dirs[0]}/x.json"


def test_a_device_in_two_files_of_a_directory_is_refused_only_when_asked_for(dirs: list[str]) -> None:
    write(dirs[0], "one.json", spec("v/c", "a", "b"))
    write(dirs[0], "two.json", spec("v/c", "a", "d"))
    assert [device["name"] for _, _, device in specs.find(["v/c=b", "v/c=d"], dirs)] == ["b", "d"]
    error = refusal(["v/c=a"], dirs)
    assert error.exit_code == REQUEST
    assert f"{dirs[0]}/one.json and {dirs[0]}/two.json; remove one" in str(error)
    write(dirs[1], "later.json", spec("v/c", "a"))
    assert specs.find(["v/c=a"], dirs)[0][0] == f"{dirs[1]}/later.json"


@pytest.mark.parametrize("name", ["v/c=x", "w/c=x", "u/c=x"])
def test_an_unknown_device_is_refused_without_a_word_about_others(dirs: list[str], name: str) -> None:
    """A name that nobody tells may be all that keeps a tenant from another's device."""
    write(dirs[0], "claim-of-a.json", spec("v/c", "secret-a"))
    write(dirs[0], "claim-of-b.json", spec("w/c", "secret-b"))
    write(dirs[0], "claim-of-c.json", "{")
    error = refusal([name], dirs)
    assert error.exit_code == REQUEST
    where = f"{dirs[0]} and {dirs[1]}"
    assert str(error) == f'no CDI spec in {where} has the device "{name}"; gpushim cdi list shows what there is'


@pytest.mark.parametrize("names", [[], ["none.d"]])
def test_without_any_spec(tmp_path: Path, names: list[str]) -> None:
    assert "; gpushim cdi list shows" in str(refusal(["v/c=x"], [str(tmp_path / name) for name in names]))


NEIGHBOURS: dict[str, tuple[Any, str]] = {
    "not json": ("{", "it is not valid JSON"),
    "not an object": ([], "it is not an object"),
    "unknown edit": (spec(containerEdits={"vendor.com/device": 1}), 'containerEdits has "vendor.com/device"'),
    "future": (spec(cdiVersion="1.2.0"), 'the cdiVersion "1.2.0"; 0.1 to 1.1 are known'),
    "no devices": (spec(devices=[]), "it has no devices"),
    "too large": ("vendor.com/device" + " " * (4 << 20), "more than 4 MiB"),
    "deep": ('{"vendor.com/device":' + "[" * 100000, "nested too deeply"),
}


@pytest.mark.parametrize(("document", "reason"), NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_a_bad_neighbour_harms_nobody_and_is_named_when_it_may_have_what_is_missing(
    dirs: list[str], document: Any, reason: str
) -> None:
    write(dirs[1], "bad.json", document)
    write(dirs[0], "good.json", spec())
    assert specs.find(["vendor.com/device=a"], dirs)[0][0] == f"{dirs[0]}/good.json"
    error = refusal(["vendor.com/device=x"], dirs)
    mentions = "vendor.com/device" in json.dumps(document)
    assert error.exit_code == (INVENTORY if mentions else REQUEST)
    assert (f"; and these cannot be used: {dirs[1]}/bad.json: " in str(error)) is mentions
    assert (reason in str(error)) is mentions
    assert len(str(error)) < 1000


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_not_trusted(dirs: list[str], mode: int) -> None:
    write(dirs[0], "a.json", spec(), mode)
    error = refusal(["vendor.com/device=a"], dirs)
    assert error.exit_code == INVENTORY
    assert f"a.json: its mode is {mode:04o}" in str(error)


def test_a_file_of_another_user_is_not_trusted(dirs: list[str]) -> None:
    os.chown(write(dirs[0], "a.json", spec()), 1234, 0)
    assert "a.json: user 1234 owns it" in str(refusal(["vendor.com/device=a"], dirs))


def test_a_link_counts_as_what_it_leads_to(dirs: list[str], tmp_path: Path) -> None:
    target = write(str(tmp_path), "elsewhere", spec())
    (Path(dirs[0]) / "a.json").symlink_to(target)
    assert specs.find(["vendor.com/device=a"], dirs)
    target.chmod(0o666)
    assert "a.json: its mode is 0666" in str(refusal(["vendor.com/device=a"], dirs))


@pytest.mark.parametrize(("uid", "mode", "reason"), [(0, 0o777, "its mode is 0777"), (1234, 0o755, "user 1234")])
def test_a_directory_that_others_can_write_is_not_trusted(dirs: list[str], uid: int, mode: int, reason: str) -> None:
    write(dirs[0], "a.json", spec())
    os.chown(dirs[0], uid, 0)
    Path(dirs[0]).chmod(mode)
    error = refusal(["vendor.com/device=a"], dirs)
    assert error.exit_code == INVENTORY
    assert f"{dirs[0]}: {reason}" in str(error)


def test_only_regular_files_with_the_suffix_count(dirs: list[str]) -> None:
    for name in ("a.yml", "a.json.tmp", "a.JSON", "json"):
        write(dirs[0], name, spec())
    (Path(dirs[0]) / "sub.json").mkdir()
    write(f"{dirs[0]}/sub.json", "a.json", spec())
    (Path(dirs[0]) / "gone.json").symlink_to("nowhere")
    os.mkfifo(Path(dirs[0]) / "pipe.json", 0o644)
    os.mknod(Path(dirs[0]) / "zero.json", 0o020644, os.makedev(1, 5))
    found, troubles = specs.load(dirs)
    assert found == []
    regular = "it is not a regular file"
    assert troubles == [
        f"{dirs[0]}/gone.json: it cannot be read (No such file or directory)",
        *(f"{dirs[0]}/{name}.json: {regular}" for name in ("pipe", "sub", "zero")),
    ]


def test_a_directory_with_too_many_files_is_not_read(dirs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SPECS", 2)
    for name in "abc":
        write(dirs[0], f"{name}.json", spec("v/c", name))
    assert specs.load(dirs) == ([], [f"{dirs[0]}: it has more than 2 specs"])


def test_a_kind_that_is_spelled_with_escapes_is_found(dirs: list[str]) -> None:
    write(dirs[0], "a.json", json.dumps(spec()).replace("vendor.com/", "v\\u0065ndor.com\\/"))
    assert specs.find(["vendor.com/device=a"], dirs)


def test_files_of_other_kinds_are_not_parsed(dirs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write(dirs[0], "a.json", spec())
    write(dirs[0], "b.json", spec("w/c"))
    parsed: list[str] = []
    monkeypatch.setattr(form, "check", lambda document: parsed.append(document["kind"]))
    specs.find(["vendor.com/device=a"], dirs)
    assert parsed == ["vendor.com/device"]


YAML = """
# as NVIDIA's tools write them
---
cdiVersion: 0.5.0
kind: vendor.com/device
containerEdits:
  env:
  - A=1
devices:
- name: "0"
  containerEdits: &edits
    deviceNodes:
    - path: /dev/null
      fileMode: 438
- name: all
  containerEdits: *edits
"""


def test_yaml_is_read(dirs: list[str]) -> None:
    write(dirs[0], "a.yaml", YAML)
    ((_, document, device),) = specs.find(["vendor.com/device=all"], dirs)
    assert device["containerEdits"] == {"deviceNodes": [{"path": "/dev/null", "fileMode": 438}]}
    assert document["containerEdits"] == {"env": ["A=1"]}


def test_bad_yaml_is_a_bad_neighbour(dirs: list[str]) -> None:
    write(dirs[0], "bad.yaml", YAML + "\nx: !!python/name:os.system")
    write(dirs[0], "good.json", spec())
    assert specs.find(["vendor.com/device=a"], dirs)
    assert "bad.yaml: it has the tag" in str(refusal(["vendor.com/device=x"], dirs))


def test_without_pyyaml_the_sentence_says_so(dirs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write(dirs[0], "a.yaml", YAML)
    monkeypatch.setitem(sys.modules, "yaml", None)
    error = refusal(["vendor.com/device=0"], dirs)
    assert error.exit_code == INVENTORY
    assert "a.yaml: it is YAML, and PyYAML is not installed" in str(error)


@pytest.mark.parametrize(("file", "loaded"), [("a.json", ""), ("a.yaml", "re yaml")])
def test_pyyaml_is_imported_for_yaml_alone(dirs: list[str], file: str, loaded: str) -> None:
    write(dirs[0], file, spec())
    write(dirs[0], "other.yaml", spec("w/c"))
    code = f"import sys; sys.path.insert(0, {str(TOP / 'shim')!r}); from gpushim.cdi import specs; "
    code += f"specs.find(['vendor.com/device=a'], {dirs!r}); "
    code += "print(*sorted({'os', 're', 'json', 'yaml', 'typing'} & set(sys.modules)))"
    done = subprocess.run(["/usr/bin/python3", "-IBS", "-c", code], capture_output=True, text=True, check=True)
    assert set(loaded.split()) <= set(done.stdout.split())
    assert bool(loaded) == bool(done.stdout.split())
