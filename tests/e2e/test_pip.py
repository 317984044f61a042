"""gpushim installed by pip and by uv, for trying out: its programs find the code beside them, and each other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fakehost
from e2e import recorder, trees
from e2e.witness import settings

DATA = trees.TOP / "tests/data/docker-config.json"


def by_pip(folder: Path) -> Path:
    subprocess.run(["/usr/bin/python3", "-m", "venv", folder / "venv"], check=True)
    pip = [str(folder / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check", str(trees.TOP)]
    subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
    return folder / "venv/bin"


def by_uv(folder: Path) -> Path:
    env = {**os.environ, "UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    uv = [str(Path(sys.executable).with_name("uv")), "tool", "install", "--quiet", "--python", "/usr/bin/python3"]
    subprocess.run([*uv, str(trees.TOP)], env=env, check=True)
    return folder / "bin"


@pytest.fixture(scope="module", params=[by_pip, by_uv])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the installed programs."""
    found: Path = request.param(tmp_path_factory.mktemp("installed"))
    return found


def test_a_create_is_edited_and_names_the_hook_beside_it(programs: Path, tmp_path: Path) -> None:
    host = fakehost.build(str(tmp_path / "driver"), 1)
    low = recorder.build(tmp_path)
    spec = json.loads(DATA.read_text())
    spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=0")
    (tmp_path / "config.json").write_text(json.dumps(spec))
    env = {**settings(tmp_path, host.root, str(low)), "RECORD": str(tmp_path / "record")}
    subprocess.run([programs / "gpushim-runtime", "create", "--bundle", tmp_path, "x"], env=env, check=True)
    hook = json.loads((tmp_path / "config.json").read_text())["hooks"]["prestart"][-1]
    assert Path(hook["args"][3]).samefile(programs / "gpushim-hook")  # behind the shell's words
    assert recorder.read(tmp_path / "record")["argv"][1:] == ["create", "--bundle", str(tmp_path), "x"]


def test_the_hook_runs_isolated_whatever_its_first_line(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    env = {"PYTHONPATH": str(tmp_path)}
    hook = [str(programs / "gpushim-hook"), "prestart", "--rootfs", "/"]
    done = subprocess.run(hook, env=env, cwd=tmp_path, input="{}", capture_output=True, text=True, check=False)
    assert done.returncode == 16
    assert done.stderr.startswith("gpushim-hook: the container's state on stdin names no pid")


def test_engines_are_told_the_program_beside(programs: Path, tmp_path: Path) -> None:
    words = ["configure", "docker", "--dry-run", "--config", str(tmp_path / "daemon.json")]
    done = subprocess.run([str(programs / "gpushim"), *words], capture_output=True, text=True, check=True)
    path = next(line.split('"')[3] for line in done.stdout.splitlines() if '"path":' in line)
    assert Path(path).samefile(programs / "gpushim-runtime")


def test_what_is_to_be_done_before_it_is_removed_is_said(programs: Path, tmp_path: Path) -> None:
    """And its command takes gpushim out of the settings, which runs nothing of pip's."""
    (settings := tmp_path / "daemon.json").write_text("{}\n")
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": "/root"}
    words = ["gpushim", "configure", "docker", f"--config={settings}", f"--runtime-path={programs}/gpushim-runtime"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    (undo,) = re.findall("and uv remove [^`]*`(gpushim configure docker --remove [^`]*)`", done.stdout + done.stderr)
    assert "gpushim-runtime" in settings.read_text()
    gone = subprocess.run(["/bin/sh", "-c", undo], env=env, capture_output=True, text=True, check=True)
    assert settings.read_text() == "{}\n"
    assert "pip and uv" not in gone.stdout + gone.stderr
