"""Rights on the ConfigMap alone: no place on a node is named by it, and none of it keeps kubelet waiting."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.mps.mps import Folders
from gpuplugin.settings import forms, settings
from gpuplugin.settings.settings import Settings
from gpuplugin.settings.sources import Sources
from gpushim.config import policy
from gpushim.ground import bounds
from gpushim.ground.errors import GpushimError
from gpushim.nvidia.migrate.device_plugin_keys import LOCAL_KEYS, OTHER_KEYS, SETTINGS

CANARY = "/canary/x"
NAMED = [setting.file for setting in SETTINGS if setting.file]
SHARED = [(kind, key) for kind in ("timeSlicing", "mps") for key in ("name", *forms._FORMS)]


def read(file: Path, content: Any) -> Settings:
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return settings.resolve({}, {}, {}, str(file))


def nested(place: str, value: Any) -> Any:
    for name in reversed(place.split(".")):
        value = {name: value}
    return value


def is_told(found: Settings) -> bool:
    """Return whether something that counts has the canary in it."""
    return CANARY in repr((found.values, found.checks, found.sharing, found.profile))


@pytest.mark.parametrize("place", [*NAMED, *OTHER_KEYS])
@pytest.mark.parametrize("value", [CANARY, [CANARY], f"../..{CANARY}"])
def test_no_key_names_a_place(tmp_path: Path, place: str, value: Any) -> None:
    try:
        found = read(tmp_path / "file", nested(place, value))
    except GpushimError:
        return
    assert not is_told(found)


@pytest.mark.parametrize(("kind", "key"), SHARED)
@pytest.mark.parametrize("name", [CANARY, f"..{CANARY}", f"nvidia.com/..{CANARY}", ".."])
def test_no_name_below_sharing_is_a_place(tmp_path: Path, kind: str, key: str, name: str) -> None:
    row = {"name": "gpu", "replicas": 2, "devices": [0], key: name}
    slices = {"name": "gpu", "slices": [{"name": name, "memory": "1Gi"}]}
    for one in (row, slices):
        try:
            found = read(tmp_path / "file", {"sharing": {kind: {"resources": [one]}}})
        except GpushimError:
            continue
        directories = [each.partition("/")[2] for group in found.sharing if group.mps for each in group.names]
        assert all("/" not in each and Path(Folders("/run", each).top).name == each != ".." for each in directories)


def test_what_writes_is_told_by_the_node_and_the_file_is_told_off_once(tmp_path: Path) -> None:
    file, said = tmp_path / "file", nested("flags.gfd.outputFile", "/var/lib/kubelet/device-plugins/checkpoint")
    file.write_text(json.dumps(said))
    found = settings.resolve({}, {}, {"labels-file": "/features.d/gpushim"}, str(file))
    assert found.values["labels-file"] == "/features.d/gpushim"
    assert found.notes == [
        f"{file}: flags.gfd.outputFile is accepted without effect: the node says where, by labels-file in "
        "config.toml or --labels-file"
    ]
    file.write_text(json.dumps({"profiles": {"a": said}, "default": "a"}))
    assert settings.resolve({}, {}, {}, str(file)).values["labels-file"] == ""


def test_every_setting_that_is_a_path_is_a_place() -> None:
    """One that is added without a thought is found by its rule: it takes an absolute path."""
    takes_paths = set()
    for setting in SETTINGS:
        if setting.key and setting.rule["type"] == "string":
            for value in (CANARY, "/", f"unix:{CANARY}"):
                if not [*policy.problems(value, setting.rule, "")]:
                    takes_paths.add(setting.key)
    assert takes_paths - {"disable-healthchecks", "enable-healthchecks"} <= {*LOCAL_KEYS}


def laughs(pairs: int) -> str:
    rows = [f"a{one}: &a{one} {{x: *a{one - 1}, y: *a{one - 1}}}" for one in range(1, pairs)]
    return "\n".join(["a0: &a0 {x: 1}", *rows])


MANY = {f"replicaz{number}": 1 for number in range(9000)}
FEW = {f"replicaz{number}": 1 for number in range(16)}
HOSTILE: dict[str, str] = {
    "1 MiB": "key: " + "x" * ((1 << 20) - 8),
    "unknown keys": "".join(f"flags{number:05}: 1\n" for number in range(18_000)),
    "few enough unknown keys": json.dumps({f"flags.plugin.k{number:05}": 1 for number in range(9000)}),
    "long keys": json.dumps({f"flags.{'migStrateg' * 200}{number}": 1 for number in range(100)}),
    "aliases": laughs(30),
    "very many aliases": "a: &a [x]\nb: [" + "*a, " * 20_000 + "]",
    "nested": "[" * 200_000,
    "nested in JSON": '{"a":' * 40_000 + "1" + "}" * 40_000,
    "nested in JSON a little": '{"a":' * 900 + "1" + "}" * 900,
    "list": "a: [" + "1," * 120_000 + "1]",
    "sharing": json.dumps({"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, **MANY}]}}}),
    "rows": json.dumps({"sharing": {"mps": {"resources": [
        {"name": "gpu", "devices": [row], "slices": [{"name": f"s{row}-{one}", "threads": 1} for one in range(250)]}
        for row in range(12)]}}}),
    "many rows": json.dumps({"sharing": {"timeSlicing": {"resources": [
        {"name": "gpu", "replicas": 2, "devices": ["*a" * 60 + str(row)], **FEW}
        for row in range(256)]}}}),
    "profiles": json.dumps({"profiles": {f"p{number}": {} for number in range(9000)}}),
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_no_file_takes_long(tmp_path: Path, content: str) -> None:
    begun, said = time.process_time(), []
    try:
        said = read(tmp_path / "file", content).notes
    except GpushimError as error:
        said = [str(error)]
    assert len(said) <= 3 * bounds.LISTED
    assert all(len(each) < 1000 for each in said)
    assert time.process_time() - begun < 2


@pytest.mark.parametrize("kind", ["unknown keys", "list", "rows", "many rows"])
def test_a_change_of_the_file_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("GPUSHIM_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "file").write_text("{}")
    sources = Sources({"config-file": [str(tmp_path / "file")]}, {})
    sources.read()

    async def run() -> float:
        begun = time.thread_time()  # of the loop: what another thread takes is not in it, nor what other programs do
        await sources.renew(log_again=True)
        return time.thread_time() - begun

    (tmp_path / "file").write_text(HOSTILE[kind])
    assert sources.changed()
    assert asyncio.run(run()) < 0.02
    assert not sources.changed()


def test_a_file_that_is_read_is_not_asked_about_and_two_are_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHIM_CONFIG", str(tmp_path / "config.toml"))
    sources, read, at_once = Sources({}, {}), Sources.read, []
    sources.read()

    def slow(self: Sources) -> Settings:
        at_once.append(1)
        time.sleep(0.05)
        assert len(at_once) == 1
        at_once.pop()
        return read(self)

    async def run() -> None:
        work = asyncio.gather(sources.renew(True), sources.renew(True))
        await asyncio.sleep(0.01)
        (tmp_path / "config.toml").write_text("[device-plugin]\ngds = true\n")
        assert not sources.changed()
        assert all(await work)

    monkeypatch.setattr(Sources, "read", slow)
    asyncio.run(run())
