"""`gpushim configure containerd` with containerd 1.6 here, 1.7 and 2.1 in the chroots, and settings of both versions.

A pod with a GPU runs under the new handler, what was there works as before, and --remove brings the old bytes.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import tomlkit

from e2e import chroots, engines, leftovers, trees
from e2e.engines import Containerd, Done
from e2e.expect import INSIDE, PROBE, probe, sees_exactly, sees_nothing
from fakehost import Host
from gpushim.engines.containerd.imports import CRI

RUNTIME = trees.TOP / "bin" / "gpushim-runtime"
SITE = Path(click.__file__).parents[1]  # click and tomlkit, which the chroots do not have
PAUSE, IMAGE = "docker.io/library/pause:local", "docker.io/library/debian:local"
MAIN = "from gpushim.cli.configure import configure; configure()"
RUNC_OPTIONS = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
Root = "{state}/runc" # nothing of the machine's
"""
HERE = "here"


def gpushim(prefix: tuple[str, ...], config: Path, *args: str, check: bool = True) -> Done:
    """Call `gpushim configure containerd` where containerd runs."""
    python = "/usr/bin/python3" if prefix else sys.executable
    path = f"PYTHONPATH={trees.TOP}/shim:{trees.TOP}/hook:{SITE}"
    state = f"GPUSHIM_STATE={config.parent}/gpushim"  # not this machine's own
    command = [
        *prefix,
        "/usr/bin/env",
        path,
        state,
        python,
        "-B",
        "-c",
        MAIN,
        "containerd",
        f"--config={config}",
        *args,
    ]
    return engines.run(command, check=check)


@contextlib.contextmanager
def place(where: str, gpu_host: Host) -> Iterator[tuple[str, ...]]:
    """The prefix of commands that run in a Debian, or none."""
    if where == HERE:
        yield ()
        return
    with chroots.entered(where, Path(gpu_host.root), SITE, view="v1") as entered:
        yield entered.prefix


@contextlib.contextmanager
def running(state: Path, prefix: tuple[str, ...], env: dict[str, str]) -> Iterator[Containerd]:
    """A containerd with the settings that are there now."""
    engine = Containerd(state, prefix)
    ready = [*prefix, engines.CTR, f"--address={engine.socket}", "version"]
    command = [*prefix, engines.CONTAINERD, f"--config={state}/config.toml"]
    with engines._daemon(command, engine.log, {"PATH": engines.SYSTEM_PATH, **env}, ready):
        yield engine


@pytest.fixture
def state() -> Iterator[Path]:
    with leftovers.state() as state:
        yield state


def write(config: Path, version: int, prefix: tuple[str, ...], *, imports: bool) -> bytes:
    """Write settings of a version, with comments; containerd 2 makes version 3 of version 2 itself."""
    state = config.parent
    text = engines.CONTAINERD_CONFIG.format(state=state, pause=PAUSE, more="", default="runc") + RUNC_OPTIONS.format(
        state=state
    )
    config.write_text(text)
    if version == 3:
        text = engines.run([*prefix, engines.CONTAINERD, f"--config={config}", "config", "migrate"]).stdout
        text = re.sub("(?m)^imports = .*\n", "", text)
    first = 'imports = ["conf.d/*.toml"] # for others\n' if imports else ""
    config.write_text(f"# kept as it is\n{first}{text}")
    return config.read_bytes()


@pytest.mark.parametrize(
    ("where", "version", "imports"),
    [(HERE, 2, False), ("trixie", 2, True), ("sid", 2, False), ("sid", 3, True)],
)
def test_a_pod_with_a_gpu(
    where: str,
    version: int,
    imports: bool,
    state: Path,
    gpu_host: Host,
    gpushim_env: dict[str, str],
    debian_image: Path,
    busybox_tree: Path,
) -> None:
    config, pause = state / "config.toml", trees.image(busybox_tree, "pause:local", ["/bin/sleep", "1000000"])
    wished = ("--set-as-default", *(() if where == HERE else ("--cdi",)))  # CDI came with 1.7
    asked = (f"--runtime-path={RUNTIME}", *wished)
    with place(where, gpu_host) as prefix:
        old = write(config, version, prefix, imports=imports)
        with running(state, prefix, gpushim_env):
            assert "changed" in gpushim(prefix, config, *asked).stdout
        dropped_in = state / "conf.d" / "99-gpushim.toml"
        assert dropped_in.exists()
        assert (config.read_bytes() == old) is imports
        with running(state, prefix, gpushim_env) as engine:
            assert "nothing to change" in gpushim(prefix, config, *asked).stdout
            for archive in (debian_image, pause):
                engine.load(archive, ("k8s.io",))
            for handler in ("nvidia", ""):
                pod_sees(engine, handler, gpu_host, [1])
            answer = gpushim(prefix, config, "--verify", *wished).stdout
            assert answer == "verified: containerd has the runtime nvidia\n"
            gpushim(prefix, config, "--remove")
        assert config.read_bytes() == old
        assert not dropped_in.exists()
        assert not list(state.glob("config.toml.*"))
        with running(state, prefix, gpushim_env) as engine:
            pod_sees(engine, "runc", gpu_host, [])
            assert "no longer has" in gpushim(prefix, config, "--verify", "--remove").stdout


def pod_sees(engine: Containerd, handler: str, gpu_host: Host, indices: list[int]) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": "1"}
    with engine.cri() as client:
        pod = client.run_pod(handler)
        container = client.create(pod, IMAGE, ["sleep", "1000"], env=env, mounts={PROBE: INSIDE})
        client.start(container)
        output = client.execute(container, *probe(gpu_host, indices))
        sees_exactly(output, gpu_host, indices) if indices else sees_nothing(output)


def test_verify_tells_what_is_missing(state: Path, gpushim_env: dict[str, str]) -> None:
    config = state / "config.toml"
    write(config, 2, (), imports=False)
    with running(state, (), gpushim_env):
        refused = gpushim((), config, "--verify", check=False)
        assert "does not read the runtime nvidia" in refused.stderr
        gpushim((), config, f"--runtime-path={RUNTIME}")
    assert "no containerd runs that reads" in gpushim((), config, "--verify", check=False).stderr


SETTINGS = {
    "empty": "",
    "comments": "# nothing\n",
    "root alone": 'root = "/var/lib/x"\n[grpc]\nuid = 0\n',
    "version 1": '[plugins.cri]\nsandbox_image = "mine"\n',
    "version 2": 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nstream_server_port = "7"\n',
    "version 3": "version = 3\n[plugins.'io.containerd.grpc.v1.cri']\nstream_server_port = '7'\n",
    "imports": 'version = 2\nimports = ["/{state}/more/*.toml"]\nroot = "/var/lib/x"\n',
}
READ = {
    HERE: {"empty", "comments", "root alone", "version 1", "version 2", "imports"},
    "trixie": {"empty", "comments", "root alone", "version 1", "version 2", "imports"},
    "sid": {"empty", "comments", "root alone", "version 2", "version 3", "imports"},
}


@pytest.mark.parametrize("where", [HERE, *chroots.SUITES])
def test_containerd_reads_our_runtime_and_all_it_read_before(where: str, state: Path, gpu_host: Host) -> None:
    """Its own view of any settings is the old one and our runtime; those that it would not read are refused."""
    with place(where, gpu_host) as prefix:
        for name, text in SETTINGS.items():
            config = state / name.replace(" ", "-") / "config.toml"
            config.parent.mkdir()
            config.write_text(text.format(state=state))
            if name not in READ[where]:
                assert "version" in gpushim(prefix, config, f"--runtime-path={RUNTIME}", check=False).stderr
                continue
            if name == "imports":
                more = state / "more" / "theirs.toml"
                more.parent.mkdir()
                more.write_text('[plugins."io.containerd.grpc.v1.cri"]\nmax_container_log_line_size = 7\n')
            before = dump(prefix, config)
            gpushim(prefix, config, f"--runtime-path={RUNTIME}")
            after = dump(prefix, config)
            assert taken_out(after)["options"]["BinaryName"] == str(RUNTIME)
            assert after == before, name


def dump(prefix: tuple[str, ...], config: Path) -> dict[str, Any]:
    """Return containerd's own view, without the names of files, versions, and what has no value."""
    text = engines.run([*prefix, engines.CONTAINERD, f"--config={config}", "config", "dump"]).stdout
    data: dict[str, Any] = set_ones({**tomlkit.parse(text).unwrap(), "imports": [], "version": 0})
    return data


def set_ones(value: Any) -> Any:
    """Leave out what a built-in entry has empty and a written one has not; an empty mode means the usual one."""
    if not isinstance(value, dict):
        return "" if value == "podsandbox" else value
    kept = {key: set_ones(each) for key, each in value.items()}
    return {key: each for key, each in kept.items() if each not in ("", 0, False, {}, [])}


def taken_out(dumped: dict[str, Any]) -> dict[str, Any]:
    plugins = dumped["plugins"]
    table = next(plugins[key] for key in CRI.values() if "containerd" in plugins.get(key, {}))
    runtime: dict[str, Any] = table["containerd"]["runtimes"].pop("nvidia")
    return runtime
