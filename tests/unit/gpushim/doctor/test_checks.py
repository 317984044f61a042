"""Running checks: none holds up the others, and every one of them is documented."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushim.doctor import Finding, Host, broken, check_state, checks, ok, skipped, warning
from gpushim.engines.settings import setup
from gpushim.ground.errors import GpushimError
from unit.gpushim.doctor import own_states
from unit.gpushim.doctor.patient import REPOSITORY, RUNTIME, Patient


def test_a_check_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(_: Host) -> Iterator[Finding]:
        yield ok("first")
        threading.Event().wait(60)

    host = Host()
    host.settings["refresh"]["deadline-seconds"] = 0
    monkeypatch.setattr(checks, "SECONDS", 0.2)
    monkeypatch.setattr(checks, "table", lambda named: {"one": hangs, "two": lambda _: iter([ok("second")])})
    assert [(each.check, each.verdict) for each in checks.run(host)] == [
        ("one", "ok"),
        ("one", "broken"),
        ("two", "ok"),
    ]


@pytest.mark.parametrize(
    ("user", "check", "state", "fix"),
    [
        (0, "device-nodes", "/run/gpushim", "gpushim refresh"),
        (7, "device-nodes", "/run/gpushim", "as root: gpushim refresh"),
        (7, "snapshot", "/run/gpushim", "as root: gpushim refresh"),
        (7, "snapshot", "/run/user/7/gpushim", "gpushim refresh"),  # the user's own
        (7, "device-nodes", "/run/user/7/gpushim", "as root: gpushim refresh"),
        (7, "podman-runtime", "/run/gpushim", "gpushim refresh"),  # of the user's own engine
    ],
)
def test_who_does_it(monkeypatch: pytest.MonkeyPatch, user: int, check: str, state: str, fix: str) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    (found,) = checks.judge(check, lambda _: iter([broken("", "gpushim refresh")]), Host(state=state))
    assert found.fix == fix


def test_a_configuration_that_only_root_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 7)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    host = Host(config="/dev/null", problem="/dev/null cannot be read: Permission denied")
    (found,) = checks.judge("config", checks.GENERAL["config"], host)
    assert found.fix == "as root: gpushim doctor"


def test_a_key_that_is_wrong_hides_no_other(unlisted: Patient) -> None:
    """kubelet is where config.toml says; of one that cannot be read at all, nobody knows."""
    (unlisted.top / "var/lib/kubelet").rename(unlisted.top / "var/lib/other")
    unlisted.configure('[device-plugin]\nkubelet-dir = "/var/lib/other"\nmig-strategy = 3\nx = 1\n')
    unlisted.reread()
    verdicts = [[one.verdict for one in unlisted.said("kubernetes-node")]]
    unlisted.configure("[device-plugin\n")
    unlisted.reread()
    verdicts.append([one.verdict for one in unlisted.said("kubernetes-node", "kubernetes")])
    assert verdicts == [["ok"], ["skipped"]]


def test_a_check_that_fails_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Host) -> Iterator[Finding]:
        yield from ()
        raise KeyError("x")

    monkeypatch.setattr(checks, "table", lambda named: {"one": fails})
    (found,) = checks.run(Host())
    assert (found.verdict, found.evidence) == ("warning", "the check itself failed: KeyError: 'x'")


@pytest.mark.parametrize(
    ("found", "worst"),
    [
        ([], "ok"),
        ([skipped("")], "skipped"),
        ([ok(""), skipped("")], "ok"),
        ([ok(""), warning("", "x"), skipped("")], "warning"),
        ([warning("", "x"), broken("", "x"), ok("")], "broken"),
    ],
)
def test_the_gravest_verdict(found: list[Finding], worst: str) -> None:
    assert checks.worst(found) == worst


def test_kubernetes_means_containerd_too() -> None:
    names = set(checks.table(("kubernetes",)))
    assert {"containerd-runtime", "kubernetes-node", "nvml"} <= names
    assert not any(name.startswith(("docker", "podman")) for name in names)


@pytest.mark.parametrize(
    ("check", "fix", "first"),
    [
        ("docker-cdi", "systemctl restart docker", "one"),
        ("cdi-paths", "gpushim refresh", "one"),
        ("cdi-paths", "rm it", ""),
        ("snapshot", "gpushim refresh", ""),
        ("kubernetes-template", "gpushim configure containerd", "one"),
        ("containerd-restarted", "systemctl restart containerd", ""),
    ],
)
def test_a_fix_that_cannot_work_before_another_is_left_out(
    monkeypatch: pytest.MonkeyPatch, check: str, fix: str, first: str
) -> None:
    blocks = (("docker-", ""), ("cdi-paths", "gpushim refresh"), ("", "gpushim configure"))
    found = [("one", broken("x", "install it", blocks)), (check, warning("so it is", fix))]
    monkeypatch.setattr(checks, "table", lambda named: dict(found))
    monkeypatch.setattr(checks, "judge", lambda name, one, _: [replace(one, check=name)])
    last = checks.run(Host())[-1]
    assert (last.evidence, last.fix) == ((f"so it is; {first} comes first", "") if first else ("so it is", fix))


def test_what_writes_that_programs_are_missing_again_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise GpushimError("it is not there")

    monkeypatch.setattr(setup, "installed", missing)
    first = [replace(one, check="programs") for one in check_state.programs(Host())]
    fixes = {
        "kubernetes-template": "gpushim configure containerd",
        "cdi-paths": "gpushim refresh",
        "docker-restarted": "systemctl restart docker",
    }
    found = [checks._after(replace(warning("x", fix), check=name), first).fix for name, fix in fixes.items()]
    assert found == ["", "", "systemctl restart docker"]


def restarted(patient: Patient) -> None:
    patient.info["Runtimes"] = {}


def never(patient: Patient) -> None:
    patient.info["CDISpecDirs"] = []


@pytest.mark.parametrize("more", [restarted, never])
def test_no_fix_restarts_a_dockerd_into_a_bad_file(unlisted: Patient, more: Callable[[Patient], None]) -> None:
    settings = {"runtimes": {"nvidia": {"path": str(RUNTIME)}}, "features": {"cdi": "true"}}
    unlisted.write("etc/docker/daemon.json", json.dumps(settings))
    more(unlisted)
    unlisted.host.named = ("docker",)
    found = [each for each in checks.run(unlisted.host) if each.check.startswith("docker-") and each.fix]
    assert [each.check for each in found] == ["docker-runtime"]
    assert found[0].fix.startswith("correct ")


def test_before_the_programs_are_there_configure_is_no_fix(
    unlisted: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise GpushimError(f"{name} is not there")

    monkeypatch.setattr("gpushim.engines.settings.setup.installed", absent)
    found = {each.check: each for each in checks.run(unlisted.host)}
    assert found["programs"].verdict == "broken"
    assert not [check for check, each in found.items() if check.startswith("docker-") and each.fix]


def test_config_is_looked_at_first() -> None:
    assert next(iter(checks.table(()))) == "config"


@pytest.mark.parametrize("plant", [own_states.open_state, own_states.strangers_state])
def test_a_state_directory_of_others_is_one_finding(patient: Patient, plant: Callable[[Patient], None]) -> None:
    plant(patient)
    assert set(patient.complaints()) <= {"state-directory", "cdi-spec", "cdi-files"}
    assert [each.verdict for each in patient.said("snapshot")] == ["skipped"]


def test_a_configuration_that_is_a_link_to_nothing_is_broken(patient: Patient) -> None:
    config = Path(patient.config)
    config.unlink()
    config.symlink_to("none")
    patient.reread()
    (found,) = patient.said("config")
    assert (found.verdict, "is a link that leads nowhere; put there what it leads to" in found.evidence) == (
        "broken",
        True,
    )
    assert found.fix == f"correct {config}; then gpushim config check"


@pytest.mark.parametrize("check", checks.OF_THE_POLICY)
def test_nothing_is_said_by_a_policy_that_is_not_in_force(patient: Patient, check: str) -> None:
    own_states.wrong_config(patient)
    (found,) = patient.said(check)
    assert (found.verdict, found.evidence) == ("skipped", f"not looked at while {patient.config} is not valid")


@pytest.mark.parametrize("check", checks.OF_THE_DRIVER)
def test_nothing_is_said_of_a_driver_whose_root_does_not_exist(patient: Patient, check: str) -> None:
    patient.configure('[driver]\nroot = "/nonexistent"\n')
    patient.reread()
    (found,) = patient.said(check)
    told = "not looked at: driver.root is '/nonexistent', which is no directory of this host"
    assert (found.verdict, found.evidence) == ("skipped", told)


@pytest.mark.slow
def test_while_the_drivers_halves_differ_no_refresh_is_advised(patient: Patient) -> None:
    """It would refuse; a stale spec of the old driver, before any refresh, waits too."""
    lost = Path(patient.gpus.lib_path, f"libnvidia-ptxjitcompiler.so.{patient.gpus.driver}")
    lost.unlink()
    patient.gpus.half_upgrade("550.54.14")
    before = patient.complaints()
    assert before["cdi-paths"].evidence.endswith("driver-libraries comes first")
    assert before["driver-libraries"].fix == "reboot"
    assert patient.refresh("--force")[0] != 0
    after = patient.examined()
    assert not [each for each in after if "gpushim refresh" in each.fix]
    (spec,) = [each for each in after if each.check == "cdi-spec"]
    assert spec.verdict == "skipped"
    assert spec.evidence.endswith("returns with the next successful refresh")


def test_nobody_is_sent_to_the_page_of_refusals_for_a_note() -> None:
    note = "there is no ld.so.cache: the driver's libraries are sought in the usual directories only"
    assert note in (REPOSITORY / "shim/gpushim/inventory/loader.py").read_text()
    assert note not in (REPOSITORY / "docs/errors.md").read_text()
    assert "errors.md" not in check_state.fix_of_note(note)
