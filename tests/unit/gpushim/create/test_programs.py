"""Which programs a call of gpushim-runtime executes: each start of one more costs every container a millisecond."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from e2e import recorder
from unit.gpushim.calls import tell

TOP = Path(__file__).parents[4]
ASKING = '{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=none"]}}'
CALLS = [
    (["state", "x"], "{}", ["gpushim-runtime", "recorder"]),
    (["delete", "--force", "x"], ASKING, ["gpushim-runtime", "recorder"]),
    (["create", "x"], "{}", ["gpushim-runtime", "grep", "recorder"]),
    (["run", "x"], "{}", ["gpushim-runtime", "grep", "recorder"]),
    (["create", "x"], ASKING, ["gpushim-runtime", "grep", "python3"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("args", "config", "programs"), CALLS, ids=lambda value: " ".join(value))
def test_no_more_programs_than_these(tmp_path: Path, args: list[str], config: str, programs: list[str]) -> None:
    (tmp_path / "config.json").write_text(config)
    tell(tmp_path, recorder.build(tmp_path))
    command = [
        "strace",
        "-f",
        "-e",
        "trace=execve",
        "-o",
        str(tmp_path / "trace"),
        str(TOP / "bin/gpushim-runtime"),
        *args,
    ]
    env = {"PATH": "/usr/bin:/bin", "GPUSHIM_STATE": str(tmp_path), "GPUSHIM_CONFIG": str(tmp_path / "none.toml")}
    subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    executed = re.findall(r'execve\("[^"]*?([^/"]+)", .* = 0$', (tmp_path / "trace").read_text(), re.MULTILINE)
    assert executed[: len(programs)] == programs
    assert "python3" in programs or executed == programs
