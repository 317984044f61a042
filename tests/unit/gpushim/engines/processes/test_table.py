"""A new engine is a row of the table, its own module and its checks: configure, doctor and ps then know it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "toy.py": 'from gpushim.engines.settings.setup import Plan\n\ndef plan(wish): return Plan("/etc/toy.conf")\n',
    "check_toy.py": """from gpushim.doctor import ok

def daemon(host):
    yield ok(f"toyd would be started by: {host.start('toy')}")

CHECKS = {"toy-daemon": daemon}
""",
}
SCRIPT = """import sys
import gpushim.engines.settings.setup
from gpushim.engines.processes import table

table.ENGINES["toy"] = table.Row("Toy", "toyd", "toy.service", ("--conf",), hooks=True, states=("/run/toy/*",))
import gpushim.doctor
for room in (gpushim.engines, gpushim.doctor):
    room.__path__.append(sys.argv.pop())
from gpushim import cli
from gpushim.containers import holders
from gpushim.engines.processes import running

assert running.CONFIG_OPTIONS["toyd"] == ("--conf",) and ("/run/toy/*", "toy") in holders.STATES
cli.main()
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("configure", "toy", "--remove", "--dry-run"), "/etc/toy.conf: nothing to take back"),
        (("configure", "toy", "--help"), "--hooks"),
        (("doctor", "toy", "--all"), "toyd would be started by: "),
    ],
)
def test_an_engine_of_two_files(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    folder, path = str(tmp_path), ":".join(sys.path)
    command = [sys.executable, "-c", SCRIPT, *words, folder, folder]
    environment = {**os.environ, "PYTHONPATH": path, "GPUSHIM_STATE": f"{folder}/state"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert says in " ".join(done.stdout.split()), done.stderr
