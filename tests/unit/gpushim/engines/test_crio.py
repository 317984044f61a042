"""`gpushim configure crio`: the drop-in, the file that somebody names, and the answer of a stand-in for CRI-O."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from click.testing import Result

from gpushim.engines import crio, programs
from gpushim.engines.running import Engine

Call = Callable[..., Result]
MAIN = """# the cluster's
[crio.runtime]
default_runtime = "crun" # not runc
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
"""


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CRI-O's directory, with a crio.conf."""
    path = tmp_path / "crio"
    (path / "crio.conf.d").mkdir(parents=True)
    (path / "crio.conf").write_text(MAIN)
    monkeypatch.setattr(crio, "CONFIG", f"{path}/crio.conf")
    monkeypatch.setattr(crio, "DIRECTORY", f"{path}/crio.conf.d")
    return path


def ok(result: Result) -> Result:
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def runtime(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomlkit.parse(path.read_text()).unwrap()["crio"]["runtime"]
    return table


def test_the_drop_in_has_what_the_default_runtime_has(etc: Path, call: Call, program: str) -> None:
    ok(call("crio", None))
    assert runtime(etc / "crio.conf.d" / "99-gpushim.toml") == {
        "runtimes": {
            "nvidia": {
                "runtime_path": program,
                "runtime_type": "oci",
                "runtime_root": "/run/crun",
                "monitor_path": "/usr/libexec/crio/conmon",
            }
        }
    }
    assert (etc / "crio.conf").read_text() == MAIN


def test_remove_leaves_nothing(etc: Path, call: Call) -> None:
    ok(call("crio", None, "--set-as-default"))
    ok(call("crio", None))
    ok(call("crio", None, "--remove"))
    assert os.listdir(etc / "crio.conf.d") == []
    assert os.listdir(etc) in (["crio.conf", "crio.conf.d"], ["crio.conf.d", "crio.conf"])


def test_defect_the_drop_in_is_made_anew_and_loses_the_default(etc: Path, call: Call) -> None:
    ok(call("crio", None, "--set-as-default"))
    drop_in = etc / "crio.conf.d" / "99-gpushim.toml"
    drop_in.write_text(drop_in.read_text() + "# mine\n[crio.image]\npause_image = 'x'\n")
    assert "nothing to change" in ok(call("crio", None)).stdout
    ok(call("crio", None, "--runtime-name=gpu"))
    assert runtime(drop_in)["default_runtime"] == "nvidia"
    assert list(runtime(drop_in)["runtimes"]) == ["nvidia", "gpu"]
    ok(call("crio", None, "--remove"))
    assert tomlkit.parse(drop_in.read_text()).unwrap() == {"crio": {"image": {"pause_image": "x"}}}
    assert "# mine" in drop_in.read_text()


def test_defect_crio_conf_is_overwritten(etc: Path, call: Call, program: str) -> None:
    ok(call("crio", etc / "crio.conf", "--set-as-default"))
    text = (etc / "crio.conf").read_text()
    assert text.startswith('# the cluster\'s\n[crio.runtime]\ndefault_runtime = "nvidia" # not runc\n')
    assert runtime(etc / "crio.conf")["runtimes"]["crun"]["runtime_path"] == "/usr/bin/crun"
    assert runtime(etc / "crio.conf")["runtimes"]["nvidia"]["runtime_path"] == program
    ok(call("crio", etc / "crio.conf", "--remove"))
    assert (etc / "crio.conf").read_text() == MAIN
    assert sorted(os.listdir(etc)) == ["crio.conf", "crio.conf.d"]


def test_what_somebody_wrote_into_crio_conf_since_stays(etc: Path, call: Call) -> None:
    ok(call("crio", etc / "crio.conf", "--set-as-default"))
    text = (etc / "crio.conf").read_text()
    (etc / "crio.conf").write_text(text + "\n[crio.image]\npause_image = 'x' # new\n")
    ok(call("crio", etc / "crio.conf", "--remove"))
    left = (etc / "crio.conf").read_text()
    assert tomlkit.parse(left).unwrap() == {**tomlkit.parse(MAIN).unwrap()} | {
        "crio": {"runtime": runtime_of_main(), "image": {"pause_image": "x"}}
    }
    assert "# the cluster's" in left
    assert "# new" in left


def runtime_of_main() -> dict[str, Any]:
    table: dict[str, Any] = tomlkit.parse(MAIN).unwrap()["crio"]["runtime"]
    return table


def test_a_runtime_of_the_same_name_elsewhere(etc: Path, call: Call) -> None:
    other = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'
    (etc / "crio.conf.d" / "10-nvidia.conf").write_text(other)
    refused = call("crio", None)
    assert "the runtime nvidia is /usr/bin/nvidia-container-runtime; take another" in str(refused.exception)
    ok(call("crio", None, "--force"))
    assert (etc / "crio.conf.d" / "10-nvidia.conf").read_text() == other


def test_the_directory_of_the_running_crio(etc: Path, call: Call, tmp_path: Path, engines: list[Engine]) -> None:
    argv = ("crio", f"--config-dir={tmp_path}/own.d")
    engines.append(Engine("crio", 12, argv=argv, config=f"{etc}/crio.conf", uid=os.geteuid()))
    ok(call("crio", None))
    assert os.listdir(tmp_path / "own.d") == ["99-gpushim.toml"]


def test_cdi_needs_nothing(etc: Path, call: Call) -> None:
    assert "note: CRI-O always does CDI" in ok(call("crio", None, "--cdi")).output


@pytest.mark.parametrize("name", ["crio", "crio-status"])
def test_verify_asks_crio(name: str, etc: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins: CRI-O is not to be had here. They say what their settings say."""
    drop_in = etc / "crio.conf.d" / "99-gpushim.toml"
    where = '[ "$1" = status ] || exit 1; ' if name == "crio" else ""
    for each in ("crio", "crio-status"):
        script = f"#!/bin/sh\n{where}exec cat {drop_in}\n" if each == name else "#!/bin/sh\nexit 1\n"
        (tmp_path / "bin" / each).write_text(script)
        (tmp_path / "bin" / each).chmod(0o755)
    monkeypatch.setattr(programs, "DIRECTORIES", (f"{tmp_path}/bin",))
    ok(call("crio", None))
    assert ok(call("crio", None, "--verify")).stdout == "verified: CRI-O has the runtime nvidia\n"
    missing = call("crio", None, "--verify", "--runtime-name=gpu", "--set-as-default").exception
    assert "CRI-O does not have the runtime gpu; the default runtime is None" in str(missing)
