"""Install gpushim on a node: its files, a list of the GPUs, the engine's settings. A second run changes nothing.

Out of scope: each of these steps (node_files.py, engine_settings.py).
"""

from __future__ import annotations

import os

from gpuplugin.node import engine, engine_settings, host, node_files, owners
from gpuplugin.node import payload as payloads
from gpuplugin.node import record as records
from gpushim.cli.show import say
from gpushim.engines.processes import ask
from gpushim.ground.errors import GpushimError
from gpushim.refresh.plugin_requests import SYSTEMCTL


def install(node_root: str, folder: str, name: str, options: list[str], restart: bool, root: str = "") -> None:
    """Install on a node.

    Args:
        node_root: absolute path where the node's root is mounted.
        folder: absolute path of the payload.
        name: of the engine: "containerd", "crio", "none", or "auto" for the one that runs.
        options: of `gpushim configure`.
        root: of the driver, for a config.toml that nobody has changed; "" keeps its root.
    """
    host.check_root(node_root)
    payload, shell = payloads.read_payload(folder, root), payloads.read_shell(folder)
    host.enter(node_root)
    with host.lock_node():
        tag = host.read_python_tag()
        _check_writable()
        record = records.load()
        owners.check_owners(payload, record)
        ask.program(["/bin/sh", "-c", f"{shell}take_script"])
        fresh = node_files.write_files(payload, record, tag)
        say(f"gpushim-node: gpushim {payload.version} " + ("is installed" if fresh else "was installed already"))
        if root and not record.is_unchanged(payloads.CONFIG):
            say(f"gpushim-node: {payloads.CONFIG} was changed on this node and is kept; its driver root applies")
        if payloads.UNIT in fresh:
            ask.program([SYSTEMCTL, "daemon-reload"])
        for version in node_files.remove_old_versions(record, payload.version):
            say(f"gpushim-node: {payloads.LIB}{version} is still in use, and is removed later", error=True)
        _remove_obsolete(record, payload)
        record.save()
        engine.refresh()
        _configure_engine(record, name, options, restart)


def _check_writable() -> None:
    for folder in ("/usr/bin", "/usr/lib", "/etc", "/var/lib"):
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise GpushimError(
                f"{folder} of this node is read-only; gpushim has to be in the node's image (its packages), and the "
                "node without gpushim-node (node.enabled: false)"
            )


def _remove_obsolete(record: records.Record, payload: payloads.Payload) -> None:
    """Remove files that only other versions have, except those in the directories of those versions."""
    obsolete = [path for path in record.files if path not in payload.files and not path.startswith(payloads.LIB)]
    obsolete += [path for path in record.files if path.startswith(payload.lib) and path not in payload.files]
    node_files.remove_files(record, obsolete)


def _configure_engine(record: records.Record, name: str, options: list[str], restart: bool) -> None:
    if name == "auto":
        name = engine.find_running()
    engine_settings.change_engine(record, [] if name == "none" else [name, *options], restart)
