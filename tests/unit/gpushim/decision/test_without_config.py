from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpushim.config import policy
from gpushim.decision import without_config
from gpushim.ground import system
from gpushim.inventory import ensure

WRONG = "no-such-key = 1\n"
GPU = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}
LAST = {"policy": {"requests": {"swarm-variables": ["A_GPU"]}, "cdi": {"annotation-prefixes": ["my.org/"]}}}


def annotated(key: str) -> dict[str, Any]:
    return {"annotations": {key: "1"}}


CASES: list[tuple[str, dict[str, Any], bool]] = [
    (WRONG, {"process": {"env": ["PATH=/bin", "A=0"]}}, False),
    (WRONG, GPU, True),
    (WRONG, {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}}, True),
    (WRONG, {"process": {"env": ["CUDA_VERSION=12.0"]}}, True),
    (WRONG, {"mounts": [{"destination": "/var/run/nvidia-container-devices/0"}]}, True),
    (WRONG, annotated("cdi.k8s.io/x"), True),
    (WRONG, annotated("logging.example.com/level"), False),
    (WRONG, {"hooks": {"prestart": [{"path": "/usr/bin/gpushim-hook"}]}}, False),  # of a hooks.d directory
    (WRONG, {"process": {"env": ["A_GPU=0"]}}, True),
    (WRONG, {"process": {"env": ["B_GPU=0"]}}, False),
    (WRONG, annotated("my.org/x"), True),
    (WRONG + "[requests]\nswarm-variables = ['B_GPU']", {"process": {"env": ["B_GPU=0"]}}, False),
    ("", GPU, True),  # well: what it says counts, and the host cannot be surveyed
    ("", {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}}, False),
    ("", {"process": {"env": ["A_GPU=0"]}}, False),
    ("", {"process": {"env": 1}}, True),  # refused for what it is, in the end
]


@pytest.mark.parametrize(("text", "spec", "may"), CASES)
def test_who_may_ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, spec: Any, may: bool) -> None:
    (tmp_path / "config.toml").write_text(text)
    monkeypatch.setattr(ensure, "own", lambda _: LAST)
    assert without_config.may_ask(spec, f"{tmp_path}/config.toml", str(tmp_path)) is may


@pytest.mark.parametrize("last", [{}, {"policy": 1}, {"policy": {"requests": {}}}])
def test_without_a_snapshot_the_words_of_the_launcher_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, last: Any
) -> None:
    (tmp_path / "config.toml").write_text(WRONG)
    monkeypatch.setattr(ensure, "own", lambda _: last)
    answers = [
        without_config.may_ask(spec, f"{tmp_path}/config.toml", str(tmp_path))
        for spec in (GPU, annotated("my.org/x"))
    ]
    assert answers == [True, False]


def test_the_words_are_the_launchers() -> None:
    launcher = (Path(without_config.__file__).parents[1] / "launcher").read_text()
    words = re.findall(r"-e ([\w.-]+)", launcher)
    assert [*without_config.WORDS, "gpushim-hook"] == words


@pytest.mark.parametrize(
    ("text", "snapshot", "default", "log"),
    [
        ('[log]\nfile = "/l/own"\n', "/l/last", False, "/l/own"),
        ("x = 1", "/l/last", False, "/l/last"),
        ("x = 1", "/l/last", True, "/l/last"),
        ("x = 1", "", True, policy.defaults()["log"]["file"]),
        ("x = 1", "", False, ""),
    ],
)
def test_a_refusal_is_logged_where_a_configuration_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, snapshot: str, default: bool, log: str
) -> None:
    (tmp_path / "config.toml").write_text(text)
    monkeypatch.setattr(system, "config_path", lambda: f"{tmp_path}/config.toml")
    monkeypatch.setattr(system, "CONFIG_FILE", f"{tmp_path}/config.toml" if default else "/none")
    monkeypatch.setattr(system, "state_dir", lambda: str(tmp_path))
    monkeypatch.setattr(ensure, "own", lambda _: {"policy": {"log": {"file": snapshot}}} if snapshot else {})
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(without_config, "append", lambda *words: lines.append(words))
    without_config.record({"msg": "no"})
    assert [(path, '"msg": "no"' in line or '"msg":"no"' in line) for path, line in lines] == [(log, True)]
