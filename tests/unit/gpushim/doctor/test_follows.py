"""A finding that follows from another one says so, and has no fix of its own."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from gpushim import doctor
from gpushim.doctor import Finding, checks, follows
from unit.gpushim.doctor.patient import RUNTIME, Patient

BAD_FILE = Finding("broken", "dockerd (process 7) would not start again: x", "correct x", "docker-runtime")
NO_HOOK = Finding("broken", "/usr/bin/gpushim-hook is not an executable file", "install it", "programs")
HALF = Finding("broken", "the module is 1, the libraries are 2", "reboot", "driver-libraries")
AFTER = [
    (BAD_FILE, "docker-restart", "systemctl restart docker"),
    (BAD_FILE, "docker-cdi", "gpushim configure docker --cdi --restart"),
    (NO_HOOK, "docker-hook", "gpushim configure docker"),
    (NO_HOOK, "podman-runtime", "gpushim configure podman"),
    (NO_HOOK, "cdi-paths", "gpushim refresh"),
    (HALF, "library-cache", "ldconfig"),
]
APART = [
    (BAD_FILE, "containerd-restart", "systemctl restart containerd"),
    (NO_HOOK, "snapshot", "gpushim refresh"),
    (HALF, "device-nodes", "gpushim refresh"),
    (Finding("broken", "dockerd does not answer", "see its log", "docker-daemon"), "docker-restart", "restart"),
]


@pytest.mark.parametrize(("first", "check", "fix"), AFTER)
def test_what_follows(first: Finding, check: str, fix: str) -> None:
    linked = follows.linked([Finding("warning", "so it is", fix, check), first])
    assert linked == [Finding("warning", f"so it is; {first.check} comes first", "", check), first]


@pytest.mark.parametrize(("first", "check", "fix"), APART)
def test_what_does_not(first: Finding, check: str, fix: str) -> None:
    found = [first, Finding("warning", "so it is", fix, check)]
    assert follows.linked(found) == found


def test_nothing_follows_from_what_is_well() -> None:
    found = [doctor.ok("fine"), Finding("warning", "so it is", "gpushim configure docker", "docker-hook")]
    assert follows.linked(found) == found


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
