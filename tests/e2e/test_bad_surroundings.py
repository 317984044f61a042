"""Bad surroundings: what a process may miss when an engine starts it."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from e2e.bad_input import ALL, BIN, Scene, confine, seen
from fakehost import Host


@pytest.fixture
def scene(gpu_host: Host, low: Path, tmp_path: Path) -> Scene:
    """A scene that has never been looked at."""
    return Scene(tmp_path, gpu_host, low)


# Group 29: old kernels and denied system calls are in test_old_kernel.py, cgroups in views.py's tests.
SYSTEMS: dict[str, tuple[str, int]] = {
    "nothing to execute": ("for place in /run /dev/shm /var/tmp; do mount -t tmpfs -o noexec none $place; done", 0),
    "no /sys": ("umount -l /sys", 0),
    "hidepid": ("mount -t proc -o hidepid=2 none /proc", 0),
    "no /proc": ("umount -l /proc", 0),
    "no /dev/null": ("mount -t tmpfs none /dev", 12),
    "no /var": ("mount -t tmpfs -o ro none /var", 0),
    "no /etc": ("mount -t tmpfs -o ro none /etc", 0),
}


@pytest.mark.parametrize("again", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("case", SYSTEMS)
def test_poor_systems(scene: Scene, case: str, again: bool) -> None:
    script, code = SYSTEMS[case]
    if again:
        scene.ask(ALL)
        scene.answers(0)
    scene.ask("NVIDIA_VISIBLE_DEVICES=void")
    scene.untouched(script=script)
    scene.ask(ALL)
    scene.answers(0 if again else code, script=script)
    assert bool(scene.nodes) == (again or not code)


# Group 30.
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "nowhere to look for programs": {"PATH": "/nowhere"},
    "empty PATH": {"PATH": ""},
    "no home": {"HOME": "/nowhere", "XDG_RUNTIME_DIR": "/nowhere", "TMPDIR": "/nowhere"},
    "Python's": {"PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere", "PYTHONINSPECT": "1", "PYTHONUTF8": "x"},
    "the shell's": {"ENV": "/nowhere", "PS4": "$(exit 9)", "CDPATH": "/", "POSIXLY_CORRECT": "1", "OLDPWD": "/x"},
    "grep's": {"GREP_OPTIONS": "-v", "GREP_COLOR": "x", "LC_ALL": "tr_TR.UTF-8", "LC_CTYPE": "xx"},
    "not UTF-8": {"X": "\udcff\udc80", "LC_ALL": "C"},
    "2 000 variables": {f"V{number}": "x" * 50 for number in range(2000)},
    "another time zone": {"TZ": ":/nowhere/../..\x1b"},
}


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_environments(scene: Scene, case: str) -> None:
    scene.ask(ALL)
    scene.answers(0, env=ENVIRONMENTS[case])
    assert scene.nodes
    scene.ask("NVIDIA_VISIBLE_DEVICES=void")
    scene.untouched(env=ENVIRONMENTS[case])


# Variables of dash's own, which it sets again, and names that the launcher uses itself.
SHELL = {"IFS": "/gx", "OPTIND": "7", "PPID": "1"}
NAMES = {
    "verb": "state",
    "low": "/bin/false",
    "want": "bundle",
    "bundle": "/x",
    "id": "y",
    "unread": "yes",
    "stat": "x",
}
NAMES |= {"log": "/x", "format": "text", "triggers": "/dev/zero", "config": "/x", "ignored": "x", "tries": "x"}


def test_variables_that_the_launcher_uses_itself(scene: Scene) -> None:
    for devices, gpus in (("all", 3), ("all", 3), ("void", 0)):
        scene.ask(f"NVIDIA_VISIBLE_DEVICES={devices}")
        done = scene.call(BIN / "gpushim-runtime", *scene.words(), env={**SHELL, **NAMES, "KEPT": "1"})
        assert (done.code, done.stderr, len(scene.nodes)) == (0, "", gpus)
        assert done.record["argv"][1:] == [str(word) for word in scene.words()]
        assert "KEPT=1" in done.record["env"]


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]], ids=str)
def test_closed_descriptors(scene: Scene, closed: list[int]) -> None:
    """Nothing that is opened on the way may come in their place."""

    def close() -> None:
        confine()
        for fd in closed:
            os.close(fd)

    for _ in range(2):  # with a refresh and without
        scene.ask(ALL)
        done = scene.call(BIN / "gpushim-runtime", *scene.words(), preexec_fn=close)
        direct = scene.call(scene.low, *scene.words(), preexec_fn=close)
        assert seen(done) == seen(direct)
        assert set(done.record["fds"]).isdisjoint(closed)
        assert scene.nodes
    scene.ask("NVIDIA_VISIBLE_DEVICES=99")
    assert scene.call(BIN / "gpushim-runtime", *scene.words(), preexec_fn=close).code == 10


@pytest.mark.parametrize("stderr", ["/dev/full", "pipe"])
def test_nobody_reads_what_it_says(scene: Scene, stderr: str) -> None:
    scene.ask("NVIDIA_VISIBLE_DEVICES=99")
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "wb") as full:
        target = full if stderr == "/dev/full" else write
        done = scene.call(BIN / "gpushim-runtime", *scene.words(), stdout=target, stderr=target)
    os.close(write)
    assert done.code == 10
    assert 'GPU "99"' in json.loads(scene.log.read_text())["msg"]


# Group 36.
@pytest.mark.parametrize(("kind", "most"), [(resource.RLIMIT_NOFILE, 16), (resource.RLIMIT_AS, 64 << 20)])
def test_limits(scene: Scene, kind: int, most: int) -> None:
    def limit() -> None:
        confine()
        resource.setrlimit(kind, (most, most))

    scene.ask(ALL)
    scene.call(BIN / "gpushim", "refresh", env={"PATH": "/usr/bin:/bin"})
    scene.answers(0, preexec_fn=limit)
    assert scene.nodes
