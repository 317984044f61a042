"""What is made of a test container's answer, and of what its root filesystem is made."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from gpushim.doctor import Finding, run
from gpushim.engines.processes import ask
from gpushim.ground.errors import GpushimError

WELL = "node /dev/nvidia0 opens\nnode /dev/nvidiactl opens\nlibrary libcuda.so.1 \nlibrary libnvidia-ml.so.1 \n"
DENIED = WELL.replace("dia0 opens", "dia0 sh: 1: cannot open /dev/nvidia0: Operation not permitted")
UNLOADED = WELL.replace("ml.so.1 ", "ml.so.1 ERROR: ld.so: object cannot be preloaded")
NOTHING = "library libcuda.so.1 \nlibrary libnvidia-ml.so.1 \n"


@pytest.mark.parametrize(
    ("code", "out", "said", "verdict", "evidence"),
    [
        (0, WELL, "", "ok", "/dev/nvidia0, /dev/nvidiactl open in a container"),
        (0, DENIED, "", "broken", "/dev/nvidia0 cannot be opened in a container: Operation not permitted"),
        (0, UNLOADED, "", "broken", "libnvidia-ml.so.1 cannot be loaded in a container: ERROR: ld.so"),
        (0, NOTHING, "", "broken", "gets no device node"),
        (125, "", "docker: could not select device driver", "broken", "could not select device driver"),
        (125, "", "docker: no such runtime\n\nRun 'docker run --help' for more", "broken", "start: docker: no such"),
        (0, "", "", "broken", "does not start"),
        (None, "", "`podman run` has not ended within 60 s", "broken", "has not ended within 60 s"),
    ],
)
def test_an_answer_is_judged(code: int | None, out: str, said: str, verdict: str, evidence: str) -> None:
    (found,) = run.judged(ask.Answer(code, out, said))
    assert (found.verdict, evidence in found.evidence) == (verdict, True), found


def test_nodes_with_one_cause_are_one_finding() -> None:
    denied = "node {} sh: 1: cannot open {}: Operation not permitted\n"
    nodes = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")
    answer = ask.Answer(0, "".join(denied.format(node, node) for node in nodes) + NOTHING, "")
    (finding,) = run.judged(answer)
    assert finding.evidence == f"{', '.join(nodes)} cannot be opened in a container: Operation not permitted"
    assert "gpushim doctor" not in finding.fix  # which is what runs


def test_engines_with_one_cause_are_one_finding() -> None:
    findings = [
        Finding("broken", "no GPU", "do this", f"run-{name}") for name in ("runc", "docker", "docker", "podman")
    ]
    (finding,) = run.merged([*findings])
    assert (finding.check, finding.evidence) == ("run-runc", "no GPU; run-docker, run-podman the same")
    assert run.merged(findings[1:3]) == [findings[1]]


DOCKERS = "docker: Error response from daemon: OCI runtime create failed: "
HELP = "\n\nRun 'docker run --help' for more information"


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        (f"{DOCKERS}gpushim: no GPU was found; do this: unknown.{HELP}", "do this"),
        (
            "runc create failed: stderr: gpushim-hook: libcuda.so.1 is gone; run gpushim refresh\n",
            "run gpushim refresh",
        ),
        (f"{DOCKERS}error mounting x: unknown.{HELP}", "look for these words in docs/symptoms.md and docs/errors.md"),
        ("gpushim: it ends\n", "look for these words in docs/symptoms.md and docs/errors.md"),
    ],
)
def test_the_fix_is_what_the_sentence_names(said: str, fix: str) -> None:
    (found,) = run.judged(ask.Answer(125, "", said))
    assert found.fix == fix


def test_the_root_filesystem_can_run_the_script(tmp_path: Path) -> None:
    root = tmp_path / "root"
    run.make_root(str(root))
    done = subprocess.run(["/usr/sbin/chroot", str(root), *run.COMMAND], capture_output=True, text=True, check=True)
    # No driver in there: the loader says so.
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["library", name] for name in run.LIBRARIES]
    assert all("cannot be preloaded" in line for line in done.stdout.splitlines())


def test_a_host_without_glibc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LOADERS", {platform.machine(): str(tmp_path / "gone")})
    with pytest.raises(GpushimError, match="not a glibc program"):
        run.make_root(str(tmp_path / "root"))
