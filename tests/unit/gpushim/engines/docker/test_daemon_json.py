"""What dockerd would not start with, by itself or by what dockerd says; e2e/test_engine_fixes asks real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushim.engines import docker

PATH = "/etc/docker/daemon.json"
WRONG = {
    '{"runtimes": []}': "runtimes is not an object",
    '{"runtimes": {"nvidia": "/usr/bin/x"}}': "runtimes.nvidia is not an object",
    '{"runtimes": {"nvidia": {"path": 5}}}': "runtimes.nvidia.path is not a string",
    '{"runtimes": {"runc": {"path": "/x"}}}': "the name runc under runtimes is Docker's own",
    '{"Runtimes": {"a": {"path": "/x"}}}': "Runtimes is written runtimes",
    '{"features": {"cdi": "true"}}': "features.cdi is neither true nor false",
    '{"features": []}': "features is not an object",
    '{"default-runtime": 5}': "default-runtime is not a string",
    '{"default-runtime": "nvida"}': "there is no runtime nvida, which is the default-runtime",
}
WELL = (
    *("", " ", "{}", '{"runtimes": null}', '{"runtimes": {"n": null}}', '{"runtimes": {"n": {}}}'),
    *('{"default-runtime": ""}', '{"default-runtime": "io.containerd.kata.v2"}', '{"features": {"cdi": null}}'),
    *('{"default-runtime": "n", "runtimes": {"n": {"path": "/x"}}}', '{"default-runtime": "line"}'),
)


@pytest.mark.parametrize("text", WRONG)
def test_what_gpushim_sees_itself(text: str) -> None:
    assert docker.wrong(text.encode(), PATH, "") == f"{PATH}: {WRONG[text]}"


@pytest.mark.parametrize("text", WELL)
def test_what_is_well(text: str) -> None:
    assert docker.wrong(text.encode(), PATH, "", ("line",)) == docker.wrong(None, PATH, "") == ""


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("unable to configure the Docker daemon with file /dev/stdin: no log-drver", "dockerd says: no log-drver"),
        ("Status: unknown flag: --validate\nSee 'dockerd --help'., Code: 125", ""),
        ("Segmentation fault", ""),
    ],
)
def test_what_dockerd_says(tmp_path: Path, says: str, told: str) -> None:
    dockerd = tmp_path / "dockerd"
    dockerd.write_text(
        f"#!/bin/sh\n[ \"$*\" = '--validate --config-file /dev/stdin' ] || exit 0\ncat >&2 <<'E'\n{says}\nE\nexit 1\n"
    )
    dockerd.chmod(0o755)
    found = docker.wrong(b'{"log-drver": "x"}', PATH, str(dockerd))
    assert found == (f"{PATH}: {told}" if told else "")
