"""`gpushim doctor`: its exit codes and its two forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpushim import doctor
from gpushim.cli.doctor import doctor as command
from gpushim.doctor import Finding, checks
from gpushim.ground.errors import GpushimError

WELL, ODD = doctor.ok("all is well"), doctor.warning("this is odd", "fix it")
BAD = doctor.broken("this is broken", "fix it at once")


def run(monkeypatch: pytest.MonkeyPatch, found: list[Finding], *args: str) -> Result:
    monkeypatch.setattr("gpushim.engines.processes.running.look", lambda: ([], []))
    monkeypatch.setattr(checks, "run", lambda host: found)
    return CliRunner().invoke(command, args)


@pytest.mark.parametrize(("found", "code"), [([WELL], 0), ([], 0), ([WELL, ODD], 1), ([BAD, ODD, WELL], 2)])
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, found: list[Finding], code: int) -> None:
    assert run(monkeypatch, found).exit_code == code


def test_the_table_tells_what_fixes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(monkeypatch, [Finding("warning", "this is odd", "fix it", "some-check")]).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["verdict", "check", "evidence"],
        ["warning", "some-check", "this", "is", "odd"],
        ["fix:", "fix", "it"],
        ["0", "skipped,", "0", "ok,", "1", "warning,", "0", "broken"],
    ]


SOME = [
    Finding("ok", "all is well", "", "a"),
    Finding("warning", "this is odd", "fix it", "b"),
    Finding("skipped", "nothing here", "", "c"),
    Finding("broken", "this is broken", "fix it at once", "d"),
]


@pytest.mark.parametrize(
    ("options", "checks_shown", "rest"),
    [((), ["d", "b"], "; --all shows what is ok or skipped"), (("--all",), ["d", "b", "a", "c"], "")],
)
def test_problems_come_first(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], checks_shown: list[str], rest: str
) -> None:
    lines = run(monkeypatch, SOME, *options).stdout.splitlines()
    assert [line.split()[1] for line in lines[1:-1] if not line.startswith(" ")] == checks_shown
    assert lines[-1] == f"1 skipped, 1 ok, 1 warning, 1 broken{rest}"


def test_json_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(run(monkeypatch, SOME, "--format=json").stdout)["findings"]
    assert [each["check"] for each in found] == ["a", "b", "c", "d"]


def test_where_all_is_well_only_the_counts_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(monkeypatch, [WELL]).stdout
    assert said == "0 skipped, 1 ok, 0 warning, 0 broken; --all shows what is ok or skipped\n"


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = json.loads(run(monkeypatch, [BAD], "docker", "--format=json").stdout)
    assert found["verdict"] == "broken"
    assert found["findings"] == [
        {
            "verdict": "broken",
            "evidence": "this is broken",
            "fix": "fix it at once",
            "check": "",
        }
    ]


def test_an_unknown_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'lxc' is not one of" in run(monkeypatch, [], "lxc").output


def test_a_mistyped_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'dockr' is no engine; is docker meant?" in run(monkeypatch, [], "dockr").output


def test_a_report_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpushim.doctor.report.PROGRAMS", ())
    assert run(monkeypatch, [ODD], f"--report={tmp_path}/report").exit_code == 1
    assert "this is odd" in (tmp_path / "report").read_text()


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_report_on_stdout_takes_the_place_of_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    monkeypatch.setattr("gpushim.doctor.report.PROGRAMS", ())
    monkeypatch.chdir(tmp_path)
    done = run(monkeypatch, [ODD], "--report=-", f"--format={form}")
    assert (done.exit_code, [*tmp_path.iterdir()]) == (1, [])
    if form == "table":
        assert done.stdout.startswith("== gpushim ==\n")
    else:
        assert json.loads(done.stdout)["findings"][0]["fix"] == "fix it"


@pytest.mark.parametrize("place", ["", "{0}", "{0}/there", "{0}/absent/report", "{0}/there/report", "/proc/report"])
def test_the_place_of_a_report_is_looked_at_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "there").touch()
    monkeypatch.setattr(doctor, "look", lambda engines: pytest.fail("the host was looked at"))
    done = CliRunner().invoke(command, [f"--report={place.format(tmp_path)}"])
    assert done.exit_code not in (0, 1) or isinstance(done.exception, GpushimError)
    assert not isinstance(done.exception, pytest.fail.Exception)
