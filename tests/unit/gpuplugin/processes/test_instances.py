"""Whether another instance of the plugin runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplugin.processes.instances import Instances

TOP = Path(__file__).parents[4]
OTHER = """
import sys
from gpuplugin.processes.instances import Instances
one = Instances()
one.join(sys.argv[1])
print(flush=True)
input()
"""


def test_each_sees_the_others_and_not_itself(tmp_path: Path) -> None:
    one, other = Instances(), Instances()
    assert not one.others()
    one.join(str(tmp_path))
    assert not one.others()
    other.join(str(tmp_path))
    assert one.others()
    assert other.others()
    one.leave()
    assert not other.others()
    other.leave()


def test_a_resource_is_others_while_one_that_lives_serves_it(tmp_path: Path) -> None:
    one, other = Instances(), Instances()
    for each in (one, other):
        each.join(str(tmp_path))
        each.serve("nvidia.com/gpu")
    one.serve("nvidia.com/gpu.dev")
    assert one.others("nvidia.com/gpu")
    assert not one.others("nvidia.com/gpu.dev")
    assert other.others("nvidia.com/gpu.dev")
    one.cease("nvidia.com/gpu.dev")
    assert not other.others("nvidia.com/gpu.dev")
    other.leave()
    assert not one.others("nvidia.com/gpu")
    one.leave()


def test_which_of_the_others_lives(tmp_path: Path) -> None:
    one, other, old = Instances(), Instances(), Instances()
    assert not one.lives(other.number)
    for each in (one, other):
        each.join(str(tmp_path))
    assert one.lives(other.number)
    assert not one.lives(one.number)
    assert not one.lives(old.number)
    other.serve("nvidia.com/gpu")
    other.leave()
    assert not one.lives(other.number)
    one.leave()


def test_one_that_is_killed_is_gone(tmp_path: Path) -> None:
    one = Instances()
    one.join(str(tmp_path))
    path = ":".join(str(TOP / name) for name in ("plugin", "shim", "hook"))
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        assert one.others()
        other.kill()
    assert not one.others()
    one.leave()


def test_without_a_file_it_is_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = Instances()
    one.join(str(tmp_path / "none"))
    assert not one.others()
    assert "cannot be locked: No such file or directory" in caplog.messages[0]
