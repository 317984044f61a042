"""Many at once: creates, creates and what takes their bundle, their host or their snapshot away, and configures."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import recorder
from e2e.engines import SYSTEM_PATH
from e2e.faults import Done, tree
from e2e.leftovers import until
from e2e.trees import TOP
from e2e.witness import RUNC, settings
from gpushim.ground.errors import BUNDLE, DRIVER, INVENTORY
from unit.gpushim.inventory import machine

BIN = TOP / "bin"
DOCKER = b'{\n\t"labels": ["na\\u00efve"],\n\t"debug": false\n}'


class Lab:
    """A host of its own, and bundles that ask for all its GPUs.

    Args:
        work: empty directory.
    """

    def __init__(self, work: Path) -> None:
        self.work = work
        self.build(2)
        low = str(recorder.build(work))
        self.env = settings(work, str(work / "host"), low) | {"PATH": SYSTEM_PATH}
        self.refresh()
        subprocess.run([RUNC, "spec", "--bundle", work], check=True)
        spec = json.loads((work / "config.json").read_text())
        spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
        self.plain = json.dumps(spec)
        self.clean = self.create(self.lay("clean"))

    def build(self, gpus: int) -> None:
        """Give the host so many GPUs."""
        self.host = fakehost.build(str(self.work / "host"), gpus, compile_cache=str(TOP / ".cache" / "fakehost"))

    def refresh(self) -> Done:
        """Look at the host again."""
        return self.call("gpushim", "refresh", "--force")

    def lay(self, name: str) -> Path:
        """Make a bundle, with a root filesystem of its own, in the place of one of that name."""
        bundle = self.work / "bundles" / name
        shutil.rmtree(bundle, ignore_errors=True)
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(self.plain)
        return bundle

    def call(self, program: str, *words: object, check: bool = True, **env: str) -> Done:
        """Call a program of ours."""
        command = [str(BIN / program), *map(str, words)]
        done = subprocess.run(command, env=self.env | env, check=False, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, done.stderr
        return done

    def start(self, bundle: Path, check: bool = True) -> Done:
        """Create a container."""
        record = str(self.work / f"{bundle.name}.record")
        return self.call("gpushim-runtime", "create", "--bundle", bundle, bundle.name, check=check, RECORD=record)

    def create(self, bundle: Path) -> dict[str, Any]:
        """Create a container; return its config.json without what names the bundle."""
        self.start(bundle)
        assert recorder.read(self.work / f"{bundle.name}.record")["argv"][-1] == bundle.name
        assert tree(bundle).keys() == {"config.json", "config.json.gpushim"}
        text = (bundle / "config.json").read_text()
        return dict(json.loads(text.replace(f"/{bundle.name}/", "/clean/")))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A host that nobody else uses."""
    return Lab(tmp_path_factory.mktemp("lab"))


@contextlib.contextmanager
def beside(work: Callable[[], object]) -> Iterator[Callable[[], int]]:
    """Do something over and over during the block; yields how often it has been done."""
    stop, count, failed = threading.Event(), itertools.count(), []
    done = [0]

    def again() -> None:
        try:
            while not stop.is_set():
                work()
                done[0] = next(count) + 1
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield lambda: done[0]
    finally:
        stop.set()
        thread.join()
        assert not failed, failed


def gpus(spec: dict[str, Any]) -> int:
    """Count the GPUs that a container has been given."""
    paths = [device["path"] for device in spec["linux"].get("devices", ())]
    return sum(path.removeprefix("/dev/nvidia").isdigit() for path in paths)


def test_two_hundred_creates(lab: Lab) -> None:
    bundles = [lab.lay(f"many{number}") for number in range(200)]
    with ThreadPoolExecutor(200) as pool:
        assert all(spec == lab.clean for spec in pool.map(lab.create, bundles))


def test_two_creates_of_one_bundle(lab: Lab) -> None:
    for _ in range(15):
        bundle = lab.lay("one")
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(lab.start, bundle) for _ in range(2)]
        assert [done.result().returncode for done in both] == [0, 0]
        assert tree(bundle).keys() == {"config.json", "config.json.gpushim"}
        found = json.loads((bundle / "config.json").read_text().replace("/one/", "/clean/"))
        assert found == lab.clean


def test_a_bundle_that_is_deleted_meanwhile(lab: Lab) -> None:
    codes: Counter[int] = Counter()
    for number in range(40):
        bundle = lab.lay("gone")
        timer = threading.Timer(number / 1000, lambda: shutil.rmtree(bundle, ignore_errors=True))  # noqa: B023
        timer.start()
        done = lab.start(bundle, check=False)
        timer.join()
        shutil.rmtree(bundle, ignore_errors=True)  # the timer may have met a new name in it
        codes[done.returncode] += 1
        assert not done.returncode or done.stderr.startswith("gpushim: "), done.stderr
        assert done.stderr.count("\n") == bool(done.returncode)
    assert codes.keys() <= {0, BUNDLE}


def test_creates_while_the_host_is_looked_at(lab: Lab) -> None:
    with beside(lab.refresh) as refreshes:
        for number in range(1000):
            assert lab.create(lab.lay(f"beside{number}")) == lab.clean
            if number >= 20 and refreshes() >= 4:
                break


def test_creates_while_the_driver_changes(lab: Lab) -> None:
    numbers = itertools.cycle([3, 2])
    counts: Counter[int] = Counter()

    def change() -> None:
        lab.build(next(numbers))
        wanted = counts.total() + 3
        until(lambda: counts.total() >= wanted, 2)

    with beside(change) as changes:
        for number in range(1000):
            bundle = lab.lay(f"change{number}")
            done = lab.start(bundle, check=False)
            assert done.returncode in (0, INVENTORY, DRIVER), done.stderr
            found = gpus(json.loads((bundle / "config.json").read_text()))
            assert found in ((0,) if done.returncode else (2, 3))
            counts[found] += 1
            if min(counts[2], counts[3]) > 5 and changes() >= 4:
                break
    assert min(counts[2], counts[3]) > 5, counts
    lab.build(2)
    assert lab.create(lab.lay("after")) == lab.clean


def test_configures_at_once(lab: Lab, tmp_path: Path) -> None:
    config = tmp_path / "daemon.json"
    config.write_bytes(DOCKER)
    config.chmod(0o640)
    names = [f"gpu{number}" for number in range(6)]

    def add(name: str) -> Done:
        return lab.call("gpushim", "configure", "docker", "--config", config, "--runtime-name", name, check=False)

    with ThreadPoolExecutor(len(names)) as pool:
        ended = dict(zip(names, pool.map(add, names), strict=True))
    changed = json.loads(config.read_text())
    assert changed["runtimes"].keys() == {name for name, done in ended.items() if not done.returncode}
    refused = [done.stderr for done in ended.values() if done.returncode]
    assert all("has been changed by somebody else meanwhile; try again" in said for said in refused)
    assert config.with_name("daemon.json.before-gpushim").read_bytes() == DOCKER
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("daemon.json")]
    for name in changed["runtimes"]:
        lab.call("gpushim", "configure", "docker", "--config", config, "--runtime-name", name, "--remove")
    assert config.read_bytes() == DOCKER
    assert config.stat().st_mode & 0o777 == 0o640


STORM = 50
NVML, DEADLINE = 5, 20  # seconds; on a host it may be 25 of the 100 that a container waits


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Lab]:
    """A host that has not been listed since its NVML takes long."""
    lab = Lab(tmp_path)
    with Path(lab.env["GPUSHIM_CONFIG"]).open("a") as config:
        config.write(f"[refresh]\ndeadline-seconds = {DEADLINE}\n")
    yield lab
    machine.end(lab.env["GPUSHIM_STATE"])


def storm(lab: Lab) -> list[Done]:
    """Start many containers at once, on a host that is listed for the first time."""
    bundles = [lab.lay(f"storm{number}") for number in range(STORM)]
    shutil.rmtree(lab.env["GPUSHIM_STATE"])
    with ThreadPoolExecutor(STORM) as pool:
        return list(pool.map(lambda bundle: lab.start(bundle, check=False), bundles))


def behave(lab: Lab, **how: Any) -> None:
    """Let NVML behave so, and write down when it is opened."""
    log = Path(lab.host.root, "usr/lib/fakehost/nvml.log")
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    lab.host.behave(**how)


def openings(lab: Lab) -> int:
    """Count how often NVML has been opened."""
    return Path(lab.host.root, "usr/lib/fakehost/nvml.log").read_text().count("opened")


def test_a_storm_beside_a_slow_nvml(slow: Lab) -> None:
    """They wait for one refresh, and all get their GPUs."""
    behave(slow, delay_ms=NVML * 1000)
    assert [done.stderr for done in storm(slow) if done.returncode] == []
    found = [json.loads((slow.work / f"bundles/storm{number}/config.json").read_text()) for number in range(STORM)]
    assert [gpus(spec) for spec in found] == [2] * STORM
    assert openings(slow) == 1


def test_a_storm_beside_an_nvml_that_takes_longer_than_a_container_waits(slow: Lab) -> None:
    """All refuse with one sentence; the host is listed all the same, and the next container starts."""
    config = Path(slow.env["GPUSHIM_CONFIG"])
    config.write_text(config.read_text().replace(f"deadline-seconds = {DEADLINE}", "deadline-seconds = 2"))
    behave(slow, delay_ms=15000)
    refused = storm(slow)
    assert {done.returncode for done in refused} == {INVENTORY}
    (said,) = {done.stderr for done in refused}
    assert "has waited 2 s for NVML to initialise, and goes on without this container" in said
    assert until(Path(slow.env["GPUSHIM_STATE"], "inventory.json").exists, 60)
    assert slow.create(slow.lay("later")) == slow.clean
    assert openings(slow) == 1


def test_a_storm_beside_a_refresh_that_fails(slow: Lab) -> None:
    """One failure is all that there is: nobody begins behind the others."""
    behave(slow, delay_ms=2 * NVML * 1000)  # all have begun by then
    blocked = Path(slow.env["GPUSHIM_STATE"]) / "runtime"
    bundles = [slow.lay(f"storm{number}") for number in range(STORM)]
    shutil.rmtree(blocked.parent)
    blocked.mkdir(parents=True)
    with ThreadPoolExecutor(STORM) as pool:
        refused = list(pool.map(lambda bundle: slow.start(bundle, check=False), bundles))
    (said,) = {done.stderr for done in refused}
    assert "the snapshot cannot be saved: " in said
    assert openings(slow) == 1
