"""The packages' settings for logrotate: the real one rotates the log, and creates and hooks go on writing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from e2e import trees
from gpushim.paths import logfile

ROTATE = shutil.which("logrotate", path=f"/usr/sbin:/usr/bin:{trees.TOP}/.cache/logrotate/usr/sbin")
SETTINGS = trees.TOP / "packaging/logrotate"
LINE = "x" * 999


def test_it_is_about_the_log_that_is_written_by_default() -> None:
    assert "/var/log/gpushim.log {\n" in SETTINGS.read_text()
    assert 'file = "/var/log/gpushim.log"' in (trees.TOP / "packaging/config.toml").read_text()


@pytest.mark.skipif(ROTATE is None, reason="there is no logrotate")
def test_the_log_stays_bounded(tmp_path: Path) -> None:
    log, settings = tmp_path / "gpushim.log", tmp_path / "settings"
    text = SETTINGS.read_text().replace("/var/log/gpushim.log", str(log)).replace("maxsize 10M", "maxsize 10k")
    settings.write_text(text)
    settings.chmod(0o644)
    for _ in range(8):
        for _ in range(20):
            logfile.append(str(log), LINE)
        subprocess.run([str(ROTATE), "--state", tmp_path / "state", settings], check=True)
    kept = sorted(path.name for path in tmp_path.glob("gpushim.log*"))
    assert kept == ["gpushim.log.1", *(f"gpushim.log.{number}.gz" for number in (2, 3, 4))]
    logfile.append(str(log), LINE)
    assert (log.stat().st_mode & 0o777, log.read_text()) == (logfile.MODE, f"{LINE}\n")
