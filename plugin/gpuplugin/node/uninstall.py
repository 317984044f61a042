"""Take gpushim off a node: the engine's settings, then the files by the record, then what gpushim has written.

Out of scope: each of these steps (lay.py, engine.py), and rules for what gpushim has written, which are those of the
packages (packaging/deb/debian/written.sh).
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat

from gpuplugin.node import engine, host, install, lay, owners
from gpuplugin.node import record as records
from gpushim.cli.show import say
from gpushim.engines.processes import ask, origin
from gpushim.ground.errors import GpushimError
from gpushim.paths import rooted

RUNTIME = b"gpushim-runtime"
SHIM, CONMON = "containerd-shim", "conmon"  # the beginnings of programs' names
SHOWN = 8
LABELS = "/etc/kubernetes/node-feature-discovery/features.d"  # labels.directory of the chart
SECONDS = 120
STEPS = """
if [ -d /run/systemd/system ]; then systemctl stop 'gpushim-mps@*.service' 2>/dev/null || true; fi
for shm in /run/gpushim/mps/*/private/shm; do umount --lazy "$shm" 2>/dev/null || true; done
remove_specs
remove_hardlinks
remove_records
remove_links
rm -rf /run/gpushim /run/gpushim-node.restarted /run/gpushim-node.begun
rm -f /var/log/gpushim.log /var/log/gpushim.log.*
rm -f "$1/gpushim"
rm -rf /var/lib/gpushim/device-plugin
"""


def uninstall(place: str, script: str, labels: str, restart: bool) -> None:
    """Uninstall from a node.

    Args:
        place: absolute path where the node's root is mounted.
        script: absolute path of written.sh.
        labels: absolute path on the node of the directory with the labels file.
        restart: restart the engine if it has to be.

    Raises:
        GpushimError: containers still need the programs.
    """
    host.check(place)
    with open(script, encoding="ascii") as file:
        functions = file.read()
    host.enter(place)
    with host.locked():
        record = records.load()
        if not record.files:
            say("gpushim-node: nothing of gpushim-node's is on this node")
            return
        name = owners.package([path for path in record.files if path.startswith("/usr/bin/")])
        if name:
            say(f"gpushim-node: the package {name} has gpushim's files here now; they are left to it", error=True)
            os.unlink(records.PATH)
            return
        if record.engine:
            engine.configure([*install.named(record.engine), "--remove"], restart)
            record.engine = []
            record.save()
        _refuse_if_used()
        _remove(record, functions, labels)


def _refuse_if_used() -> None:
    used = users("/proc")
    if used:
        more = f" and {len(used) - SHOWN} more" if len(used) > SHOWN else ""
        raise GpushimError(
            f"{len(used)} containers still need gpushim-runtime for their end: {', '.join(used[:SHOWN])}{more}; the "
            "engine's settings are taken back, the files stay: run gpushim-node uninstall again when these have ended"
        )


def _remove(record: records.Record, functions: str, labels: str) -> None:
    for path in lay.away(record, [*record.files]):
        say(f"gpushim-node: {path} has been changed, and stays", error=True)
    answer = ask.program(["/bin/sh", "-c", f"DPKG_ROOT=\n{functions}\n{STEPS}", "sh", labels], SECONDS)
    for line in answer.out.splitlines():
        say(line.replace("gpushim: ", "gpushim-node: ", 1))
    if answer.code != 0:
        raise GpushimError(f"not all that gpushim has written could be removed: {answer.last}")
    os.unlink(records.PATH)  # not before: the next try goes by it
    own = os.path.dirname(records.PATH)  # kubelet may have made it, for the plugin's book
    for folder in sorted({*record.folders, own}, reverse=True):
        with contextlib.suppress(OSError):  # others have something there
            os.rmdir(folder)
    say("gpushim-node: gpushim is taken away")


def users(proc: str) -> list[str]:
    """List the containers whose engine calls gpushim-runtime to end them.

    Programs of this host's root alone count: whoever may start a process on the node could keep gpushim there else.

    Args:
        proc: where procfs is mounted.

    Returns:
        their ids, as the engine's files and command lines have them.
    """
    found: set[str] = set()
    for folder in glob.glob(f"{proc}/[0-9]*"):
        name = origin.program(folder, proc, (SHIM, CONMON), service=False)
        if name.startswith(SHIM):  # its bundles, each with the runtime that it was told to use
            for path in glob.glob(f"{folder}/cwd/../*/runtime") + glob.glob(f"{folder}/cwd/../*/options.json"):
                if RUNTIME in _read(path):
                    found.add(path.split("/")[-2])
        elif name.startswith(CONMON):
            words = _read(f"{folder}/cmdline").split(b"\0")
            if any(word.endswith(RUNTIME) for word in words):
                at = words.index(b"-c") + 1 if b"-c" in words else 0
                found.add(os.fsdecode(words[at]) if at else f"conmon {os.path.basename(folder)}")
    return sorted(found)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", opener=rooted.nonblocking) as file:
            return file.read(1 << 17) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""
