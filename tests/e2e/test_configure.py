"""`gpushim configure` against real engines: a GPU container runs afterwards, and --remove brings the old bytes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from e2e import chroots, engines, leftovers
from e2e.engines import Docker
from e2e.expect import INSIDE, PROBE, probe, sees_exactly
from e2e.podman import Podman, podman
from e2e.views import PLACES, low_level
from e2e.witness import Witness
from fakehost import Host
from gpushim.cli.configure import configure

GPU = (f"--volume={PROBE}:{INSIDE}:ro", "--env=NVIDIA_VISIBLE_DEVICES=1")


def gpushim(*args: str) -> str:
    """Call `gpushim configure`; it finds engines in the real /proc."""
    result = CliRunner().invoke(configure, list(args))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def state() -> Iterator[Path]:
    with leftovers.state() as state:
        yield state


@pytest.fixture
def runtime(tmp_path: Path, witness: Witness) -> Path:
    """A gpushim-runtime that knows the simulated host without a variable, which Podman would not pass on."""
    path = tmp_path / "gpushim-runtime"
    path.symlink_to(witness.front)
    return path


def odd_settings(state: Path) -> bytes:
    """Settings of a dockerd in a style of their own: tabs, no end of the last line, an escape, a feature."""
    lines = [
        "{",
        '\t"hosts":["unix://STATE/docker.sock"],',
        '\t"data-root":"STATE/data", "exec-root":"STATE/exec",',
        '\t"pidfile" : "STATE/docker.pid",',
        '\t"bridge":"none", "iptables":false, "ip6tables":false,',
        '\t"cgroup-parent":"/GROUP",',
        '\t"labels":["na\\u00efve=yes"],',
        '\t"features": { "buildkit": false }',
        "}",
    ]
    return "\n".join(lines).replace("STATE", str(state)).replace("GROUP", state.name).encode()


@contextlib.contextmanager
def running(state: Path, prefix: tuple[str, ...] = ()) -> Iterator[Docker]:
    """A dockerd with the settings that are there now."""
    engine = Docker(state, prefix)
    ready = [*prefix, engines.DOCKER, f"--host=unix://{engine.socket}", "version"]
    command = [*prefix, engines.DOCKERD, f"--config-file={state}/daemon.json"]
    with engines._daemon(command, engine.log, {"PATH": engines.SYSTEM_PATH}, ready):
        yield engine


def test_docker(state: Path, runtime: Path, debian_image: Path, gpu_host: Host) -> None:
    config = state / "daemon.json"
    old = odd_settings(state)
    config.write_bytes(old)
    file = f"--config={config}"
    with running(state):
        asked = ("docker", file, f"--runtime-path={runtime}", "--set-as-default")
        assert f"changed {config}" in gpushim(*asked)
        refused = CliRunner().invoke(configure, ["docker", file, "--verify"])
        assert "does not have the runtime nvidia" in str(refused.exception)
    with running(state) as engine:
        assert "nothing to change" in gpushim(*asked)
        assert gpushim("docker", file, "--verify", "--set-as-default") == "verified: Docker has the runtime nvidia\n"
        engine.docker("load", f"--input={debian_image}")
        for option in (["--runtime=nvidia"], []):
            done = engine.docker(
                "run", "--rm", "--network=none", *option, *GPU, "debian:local", *probe(gpu_host, [1])
            )
            sees_exactly(done.stdout, gpu_host, [1])
        gpushim("docker", file, "--remove")
    assert config.read_bytes() == old
    assert not list(state.glob("daemon.json.*"))
    with running(state):
        assert "no longer has the runtime nvidia" in gpushim("docker", file, "--verify", "--remove")


def test_dockerd_takes_what_is_taken(state: Path, runtime: Path) -> None:
    """A byte order mark aside, which Docker takes since version 23: an empty file, and objects that were null."""
    odd = json.loads(odd_settings(state))
    (state / "daemon.json").write_text(json.dumps({**odd, "runtimes": None}))
    gpushim("docker", f"--config={state}/daemon.json", f"--runtime-path={runtime}")
    with running(state):
        assert "verified" in gpushim("docker", f"--config={state}/daemon.json", "--verify")


@pytest.mark.parametrize("suite", chroots.SUITES)
def test_newer_dockers_and_cdi(suite: str, state: Path, runtime: Path, gpu_host: Host, cdi_dir: Path) -> None:
    """Docker 26 does CDI when told to, 28 by itself and lists the devices."""
    config = state / "daemon.json"
    old = odd_settings(state)
    config.write_bytes(old)
    file = f"--config={config}"
    with chroots.entered(suite, Path(gpu_host.root), view="v1") as place:
        chroots.publish(place.prefix, cdi_dir)
        gpushim("docker", file, f"--runtime-path={runtime}", "--cdi", "--set-as-default")
        assert json.loads(config.read_bytes())["features"] == {"buildkit": False, "cdi": True}
        with running(state, place.prefix):
            assert "verified" in gpushim("docker", file, "--verify", "--cdi", "--set-as-default")
    gpushim("docker", file, "--remove")
    before = json.loads(old)
    assert json.loads(config.read_bytes()) == {**before, "features": {**before["features"], "cdi": True}}


@pytest.fixture
def engine(podman_images: Path, state: Path, tmp_path: Path) -> Iterator[Podman]:
    """Podman with settings of its own."""
    with podman(state, podman_images, low_level(PLACES[0], tmp_path)) as engine:
        yield engine


class Usual(Podman):
    """Podman that reads its usual files, as it does without CONTAINERS_CONF."""

    @property
    def env(self) -> dict[str, str]:
        return {name: value for name, value in super().env.items() if name != "CONTAINERS_CONF"}


@pytest.fixture
def main(engine: Podman) -> Iterator[Path]:
    """An administrator's containers.conf, in the layer over /etc that tests have (apart.py)."""
    path = Path("/etc/containers/containers.conf")
    assert not path.exists()
    shutil.copy(engine.env["CONTAINERS_CONF"], path)
    yield path
    path.unlink()


def test_podman(engine: Podman, main: Path, runtime: Path, gpu_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Usual(engine.state, Path("nvidia"), engine.prefix)
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    for name, value in usual.env.items():
        monkeypatch.setenv(name, value)
    drop_in, old = main.with_name("containers.conf.d") / "99-gpushim.conf", main.read_bytes()
    assert usual.run(*GPU, "localhost/debian:local", "true", check=False).returncode != 0
    assert f"changed {drop_in}" in gpushim("podman", f"--runtime-path={runtime}")
    assert gpushim("podman", "--verify") == "verified: Podman has the runtime nvidia\n"
    done = usual.run("--rm", "--cap-add=mknod", *GPU, "localhost/debian:local", *probe(gpu_host, [1]))
    sees_exactly(done.stdout, gpu_host, [1])
    gpushim("podman", "--remove")
    assert (main.read_bytes(), os.listdir(drop_in.parent)) == (old, [])
    assert "no longer has" in gpushim("podman", "--verify", "--remove")
