"""`nvidia-container-cli info` and `list`, held against the forms that NVIDIA's program has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpushim.ground.errors import GpushimError
from gpushim.inventory import present
from gpushim.nvidia.container_cli import getopt, info
from gpushim.nvidia.container_cli.cli_options import COMMANDS
from unit.gpushim.cdi import hosts
from unit.gpushim.decision.inventories import UUIDS

INFO = f"""\
NVRM version:   535.183.01
CUDA version:   12.2

Device Index:   0
Device Minor:   1
Model:          NVIDIA A100
Brand:          Nvidia
GPU UUID:       {UUIDS[0]}
Bus Location:   00000000:00:00.0
Architecture:   8.0
"""
CSV = f"""\
NVRM version,CUDA version
535.183.01,12.2

Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture
0,1,NVIDIA A100,Nvidia,{UUIDS[0]},00000000:00:00.0,8.0
"""
DRIVER = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]
CAPABILITIES = "/proc/driver/nvidia/capabilities"
MIG = f"{CAPABILITIES}/gpu0/mig/gi1"
INSTANCE = [f"{MIG}/access", f"{MIG}/ci0/access", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]
SMI, SOCKET = "/usr/bin/nvidia-smi", "/run/nvidia-persistenced/socket"
MANAGER = "/run/nvidia-fabricmanager/socket"
LIBRARY, LIBRARY32 = "/usr/lib/libcuda.so.5", "/usr/lib32/libcuda.so.5"
ML = "/usr/lib/libnvidia-ml.so.5"
FIRMWARE = "/lib/firmware/gsp.bin"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    found = hosts.mixed()
    found["driver"]["root"] = str(tmp_path)
    for path in (SOCKET, MANAGER):
        (tmp_path / path[1:]).parent.mkdir(parents=True)
        os.mknod(tmp_path / path[1:], 0o140666)
    library = {"path": LIBRARY32, "kind": "library32", "soname": "libcuda.so.1"}
    found["files"] |= {"compute32": [library], "utility32": []}
    found["files"]["utility"] += [{"path": ML, "kind": "library"}, {"path": MANAGER, "kind": "socket"}]
    found["files"]["any"] += [{"path": "/usr/share/x.json", "kind": "data"}]
    monkeypatch.setattr(present, "snapshot", lambda: found)
    return found


def listed(host: Any, line: str) -> list[str]:
    return info.list_paths(getopt.parse(line.split(), COMMANDS["list"])[0], host)


def test_info_is_as_documented(host: Any, capsys: pytest.CaptureFixture[str]) -> None:
    del host["gpus"][1:]
    assert info.run(["-k", "info"]) == 0
    assert capsys.readouterr().out == INFO
    assert info.run(["info", "--csv"]) == 0
    assert capsys.readouterr().out == CSV


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("-d 0", [*DRIVER, "/dev/nvidia1"]),
        ("--device=", DRIVER),
        ("--device=2:0", [*DRIVER, "/dev/nvidia0", *INSTANCE]),
        ("-l", [ML, LIBRARY]),
        ("--libraries --compat32", [ML, LIBRARY, LIBRARY32]),
        ("--compat32", []),
        ("-b", [SMI]),
        ("-i", [SOCKET, MANAGER]),
        ("-i --no-persistenced", [MANAGER]),
        ("-i --no-fabricmanager", [SOCKET]),
        ("-f", [FIRMWARE]),
        ("-fbi", [SMI, SOCKET, MANAGER, FIRMWARE]),
        ("-f --mig-config=all", [f"{CAPABILITIES}/mig/config", "/dev/nvidia-caps/nvidia-cap1", FIRMWARE]),
        ("-f --mig-monitor=all", [f"{CAPABILITIES}/mig/monitor", "/dev/nvidia-caps/nvidia-cap2", FIRMWARE]),
        ("-f --imex-channel=3", ["/dev/nvidia-caps-imex-channels/channel3", FIRMWARE]),
    ],
    ids=range(15),
)
def test_list(host: Any, line: str, found: list[str]) -> None:
    assert listed(host, line) == found


def test_a_service_that_does_not_run_has_no_socket(host: Any, tmp_path: Path) -> None:
    (tmp_path / SOCKET[1:]).unlink()
    assert listed(host, "-i") == [MANAGER]


def test_list_without_options_lists_all_in_order(host: Any) -> None:
    gpus = ["/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia0", *INSTANCE]
    files = [SMI, ML, LIBRARY, LIBRARY32, SOCKET, MANAGER, FIRMWARE]
    assert listed(host, "") == [*DRIVER, *gpus, *files]
    channel = "/dev/nvidia-caps-imex-channels/channel3"
    assert listed(host, "--imex-channel=3") == [*DRIVER, *gpus, channel, *files]


def test_list_on_wsl() -> None:
    assert listed(hosts.wsl(), "-d all") == ["/dev/dxg"]


@pytest.mark.parametrize("line", ["-d 9", "-d void", "-d a.com/b=c", "--imex-channel=4", "--imex-channel=x"])
def test_list_of_what_is_not_there(host: Any, line: str) -> None:
    with pytest.raises(GpushimError):
        listed(host, line)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["frob"], "input error: frob is not a command; there are configure, info, list"),
        (["info", "x"], "input error: info takes no x"),
        (["info", "--nope"], "input error: --nope is not an option here"),
        (["--root=/other", "list"], "input error: --root=/other"),
        (["list", "-d", "9"], 'device error: the container asks in its --device for GPU "9"'),
    ],
)
def test_errors(host: Any, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    with pytest.raises(SystemExit) as caught:
        info.main(words)
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith(f"nvidia-container-cli: {text}")


def test_a_host_without_driver(host: Any, capsys: pytest.CaptureFixture[str]) -> None:
    host["error"] = {"sentence": "no driver is loaded", "code": 12}
    with pytest.raises(SystemExit):
        info.main(["info"])
    assert capsys.readouterr().err == "nvidia-container-cli: initialization error: no driver is loaded\n"


@pytest.mark.parametrize("words", [["--help"], ["list", "--help"], ["-?"], ["configure", "--usage"]])
def test_help(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert info.run(words) == 0
    assert capsys.readouterr().out == info.USAGE_TEXT


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert info.run(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["cli-version", "lib-version", "build flags"]


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert info.run([]) == 1
    assert capsys.readouterr() == ("", info.USAGE_TEXT)
