"""`gpushim mig` beside the real runc: a container gets an instance that was made, and holds it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import pages
from e2e.bundles import Bundle
from e2e.trees import TOP
from e2e.witness import settings

PAGE = TOP / "docs/mig.md"
FILE = next(block.text for block in pages.blocks(PAGE.read_text()) if block.info == "yaml")
MORE = """  two: [{devices: all, mig-enabled: true, mig-devices: {2g.20gb: 1, 3g.40gb: 1}}]
  none: [{devices: all, mig-enabled: false}]
"""
# Of each test's own: containers, also those of other tests, are known by the numbers of their nodes.
MINORS = {"test_a_container_gets_an_instance_and_holds_it": 50, "test_the_commands_of_the_page": 51}


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> fakehost.Host:
    cache = str(TOP / ".cache" / "fakehost")
    gpus = [{**fakehost.H100, "minor": MINORS[request.node.name]}]
    return fakehost.build(str(tmp_path / "host"), gpus, driver="570.10", compile_cache=cache)


@pytest.fixture
def cut(host: fakehost.Host, debian_root: Path, tmp_path: Path) -> Iterator[Bundle]:
    """A bundle on the host, in a directory of states that belongs to containerd."""
    (tmp_path / "mig.yaml").write_text(FILE + MORE)
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
    assert mig(cut, "day") == (0, "GPU 0 is now 2g.20gb: 3\n")
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
        assert mig(cut, "two") == (0, "GPU 0 is now 2g.20gb: 1, 3g.40gb: 1\n")
        host.adopt()
        assert first in [mig.uuid for mig in host.gpus[0].mig]
    assert mig(cut, "night") == (0, "GPU 0 is now 7g.80gb: 1\n")


def test_the_commands_of_the_page(cut: Bundle, host: fakehost.Host) -> None:
    file = str(cut.directory.parent / "mig.yaml")
    env = {"PATH": f"{TOP / 'bin'}:/usr/sbin:/usr/bin", **cut.env}
    lines = [line.replace("/etc/gpushim/mig.yaml", file) for line in pages.commands(PAGE)]
    assert len(lines) == 3
    for line in lines:
        subprocess.run(["/bin/sh", "-c", line], check=True, env=env)
    host.adopt()
    assert [mig.profile for mig in host.gpus[0].mig] == ["2g.20gb"] * 3


def test_the_units_of_the_page(tmp_path: Path) -> None:
    """systemd takes them; and at each hour the service has the layout for it."""
    units = [block.text for block in pages.blocks(PAGE.read_text()) if block.info == "text"]
    for name, text in zip(("gpushim-mig.service", "gpushim-mig.timer"), units):
        (tmp_path / name).write_text(text)
    command = ["/usr/bin/systemd-analyze", "verify", "--man=no", str(tmp_path / "gpushim-mig.timer")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    _, _, line = units[0].partition("ExecStart=")
    words = shlex.split(line.splitlines()[0].replace("%%", "%").replace("$$", "$"))
    stubs = {"gpushim": 'echo "$@"', "date": "echo $HOUR"}
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for hour in range(24):
        env = {"PATH": f"{tmp_path}:/usr/bin", "HOUR": f"{hour:02}"}
        output = subprocess.run(words, check=True, capture_output=True, text=True, env=env).stdout
        layout = "day" if 7 <= hour < 20 else "night"
        assert output == f"mig apply /etc/gpushim/mig.yaml --config {layout}\n"
