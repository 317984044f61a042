"""For every test: the checkout's place, examples of hypothesis, an order of files that keeps all workers busy.

Files of tests lie where scratch.py says, and no test makes links where this machine's own dockerd would find them.
"""

from __future__ import annotations

import gc
import os
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import checkout
import sample
import scratch
from gpushim.engines.docker import dockerd
from gpushim.engines.settings import files
from gpushim.engines.settings.setup import Link
from unit.gpuhook.sandbox import container, own_mounts

# Where pytest makes directories for tests; read when the first one is.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch.top()))

# grpc's handlers of forks abort the children of tests that come later in the same process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# What grpc has left for the collector waits at its end for a thread, which a forked child does not have.
os.register_at_fork(after_in_child=gc.disable)

# The same examples each time, and no deadline by the clock, which a busy machine would miss. With
# --hypothesis-profile=search they are new each time; bytes that were never thought of are for tests/fuzz.
settings.register_profile("gpushim", deadline=None, derandomize=True, database=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("gpushim")

# Files that take longest, in this order, before all others: a worker that meets one last keeps the others waiting.
# Those of the device plugin wait, as for kubelets, each beside one that computes; the image is there when it is used.
LONGEST = (
    "e2e: device_plugin_life image deb_life never_twice cluster several_nodes release deb_install quick_start",
    "e2e: dra_walk dra_cut_walk dra_life dra dra_away dra_claims dra_told dra_shared_claims dra_sharing dra_slices",
    "e2e: device_plugin_trouble device_plugin_walk node removal node_keep rpm_engines",
    "e2e: device_plugin_health device_plugin_pod device_plugin_resources docs device_plugin_metrics",
    "e2e: device_plugin_allocate vulnerable rpm strangers faults_hook races gpus concurrent configure_containerd",
    "e2e: refresh_service chroot_docker faults_refresh week doctor verbs",
    "unit/gpuplugin: daemon mps/supervisor metrics/meter health/nvml_child",
    "unit/gpushim: doctor/engine_fixes doctor/fixes create/create engines/sequences",
    "unit/gpushim/inventory: freshness ensure",
)
FIRST = [f"{line.partition(':')[0]}/{name}" for line in LONGEST for name in line.split()[1:]]


def _e2e(names: str) -> list[str]:
    return [f"tests/e2e/test_{name}" for name in names.split()]


# Of each test's cases of these a run may take half (sample.py).
HALVED = (
    "tests/unit/gpu",
    *_e2e("ahead bad_ bounds chart chroot_ configure_ crio device_plugin_allocate dock fresh gpus locks mps podman"),
    *_e2e("races refresh_asked removal rootless rpm_ strangers upstream_"),
)
# And of these a quarter.
QUARTERED = (
    *_e2e("cdi_hook_hostile faults_ hostile loader shared_volumes"),
    *(f"tests/unit/gpushim/doctor/test_{name}.py::test_fix[" for name in ("fixes", "engine_fixes")),
)
RANK = {name: rank for rank, name in enumerate(FIRST)}


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Go on in the checkout at its place."""
    if not checkout.is_at_its_place():
        capture = config.pluginmanager.getplugin("capturemanager")
        assert capture is not None
        capture.suspend_global_capture(in_=True)  # which has its own stdin
        own_mounts()
        checkout.bring()
        command = [sys.executable, "-m", "pytest", *config.invocation_params.args]
        os.execv(checkout.moved(sys.executable), [*map(checkout.moved, command)])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files begin, with as many of each test's cases as this run takes."""
    here, seen = Path(__file__).parent, Counter[str]()
    cases = Counter("".join(item.nodeid.partition("[")[:2]) for item in items)

    def taken(item: pytest.Item) -> bool:
        name = "".join(item.nodeid.partition("[")[:2])
        seen[name] += 1
        parts = 4 if name.startswith(QUARTERED) else 2 if name.startswith(HALVED) else 1
        return sample.taken(seen[name], min(parts, cases[name]))  # no test is left out whole

    items[:] = filter(taken, items)
    items.sort(key=lambda item: RANK.get(item.path.relative_to(here).as_posix()[:-3].replace("test_", ""), len(RANK)))


def pytest_collection_finish() -> None:
    """Spare the collector, here and in forked children, ten thousand tests that live to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """Print last how many tests were skipped for want of what, and its cure; the Python; what repeats the cases."""
    yield
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, count in sorted(reasons.items()):
        if reason.startswith("there is no "):
            terminalreporter.write_line(f"skipped: {count} tests: {reason}")
    command = os.environ.get("GPUSHIM_TEST_COMMAND") or shlex.join(
        [".venv/bin/python", "-m", "pytest", *config.invocation_params.args]
    )
    line = f"Python {platform.python_version()}; the same cases again: {sample.VARIABLES} {command}"
    terminalreporter.write_line(line)


@pytest.fixture(autouse=True, scope="session")
def no_links_on_this_machine() -> Iterator[None]:
    """Let a test fail whose `configure docker` would make or remove links below /usr/local."""
    make = dockerd._apply_link

    def guarded(link: Link) -> None:
        assert not link.path.startswith("/usr/local/"), f"a test touches {link.path}"
        make(link)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dockerd, "_apply_link", guarded)
        yield


@pytest.fixture(autouse=True, scope="session")
def lock_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep `configure` of a test's own process off this machine's lock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "RUN", str(tmp_path_factory.mktemp("lock")))
        yield


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    """A process that stands for a container's first, in a mount namespace of its own."""
    with container() as made:
        yield made
