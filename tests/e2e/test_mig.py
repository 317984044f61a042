"""`gpushim mig` beside the real runc: a container gets an instance that was made, and holds it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e.bundles import Bundle
from e2e.trees import TOP
from e2e.witness import settings

FILE = """version: v1
mig-configs:
  day: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 3}}]
  two: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 1, 3g.40gb: 1}}]
  night: [{devices: all, mig-enabled: true, mig-devices: {7g.80gb: 1}}]
  none: [{devices: all, mig-enabled: false}]
"""
# Of no other test's GPU: containers are known by the numbers of their nodes.
MINOR = 50


@pytest.fixture
def host(tmp_path: Path) -> fakehost.Host:
    cache = str(TOP / ".cache" / "fakehost")
    gpus = [{**fakehost.H100, "minor": MINOR}]
    return fakehost.build(str(tmp_path / "host"), gpus, driver="570.10", compile_cache=cache)


@pytest.fixture
def cut(host: fakehost.Host, debian_root: Path, tmp_path: Path) -> Iterator[Bundle]:
    """A bundle on the host, in a directory of states that belongs to containerd."""
    (tmp_path / "mig.yaml").write_text(FILE)
    bundle = Bundle(tmp_path / "bundle", debian_root, settings(tmp_path, host.root))
    states = Path(f"/run/containerd/runc/{bundle.id}")
    states.parent.mkdir(parents=True, exist_ok=True)
    states.symlink_to(bundle.directory / "state")
    try:
        yield bundle
    finally:
        states.unlink()


def mig(bundle: Bundle, name: str, word: str = "apply") -> tuple[int, str]:
    file = str(bundle.directory.parent / "mig.yaml")
    command = [str(TOP / "bin" / "gpushim"), "mig", word, file, "--config", name]
    env = {"PATH": "/usr/sbin:/usr/bin", **bundle.env}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return done.returncode, done.stderr if done.returncode else done.stdout


def test_a_container_gets_an_instance_and_holds_it(cut: Bundle, host: fakehost.Host) -> None:
    assert mig(cut, "day") == (0, "GPU 0 is now 1g.10gb: 3\n")
    host.adopt()
    first, *others = [mig.uuid for mig in host.gpus[0].mig]
    cut.ask("NVIDIA_VISIBLE_DEVICES=0:0", args=["nvidia-smi", "-L"])
    output = cut.run().stdout
    assert first in output
    assert [uuid for uuid in others if uuid in output] == []

    cut.ask("NVIDIA_VISIBLE_DEVICES=0:0", args=["sleep", "1000"])
    with cut.created():
        for word, name in (("plan", "night"), ("apply", "night"), ("apply", "none")):
            code, output = mig(cut, name, word)
            assert code == 1
            assert f"containers have what must go: of GPU 0 {cut.id}; end them" in output
        assert mig(cut, "two") == (0, "GPU 0 is now 1g.10gb: 1, 3g.40gb: 1\n")
        host.adopt()
        assert first in [mig.uuid for mig in host.gpus[0].mig]
    assert mig(cut, "night") == (0, "GPU 0 is now 7g.80gb: 1\n")
