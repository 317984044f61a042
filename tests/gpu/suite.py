"""The cases of `tests/gpu/run`: what containers see of real GPUs, what they compute, what it costs."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from gpu import box, machine, mps
from gpu.box import INSIDE, PYTHON, TRUE, Box
from gpu.machine import PATH, TOP, Driver, NotHereError

SHIM = f"{TOP}/bin/gpushim-runtime"
REFUSED = "EPERM"


class UnseenError(Exception):
    """This machine cannot show it either way; the sentence says why."""


class Suite:
    """What the cases share, and how they went.

    Args:
        directory: an empty one for everything that is made.
        driver: this machine's.
        runc: its path.
        computing: whether a simulated driver stands here that computes nothing.
    """

    def __init__(self, directory: str, driver: Driver, runc: str, computing: bool) -> None:
        self.directory, self.driver, self.computing = directory, driver, computing
        self.failed = self.unseen = 0
        self.env = {"GPUSHIM_CONFIG": f"{directory}/config.toml", "GPUSHIM_STATE": f"{directory}/gpushim"}
        self.box = Box(directory, box.rootfs(f"{directory}/rootfs"), self.env)
        self.low_level = self._low_level(runc)
        settings: dict[str, dict[str, Any]] = {
            "driver": {"root": driver.root, "dev-root": driver.dev_root},
            "runtime": {"low-level": [self.low_level]},
            "log": {"file": f"{directory}/gpushim.log"},
        }
        with open(self.env["GPUSHIM_CONFIG"], "w") as file:
            for table, values in settings.items():
                file.write("".join([f"[{table}]\n", *(f"{key} = {json.dumps(values[key])}\n" for key in values)]))

    def _low_level(self, runc: str) -> str:
        """Find options of runc with which a plain container starts here; returns a script that has them."""
        trouble = ""
        for number, options in enumerate(box.OPTIONS):
            script = f"{self.directory}/runc{number}"
            with open(script, "w") as file:
                file.write(f'#!/bin/sh\nexec {" ".join([runc, *options])} "$@"\n')
            os.chmod(script, 0o755)
            try:
                self.box.run([script], TRUE)
            except RuntimeError as error:
                trouble = str(error)
                continue
            self.options = options
            return script if options else runc
        raise NotHereError(f"runc cannot start a container without GPUs here: {trouble}")

    def case(self, name: str, trial: Callable[[], str]) -> None:
        """Try something: it returns what was seen, or raises."""
        begun = time.perf_counter()
        try:
            result, seen = "PASS", trial()
        except UnseenError as error:
            result, seen = "----", str(error)
            self.unseen += 1
        except Exception as error:  # any is a failure of this case alone
            result, seen = "FAIL", f"{type(error).__name__}: {error}"
            self.failed += 1
        print(f"{result}  {name:<44} {time.perf_counter() - begun:6.2f} s  {seen}", flush=True)

    def refresh(self, *options: str) -> str:
        """Let gpushim list the GPUs."""
        return machine.run([f"{TOP}/bin/gpushim", "refresh", *options], env={"PATH": PATH, **self.env})

    def lists(self) -> str:
        """A refresh knows the GPUs that nvidia-smi lists."""
        said = self.refresh("--force").strip()
        with open(f"{self.env['GPUSHIM_STATE']}/inventory.json") as file:
            self.snapshot = json.load(file)
        same([gpu["uuid"] for gpu in self.snapshot["gpus"]], [uuid for uuid, _ in self.driver.gpus])
        same(self.snapshot["source"], "nvml")
        return said.splitlines()[-1]

    def inside(self, *args: str, visible: str = "") -> str:
        """Run inside.py in a container of gpushim's."""
        return self.box.run([SHIM], PYTHON, "-IBS", INSIDE, *args, visible=visible).strip()

    def smi(self, visible: str, wanted: list[tuple[str, list[str]]]) -> str:
        """Nvidia-smi in a container lists what it lists on the machine."""
        said = self.box.run([SHIM], "nvidia-smi", "-L", visible=visible)
        same(machine.gpus(said), wanted)
        return f"{len(wanted)} GPUs"

    def computes(self) -> str:
        """Every GPU adds two vectors, and the sums are right."""
        seen = self.inside("add" if self.computing else "count", visible="all")
        same(seen.split()[0], str(len(self.driver.gpus)))
        return seen if self.computing else f"{seen} (a simulated driver computes nothing)"

    def loads(self) -> str:
        """The container's ld.so.cache has the driver's libraries, and its loader finds them."""
        found = self.inside("libraries", visible="all").splitlines()
        cached = machine.run(["/sbin/ldconfig", "-p", "-C", f"{self.directory}/rootfs/etc/ld.so.cache"])
        for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libc.so.6"):
            assert f"\t{name} " in cached, f"{name} is not in ld.so.cache"
        return f"{cached.split()[0]} entries; {', '.join(found)}"

    def limits(self) -> str:
        """A client of MPS gets no more memory than its part of the GPU, and not much less."""
        try:
            with mps.served(self.directory, self.env) as top:
                most = mps.limit(top)
                if not self.computing:
                    return f"{most} MiB (a simulated driver has no memory)"
                taken = mps.allocated(top, self.driver.libraries)
        except mps.NoMountsError as error:
            raise UnseenError(f"MPS needs a mount, and this machine allows none: {error}") from None
        assert most // 2 < taken <= most, f"{taken} MiB of {most}"
        return f"{taken} of {most} MiB"

    def refuses(self) -> str:
        """The node of a GPU that was not asked for does not open, though the container may make it."""
        *_, other = self.snapshot["gpus"]
        visible = "0" if len(self.snapshot["gpus"]) > 1 else "void"
        plain = self.box.run([self.low_level], PYTHON, "-IBS", INSIDE, "open", str(other["minor"])).strip()
        seen = self.inside("open", str(other["minor"]), visible=visible)
        if plain != REFUSED:
            raise UnseenError(f"runc {' '.join(self.options)} refuses no node here: {plain} without gpushim too")
        same(seen, REFUSED)
        given = self.inside("open", str(other["minor"]), visible=other["uuid"])
        assert given != REFUSED, "also when it was asked for"
        return f"{seen} with NVIDIA_VISIBLE_DEVICES={visible}, {given} with its UUID"

    def times(self, rounds: int) -> str:
        """Measure in turn, print a table of medians, and leave no judgement."""
        rows = [("plain runc", self.low_level, ""), ("gpushim, no request", SHIM, "")]
        rows += [("gpushim, all GPUs", SHIM, "all")]
        times: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in rows}
        refreshes = []
        for _ in range(rounds):
            for name, runtime, visible in rows:
                times[name].append(self.cycle(runtime, visible))
            begun = time.perf_counter()
            self.refresh("--force")
            refreshes.append(1000 * (time.perf_counter() - begun))
        print(f"\n{'median of ' + str(rounds) + ' rounds, ms':<28}{'create':>9}{'whole cycle':>13}{'over runc':>11}")
        plain = [statistics.median(column) for column in zip(*times["plain runc"])]
        for name, measured in times.items():
            create, cycle = (statistics.median(column) for column in zip(*measured))
            print(f"{name:<28}{create:>9.1f}{cycle:>13.1f}{cycle - plain[1]:>11.1f}")
        print(f"{'gpushim refresh --force':<28}{statistics.median(refreshes):>9.1f}\n")
        return f"{rounds} rounds"

    def cycle(self, runtime: str, visible: str) -> tuple[float, float]:
        """Create, start and delete a container; returns milliseconds of the create and of all three."""
        self.box.ask(TRUE, visible=visible)
        name, begun = f"gpushim-gpu-{os.getpid()}", time.perf_counter()
        try:
            self.box.call([runtime], "create", "--bundle", self.directory, name)
            created = time.perf_counter()
            self.box.call([runtime], "start", name)
        finally:
            self.box.call([runtime], "delete", "--force", name)
        return 1000 * (created - begun), 1000 * (time.perf_counter() - begun)


def same(seen: object, wanted: object) -> None:
    """Compare, and say both if they differ."""
    assert seen == wanted, f"{seen!r}, not {wanted!r}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description="Try gpushim with this machine's NVIDIA GPUs.")
    parser.add_argument("--driver-root", default="", help="where the driver is (default: looked for)")
    parser.add_argument("--dev-root", default="", help="the directory whose dev/ has its nodes")
    parser.add_argument("--runc", default="", help="low-level runtime (default: runc, or .gpu-carry/runc)")
    parser.add_argument("--rounds", type=int, default=15, help="of the measurement (default %(default)s)")
    parser.add_argument("--simulated", action="store_true", help="the driver computes nothing: only count its GPUs")
    return parser.parse_args()


def main() -> int:
    """Run the suite.

    Returns:
        0, 1 if a case failed, 2 if there is nothing to try it on.
    """
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="gpushim-gpu-") as directory:
        try:
            driver = machine.driver(given.driver_root, given.dev_root)
            suite = Suite(directory, driver, machine.runc(given.runc), not given.simulated)
        except NotHereError as error:
            print(f"tests/gpu/run: {error}", file=sys.stderr)
            return 2
        print(f"{time.strftime('%Y-%m-%d')}: {machine.described()}")
        print(f"driver below {driver.root}, nodes of {driver.dev_root}")
        print(f"{machine.run([suite.low_level, '--version']).splitlines()[0]} {' '.join(suite.options)}")
        print(*(lines[0] for _, lines in driver.gpus), sep="\n")
        uuid, last = driver.gpus[-1][0], len(driver.gpus) - 1
        suite.case("gpushim refresh lists what nvidia-smi lists", suite.lists)
        suite.case("nvidia-smi -L, all", lambda: suite.smi("all", driver.gpus))
        suite.case(f"nvidia-smi -L, index {last}", lambda: suite.smi(str(last), driver.gpus[last:]))
        suite.case(f"nvidia-smi -L, UUID of GPU {last}", lambda: suite.smi(uuid, driver.gpus[last:]))
        suite.case("ld.so.cache and loader have the libraries", suite.loads)
        suite.case("a CUDA kernel computes on every GPU", suite.computes)
        suite.case("a GPU that was not asked for is refused", suite.refuses)
        suite.case("a client of MPS meets its limit of memory", suite.limits)
        suite.case("times", lambda: suite.times(given.rounds))
    print(f"{suite.failed} cases failed, {suite.unseen} could not be seen on this machine")
    return int(bool(suite.failed))


if __name__ == "__main__":
    sys.exit(main())
