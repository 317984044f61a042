"""Each command of docs/cdi.md does what it says there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushim.cli import main
from gpushim.config import policy
from unit.gpushim.cli.commands import REPOSITORY

DOCUMENT = (REPOSITORY / "docs/cdi.md").read_text()


def test_commands_of_the_document_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = policy.defaults()
    settings["cdi"]["spec-dirs"] = [f"{tmp_path}/etc/cdi"]
    monkeypatch.setattr(policy, "load", lambda _: settings)
    monkeypatch.setattr(policy, "no_directory", lambda *_: "")  # the host is simulated, and has the document's
    commands = re.findall(r"^gpushim (.*?)(?:\s+#.*)?$", DOCUMENT, re.MULTILINE)
    assert len(commands) == 10
    for command in commands:
        args = [re.sub(r"^/(?=etc/cdi/)", f"{tmp_path}/", word) for word in shlex.split(command)]
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, (command, result.output)
    assert sorted(path.name for path in (tmp_path / "etc/cdi").iterdir()) == ["nvidia.json", "nvidia.yaml"]
