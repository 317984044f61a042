"""NVIDIA's flags and variables: what counts, what is said of the rest."""

from __future__ import annotations

import pytest

from gpuplugin.dra import nvidia_flags
from gpushim.ground.errors import GpushimError

PLUGINS, REGISTRY = "kubelet-plugins-directory-path", "kubelet-registrar-directory-path"


def test_what_means_the_same() -> None:
    variables = {"KUBECONFIG": "/k", "ADDITIONAL_XIDS_TO_IGNORE": "13,31", "KUBELET_PLUGINS_DIRECTORY_PATH": ""}
    found, notes = nvidia_flags.ours({PLUGINS: ["/var/k/plugins/"], "exclude": ["0"]}, variables)
    wanted = {"kubelet-dir": "/var/k", "kubeconfig": "/k", "disable-healthchecks": "13,31", "exclude": "0"}
    assert ({key: "".join(value) for key, value in found.items()}, notes) == (wanted, [])


def test_ours_count_first() -> None:
    found, _ = nvidia_flags.ours({"kubelet-dir": ["/a"], REGISTRY: ["/b/plugins_registry"]}, {})
    assert found["kubelet-dir"] == ["/a"]


@pytest.mark.parametrize("path", ["/a/other", "plugins"])
def test_a_directory_that_is_not_kubelets(path: str) -> None:
    with pytest.raises(GpushimError, match="write the absolute path of kubelet's directory plugins"):
        nvidia_flags.ours({PLUGINS: [path]}, {})


def test_directories_of_two_kubelets() -> None:
    with pytest.raises(GpushimError, match="are not in one directory, /a and /b; kubelet has both in its own"):
        nvidia_flags.ours({PLUGINS: ["/a/plugins"], REGISTRY: ["/b/plugins_registry"]}, {})


def test_the_rest_is_said_unless_it_says_nothing() -> None:
    """As its chart gives them."""
    chart = {
        "CDI_ROOT": "/var/run/cdi",
        "NVIDIA_DRIVER_ROOT": "/",
        "DRIVER_ROOT_CTR_PATH": "/driver-root",
        "NODE_NAME": "n",
        "HEALTHCHECK_PORT": "-1",
        "METRICS_PATH": "/metrics",
        "NVIDIA_CDI_HOOK_PATH": "",
    }
    assert nvidia_flags.ours({}, chart) == ({}, [])
    _, notes = nvidia_flags.ours({"v": ["4"], "feature-gates": ["MPSSupport=true"]}, {"CDI_ROOT": "/etc/cdi"})
    assert [note.partition(" is accepted without effect: ")[0] for note in notes] == [
        "CDI_ROOT",
        "--feature-gates",
        "--v",
    ]
