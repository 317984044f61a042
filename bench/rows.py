"""The rows that bench.py measures. `floor` names the row below which one cannot be; `aim` is (of S, of P)."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.scenes import (
    ENV,
    HOOK,
    RUNC,
    RUNTIME,
    Prepare,
    asking,
    busybox_root,
    container,
    edited,
    libraries,
    padded,
    restorer,
    settings,
    stub_bundle,
    writer,
)  # fmt: skip

from e2e import recorder
from gpushim.oci.edits import hook_args

S, P = "S: sh executes the stub", "P: python3 -IS -c pass"
PLAIN = "cycle, plain runc"
# Of cycles.
AIMS = {"all capabilities": (0, 4.8), "utility and compute": (0, 3.2)}
ALL = "NVIDIA_DRIVER_CAPABILITIES=all"
HOOK_ENV = {"PATH": ENV["PATH"]}  # what the hook's entry in config.json says, and runc obeys


class Row(NamedTuple):
    """One thing to measure: commands run one after the other, and what to put right before each round."""

    name: str
    commands: list[list[str]]
    env: dict[str, str] = ENV
    prepare: Prepare = lambda: None
    over: str = ""  # the row that it is compared with
    floor: str = ""
    aim: tuple[float, float] | None = None
    stdin: str = "/dev/null"


def build(work: Path, stack: ExitStack) -> list[Row]:
    """Make everything ready and list all rows."""
    stub = recorder.build(work)
    return [
        *yardsticks(stub),
        *stub_rows(work, str(stub)),
        *hook_rows(work, str(stub), stack),
        *cycle_rows(work, str(stub)),
    ]


def yardsticks(stub: Path) -> list[Row]:
    """S, P, and floors: what is left if the shell script, the search and Python's work cost nothing."""
    searched = stub.parent / "searched.json"
    searched.write_text(asking(None))
    search = f"(LC_ALL=C exec grep -Fqs -e NVIDIA_VISIBLE_DEVICES {searched}); exec {stub}"
    idle = "import posix\nposix._exit(0)"
    python = f'exec /usr/bin/python3 -IBS -X utf8=1 -c \'import posix\nposix.execv("{stub}", ["x"])\''
    return [
        Row("stub alone", [[str(stub)]]),
        Row(S, [["/bin/sh", "-c", f"exec {stub}"]], over="stub alone"),
        Row(P, [["/usr/bin/python3", "-IS", "-c", "pass"]]),
        Row("floor: sh searches, executes the stub", [["/bin/sh", "-c", search]], over="stub alone"),
        Row("floor: sh, Python, the stub", [["/bin/sh", "-c", python]], over="stub alone"),
        Row("floor: Python starts and exits", [["/usr/bin/python3", "-IBS", "-c", idle]], HOOK_ENV),
    ]


def stub_rows(work: Path, stub: str) -> list[Row]:
    """What gpushim costs before the low-level runtime starts; the stub takes that one's place."""
    one, eight = settings(work, "one", 1, stub), settings(work, "eight", 8, stub)
    mig = settings(work, "mig", 8, stub, mig=True)
    first = settings(work, "first", 1, stub)
    search, python = "floor: sh searches, executes the stub", "floor: sh, Python, the stub"
    large = 5_000_000
    rows = [
        Row(
            "pass-through verb",
            [[RUNTIME, "--root", "/r", "state", "x"]],
            one,
            aim=(1.1, 0),
            floor=S,
            over="stub alone",
        )
    ]
    for name, env, content, floor, aim in [
        ("create, no request", one, asking(None), search, (1.8, 0)),
        ("create, no request, 5 MB", one, padded(asking(None), large), search, None),
        ("create, 1 GPU", one, asking("0"), python, (1, 1.85)),
        ("create, 8 GPUs", eight, asking("all"), python, (1, 1.85)),
        ("create, 56 MIG instances", mig, asking("all"), python, (1, 1.85)),
        ("create, 1 GPU, 5 MB", one, padded(asking("0"), large), python, None),
        ("create, 1 GPU, first after boot", first, asking("0"), python, None),
    ]:
        arguments, prepare = stub_bundle(work, name.replace(" ", "-"), content)
        if env is first:
            prepare = _after_boot(Path(first["GPUSHIM_STATE"]), prepare)
        rows.append(Row(name, [[RUNTIME, *arguments]], env, prepare, "stub alone", floor, aim))
    return rows


def _after_boot(state: Path, prepare: Prepare) -> Prepare:
    def forget() -> None:
        shutil.rmtree(state)
        prepare()

    return forget


def hook_rows(work: Path, stub: str, stack: ExitStack) -> list[Row]:
    """The hook alone (utility and compute, one GPU), on roots whose ld.so.cache is small and large."""
    # A container has a mount namespace of its own.
    waiting = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", "echo; exec sleep 86400"]
    sleeper = stack.enter_context(subprocess.Popen(waiting, stdout=subprocess.PIPE))
    stack.callback(sleeper.kill)
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    state = work / "state.json"
    state.write_text(json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": sleeper.pid, "status": "creating"}))
    rows = []
    for entries, aim in ((600, (0, 1.25)), (5000, None)):
        place = work / f"hook-{entries}"
        folder = libraries(place / "rootfs", entries)
        spec = json.loads(asking("0", "utility,compute"))
        spec["root"] = {"path": str(place / "rootfs")}
        spec = edited(place, spec, settings(work, place.name, 1, stub))
        for mount in spec["mounts"]:
            if mount["destination"].startswith("/usr/"):
                target = place / "rootfs" / mount["destination"].lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
        mount_root = ["/bin/mount", "--bind", str(place / "rootfs"), str(place / "rootfs")]
        subprocess.run(["/usr/bin/nsenter", f"--mount=/proc/{sleeper.pid}/ns/mnt", *mount_root], check=True)
        command = [HOOK, *hook_args(spec["hooks"]["prestart"][-1])]
        name, floor = f"hook, cache of {entries}", "floor: Python starts and exits"
        prepare = restorer(place / "rootfs", folder)
        rows.append(Row(name, [command], HOOK_ENV, prepare, "", floor, aim, str(state)))
    return rows


def cycle_rows(work: Path, stub: str) -> list[Row]:
    """A container's whole life, create, start, delete, with plain runc and through gpushim; all capabilities."""
    env, planned = settings(work, "cycle", 1, RUNC), settings(work, "planned", 1, stub)
    roots = work / "roots"
    folders: dict[str, Path | None] = {"busybox": None}
    busybox_root(roots / "busybox/rootfs")
    folders["Debian 5000"] = libraries(roots / "Debian 5000/rootfs", 5000)
    busybox_root(roots / "Debian 5000/rootfs")
    rows = []
    for kind, folder in folders.items():
        root = roots / kind / "rootfs"
        end, plain = ("", PLAIN) if folder is None else (f", {kind}", f"{PLAIN}, {kind}")
        restore = restorer(root, folder)
        rows.append(cycle(work, plain, RUNC, env, root, [], restore, plain))
        if folder is None:
            rows.append(cycle(work, "cycle, no request", RUNTIME, env, root, [], restore, plain))
            rows += planned_cycles(work, planned, root, restore)
            words = ["NVIDIA_VISIBLE_DEVICES=0"]
            rows.append(cycle(work, "cycle, 1 GPU, utility and compute", RUNTIME, env, root, words, restore, plain))
        words = ["NVIDIA_VISIBLE_DEVICES=0", ALL]
        name = f"cycle, 1 GPU, all capabilities{end}"
        rows.append(cycle(work, name, RUNTIME, env, root, words, restore, plain))
    return rows


def cycle(
    work: Path,
    name: str,
    runtime: str,
    env: dict[str, str],
    root: Path,
    words: list[str],
    restore: Prepare,
    plain: str,
) -> Row:
    """One container's life on a root."""
    bundle = work / "bundles" / name.replace(" ", "-").replace(",", "")
    return _lived(work, name, runtime, env, bundle, json.dumps(container(bundle, words, root)), restore, plain)


def planned_cycles(work: Path, env: dict[str, str], root: Path, restore: Prepare) -> list[Row]:
    """Plain runc with what the shim decides already in config.json: what runc's own share of the work is."""
    rows = []
    for name in ("cycle, mounts and nodes alone", "cycle, mounts, nodes and hook"):
        bundle = work / "bundles" / name.replace(" ", "-").replace(",", "")
        spec = edited(bundle, container(bundle, ["NVIDIA_VISIBLE_DEVICES=0", ALL], root), env)
        if "hook" not in name:
            del spec["hooks"]
        rows.append(_lived(work, name, RUNC, env, bundle, json.dumps(spec), restore, PLAIN))
    return rows


def _lived(
    work: Path, name: str, runtime: str, env: dict[str, str], bundle: Path, content: str, restore: Prepare, plain: str
) -> Row:
    prefix, write = [runtime, "--root", str(work / "runc")], writer(bundle, content)
    steps = [["create", "--bundle", str(bundle)], ["start"], ["delete", "--force"]]
    commands = [[*prefix, *step, bundle.name] for step in steps]
    aim = next((aim for word, aim in AIMS.items() if word in name), None)
    return Row(name, commands, env, lambda: (restore(), write()), plain, plain, aim)
