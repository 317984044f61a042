#!/usr/bin/env python3
"""Measure what gpushim adds to runc, interleaved with the yardsticks in one run.

    bench/bench.py [--rounds N] [--markdown]

Needs root, gcc, runc and busybox-static (tools/setup.sh). Yardsticks: S = `sh -c 'exec STUB'`, P =
`/usr/bin/python3 -IS -c pass`, with STUB a static program that does nothing. Rows marked `stub` execute STUB as
the low-level runtime, so they show what gpushim itself costs; the whole cycle runs real containers.
Times are wall time from posix_spawn to exit, in milliseconds; every round runs each row once, in shuffled order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Callable, NamedTuple

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / "tests")]

import fakehost  # noqa: E402
from e2e import recorder  # noqa: E402

RUNTIME = str(TOP / "bin" / "gpushim-runtime")
HOOK = str(TOP / "bin" / "gpushim-hook")
RUNC = "/usr/sbin/runc"
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class Row(NamedTuple):
    """One thing to measure: commands run one after the other, and what to put right before each round."""

    name: str
    commands: list[list[str]]
    env: dict[str, str]
    prepare: Callable[[], object]
    over: str  # the row that it is compared with
    stdin: str = "/dev/null"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="how often each row runs (default 100)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    subprocess.run(["/usr/bin/python3", "-m", "compileall", "-q", TOP / "shim", TOP / "hook"], check=True)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushim-bench-")))
        # In memory, as /run with bundles and snapshot is on hosts: a disk's journal takes milliseconds for a link.
        subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "mode=755", "gpushim-bench", work], check=True)
        stack.callback(lambda: subprocess.run(["/bin/umount", work], check=True))
        rows = [*yardsticks(work), *stub_rows(work), *hook_rows(work, stack), *cycle_rows(work)]
        times = measure(rows, options.rounds)
    report(rows, times, options.markdown)


def measure(rows: list[Row], rounds: int) -> dict[str, list[float]]:
    """Run every row once a round, in shuffled order; the first two rounds only warm the caches."""
    times: dict[str, list[float]] = {row.name: [] for row in rows}
    for number in range(rounds + 2):
        for row in random.sample(rows, len(rows)):
            row.prepare()
            spent = sum(run(command, row.env, row.stdin) for command in row.commands)
            if number >= 2:
                times[row.name].append(spent)
    return times


def run(command: list[str], env: dict[str, str], stdin: str) -> float:
    """Run one command to its end and return its milliseconds."""
    actions = [(os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0)]
    started = time.perf_counter()
    pid = os.posix_spawn(command[0], command, env, file_actions=actions)
    _, status = os.waitpid(pid, 0)
    spent = (time.perf_counter() - started) * 1000
    if status:
        raise SystemExit(f"{command} ended with status {os.waitstatus_to_exitcode(status)}")
    return spent


def nothing() -> None:
    """Prepare nothing."""


def yardsticks(work: Path) -> list[Row]:
    """S, P, and the stub alone."""
    stub = str(recorder.build(work))
    return [
        Row("stub alone", [[stub]], ENV, nothing, ""),
        Row("S: sh exec stub", [["/bin/sh", "-c", f"exec {stub}"]], ENV, nothing, "stub alone"),
        Row("P: python3 -IS -c pass", [["/usr/bin/python3", "-IS", "-c", "pass"]], ENV, nothing, ""),
    ]


def settings(work: Path, name: str, gpus: int, low: str) -> dict[str, str]:
    """Build a simulated host and return an environment in which gpushim serves it, its snapshot taken."""
    host = fakehost.build(str(work / name / "driver"), gpus)
    config, state = work / name / "config.toml", work / name / "state"
    config.write_text(f'[driver]\nroot = "{host.root}"\n[runtime]\nlow-level = ["{low}"]\n[log]\nfile = ""\n')
    env = {**ENV, "GPUSHIM_CONFIG": str(config), "GPUSHIM_STATE": str(state)}
    stub = TOP / "shim" / "gpushim" / "stub.py"
    subprocess.run(["/usr/bin/python3", "-IB", stub, "refresh"], env=env, check=True, stderr=subprocess.DEVNULL)
    return env


def stub_rows(work: Path) -> list[Row]:
    """What gpushim costs before the low-level runtime starts."""
    stub = str(work / "recorder")
    one = settings(work, "one", 1, stub)
    eight = settings(work, "eight", 8, stub)
    spec = (TOP / "tests" / "data" / "docker-config.json").read_text()
    rows = [Row("pass-through verb (stub)", [[RUNTIME, "--root", "/r", "state", "x"]], one, nothing, "stub alone")]
    for name, env, asked in [
        ("create without a request (stub)", one, None),
        ("create, 1 GPU of 1 (stub)", one, "0"),
        ("create, 8 GPUs of 8 (stub)", eight, "all"),
    ]:
        bundle = work / name.replace(" ", "-")
        bundle.mkdir()
        content = spec.replace('"PATH=', f'"NVIDIA_VISIBLE_DEVICES={asked}","PATH=', 1) if asked else spec
        prepare = _writer(bundle / "config.json", content)
        log = ["--root", "/r", "--log", str(bundle / "log.json"), "--log-format", "json"]
        command = [RUNTIME, *log, "create", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), "x"]
        rows.append(Row(name, [command], env, prepare, "stub alone"))
    return rows


def _writer(path: Path, content: str) -> Callable[[], object]:
    return lambda: path.write_text(content)


def hook_rows(work: Path, stack: ExitStack) -> list[Row]:
    """The hook alone (utility and compute, one GPU), on root filesystems whose ld.so.cache is small and large."""
    # A container has a mount namespace of its own.
    waiting = ["/usr/bin/unshare", "--mount", "/bin/sleep", "86400"]
    sleeper = stack.enter_context(subprocess.Popen(waiting))
    stack.callback(sleeper.kill)
    state = work / "state.json"
    state.write_text(json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": sleeper.pid, "status": "creating"}))
    stub = str(work / "recorder")
    return [hook_row(work / str(entries), entries, stub, str(state)) for entries in (600, 5000)]


def hook_row(place: Path, entries: int, stub: str, state: str) -> Row:
    """One root filesystem, and the hook with the arguments that the shim gives it there."""
    spec = edited(place, settings(place.parent, place.name, 1, stub))
    rootfs, pristine = Path(spec["root"]["path"]), place / "etc"
    mounted = [mount["destination"] for mount in spec["mounts"]]
    folder = libraries(rootfs, entries, [path for path in mounted if path.startswith("/usr/")])
    shutil.copytree(rootfs / "etc", pristine)

    def prepare() -> None:
        for entry in os.scandir(folder):
            if entry.is_symlink():
                os.unlink(entry)
        shutil.rmtree(rootfs / "etc")
        shutil.copytree(pristine, rootfs / "etc")

    command = [HOOK, *spec["hooks"]["prestart"][-1]["args"][1:]]
    return Row(f"hook, {entries}-entry cache", [command], ENV, prepare, "", state)


def edited(place: Path, env: dict[str, str]) -> Any:
    """Have the shim edit a config.json and return what it became."""
    spec = json.loads((TOP / "tests" / "data" / "docker-config.json").read_text())
    spec["root"] = {"path": str(place / "rootfs")}
    spec["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility,compute"]
    (place / "rootfs").mkdir()
    (place / "config.json").write_text(json.dumps(spec))
    subprocess.run([RUNTIME, "create", "--bundle", place, "x"], env=env, check=True)
    return json.loads((place / "config.json").read_text())


def libraries(root: Path, entries: int, mounted: list[str]) -> Path:
    """Make a root with many libraries and the cache that the real ldconfig writes; return their directory."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (root / "etc").mkdir()
    source = root.parent / "empty.c"
    source.write_text("")
    for number in range(entries):
        library = folder / f"lib{number * 7919 % 100003:05d}.so.{number % 9}"
        if number == 0:
            soname = f"-Wl,-soname,{library.name}"
            subprocess.run(["/usr/bin/gcc", "-shared", "-nostdlib", soname, "-o", library, source], check=True)
            first = library
        else:  # ldconfig takes a name that differs from the SONAME too, as long as it looks like a library's
            data = first.read_bytes().replace(first.name.encode(), library.name.encode())
            library.write_bytes(data)
    (root / "etc/ld.so.conf").write_text("/usr/lib/x86_64-linux-gnu\n")
    (root / "lib64").mkdir()
    (root / "lib64/ld-linux-x86-64.so.2").touch()
    for path in mounted:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True, stderr=subprocess.DEVNULL)
    return folder


def cycle_rows(work: Path) -> list[Row]:
    """A container's whole life, with plain runc and through gpushim (utility and compute, one GPU)."""
    env = settings(work, "cycle", 1, RUNC)
    rows = []
    for name, runtime, asked in [
        ("whole cycle, plain runc", RUNC, None),
        ("whole cycle, gpushim, no request", RUNTIME, None),
        ("whole cycle, gpushim, 1 GPU", RUNTIME, "0"),
    ]:
        bundle = work / name.replace(" ", "-").replace(",", "")
        (bundle / "rootfs" / "bin").mkdir(parents=True)
        shutil.copy("/bin/busybox", bundle / "rootfs/bin/true")
        subprocess.run([RUNC, "spec", "--bundle", bundle], check=True)
        spec = json.loads((bundle / "config.json").read_text())
        spec["process"].update(terminal=False, args=["/bin/true"])
        spec["process"]["env"] += [f"NVIDIA_VISIBLE_DEVICES={asked}"] if asked else []
        spec["linux"]["namespaces"] = [ns for ns in spec["linux"]["namespaces"] if ns["type"] != "network"]
        content = json.dumps(spec)
        ident = bundle.name
        prefix = [runtime, "--root", str(work / "runc")]
        commands = [
            [*prefix, "create", "--bundle", str(bundle), ident],
            [*prefix, "start", ident],
            [*prefix, "delete", "--force", ident],
        ]
        rows.append(Row(name, commands, env, _writer(bundle / "config.json", content), "whole cycle, plain runc"))
    return rows


def report(rows: list[Row], times: dict[str, list[float]], markdown: bool) -> None:
    """Print medians and minima, what is added over the row compared with, and that as multiples of S and P."""
    mid = {name: median(values) for name, values in times.items()}
    s, p = mid["S: sh exec stub"], mid["P: python3 -IS -c pass"]
    print(f"{len(times['stub alone'])} rounds; S = {s:.2f} ms, P = {p:.2f} ms (medians)")
    head = ["", "median ms", "min ms", "added ms", "of S", "of P"]
    table = [
        [
            row.name,
            f"{mid[row.name]:.2f}",
            f"{min(times[row.name]):.2f}",
            f"{mid[row.name] - mid[row.over]:.2f}" if row.over not in ("", row.name) else "",
            f"{mid[row.name] / s:.2f}",
            f"{(mid[row.name] - (mid[row.over] if 'cycle' in row.name else 0)) / p:.2f}",
        ]
        for row in rows
    ]
    if markdown:
        print(*(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *table]), sep="\n")
        return
    widths = [max(map(len, column)) for column in zip(head, *table)]
    for line in [head, *table]:
        print("  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:]))]))


if __name__ == "__main__":
    main()
