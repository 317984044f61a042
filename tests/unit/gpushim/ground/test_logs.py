"""Logging of refresh and the command line."""

from __future__ import annotations

import io
import json
import logging
import re
import sys

import pytest

from gpushim.ground import logs


def test_json_has_the_names_of_runc(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start("json", "info")
    logs.logger.warning("a %s", "b")
    logs.logger.debug("no")
    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("Z")
    assert line == {"level": "warning", "msg": "a b"}


def test_json_has_no_field_that_newer_pythons_add(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start("json", "info")
    record = {"name": "gpushim", "levelname": "INFO", "levelno": 20, "msg": "a", "taskName": None}
    logs.logger.handle(logging.makeLogRecord(record))
    assert set(json.loads(capsys.readouterr().err)) == {"level", "msg", "time"}


def test_for_people_it_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the policy says, and without what the command tells by itself."""
    logs.start("json", "info", people=True)
    logs.logger.info("x")
    logs.logger.warning("y")
    assert capsys.readouterr().err == "gpushim: WARNING: y\n"


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start("text", "debug")
    logs.logger.debug("x")
    assert capsys.readouterr().err == "gpushim: DEBUG: x\n"


def test_without_the_json_library_it_is_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pythonjsonlogger.json", "pythonjsonlogger.jsonlogger"):
        monkeypatch.setitem(sys.modules, name, None)
    logs.start("json", "info")
    assert re.fullmatch(r"gpushim: WARNING: python-json-logger is missing.*\n", capsys.readouterr().err)


def test_starting_twice_says_things_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.start("text", "info")
    logs.start("text", "info")
    logs.logger.info("x")
    assert capsys.readouterr().err.count("x") == 1


def test_a_stderr_that_cannot_be_written_to_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    full = Full()
    monkeypatch.setattr("sys.stderr", full)
    logs.start("text", "info")
    logs.logger.warning("nobody reads this")
    assert full.getvalue() == "gpushim: WARNING: nobody reads this\n"  # and no traceback of logging's
