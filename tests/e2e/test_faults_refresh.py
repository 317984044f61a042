"""A refresh that is killed, or refused by the kernel, while it saves what it has found.

Each file below the state directory, the CDI spec too, is the old or the new one, whole. What else lies there is
taken away by the next refresh, after which all is new.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

import fakehost
from e2e.engines import SYSTEM_PATH
from e2e.faults import KILL, Call, Done, calls, split, strike, telling, tree
from e2e.trees import TOP
from e2e.witness import settings
from gpushim.ground.errors import FAILED, INVENTORY
from sample import LONG, share

COMMAND = ["/usr/bin/python3", "-IB", str(TOP / "shim/gpushim/create/stub.py"), "refresh", "--force"]
SPEC, SNAPSHOT = "cdi/nvidia.com-gpu.json", "inventory.json"
ERRORS = ("ENOSPC", "EIO", "EMFILE", "ENFILE", "ENOMEM", "EDQUOT", "EROFS", "EBUSY")
SCARCE = ("EMFILE", "ENFILE", "ENOMEM")  # which the next refresh may have
REFUSALS = ((FAILED, "the snapshot cannot"), (INVENTORY, "gpushim refresh got too little"))
FAILING = ("write", "fchmod", "fsync", "rename", "renameat", "unlink", "unlinkat")


class Lab:
    """A state directory as the last refresh left it, and a host that has one GPU more since.

    Args:
        work: empty directory.
    """

    def __init__(self, work: Path) -> None:
        root, cache = str(work / "host"), str(TOP / ".cache" / "fakehost")
        self.state, self.saved = work / "state", work / "saved"
        host = fakehost.build(root, 1, compile_cache=cache)
        self.env = settings(work, host.root) | {"PATH": SYSTEM_PATH}
        self.config = config = Path(self.env["GPUSHIM_CONFIG"])
        config.write_text(config.read_text() + '[requests]\nswarm-variables = ["DOCKER_RESOURCE_GPU"]\n')
        subprocess.run(COMMAND, env=self.env, check=True, capture_output=True)
        self.state.rename(self.saved)
        config.write_text(config.read_text().replace("GPU", "GPUS"))
        fakehost.build(root, 2, compile_cache=cache)
        self.libraries = [*sorted(map(str, Path(host.lib_path).glob("lib*-ml.so*"))), host.lib_path]
        self.lay()
        made = calls(COMMAND, env=self.env, stderr=subprocess.DEVNULL)
        self.start, self.work = split(made, f"{self.state}/lock")
        self.new = self.files()
        self.lay()
        self.old = self.files()

    def lay(self) -> None:
        """Put the old files back."""
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.copytree(self.saved, self.state, symlinks=True)

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Read the state directory, but for what no two refreshes have in common."""
        found = {name: what for name, what in tree(self.state).items() if name != "lock"}
        for name in found.keys() & {SNAPSHOT}:
            snapshot = {**json.loads(found[name][1]), "written": "", "notes": [], "looked": 0, "life": 0, "told": []}
            found[name] = (found[name][0], json.dumps(snapshot).encode())
        return found

    def strike(self, call: Call, what: str) -> Done | None:
        """Refresh with a fault at a call."""
        self.lay()
        return strike(COMMAND, call, what, env=self.env)

    def whole(self) -> set[str]:
        """Assert that each file is an old or a new one; return the names of others.

        The launcher's `runtime` and `config` may be missing: then it asks Python. A `runtime` with the time of the
        configuration must have the words of that beside it.
        """
        found = self.files()
        for name in found.keys() & self.new.keys():
            assert found[name] in (self.old[name], self.new[name]), name
        assert found.keys() >= self.new.keys() - {"runtime", "config"}
        if "runtime" in found and os.stat(self.state / "runtime").st_mtime_ns == self.config.stat().st_mtime_ns:
            assert (found["triggers"], "config" in found) == (self.new["triggers"], True)
        return found.keys() - self.new.keys()

    def works(self) -> None:
        """Assert that the next refresh makes all new, and takes away what is left of another."""
        subprocess.run(COMMAND, env=self.env, check=True, capture_output=True)
        assert self.files() == self.new


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A refresh that is to be struck."""
    return Lab(tmp_path_factory.mktemp("lab"))


def test_the_files_differ(lab: Lab) -> None:
    differing = {name for name, what in lab.new.items() if what != lab.old[name]}
    assert differing == {SNAPSHOT, "triggers", SPEC, "specs", "indices"}
    assert len(json.loads(lab.new[SNAPSHOT][1])["gpus"]) == 2


def test_killed_at_any_call(lab: Lab) -> None:
    seen: list[object] = [lab.old, lab.new]
    for call in [*lab.start[::200], *share(telling(lab.work, 1500), 2)]:
        lab.strike(call, KILL)
        assert len(lab.whole()) <= 1, call
        if lab.files() not in seen:
            seen.append(lab.files())
            lab.works()
    assert len(seen) > (12 if LONG else 8)


def test_refused_by_the_kernel_at_any_call(lab: Lab) -> None:
    codes = []
    for index, call in enumerate(call for call in lab.work if call.name in FAILING or "O_CREAT" in call.words):
        for error in ERRORS if LONG else [ERRORS[index % len(ERRORS)]]:
            done = lab.strike(call, f"error={error}")
            if done is not None:
                codes.append(done.returncode)
                assert lab.whole() <= {"failure"}, call  # which says why to creates that wait
                assert "Traceback" not in done.stderr
                code, says = REFUSALS[error in SCARCE]
                assert done.returncode in (0, code)
                assert done.returncode == 0 or done.stderr.splitlines()[-1].startswith(f"gpushim: {says}")
    lab.works()
    assert {*codes} == {0, FAILED, INVENTORY}


@pytest.mark.parametrize("error", ["ENOMEM", "EIO", "EMFILE", "ESTALE"])
def test_what_cannot_be_looked_up_for_now_is_not_missing(lab: Lab, error: str) -> None:
    """Or a refresh in a tenant's cgroup, or a network that is away, would take the CDI spec from all."""
    lab.lay()
    inject = f"inject=stat,lstat,newfstatat,statx,readlink,readlinkat:error={error}"
    paths = [word for path in lab.libraries for word in ("-P", path)]
    done = subprocess.run(
        ["/usr/bin/strace", "-f", "-qq", "-o", "/dev/null", *paths, "-e", "trace=all", "-e", inject, *COMMAND],
        env=lab.env,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (FAILED, INVENTORY)
    assert "Traceback" not in done.stderr
    assert lab.files()[SPEC] == lab.old[SPEC]
    lab.works()


def test_a_power_cut_finds_old_files_or_whole_new_ones(lab: Lab) -> None:
    # /run is empty after one, but not GPUSHIM_STATE or the directory of the CDI spec.
    state = [call.name for call in lab.work if f'"{lab.state}' in call.words or call.name == "fsync"]
    named = [last for last, name in pairwise(state) if name == "rename"]
    assert len(named) >= 4
    assert {*named} == {"fsync"}
