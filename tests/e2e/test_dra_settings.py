"""The DRA driver goes by settings that change while it runs, wherever they are; a wrong one changes nothing.

Kubelet and the half at the API server are the test's, as in test_dra_node.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fakehost
from e2e import trees
from e2e.dranode import Driver, becomes, driver
from e2e.engines import SYSTEM_PATH, run
from e2e.leftovers import until
from e2e.trees import TOP
from e2e.witness import settings

WITHIN = 10.0  # seconds, that a change may take
PROFILES = "profiles: {few: {flags: {plugin: {sharedDevicesAllocationPolicy: packed}}}, none: {}}\ndefault: none\n"


@pytest.fixture(scope="module")
def found() -> Iterator[tuple[Driver, Path, fakehost.Host]]:
    """A driver of four GPUs, two of which are divided, and its config.toml."""
    folder = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))
    cache, mig = str(trees.TOP / ".cache" / "fakehost"), ["3g.20gb", "1g.5gb"]
    host = fakehost.build(str(folder / "host"), 4, mig={0: mig, 1: mig}, compile_cache=cache)
    env = settings(folder, host.root)
    run([str(TOP / "bin" / "gpushim"), "refresh"], env={"PATH": SYSTEM_PATH, **env})
    with driver(folder, env) as one:
        becomes(one, lambda: one.devices())
        yield one, Path(env["GPUSHIM_CONFIG"]), host
    shutil.rmtree(folder)


@pytest.fixture
def written(found: tuple[Driver, Path, fakehost.Host]) -> Iterator[Path]:
    """The config.toml, which is as it was afterwards."""
    before = found[1].read_text()
    yield found[1]
    found[1].write_text(before)


def order(one: Driver) -> list[str]:
    """Return parents of MIG instances in the order in which they are offered."""
    rows = one.devices().values()
    return [row["attributes"]["parentUUID"]["string"] for row in rows if row["attributes"]["type"]["string"] == "mig"]


def add(config: Path, text: str) -> None:
    config.write_text(f"{config.read_text()}\n[device-plugin]\n{text}\n")


def test_what_is_excluded_is_offered_no_more_and_again(
    found: tuple[Driver, Path, fakehost.Host], written: Path
) -> None:
    one, _, host = found
    before, gone = written.read_text(), host.gpus[3].uuid
    add(written, 'exclude = ["3"]')
    becomes(one, lambda: gone not in one.devices(), WITHIN)
    written.write_text(before)
    becomes(one, lambda: gone in one.devices(), WITHIN)


def test_a_wrong_change_leaves_all_as_it_was_and_is_said_once(
    found: tuple[Driver, Path, fakehost.Host], written: Path
) -> None:
    one, _, host = found
    before, sentence = written.read_text(), 'the settings stay as they were: exclude has \\"none\\", which names no'
    add(written, 'exclude = ["3"]')
    becomes(one, lambda: host.gpus[3].uuid not in one.devices(), WITHIN)
    count = len(one.pools)
    written.write_text(f'{before}\n[device-plugin]\nexclude = ["none"]\n')
    assert until(lambda: sentence in one.log.read_text(), WITHIN), one.log.read_text()
    written.write_text(f'{before}\n[device-plugin]\nexclude = ["2", "none"]\n')  # the same sentence again
    written.write_text(before)
    becomes(one, lambda: host.gpus[3].uuid in one.devices(), WITHIN)
    assert len(one.pools) == count + 1
    assert one.log.read_text().count(sentence) == 1


def test_a_profile_is_followed(found: tuple[Driver, Path, fakehost.Host], written: Path) -> None:
    """As the chart's container beside it writes what the node's label names."""
    one, folder = found[0], written.parent
    first, second = sorted({*order(one)}, key=order(one).index)
    assert order(one) == [first, second, first, second]  # distributed
    (folder / "file").write_text(PROFILES)
    add(written, f'config-file = "{folder}/file"\nprofile-file = "{folder}/profile"')
    (folder / "profile").write_text("few\n")
    becomes(one, lambda: order(one) == [first, first, second, second], WITHIN)
    (folder / "profile").write_text("none\n")
    becomes(one, lambda: order(one) == [first, second, first, second], WITHIN)


def test_health_checks_and_the_effect_of_taints(found: tuple[Driver, Path, fakehost.Host], written: Path) -> None:
    one, _, host = found
    before, gpu = written.read_text(), host.gpus[2].uuid

    def effects() -> set[str]:
        return {row["effect"] for row in one.devices()[gpu].get("taints", ())}

    def tainted() -> bool:
        host.xid(2, 79)  # again: an NVML that has just begun hears none of before
        return effects() == {"NoSchedule"}

    becomes(one, tainted)
    add(written, 'taint-effect = "NoExecute"')
    becomes(one, lambda: effects() == {"NoExecute"}, WITHIN)
    written.write_text(f'{before}\n[device-plugin]\ndisable-healthchecks = "79"\n')
    becomes(one, lambda: not effects(), WITHIN)
