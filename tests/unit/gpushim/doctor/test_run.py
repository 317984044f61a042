"""What is made of a test container's answer, and of what its root filesystem is made."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from gpushim.doctor import run
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
        (0, DENIED, "", "broken", "/dev/nvidia0 does not open in a container: Operation not permitted"),
        (0, UNLOADED, "", "broken", "libnvidia-ml.so.1 does not load in a container: ERROR: ld.so"),
        (0, NOTHING, "", "broken", "gets no device node"),
        (125, "", "docker: could not select device driver", "broken", "could not select device driver"),
        (0, "", "", "broken", "does not start"),
        (None, "", "`podman run` has not ended within 60 s", "broken", "has not ended within 60 s"),
    ],
)
def test_an_answer_is_judged(code: int | None, out: str, said: str, verdict: str, evidence: str) -> None:
    (found,) = run.judged(ask.Answer(code, out, said))
    assert (found.verdict, evidence in found.evidence) == (verdict, True), found


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
