"""`gpushim explain` and `gpushim ps` beside the real runc, crun and dockerd: what they say is what is there."""

from __future__ import annotations

import json
import posix
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from e2e import engines
from e2e.bundles import Bundle
from e2e.engines import Docker
from e2e.expect import refuses
from e2e.trees import TOP
from fakehost import Host
from gpushim.cli.explain import explain
from gpushim.cli.ps import ps
from gpushim.ground.errors import REQUEST, GpushimError
from gpushim.oci import edits

SLEEP = ["sleep", "1000"]


@pytest.fixture(autouse=True)
def _settings(gpushim_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in gpushim_env.items():
        monkeypatch.setitem(posix.environ, name.encode(), value.encode())


def say(command: click.Command, *args: str, code: int = 0) -> Any:
    """Run a command in this process; returns its JSON."""
    result = CliRunner().invoke(command, ["--format", "json", *args])
    error = result.exception
    assert (error.exit_code if isinstance(error, GpushimError) else result.exit_code) == code, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("asked", ["0,2", "all", "none"])
def test_explain_says_what_runc_then_gets(bundle: Bundle, asked: str) -> None:
    bundle.ask(f"NVIDIA_VISIBLE_DEVICES={asked}", args=["true"])
    spec = bundle.spec
    report = say(explain, str(bundle.directory))
    assert bundle.spec == spec
    bundle.run()
    edits.apply([edits.Edit(edit["kind"], edit["value"]) for edit in report["edits"]], spec)
    assert bundle.spec == spec


def test_explain_refuses_as_the_runtime_does(bundle: Bundle, gpu_host: Host) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=7", args=["true"])
    refusal = say(explain, str(bundle.directory), code=REQUEST)["refusal"]
    refuses(refusal["sentence"], gpu_host, "7")
    done = bundle.run(check=False)
    assert (done.returncode, done.stderr.strip()) == (refusal["exit_code"], "gpushim: " + refusal["sentence"])


def test_ps_lists_a_container_while_it_lives(bundle: Bundle) -> None:
    state = f"{bundle.directory}/state"
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2", args=SLEEP)
    with bundle.created():
        (holder,) = say(ps, "--state", state)
        assert (holder["id"], holder["devices"], holder["how"]) == (bundle.id, ["0", "2"], "spec")
        assert holder["bundle"] == str(bundle.directory)
        bundle.call("kill", bundle.id, "KILL")
    assert say(ps, "--state", state) == []


def test_ps_lists_no_container_without_a_gpu(bundle: Bundle) -> None:
    bundle.ask("NVIDIA_VISIBLE_DEVICES=none", args=SLEEP)
    with bundle.created():
        assert say(ps, "--state", f"{bundle.directory}/state") == []


def test_containers_of_docker(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ("--detach", "--network=none", "--env=NVIDIA_VISIBLE_DEVICES=1")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{docker.socket}")
    names = {}
    for runtime in ("nvidia", "runc"):
        done = docker.docker("run", *common, f"--runtime={runtime}", "debian:local", *SLEEP)
        names[runtime] = done.stdout.strip()
    try:
        (holder,) = [each for each in say(ps) if each["id"] in names.values()]
        assert (holder["id"], holder["devices"], holder["engine"]) == (names["nvidia"], ["1"], "docker")
        report = say(explain, "--docker", names["nvidia"])
        (row,) = [row for row in report["asked"] if row["what"] == "NVIDIA_VISIBLE_DEVICES"]
        assert row["from"] == "container (docker run --env)"
        (device,) = report["devices"]
        assert device["means"] == "GPU 1"
        (note,) = [note for note in say(explain, "--docker", names["runc"])["notes"] if "NO GPU" in note]
        assert "--runtime=nvidia" in note
        assert "NVIDIA_VISIBLE_DEVICES is not set" in say(explain, "--docker", "debian:local")["nothing"]
    finally:
        docker.docker("rm", "--force", *names.values())


def test_gpus_that_the_hook_alone_has_given(
    debian_image: Path, gpushim_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "nvidia-container-runtime-hook"
    (tmp_path / name).symlink_to(TOP / "bin" / name)
    with engines.dockerd({}, env=gpushim_env, path_dirs=(tmp_path,)) as docker:
        docker.docker("load", f"--input={debian_image}")
        monkeypatch.setenv("DOCKER_HOST", f"unix://{docker.socket}")
        done = docker.docker("run", "--detach", "--network=none", '--gpus="device=0,2"', "debian:local", *SLEEP)
        container = done.stdout.strip()
        try:
            (holder,) = [each for each in say(ps) if each["id"] == container]
            assert (holder["devices"], holder["how"]) == (["0", "2"], "hook")
            report = say(explain, "--docker", container)
            assert [device["means"] for device in report["devices"]] == ["GPU 0", "GPU 2"]
            assert next(row["from"] for row in report["asked"]) == "docker run --gpus"
            assert [note for note in report["notes"] if "the hook that --gpus brings" in note]
        finally:
            docker.docker("rm", "--force", container)
