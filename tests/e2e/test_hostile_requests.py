"""Hostile words: in variables, in config.json's keys, and in CDI specs that are not root's alone.

None of these containers starts. What is said about them is one line without control characters.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from e2e.hostile import Trap
from fakehost import Host

SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "evil.com/card",
    "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}],
}
YAML = "cdiVersion: 0.5.0\nkind: evil.com/card\ndevices:\n- name: a\n  containerEdits:\n    env: "
NVD = "NVIDIA_VISIBLE_DEVICES"


@pytest.fixture
def trap(busybox_tree: Path, tmp_path: Path, gpushim_env: dict[str, str]) -> Trap:
    """An image that never runs."""
    (tmp_path / "root").mkdir()
    return Trap(tmp_path, tmp_path / "root", gpushim_env)


def refused(trap: Trap) -> str:
    """Run a container that must be refused, and return the sentence: one line of ASCII, in the log and on stderr."""
    before = trap.bundle.config.read_bytes()
    done = trap.run()
    assert done.returncode in (10, 11, 12, 14), done.stderr
    assert trap.bundle.config.read_bytes() == before
    said = done.stderr.removesuffix("\n")
    assert said.isascii()
    assert said.isprintable(), said
    assert len(said) < 2000
    assert [json.loads(line)["msg"] for line in trap.bundle.log.read_text().splitlines()] == [said]
    return said


@pytest.mark.parametrize("text", ["\x1b[2J\nlevel=fatal msg=forged\r", "\u202e\u2028\x7f\x9b", "x" * 5000], ids=ascii)
@pytest.mark.parametrize("name", [NVD, "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_IMEX_CHANNELS"])
def test_what_an_image_says_is_quoted(trap: Trap, gpu_host: Host, name: str, text: str) -> None:
    """P-15: also what it says elsewhere stays out of the logs."""
    trap.ask(f"{NVD}=0", "PASSWORD=hunter2", f"{name}={text},0", args=["/busybox", "true"])
    said = refused(trap)
    log = Path(trap.bundle.env["GPUSHIM_CONFIG"]).with_name("gpushim.log")
    logged = log.read_text() if log.exists() else ""
    assert all(isinstance(json.loads(line), dict) for line in logged.splitlines())
    assert "hunter2" not in logged + said


# A word in config.json, what to put in its place, and what is said about it.
KEYS: dict[str, tuple[str, str, str]] = {
    "process twice": ('"process":', '"process":{},"process":', 'the key "process" twice'),
    "resources twice": ('"resources":', '"resources":{},"resources":', 'the key "resources" twice'),
    "a mount's source twice": ('"source":', '"source":"/","source":', 'the key "source" twice'),
    "Process": ('"process":', '"Process":{},"process":', 'take for "process"'),
    "PROCESS alone": ('"process":', '"PROCESS":', '"PROCESS", which some runtimes take for "process"'),
    "a long s": ('"process":', '"proce\u017f\u017f":{},"process":', 'take for "process"'),
    "HOOKS": ('"process":', '"HOOKS":{},"process":', 'take for "hooks"'),
    "Env": ('"env":', '"Env":["NVIDIA_VISIBLE_DEVICES=all"],"env":', 'take for "env"'),
    "additionalgids": ('"user":{', '"user":{"additionalgids":[0],', 'take for "additionalGids"'),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_runtimes_read_in_several_ways(trap: Trap, gpu_host: Host, name: str) -> None:
    """P-11: runc takes any spelling and merges what is there twice; crun and Python do not."""
    trap.ask(f"{NVD}=0", args=["/busybox", "true"])
    text = json.dumps(trap.bundle.spec, separators=(",", ":"))
    old, new, said = KEYS[name]
    assert old in text
    trap.bundle.config.write_text(text.replace(old, new, 1))
    assert said in refused(trap)


LARGE = json.dumps({**SPEC, "annotations": {"a": "x" * (5 << 20)}})
CDI: dict[str, tuple[str, str, int, int, str]] = {
    "others may write it": ("a.json", json.dumps(SPEC), 0o646, 0, "its mode is 0646"),
    "its group may write it": ("a.json", json.dumps(SPEC), 0o664, 0, "its mode is 0664"),
    "it is a user's": ("a.json", json.dumps(SPEC), 0o644, 1000, "user 1000 owns it"),
    "large": ("a.json", LARGE, 0o644, 0, "more than 4 MiB"),
    "unknown version": ("a.json", json.dumps({**SPEC, "cdiVersion": "9.0.0"}), 0o644, 0, "cdiVersion"),
    "YAML tag": ("a.yaml", YAML + "[!!python/object/apply:os.system ['touch MARKER']]\n", 0o644, 0, "has the tag"),
    "YAML bomb": ("a.yaml", YAML + "[&a A=1" + ", *a" * 99 + "]\n", 0o644, 0, "more than 64 aliases"),
    "relative hook": (
        "a.json",
        json.dumps({**SPEC, "containerEdits": {"hooks": [{"hookName": "createContainer", "path": "poc.so"}]}}),
        0o644,
        0,
        "not an absolute path",
    ),
}


@pytest.mark.parametrize("name", CDI)
def test_a_cdi_spec_that_cannot_be_trusted(trap: Trap, gpu_host: Host, specs: Path, name: str) -> None:
    """T-CDI, P-14."""
    file, text, mode, owner, reason = CDI[name]
    (specs / file).write_text(text.replace("MARKER", str(trap.work / "owned")))
    (specs / file).chmod(mode)
    os.chown(specs / file, owner, 0)
    trap.ask(f"{NVD}=evil.com/card=a", args=["/busybox", "true"])
    said = refused(trap)
    assert not (trap.work / "owned").exists()
    assert reason in said


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_of_cdi_specs_that_others_may_write(trap: Trap, gpu_host: Host, specs: Path, mode: int) -> None:
    """T-CDI."""
    (specs / "a.json").write_text(json.dumps(SPEC))
    specs.chmod(mode)
    trap.ask(f"{NVD}=evil.com/card=a", args=["/busybox", "true"])
    assert f"its mode is {mode:04o}" in refused(trap)


def test_a_link_to_a_users_cdi_spec(trap: Trap, gpu_host: Host, specs: Path) -> None:
    """T-CDI."""
    (trap.work / "theirs").write_text(json.dumps(SPEC))
    os.chown(trap.work / "theirs", 1000, 1000)
    (specs / "a.json").symlink_to(trap.work / "theirs")
    trap.ask(f"{NVD}=evil.com/card=a", args=["/busybox", "true"])
    assert "user 1000 owns it" in refused(trap)


def test_a_cdi_device_in_two_specs(trap: Trap, gpu_host: Host, specs: Path) -> None:
    """T-CDI."""
    for name in ("a.json", "b.json"):
        (specs / name).write_text(json.dumps(SPEC))
    trap.ask(f"{NVD}=evil.com/card=a", args=["/busybox", "true"])
    assert "remove one of them" in refused(trap)
