from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from unit.gpushim.cdi import hosts
from unit.gpushim.cli.commands import REPOSITORY, Host, generated, names, run


def test_generate_writes_yaml_to_stdout() -> None:
    text = run("generate").stdout
    assert text.startswith("---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert yaml.safe_load(text) == generated()


BESIDE = ["gds", "imex-channel-3"]  # what the host gives beside GPUs


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--device-name-strategy", "type-index"], ["gpu0", "gpu1", "gpu2", "mig2:0", "all", *BESIDE]),
        (
            ["--device-name-strategy=index,type-index"],
            ["0", "gpu0", "1", "gpu1", "2", "gpu2", "2:0", "mig2:0", "all", *BESIDE],
        ),
        (2 * ["--device-name-strategy", "uuid"] + ["--device-id", "2:0"], ["MIG-1", "MIG-x:1:0", "all"]),
        (["--device-name-strategy", "index", "--no-all-device"], ["0", "1", "2", "2:0", *BESIDE]),
        (["--device-name-strategy", "index", "--devices", "1,0"], ["1", "0", "all"]),
        (["--device-name-strategy", "index", "--device-id", "all"], ["0", "1", "2", "2:0", "all", *BESIDE]),
    ],
)  # fmt: skip
def test_generate_names_devices_as_told(args: list[str], expected: list[str]) -> None:
    assert names(generated(*args)) == expected


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        ([], "nvidia.com/gpu"),
        (["--vendor", "example.org"], "example.org/gpu"),
        (["--cdi-class", "x"], "nvidia.com/x"),
        (["--mode", "imex"], "nvidia.com/imex-channel"),
        (["--discovery-mode", "gds"], "nvidia.com/gds"),
        (["--mode=nvml"], "nvidia.com/gpu"),
    ],
)
def test_generate_has_the_kind_of_mode_and_options(args: list[str], kind: str) -> None:
    assert generated(*args)["kind"] == kind


@pytest.mark.parametrize(
    ("args", "env", "root", "dev_root"),
    [
        (["--driver-root", "/usr/lib/"], {}, "/usr/lib", "/usr/lib"),
        (["--driver-root", "/usr", "--dev-root", "/"], {}, "/usr", "/"),
        (["--dev-root", "/usr"], {}, "/", "/usr"),
        ([], {"NVIDIA_CTK_DRIVER_ROOT": "/usr", "NVIDIA_CTK_DEV_ROOT": "/usr/lib"}, "/usr", "/usr/lib"),
        ([], {}, "/", "/"),
    ],
)
def test_generate_lists_the_host_below_the_roots(
    host: Host, args: list[str], env: dict[str, str], root: str, dev_root: str
) -> None:
    generated(*args, **env)
    assert (host.asked["driver"]["root"], host.asked["driver"]["dev-root"]) == (root, dev_root)


def test_generate_reads_the_variables_of_the_other_tool(tmp_path: Path) -> None:
    run("generate", NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=f"{tmp_path}/x.json", NVIDIA_CTK_CDI_GENERATE_MODE="imex")
    assert json.loads((tmp_path / "x.json").read_text())["kind"] == "nvidia.com/imex-channel"


@pytest.mark.parametrize(
    ("name", "args", "loads"),
    [("a/b/n.json", [], json.loads), ("n.yaml", ["--format", "json"], yaml.safe_load), ("n", [], yaml.safe_load)],
)
def test_generate_into_a_file(tmp_path: Path, name: str, args: list[str], loads: Any) -> None:
    assert run("generate", "--output", str(tmp_path / name), *args).stdout == ""
    assert names(loads((tmp_path / name).read_text()))[-3:] == ["all", *BESIDE]
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o644


def test_generate_keeps_a_fuller_spec_unless_forced(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "n.json"
    run("generate", "--output", str(file))
    host.snapshot = hosts.proc()
    assert "or use --force" in run("generate", "--output", str(file), code=1).stderr
    assert "2:0" in names(json.loads(file.read_text()))
    run("generate", "--output", str(file), "--force")
    assert names(json.loads(file.read_text())) == ["0", "1", "all", *BESIDE]


@pytest.mark.parametrize(
    "option", ["--ldconfig-path", "--csv.file", "--feature-flag", "--disable-hook", "--enable-hook"]
)
def test_generate_takes_options_that_mean_nothing(option: str) -> None:
    result = run("generate", option, "x", option, "y")
    assert f"warning: {option} is ignored: gpushim" in result.stderr
    assert result.stdout == run("generate").stdout


@pytest.mark.parametrize(
    ("given", "called", "warned"),
    [
        ("/opt/gpushim-hook", "/opt/gpushim-hook", False),
        ("/usr/bin/nvidia-cdi-hook", str(REPOSITORY / "bin/gpushim-hook"), True),
        ("", str(REPOSITORY / "bin/gpushim-hook"), False),
    ],
)
def test_generate_calls_our_hook(given: str, called: str, warned: bool) -> None:
    result = run("generate", "--format=json", "--nvidia-cdi-hook-path", given)
    assert json.loads(result.stdout)["containerEdits"]["hooks"][0]["path"] == called
    assert ("warning" in result.stderr) == warned


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--vendor", "a b"], 2, "a b/gpu is not vendor/class"),
        (["--device-name-strategy", "serial"], 2, "serial is not a way to name devices"),
        (["--driver-root", "driver"], 2, "driver is not absolute"),
        (
            ["--driver-root", "/nowhere"],
            12,
            "gpushim: --driver-root is '/nowhere', which is no directory of this host",
        ),
        (["--dev-root", "/nowhere"], 12, "gpushim: --dev-root is '/nowhere', which is no directory of this host"),
        (["--hook-path", "hook"], 2, "hook is not absolute"),
        (["--mode", "wsl"], 1, "this host is native"),
        (["--mode", "gdrcopy"], 12, "no device for the mode gdrcopy"),
        (["--device-id", "9"], 10, "--device-id asks for GPU"),
        (["--output", "/proc/none/n.json"], 1, "cannot be written"),
        (["--output", "/proc/sys/n.json"], 1, "cannot be written"),
    ],
)
def test_generate_refuses_with_a_sentence(args: list[str], code: int, says: str) -> None:
    assert says in run("generate", *args, code=code).stderr
