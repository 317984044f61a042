"""A host without a low-level runtime in the system's directories: what still works, and whose runtime is found."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import views
from e2e.bundles import RUNTIME
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from fakehost import Host

HIDE = f"for path in {RUNC} {views.CRUN}; do mount --bind /dev/null $path; done\n"
K3S = "/var/lib/rancher/k3s/data"
BRING = f"cp {RUNC} /run/brought\nmount -t tmpfs -o mode=755 none /var/lib\nmkdir -p {K3S}/1/bin\n"
BRING += f"mv /run/brought {K3S}/1/bin/runc\nln -s 1 {K3S}/current\n"


@pytest.fixture
def env(tmp_path: Path, gpu_host: Host) -> dict[str, str]:
    """Settings of a host whose configuration names no runtime."""
    env = settings(tmp_path, gpu_host.root, "")
    config = Path(env["GPUSHIM_CONFIG"])
    lines = [line for line in config.read_text().splitlines() if not line.startswith("low-level")]
    config.write_text("\n".join(lines) + "\n")
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **env}


@pytest.fixture
def bare() -> Iterator[tuple[str, ...]]:
    """What to put before a command that shall find no runtime."""
    with views.view("hybrid", HIDE) as prefix:
        yield prefix


def call(*command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", [("list",), ("refresh",), ("ps",), ("cdi", "generate"), ("info",)], ids=" ".join)
def test_only_containers_need_one(bare: tuple[str, ...], env: dict[str, str], words: tuple[str, ...]) -> None:
    done = call(*bare, str(TOP / "bin" / "gpushim"), *words, env=env)
    assert done.returncode == 0, done.stderr


def test_a_call_of_the_runtime_says_what_is_missing(bare: tuple[str, ...], env: dict[str, str]) -> None:
    done = call(*bare, str(RUNTIME), "state", "x", env=env)
    assert done.returncode == 127
    assert "no low-level runtime: none of runc, crun is an executable file" in done.stderr


@pytest.mark.parametrize("configured", [True, False])
def test_an_engines_own_is_found(env: dict[str, str], configured: bool) -> None:
    if not configured:
        env["GPUSHIM_CONFIG"] += ".none"
    with views.view("hybrid", BRING + HIDE) as prefix:
        done = call(*prefix, str(RUNTIME), "--version", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("runc version")


def test_what_others_may_write_is_not_executed(env: dict[str, str]) -> None:
    with views.view("hybrid", BRING + HIDE + f"chmod 777 {K3S}/1/bin") as prefix:
        done = call(*prefix, str(RUNTIME), "--version", env=env)
    assert done.returncode == 127
