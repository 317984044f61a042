from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from gpushim.cli.explain import explain
from gpushim.engines.docker import inspect
from gpushim.engines.processes import programs
from gpushim.explain import explain as story
from gpushim.explain.explain import build_spec
from gpushim.ground.errors import BUNDLE, REQUEST
from unit import imports
from unit.gpushim.cli import every
from unit.gpushim.cli.looking import run
from unit.gpushim.inventory.machine import Machine

DEVICES = "NVIDIA_VISIBLE_DEVICES"
DEAR = {
    "gpushim.engines.docker.inspect",
    "gpushim.inventory.survey",
    "http.client",
    "shutil",
}  # half of the time, together


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return every.host(tmp_path_factory.mktemp("explain"))


def test_what_is_rare_is_imported_when_it_is_needed(machine: Machine) -> None:
    env = {"GPUSHIM_CONFIG": machine.config, "GPUSHIM_STATE": machine.state}
    words = [f"{every.REPOSITORY}/bin/gpushim", "explain", f"--env={DEVICES}=0"]
    code = f"import runpy; sys.argv = {words}; runpy.run_path(sys.argv[0])"
    found = imports.imported(code, env)
    assert "gpushim.explain.explain" in found
    assert DEAR.isdisjoint(found)


def bundle(folder: Path, *env: str) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"root": {"path": "rootfs"}, "process": {"env": list(env)}}))
    return path


def report(*args: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(explain, "--format", "json", *args, **options).stdout)
    return found


def test_the_ways_to_name_a_bundle(tmp_path: Path) -> None:
    path = bundle(tmp_path, f"{DEVICES}=0")
    found = report(str(tmp_path))
    assert found == report(str(path))
    (hook,) = [edit["value"] for edit in found["edits"] if edit["kind"] == "hook"]
    assert hook["args"][3] == f"{tmp_path}/rootfs"
    assert report("-", stdin=path.read_text())["source"] == f"env {DEVICES}"


def test_a_table_for_people(tmp_path: Path) -> None:
    out = run(explain, str(bundle(tmp_path, f"{DEVICES}=0,2:0", "NVIDIA_REQUIRE_CUDA=cuda>=12.0"))).stdout
    assert "NVIDIA_VISIBLE_DEVICES      0,2:0" in out
    assert "node   /dev/nvidia1 c 195:1" in out
    assert 'GPU 0, asked for as "0"' in out
    assert "Conditions that hold:" in out
    assert "libcuda.so.5 (read-only)" in out


def test_limits_of_memory_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"device": "0", "limit": 8 << 30, "by": "variable", "also": [{"limit": 9 << 30, "by": "most"}]}
    answer = {**story.explain(build_spec([f"{DEVICES}=0"], False, {}, [])), "limits": [row]}
    monkeypatch.setattr(story, "explain", lambda *_: answer)
    lines = run(explain, "--env", f"{DEVICES}=0").stdout.splitlines()
    heading = lines.index("Limits of GPU memory:")
    assert lines[heading + 1].split() == ["GPU", "LIMIT", "BY", "LARGER"]
    assert lines[heading + 2].split() == ["0", "8192", "MiB", "variable", "9216", "MiB", "(most)"]


def test_variables_alone() -> None:
    found = report("--env", f"{DEVICES}=0", "--privileged", "--annotation", "a=b", "--mount", "/dev/null:/x")
    rows = {row["what"]: (row["value"], row["from"]) for row in found["asked"]}
    assert rows[DEVICES] == ("0", "the command line")
    assert rows["CAP_SYS_ADMIN"][0] == "yes"


def test_a_refusal_is_said_and_exits_so() -> None:
    result = run(explain, "--env", f"{DEVICES}=9", code=REQUEST)
    assert f"{DEVICES}" in result.stdout
    assert 'asks for GPU "9"' in str(result.exception)
    found = json.loads(run(explain, "--format", "json", "--env", f"{DEVICES}=9", code=REQUEST).stdout)
    assert found["refusal"]["exit_code"] == REQUEST


def test_no_request(tmp_path: Path) -> None:
    out = run(explain, str(bundle(tmp_path))).stdout
    assert "gpushim leaves this container as it is: NVIDIA_VISIBLE_DEVICES is not set" in out


def test_a_bundle_may_be_called_as_a_file_of_claims_is(tmp_path: Path) -> None:
    folder = tmp_path / "b.yaml"
    folder.mkdir()
    bundle(folder)
    assert "leaves this container as it is" in run(explain, str(folder)).stdout


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["x", "--env", "A=b"],
        ["--docker", "x", "--privileged"],
        ["--env", "A"],
        ["x", "y"],
        ["claim", "d/c", "z"],
        ["claim", "d/c", "--pod=d/p"],
    ],
)
def test_one_thing_to_explain(args: list[str]) -> None:
    run(explain, *args, code=2)


def test_claims_are_asked_for_by_name() -> None:
    assert run(explain, "claim", code=2).stderr.endswith("say which claim: claim NAMESPACE/NAME\n")


def test_claims_without_the_package_that_explains_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushim.cli.device_plugin.hook_program", lambda: "/nowhere/gpushim-hook")
    words = str(run(explain, "claim", "d/c", code=1).exception)
    assert words.startswith(
        "/nowhere/gpushim-dra-driver cannot be executed: No such file or directory; install gpushim-"
    )


@pytest.mark.parametrize("text", ["", "{", "[" * 100000, "3"])
def test_a_broken_config_json(text: str) -> None:
    run(explain, "-", stdin=text, code=BUNDLE)


def test_a_bundle_that_is_not_there(tmp_path: Path) -> None:
    run(explain, str(tmp_path / "x"), code=BUNDLE)


def test_a_container_of_dockers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = inspect.Found(build_spec([f"{DEVICES}=0"], False, {}, []), {DEVICES: "image x"}, notes=["it gets NO GPU"])
    monkeypatch.setattr(inspect, "inspect", lambda name: found if name == "web" else None)
    out = run(explain, "--docker", "web").stdout
    assert out.startswith("note: it gets NO GPU\n")
    assert "image x" in out


def test_what_watches_gpus_is_told_what_it_gets_beside_a_lost_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    host = machine.build(2)
    host.lose(1)
    machine.refresh()

    def explained(word: str) -> Any:
        words = [f"{every.REPOSITORY}/bin/gpushim", "explain", "--format=json", f"--env={DEVICES}={word}"]
        done = subprocess.run(words, env=machine.environment(), capture_output=True, text=True, check=False)
        return json.loads(done.stdout)

    assert "not all can be used" in explained("all")["refusal"]["sentence"]
    found = explained("all-usable")
    nodes = [edit["value"]["path"] for edit in found["edits"] if edit["kind"] == "node"]
    assert {f"/dev/nvidia{gpu.minor}" for gpu in host.gpus} < {*nodes}
    assert any("does not answer NVML" in note for note in found["ignored"])


def test_a_shell_completes_the_names_of_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\ntest "$*" = "ps --all --format={{.Names}}" && printf "trainer\\ntranslate\\nweb\\n"\n'
    )
    docker.chmod(0o755)
    monkeypatch.setattr(programs, "find", lambda name: str(docker) if name == "docker" else "")
    option = next(each for each in explain.params if each.name == "docker")
    names = option.shell_complete(click.Context(explain), "tra")
    assert [name.value for name in names] == ["trainer", "translate"]
