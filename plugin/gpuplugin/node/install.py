"""Put gpushim onto a node: its files, a list of the GPUs, an engine that knows it. A second run changes nothing.

Out of scope: each of these steps (lay.py, configured.py).
"""

from __future__ import annotations

import os

from gpuplugin.node import configured, engine, host, lay, owners
from gpuplugin.node import payload as payloads
from gpuplugin.node import record as records
from gpushim.cli.show import say
from gpushim.engines.processes import ask
from gpushim.ground.errors import GpushimError
from gpushim.refresh.plugin_requests import SYSTEMCTL


def install(place: str, folder: str, name: str, options: list[str], restart: bool, root: str = "") -> None:
    """Install on a node.

    Args:
        place: absolute path where the node's root is mounted.
        folder: absolute path of the payload.
        name: of the engine: "containerd", "crio", "none", or "auto" for the one that runs.
        options: of `gpushim configure`.
        restart: restart the engine if it has to be.
        root: of the driver, for a config.toml that nobody has changed; "" leaves that as it is.
    """
    host.check(place)
    payload, shell = payloads.read(folder, root), payloads.shell(folder)
    host.enter(place)
    with host.locked():
        tag = host.python()
        _check_writable()
        record = records.load()
        owners.check(payload, record)
        ask.program(["/bin/sh", "-c", f"{shell}take_script"])
        fresh = lay.down(payload, record, tag)
        say(f"gpushim-node: gpushim {payload.version} " + ("is laid down" if fresh else "is there already"))
        if root and not record.has(payloads.CONFIG):
            say(f"gpushim-node: {payloads.CONFIG} was changed on this node, and stays: the root in it counts")
        if payloads.UNIT in fresh:
            ask.program([SYSTEMCTL, "daemon-reload"])
        for version in lay.retired(record, payload.version):
            say(f"gpushim-node: {payloads.LIB}{version} is still in use, and is removed later", error=True)
        _drop(record, payload)
        record.save()
        engine.refresh()
        _configure(record, name, options, restart)


def _check_writable() -> None:
    for folder in ("/usr/bin", "/usr/lib", "/etc", "/var/lib"):
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise GpushimError(
                f"{folder} of this node is read-only; gpushim has to be in the node's image (its packages), and the "
                "node without gpushim-node (node.enabled: false)"
            )


def _drop(record: records.Record, payload: payloads.Payload) -> None:
    """Take files away that only other versions have, but for the directories of those versions."""
    gone = [path for path in record.files if path not in payload.files and not path.startswith(payloads.LIB)]
    gone += [path for path in record.files if path.startswith(payload.lib) and path not in payload.files]
    lay.away(record, gone)


def _configure(record: records.Record, name: str, options: list[str], restart: bool) -> None:
    if name == "auto":
        name = engine.running_one()
    configured.change(record, [] if name == "none" else [name, *options], restart)
