"""No command prints what others wrote as it is: it would tell the terminal what to do, or look like lines of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpushim import doctor
from gpushim.cli import main, show
from gpushim.containers import holders
from gpushim.doctor import checks
from gpushim.engines.processes import running
from gpushim.ground.errors import visible
from gpushim.nvidia.migrate import migrate_engines
from gpushim.nvidia.migrate.migrate import Row
from unit.gpushim.cli.commands import Host, apart

# A window's title, a control of eight bits, a mark that turns the line round, a byte that is not UTF-8, another line.
TEXT = "x\x1b]0;t\x07\x9b2J\u202e\udcff\nok all is well"
SEEN = r"x\x1b]0;t\x07\x9b2J\u202e\udcff\nok all is well"


@pytest.fixture(autouse=True)
def _others(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let others have written TEXT wherever they can."""
    host.snapshot.update(runtime=TEXT, written=None, notes=[TEXT])
    host.snapshot["gpus"][0]["model"] = TEXT
    held = {"id": TEXT, "name": TEXT, "engine": TEXT, "pid": 7, "bundle": TEXT, "devices": ["0"], "how": "spec"}
    held["cgroup"] = TEXT
    held |= {"namespace": TEXT, "pod": TEXT, "uid": TEXT}
    monkeypatch.setattr(holders, "holders", lambda *_: ([held], [TEXT]))
    monkeypatch.setattr(running, "look", lambda: ([], [running.Impostor("dockerd", 7, 1000, TEXT)]))
    monkeypatch.setattr(checks, "run", lambda _: [doctor.warning(TEXT, TEXT)])
    monkeypatch.setattr(migrate_engines, "find_rows", lambda: [Row(TEXT, TEXT, TEXT)])
    monkeypatch.setenv("GPUSHIM_CONFIG", f"{tmp_path}/none.toml")


def settings(tmp_path: Path) -> list[str]:
    path = tmp_path / "x\x1b]0;t\x07.json"
    path.write_text('{"a": "\x9b2J\u202e"}')
    program = tmp_path / "gpushim-runtime"
    program.touch(0o755)
    return ["configure", "docker", f"--config={path}", f"--runtime-path={program}", "--dry-run"]


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "list": lambda _: ["list"],
    "list, CSV": lambda _: ["list", "--format=csv"],
    "list, JSON": lambda _: ["list", "--format=json"],
    "info": lambda _: ["info"],
    "ps": lambda _: ["ps", "--no-trunc"],
    "ps, CSV": lambda _: ["ps", "--format=csv"],
    "ps, JSON": lambda _: ["ps", "--format=json"],
    "doctor": lambda _: ["doctor"],
    "doctor, JSON": lambda _: ["doctor", "--format=json"],
    "migrate": lambda _: ["migrate"],
    "explain": lambda _: ["explain", f"--env=NVIDIA_VISIBLE_DEVICES={TEXT}"],
    "explain, nothing": lambda _: ["explain", f"--env=NVIDIA_X={TEXT}"],
    "configure": settings,
    "a refusal": lambda folder: ["configure", "docker", f"--config={folder}/\x1b]0;t\x07/\u202e/.."],
    "cdi validate": lambda folder: ["cdi", "validate", f"{folder}/\x1b]0;t\x07.json"],
}


@pytest.mark.parametrize("columns", [None, 40, 4000], ids=["no terminal", "narrow", "wide"])
@pytest.mark.parametrize("name", COMMANDS)
def test_what_others_write_is_printed_as_escapes(
    name: str, columns: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "width", lambda **_: columns)
    result = apart().invoke(main, COMMANDS[name](tmp_path))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    said = result.stdout + result.stderr
    assert "\\x1b]0;t" in said or "\\u001b]0;t" in said, said
    assert all(each.isprintable() or each in "\n\t" for each in said), ascii(said)
    assert "\nok all" not in said


@pytest.mark.parametrize("text", ["plain", "naïve", "漢字", "a\\b"])
def test_printable_text_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [(TEXT, SEEN), ("\t\r\x00\x7f", r"\t\r\x00\x7f"), ("\u2028\u200b\ufeff\u00a0", r"\u2028\u200b\ufeff\xa0")],
)
def test_all_else_is_escaped(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_tabs_may_stay() -> None:
    assert visible("\t\x1b", "\t") == "\t\\x1b"
