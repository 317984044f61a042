from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushim.nvidia.migrate import migrate_engines

RUNTIME = "/usr/bin/nvidia-container-runtime"
CRI2, CRI3 = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"


def found(root: Path, path: str, text: str) -> list[tuple[str, str]]:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return [(row.key.replace(str(root), ""), row.becomes) for row in migrate_engines.find_rows(str(root))]


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"runtimes": {"nvidia": {"path": RUNTIME, "args": []}}}, "gpushim configure docker --force"),
        (
            {
                "default-runtime": "nv",
                "runtimes": {"nv": {"path": "nvidia-container-runtime.cdi"}},
                "features": {"cdi": True},
            },
            "gpushim configure docker --runtime-name nv --set-as-default --force",
        ),
    ],
)
def test_docker(tmp_path: Path, settings: object, command: str) -> None:
    ((key, becomes),) = found(tmp_path, "etc/docker/daemon.json", json.dumps(settings))
    assert key.startswith("/etc/docker/daemon.json: runtimes.n")
    assert becomes == command


@pytest.mark.parametrize("plugin", [CRI2, CRI3, "plugins.cri"])
@pytest.mark.parametrize("path", ["etc/containerd/config.toml", "etc/containerd/conf.d/99-nvidia.toml"])
def test_containerd(tmp_path: Path, plugin: str, path: str) -> None:
    text = f'[{plugin}]\nenable_cdi = true\n[{plugin}.containerd]\ndefault_runtime_name = "nvidia"\n'
    text += f'[{plugin}.containerd.runtimes.nvidia.options]\nBinaryName = "{RUNTIME}"\n'
    text += f'[{plugin}.containerd.runtimes.other.options]\nBinaryName = "/usr/bin/runc"\n'
    ((key, becomes),) = found(tmp_path, path, text)
    assert key.startswith(f"/{path}: ")
    assert becomes == "gpushim configure containerd --set-as-default --force"


def test_crio(tmp_path: Path) -> None:
    text = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{RUNTIME}"\n'
    ((_, becomes),) = found(tmp_path, "etc/crio/crio.conf.d/99-nvidia.conf", text)
    assert becomes == "gpushim configure crio --force"


@pytest.mark.parametrize(
    "hook",
    [{"hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}, {"hook": "/usr/bin/nvidia-container-toolkit"}],
)
def test_hooks_d(tmp_path: Path, hook: object) -> None:
    ((_, becomes),) = found(tmp_path, "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", json.dumps(hook))
    assert "gpushim configure podman" in becomes


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/docker/daemon.json", ""),
        ("etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "/usr/bin/gpushim-runtime"}}}'),
        ("etc/docker/daemon.json", '{"runtimes": {"nvidia": 5}}'),
        ("etc/docker/daemon.json", '{"runtimes": []}'),
        ("etc/containerd/config.toml", "plugins = 5"),
        ("etc/crio/crio.conf", "[crio]\nruntime = 5"),
        ("etc/containers/oci/hooks.d/x.json", '{"hook": {}}'),
    ],
)
def test_nothing_of_nvidias(tmp_path: Path, path: str, text: str) -> None:
    assert found(tmp_path, path, text) == []


@pytest.mark.parametrize("path", ["etc/docker/daemon.json", "etc/containerd/config.toml"])
def test_files_that_cannot_be_read(tmp_path: Path, path: str) -> None:
    ((key, becomes),) = found(tmp_path, path, "{")
    assert key == f"/{path}"
    assert becomes.startswith("cannot be looked at: ")
