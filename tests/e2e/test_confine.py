"""The kernel's limits that a hook sets itself: in force early enough, and said in one sentence when they strike."""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e import big
from e2e.bad_images import image
from e2e.bounded_hook import FINISH, finish, hook_of, padded
from e2e.bundles import Bundle
from e2e.hostile_places import Place
from e2e.witness import RUNC, settings
from fakehost import Host
from gpushim.ground import bounds

KINDS = (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)


@pytest.mark.parametrize(("name", "more"), [("gpushim-hook", 1000), ("nvidia-cdi-hook", 0)])
def test_the_limits_of_a_hook(tmp_path: Path, place: Place, name: str, more: int) -> None:
    """HOOK_SECONDS, HOOK_MEMORY, HOOK_FILE, HOOK_OPEN: in force before anything of the image is read."""
    (tmp_path / "LOG").write_bytes(b"x" * more)
    given = FINISH if more else ("nvidia-cdi-hook", "update-application-profile")
    words = [str(place.top / "bin" / name), *(str(tmp_path / word) if word.isupper() else word for word in given[1:])]
    wanted = [
        (bounds.HOOK_SECONDS, bounds.HOOK_SECONDS + 2),
        (bounds.HOOK_MEMORY, bounds.HOOK_MEMORY),
        (bounds.HOOK_FILE + more, bounds.HOOK_FILE + more),
        (bounds.HOOK_OPEN, bounds.HOOK_OPEN),
        (0, 0),
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}) as process:
        while [resource.prlimit(process.pid, kind) for kind in KINDS] != wanted:
            assert process.poll() is None  # it waits some seconds for the state, and then ends
        process.communicate(b"{}")


# What a hook would do without some bounds; its limits are lower, so that the test is not slow.
UNBOUNDED = {
    "LOADER_CACHE = 2 << 20": "LOADER_CACHE = 1 << 40",
    "CACHE_EQUAL = 128": "CACHE_EQUAL = 1 << 40",
    "HOOK_SECONDS = 10": "HOOK_SECONDS = 1",
}


@pytest.mark.parametrize("memory", ["512 << 20", "64 << 20"], ids=["time", "memory"])
def test_a_bound_that_is_missing(tmp_path: Path, pid: int, place: Place, memory: str) -> None:
    """HOOK_SECONDS, HOOK_MEMORY: the kernel's limits stand behind all others."""
    for name in ("bin", "hook", "shim"):
        shutil.copytree(place.top / name, tmp_path / "unbounded" / name, symlinks=True)
    text = (tmp_path / "unbounded/shim/gpushim/ground/bounds.py").read_text()
    for old, new in {**UNBOUNDED, "HOOK_MEMORY = 512 << 20": f"HOOK_MEMORY = {memory}"}.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "unbounded/shim/gpushim/ground/bounds.py").write_text(text)
    (image(tmp_path) / big.CACHE).write_bytes(big.same(690_000))
    done, said = finish(tmp_path, Place(place.env, top=tmp_path / "unbounded"), pid)
    assert done.code == 16, done
    assert said.startswith(f"gpushim-hook: the hook needs more than {memory.split()[0]} MiB or 1 s of CPU time"), said
    assert said.count("\n") == 1
    assert done.user + done.system < 1 + 2 + 1  # the signal, the kernel's end, and what a clock's tick may add


def test_a_config_json_beyond_the_hooks_memory(tmp_path: Path, pid: int, place: Place) -> None:
    """HOOK_MEMORY: what no bound has foreseen ends in a sentence."""
    image(tmp_path)
    words = tuple(word for word in FINISH if word not in ("--rootfs", "ROOT"))
    done = hook_of(tmp_path, place, pid, words, padded({"root": {"path": "root"}}, bounds.CONFIG_JSON))
    assert done.code == 16, done
    assert "needs more than 512 MiB" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.memory < bounds.HOOK_MEMORY


def test_a_refresh_has_no_limits_of_the_hooks(
    debian_root: Path, tmp_path: Path, gpu_host: Host, place: Place
) -> None:
    """A hook alone lists the GPUs first, in a child; then its limits are lowered, before the container is touched."""
    env, trace = settings(tmp_path, gpu_host.root), tmp_path / "trace"
    bundle = Bundle(tmp_path / "bundle", debian_root, env, runtime=Path(RUNC))
    program = str(place.top / "bin/nvidia-container-runtime-hook")
    words = ["strace", "-f", "-e", "trace=execve,prlimit64,symlinkat", "-o", str(trace), program, "prestart"]
    variables = ["PATH=/usr/bin:/bin", *(f"{key}={value}" for key, value in env.items())]
    hook = {"path": "/usr/bin/strace", "args": words, "env": variables}
    bundle.ask("NVIDIA_VISIBLE_DEVICES=all", args=["/bin/true"], hooks={"prestart": [hook]})
    bundle.run()
    lines = trace.read_text().splitlines()
    limited = [at for at, line in enumerate(lines) if "RLIMIT_AS, {" in line]
    started = [at for at, line in enumerate(lines) if "execve(" in line]
    touched = [at for at, line in enumerate(lines) if "symlinkat(" in line and "libcuda.so" in line]
    assert len(started) > 1
    assert max(started) < min(limited)
    assert max(limited) < min(touched)
