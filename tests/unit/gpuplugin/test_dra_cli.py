from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuplugin import daemon, dra_cli
from gpuplugin.dra import node_state, nvidia_flags
from gpuplugin.dra.claims_front import ClaimsFront
from gpuplugin.dra.link import LinkSocket
from gpuplugin.dra.node_state import FLAGS
from gpuplugin.settings import flags
from gpushim.ground.errors import GpushimError

TOP = Path(__file__).parents[3]


@pytest.mark.parametrize("module", ["cluster.in_cluster", "dra.explain_claim"])
def test_what_does_not_speak_with_kubelet_needs_no_grpc(module: str) -> None:
    """Nor does --help: grpcio is large, and a node that runs the driver in a pod may not have it."""
    words = f"import sys, gpuplugin.dra_cli, gpuplugin.{module}; print('grpc' in sys.modules)"
    path = ":".join(str(TOP / name) for name in ("plugin", "shim", "vendor"))
    done = subprocess.run(
        [sys.executable, "-c", words], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_without_grpc_the_driver_that_runs_says_whether_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("gpuplugin.kubelet.plugins", raising=False)
    monkeypatch.setitem(sys.modules, "gpuplugin.kubelet.plugins", None)
    monkeypatch.setattr(node_state, "rival", lambda: "/x")
    assert dra_cli._rival("/k") == "/x"


def test_what_is_no_report_has_no_format() -> None:
    done = CliRunner().invoke(dra_cli.command, ["--check", "--format=json"])
    assert (done.exit_code, "--format is for --explain-claim" in done.output) == (2, True)


class Agent:
    """Takes the agent's place, and what it is made with: settings, and the one front's node and place."""

    made: tuple[Any, ...] = ()

    def __init__(self, chosen: Any, sources: Any, fronts: Any) -> None:
        (one,) = fronts
        assert one.func is ClaimsFront
        Agent.made = chosen, *one.args

    async def run(self) -> None:
        pass


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with a config.toml, which is returned; its variables are not those of this one."""
    for name in ("NODE_NAME", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUSHIM_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(daemon, "Agent", Agent)
    (tmp_path / "config.toml").write_text('[device-plugin]\nexclude = ["1"]\ntaint-effect = "NoExecute"\n')
    return tmp_path / "config.toml"


def run(*words: str) -> tuple[Any, ...]:
    spelled = flags.spell_flags([*words], (*nvidia_flags.OURS, *nvidia_flags.NVIDIA))
    CliRunner().invoke(dra_cli.command, ["--socket=/x", *spelled], catch_exceptions=False)
    return Agent.made


def test_a_node_has_the_hosts_name_if_nobody_says_another(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run()[1] == os.uname().nodename.lower()
    assert run("--node-name=other")[1] == "other"
    monkeypatch.setenv("NODE_NAME", "third")
    assert run()[1] == "third"


def test_settings_are_the_plugins(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (run()[0].values["exclude"], run()[0].values["taint-effect"]) == (["1"], "NoExecute")
    monkeypatch.setenv("DP_DISABLE_HEALTHCHECKS", "79")
    found = run("--exclude=0", "--taint-effect=None", "-kubelet-plugins-directory-path=/k/plugins", "-v", "6")[0]
    assert (found.values["exclude"], found.values["taint-effect"]) == (["0"], "None")
    assert (found.values["kubelet-dir"], found.checks.off) == ("/k", {79})
    half.write_text('[device-plugin]\nkubeconfig = "/host"\n')
    assert run("--kubeconfig=")[0].values["kubeconfig"] == ""  # as the chart has it


@pytest.mark.parametrize(
    ("words", "unseen"),
    [
        ((), {*FLAGS}),
        (("--kubelet-dir=/k", "--exclude=0"), {*FLAGS} - {"exclude"}),
        (("--additional-xids-to-ignore=31",), {*FLAGS} - {"disable-healthchecks"}),
        ([f"--{flag}={'None' if flag == 'taint-effect' else ''}" for flag in FLAGS], set()),
    ],
)
def test_flags_that_explain_is_given_are_seen(
    half: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], unseen: set[str]
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("gpuplugin.dra.explain_claim.tell", lambda _, settings, form: notes.extend(settings.notes))
    run("--explain-claim=x", *words)
    said = " ".join(note for note in notes if "of the driver that runs" in note)
    assert {flag for flag in FLAGS if f"--{flag}" in said} == unseen
    assert ("gpushim-dra-driver --explain-claim takes such flags" in said) == bool(unseen)


def test_check_says_what_of_nvidias_does_nothing(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr("gpuplugin.dra.dry_run.tell", lambda settings, _: notes.extend(settings.notes))
    run("--check", "--feature-gates=MPSSupport=true")
    assert notes == ["--feature-gates is accepted without effect: what gpushim has of these features is on"]


@pytest.mark.parametrize(
    ("config", "pod", "lacks"),
    [
        ('fronts = ["dra"]', "", True),
        ('fronts = ["dra"]\nkubeconfig = "/k"', "", False),
        ("", "", False),  # as on a node of the chart
        ('fronts = ["dra"]', "10.0.0.1", False),
    ],
)
def test_check_says_that_a_package_knows_no_api_server(
    half: Path, monkeypatch: pytest.MonkeyPatch, config: str, pod: str, lacks: bool
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("gpuplugin.dra.dry_run.tell", lambda settings, _: notes.extend(settings.notes))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", pod)
    half.write_text(f"[device-plugin]\n{config}\n")
    run("--check")
    assert (dra_cli.NO_SERVER in notes) == lacks


def test_the_other_half_has_a_user(half: Path) -> None:
    assert run("--cluster-user=12")[2] == LinkSocket("/x", 12)
    assert run("--cluster-user=root", "--cluster-unit=a.service")[2] == ("/x", 0, "a.service")
    with pytest.raises(GpushimError, match='"no-such-user", and this host has no such user'):
        run("--cluster-user=no-such-user")
