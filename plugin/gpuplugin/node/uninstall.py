"""Uninstall gpushim from a node: the engine's settings, the files of the record, and the files gpushim has written.

Out of scope: each of these steps (node_files.py, engine_settings.py); the packages' rules for files that gpushim has
written (packaging/deb/debian/written.sh), and for the script that stays for running containers (left.sh there).
"""

from __future__ import annotations

import contextlib
import os

from gpuplugin.node import engine_settings, host, node_files, owners
from gpuplugin.node import payload as payloads
from gpuplugin.node import record as records
from gpushim.cli.show import say
from gpushim.containers import kubelet, pods
from gpushim.engines.processes import ask
from gpushim.ground.errors import GpushimError

LABELS = "/etc/kubernetes/node-feature-discovery/features.d"  # labels.directory of the chart
SECONDS = 120
LISTED_CLAIMS = 8
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


def uninstall(node_root: str, folder: str, labels: str, restart: bool) -> None:
    """Uninstall from a node.

    Args:
        node_root: absolute path where the node's root is mounted.
        folder: absolute path of the payload.
        labels: absolute path on the node of the directory with the labels file.

    Raises:
        GpushimError: containers still need the engine's settings, or the script for them cannot be written.
    """
    host.check_root(node_root)
    shell = payloads.read_shell(folder)
    host.enter(node_root)
    with host.lock_node():
        record = records.load()
        if not record.files:
            say("gpushim-node: gpushim-node has installed nothing on this node")
            return
        name = owners.find_package([path for path in record.files if path.startswith("/usr/bin/")])
        if name:
            say(f"gpushim-node: the package {name} now has gpushim's files on this node; they are kept", error=True)
            os.unlink(records.PATH)
            return
        engine_settings.take_back(record, restart)
        _warn_of_claims()
        _leave_script(record, shell)
        _remove_files(record, shell, labels)


def _warn_of_claims() -> None:
    """Warn of claims that still have GPUs: without a driver kubelet cannot end their pods."""
    rows: list[kubelet.Claim] = []
    with contextlib.suppress(OSError, ValueError):
        rows = kubelet.claims(pods.kubelet_dir())
    names = sorted({f"{claim.namespace}/{claim.name}" for claim in rows if claim.driver == kubelet.OWN_DRIVER})
    if names:
        ending = f" and {len(names) - LISTED_CLAIMS} more" if len(names) > LISTED_CLAIMS else ""
        say(
            f"gpushim-node: claims of {kubelet.OWN_DRIVER} have GPUs here, and without a driver kubelet cannot end "
            f"their pods: {', '.join(names[:LISTED_CLAIMS])}{ending}",
            error=True,
        )


def _leave_script(record: records.Record, shell: str) -> None:
    """Replace the programs, at no time missing, by the script that stays for running containers."""
    answer = ask.program(["/bin/sh", "-c", f"{shell}leave"], SECONDS)
    if answer.code != 0:
        raise GpushimError(
            f"the script for running containers could not be written: {answer.last}; nothing was removed"
        )
    _print_lines(answer.out)
    for path in PROGRAMS:
        record.files.pop(path, None)


def _print_lines(text: str) -> None:
    for line in text.splitlines():
        say(line.replace("gpushim: ", "gpushim-node: ", 1))


def _remove_files(record: records.Record, shell: str, labels: str) -> None:
    for path in node_files.remove_files(record, [*record.files]):
        say(f"gpushim-node: {path} was changed and is kept", error=True)
    answer = ask.program(["/bin/sh", "-c", shell + STEPS, "sh", labels], SECONDS)
    _print_lines(answer.out)
    if answer.code != 0:
        raise GpushimError(f"some of gpushim's files could not be removed: {answer.last}")
    os.unlink(records.PATH)  # last, for the next try reads it
    record_folder = os.path.dirname(records.PATH)  # kubelet may have made it, for the plugin's record
    for folder in sorted({*record.folders, record_folder}, reverse=True):
        with contextlib.suppress(OSError):  # others have something there
            os.rmdir(folder)
    say("gpushim-node: gpushim is removed")
