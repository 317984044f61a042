from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result

from gpushim.cli import main
from gpushim.nvidia.migrate import migrate_engines
from gpushim.nvidia.migrate.migrate import Row
from unit.gpushim.cli.commands import apart

THEIRS = "disable-require = true\n[nvidia-container-cli]\nload-kmods = true\nldcache = '/etc/ld.so.cache'\n"


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setattr("gpushim.ground.system.config_path", lambda: str(path))
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(tmp_path / "nvidia.toml"))
    monkeypatch.setattr(
        migrate_engines, "find_rows", lambda: [Row("/d.json: runtimes.x", "/n", "gpushim configure docker")]
    )
    (tmp_path / "nvidia.toml").write_text(THEIRS)
    return path


def run(*words: str, code: int = 0) -> Result:
    result = apart().invoke(main, ["migrate", *words])
    assert result.exit_code == code, result.stdout + result.stderr
    return result


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_the_change_is_only_shown(ours: Path, words: list[str]) -> None:
    result = run(*words)
    lines = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    assert lines["disable-require"].endswith("[requests] disable-require = true")
    assert lines["nvidia-container-cli.load-kmods"].endswith("the default")
    assert "not needed" in lines["nvidia-container-cli.ldcache"]
    assert "gpushim configure docker" in lines["/d.json: runtimes.x"]
    assert "+disable-require = true" in lines
    assert "--write" in result.stderr
    assert not ours.exists()


def test_write(ours: Path) -> None:
    assert f"changed {ours}" in run("--write").stdout
    assert ours.read_text() == "[requests]\ndisable-require = true\n"
    assert f"{ours}: nothing to change" in run("--write").stdout


def test_json(ours: Path) -> None:
    data = json.loads(run("--format", "json").stdout)
    assert data["source"].endswith("nvidia.toml")
    assert (data["config"], data["written"]) == (str(ours), False)
    becomes = "[requests] disable-require = true"
    wanted = {"key": "disable-require", "value": True, "becomes": becomes, "left-out": False}
    assert data["settings"][0] == wanted
    assert "NVIDIA_DRIVER_CAPABILITIES" in data["warnings"][0]
    assert data["engines"][0]["becomes"] == "gpushim configure docker"
    assert "+disable-require = true\n" in data["diff"]
    assert json.loads(run("--format", "json", "--write").stdout)["written"] is True
    assert ours.exists()


def test_nothing_to_migrate(ours: Path) -> None:
    (ours.parent / "nvidia.toml").unlink()
    assert "there is no config.toml of NVIDIA's" in run("--write").stdout
    assert not ours.exists()


def test_both_at_once(ours: Path) -> None:
    run("--write", "--dry-run", code=2)
    assert not ours.exists()


def test_another_file(ours: Path, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text("[nvidia-container-cli]\nno-cgroups = true\n")
    assert "+device-rules = false" in run("--from", str(tmp_path / "b.toml")).stdout


@pytest.mark.parametrize("words", [(), ("--write",), ("--format", "json"), ("--write", "--format", "json")])
def test_what_is_left_out_ends_in_17_and_the_rest_is_taken_over(ours: Path, words: tuple[str, ...]) -> None:
    (ours.parent / "nvidia.toml").write_text('supported-driver-capabilities = "utility"\n' + THEIRS)
    result = run(*words, code=17)
    assert "left out: a container may ask for any capability" in result.stdout
    assert f"{ours.parent}/nvidia.toml has what" in result.stderr
    assert "config.toml cannot say: supported-driver-capabilities; read" in result.stderr
    assert "cannot say" not in result.stdout
    assert ours.exists() == ("--write" in words)
    assert run(*words, code=17).exit_code == 17  # a second time, too


def test_the_warnings_name_both_ways_out(ours: Path) -> None:
    (ours.parent / "nvidia.toml").unlink()
    said = run().stderr
    for text in ("NVIDIA_DRIVER_CAPABILITIES=all", f'default-capabilities = ["all"] in {ours}', "NVENC"):
        assert text in said
    for text in ("NVIDIA_DISABLE_REQUIRE=true", f"disable-require = true in {ours}"):
        assert text in said
