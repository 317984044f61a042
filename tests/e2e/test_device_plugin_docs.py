"""The pages' commands that need a kubelet, line by line, beside a pod that keeps its GPU; what sharing.md shows."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

from e2e import pages
from e2e.engines import run
from e2e.leftovers import until
from e2e.plugins import PROGRAM, Plugin, environment, gpu_node, plugin
from e2e.trees import TOP
from fakehost import Host

GPU, REGISTERED = "nvidia.com/gpu", "kubelet has registered nvidia.com/gpu"
KUBERNETES, HEALTH, SHARING = (
    (TOP / "docs" / f"{name}.md").read_text() for name in ("device-plugin", "health", "sharing")
)
FILE = "/etc/gpushim/device-plugin.yaml"


def do(line: str, running: Plugin) -> str:
    """Do what a line says, systemd's part by signals; return what it printed."""
    before = running.said().count(REGISTERED)
    words = shlex.split(line)
    if words[0] == "journalctl":
        return running.said()
    if words[0] != "systemctl":
        return run([str(TOP / "bin" / words[0]), *words[1:]], env=environment(running.env)).stdout
    if words[1] == "reload":
        assert running.process
        running.process.send_signal(signal.SIGHUP)
    else:
        assert running.stop() == (None if words[1] == "enable" else 0)
        running.start()
    assert until(lambda: running.said().count(REGISTERED) > before, 30), running.said()
    running.offers()
    return ""


def lines_of(page: str) -> list[str]:
    return [line for block in pages.blocks(page) if block.info == "sh node" for line in block.commands]


def test_the_pages_commands(
    gpu_host: Host, gpushim_env: dict[str, str], debian_image: Path, busybox_tree: Path
) -> None:
    lines = lines_of(KUBERNETES)
    assert len(lines) > 5
    run([str(TOP / "bin" / "gpushim"), "refresh"], env=environment(gpushim_env))
    with gpu_node(gpu_host, gpushim_env, debian_image, busybox_tree) as node:
        with plugin(node, gpushim_env, start=False) as running:
            said = {line: do(line, running) for line in lines[:2]}
            assert node.pod("gpu", {GPU: 1}).phase == "Running"
            held = node.held("gpu")
            said.update({line: do(line, running) for line in lines[2:]})
            assert node.held("gpu") == held
            whole = {gpu.uuid for gpu in gpu_host.gpus}
            for line in lines_of(HEALTH):
                said[line] = do(line, running)
            assert held[GPU][0] in said["gpushim device-plugin release"]
            running.offers(GPU, whole)
            assert node.held("gpu") == held
        assert f"{GPU}: {len(gpu_host.gpus)}" in said["gpushim-device-plugin --check"]
        assert gpu_host.gpus[0].uuid in said[f"gpushim explain --kubernetes {GPU}=1"]
        assert REGISTERED in said["journalctl -u gpushim-device-plugin"]


def test_what_the_check_says(gpu_host: Host, gpushim_env: dict[str, str], tmp_path: Path) -> None:
    """The file, the command and its output with which sharing.md begins."""
    (line,) = lines_of(SHARING)
    file = next(block.text for block in pages.blocks(SHARING) if block.info == "yaml")
    shown = next(block.text for block in pages.blocks(SHARING) if block.info == "text")
    place = tmp_path / "device-plugin.yaml"
    place.write_text(file)
    words = [
        str(TOP / "bin" / word) if word == PROGRAM.name else word for word in line.replace(FILE, str(place)).split()
    ]
    said = run(words, env=environment(gpushim_env)).stdout.replace(str(place), FILE).splitlines()
    expected = [row for row in shown.splitlines() if row]
    assert [row.rstrip() for row in said if row.rstrip() in expected] == expected
