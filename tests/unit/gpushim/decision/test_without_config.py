from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpushim.config import policy
from gpushim.decision import without_config
from gpushim.ground import system
from gpushim.inventory import ensure

A = {"process": {"env": ["A_B=0"]}}
PLAIN = {"process": {"env": ["PATH=/bin:/sbin", "HOME=/root", "TERM=xterm", "A=", "V=void", "L=en,de"]}}
STOCK = (Path(__file__).parents[4] / "packaging/config.toml").read_text() + "zzz = 1\n"
NAMES = "[requests]\nswarm-variables = "


def annotated(key: str, value: str) -> dict[str, Any]:
    return {"annotations": {key: value}}


CASES: list[tuple[str, dict[str, Any], bool]] = [
    ("x = 1", {}, False),
    ("x = 1", {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void", "A_B=0"]}}, False),
    ("x = 1", {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}, True),
    ("x = 1", {"process": {"env": 1}}, True),  # refused for what it is, in the end
    ("x = 1", {"process": {"env": [1]}, "annotations": 1}, True),
    ("x = 1", A, False),
    ("x = A_B", A, True),
    ("x = A_B_C", A, False),
    ("# A_B\nx = 1", A, False),
    ("  # A_B\nx = 1", A, False),
    ("x = '#' # A_B", A, True),  # who knows
    ("x = ['#', 'A_B']", A, True),
    ("x = ' # A_B", A, True),
    (NAMES + '["""a "# b""", "A_B"]\nx = 1', A, True),
    (NAMES + '["""\n# """, "A_B"]\nx = 1', A, True),
    (NAMES + '["""\n# \'\'\'""", "A_B"]\nx = 1', A, True),
    (NAMES + '["A"#"A_B"]', A, True),
    (NAMES + '["A\\u005FB"]\nx = 1', A, True),
    (NAMES + '["\\U00000041\\x5fB"]\nx = 1', A, True),
    (NAMES + '["""A_\\  \n  B"""]\nx = 1', A, True),
    (NAMES + '["A\\UFFFFFFFFB", "\\u0000"]\nx = 1', A, False),
    ("# a comment\r" + (NAMES + "['A_B']").replace("\n", "\r"), A, True),
    ("\udcff = [\nA_B", A, True),
    ("[requests]\n", A, False),  # valid: nothing counts but what it says
    (STOCK, A, False),
    (STOCK, PLAIN, False),
    (STOCK, annotated("logging.example.com/level", "debug"), False),
    (STOCK, annotated("logging.example.com/level", "a.b/c=d"), False),  # a section's name is no prefix
    (STOCK, annotated("requests/x", "a.b/c=d"), False),
    (STOCK, annotated("hook.example/x", "1"), False),
    (STOCK, annotated("cdi.k8s.io/x", "1"), True),
    ("x = ['hook.']", annotated("hook.example/x", "1"), False),
    ("x = ['hook.']", annotated("hook.example/x", "1, a.b/c=d"), True),
    ("x = [\n'hook.'", annotated("hook.example/x", "a.b/c=d"), True),
    ("x = [hook.'", annotated("hook.example/x", "a.b/c=d"), True),
    ("x = A_B", {"process": {"env": ["A_B=debug"]}}, False),
    ("x = A_B", {"process": {"env": ["A_B=a,GPU-0123abcd"]}}, True),
    ("x = A_B", {"process": {"env": ["A_B=none"]}}, True),
    ("x = A_B", {"process": {"env": ["A_B=0::1"]}}, True),
    ("x = A_B", {"process": {"env": ["A_B=void"]}}, False),
]


@pytest.mark.parametrize(("text", "spec", "may"), CASES)
def test_who_may_ask_under_a_wrong_configuration(tmp_path: Path, text: str, spec: Any, may: bool) -> None:
    config = tmp_path / "config.toml"
    config.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert without_config.may_ask(spec, str(config), str(tmp_path)) is may


def test_quotes_without_an_end_take_no_time(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("'\n" * 200_000 + "'#" * 200_000)
    assert without_config.may_ask(A, str(config), str(tmp_path)) is False


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "latin-1", "cp1251"])
def test_another_encoding(tmp_path: Path, encoding: str) -> None:
    config = tmp_path / "config.toml"
    config.write_bytes(f"# \N{NO-BREAK SPACE}\n{NAMES}['A_B']\n".encode(encoding))
    assert without_config.may_ask(A, str(config), str(tmp_path)) is True
    assert without_config.may_ask(PLAIN, str(config), str(tmp_path)) is False


@pytest.mark.parametrize("kind", ["too long", "a directory"])
def test_what_cannot_be_read_may_name_anything(tmp_path: Path, kind: str) -> None:
    config = tmp_path / "config.toml"
    if kind == "too long":
        config.write_text("#" * (1 << 20) + f"\n{NAMES}['A_B']")
    else:
        config.mkdir()
    assert without_config.may_ask(A, str(config), str(tmp_path)) is True
    assert without_config.may_ask(annotated("x/y", "a.b/c=d"), str(config), str(tmp_path)) is True
    assert without_config.may_ask(PLAIN, str(config), str(tmp_path)) is False
    assert without_config.may_ask(annotated("x/y", "1"), str(config), str(tmp_path)) is False


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
