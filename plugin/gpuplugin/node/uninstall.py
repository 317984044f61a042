"""Take gpushim off a node: the engine's settings, then the files by the record, then what gpushim has written.

Out of scope: each of these steps (lay.py, configured.py), and rules for what gpushim has written, which are those of
the packages (packaging/deb/debian/written.sh), what stays for containers that run too (left.sh there).
"""

from __future__ import annotations

import contextlib
import os

from gpuplugin.node import configured, host, lay, owners
from gpuplugin.node import payload as payloads
from gpuplugin.node import record as records
from gpushim.cli.show import say
from gpushim.containers import kubelet, pods
from gpushim.engines.processes import ask
from gpushim.ground.errors import GpushimError

LABELS = "/etc/kubernetes/node-feature-discovery/features.d"  # labels.directory of the chart
SECONDS = 120
SHOWN = 8
PROGRAMS = ("/usr/bin/gpushim-runtime", "/usr/bin/gpushim-hook")
STEPS = """
if [ -d /run/systemd/system ]; then systemctl stop 'gpushim-mps@*.service' 2>/dev/null || true; fi
for shm in /run/gpushim/mps/*/private/shm; do umount --lazy "$shm" 2>/dev/null || true; done
remove_specs
remove_records
remove_links
rm -rf /run/gpushim /run/gpushim-node.restarted /run/gpushim-node.begun
rm -f /var/log/gpushim.log /var/log/gpushim.log.*
rm -f "$1/gpushim"
rm -rf /var/lib/gpushim/device-plugin
"""


def uninstall(place: str, folder: str, labels: str, restart: bool) -> None:
    """Uninstall from a node.

    Args:
        place: absolute path where the node's root is mounted.
        folder: absolute path of the payload.
        labels: absolute path on the node of the directory with the labels file.
        restart: restart the engine if it has to be.

    Raises:
        GpushimError: containers still need the engine's settings, or what stays for them cannot be written.
    """
    host.check(place)
    shell = payloads.shell(folder)
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
        configured.take_back(record, restart)
        _tell_of_claims()
        _leave(record, shell)
        _remove(record, shell, labels)


def _tell_of_claims() -> None:
    """Name the claims that still have GPUs by the driver: without one kubelet cannot end their pods."""
    rows: list[kubelet.Claim] = []
    with contextlib.suppress(OSError, ValueError):
        rows = kubelet.claims(pods.kubelet_dir())
    names = sorted({f"{one.namespace}/{one.name}" for one in rows if one.driver == kubelet.OWN_DRIVER})
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        say(
            f"gpushim-node: claims of {kubelet.OWN_DRIVER} have GPUs here, and without a driver kubelet cannot end "
            f"their pods: {', '.join(names[:SHOWN])}{more}",
            error=True,
        )


def _leave(record: records.Record, shell: str) -> None:
    """Put the script that stays in the programs' places, which are at no time empty."""
    answer = ask.program(["/bin/sh", "-c", f"{shell}leave"], SECONDS)
    if answer.code != 0:
        raise GpushimError(f"what containers that run need could not be left: {answer.last}; nothing was removed")
    _say(answer.out)
    for path in PROGRAMS:
        record.files.pop(path, None)


def _say(text: str) -> None:
    for line in text.splitlines():
        say(line.replace("gpushim: ", "gpushim-node: ", 1))


def _remove(record: records.Record, shell: str, labels: str) -> None:
    for path in lay.away(record, [*record.files]):
        say(f"gpushim-node: {path} has been changed, and stays", error=True)
    answer = ask.program(["/bin/sh", "-c", shell + STEPS, "sh", labels], SECONDS)
    _say(answer.out)
    if answer.code != 0:
        raise GpushimError(f"not all that gpushim has written could be removed: {answer.last}")
    os.unlink(records.PATH)  # not before: the next try goes by it
    own = os.path.dirname(records.PATH)  # kubelet may have made it, for the plugin's record
    for folder in sorted({*record.folders, own}, reverse=True):
        with contextlib.suppress(OSError):  # others have something there
            os.rmdir(folder)
    say("gpushim-node: gpushim is removed")
