"""A config.toml that others may write: what creates a container, lists the host, or checks it refuses it alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.changing import Scene


def test_a_configuration_of_everybodys(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1)
    assert scene.refresh().returncode == scene.ask("0")[0].returncode == 0
    config = Path(scene.env["GPUSHIM_CONFIG"])
    config.chmod(0o666)
    commands = [scene.ask("0")[0], scene.refresh()]
    commands += [scene.call("gpushim", *words) for words in (("config", "check"), ("list",), ("info",))]
    for done in commands:
        assert (done.returncode, f"{config} cannot be trusted" in done.stderr) == (15, True), done
    config.chmod(0o644)
    assert scene.ask("0")[0].returncode == 0


@pytest.mark.parametrize("key", ["root", "dev-root"])
def test_a_driver_root_that_does_not_exist(tmp_path: Path, key: str) -> None:
    scene = Scene(tmp_path, 1)
    config = Path(scene.env["GPUSHIM_CONFIG"])
    config.write_text(config.read_text().replace(f'\n{key} = "{scene.host.root}"', f'\n{key} = "{tmp_path}/gone"'))
    for done in (scene.ask("0")[0], scene.refresh(), scene.call("gpushim", "config", "check")):
        assert (done.returncode, f"driver.{key} is '{tmp_path}/gone', which is no directory" in done.stderr) == (
            12,
            True,
        )
        assert not any(word in done.stderr for word in ("modprobe", "cannot be made")), done.stderr
    assert not Path(tmp_path, "gone").exists()
