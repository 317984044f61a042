"""Why devices cannot be told by CDI on this host: an engine would not find them, or would find another's.

The spec is the one that `gpushim refresh` publishes; the plugin writes none. It is looked at on the disk, as engines
do. Out of scope: what a spec says (gpushim.cdi), and the engine's own settings (`gpushim doctor`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpushim.cdi import specs
from gpushim.cdi.generate import output, publish
from gpushim.ground import system
from gpushim.ground.errors import CONFIG, INVENTORY, GpushimError
from gpushim.oci import device_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushim.ground.model import Snapshot

OTHERWISE = "or let device-list-strategy be envvar or volume-mounts"
# What [cdi] device-names must have for a name of this form, by selection's kinds of items.
_STRATEGIES = {"index": "index", "mig-index": "index", "uuid": "uuid", "mig-uuid": "uuid", "mig-legacy": "uuid"}


def check(snapshot: Snapshot, names: Sequence[str]) -> None:
    """Refuse CDI names that engines would not find in gpushim's spec.

    Args:
        snapshot: of the inventory, without an error.
        names: qualified CDI names of all that containers may be told: `allocation.cdi_names` of the devices without a
            problem. Those with one are rightly not in the spec.

    Raises:
        GpushimError: CONFIG, where a setting of gpushim's is in the way; INVENTORY, where it is the host. Its
            sentence names the fix.
    """
    policy, path = snapshot["policy"]["cdi"], output.path_of(snapshot["policy"])
    if not policy["write-spec"]:
        raise GpushimError(
            "device-list-strategy has CDI in it, but write-spec under [cdi] is false, so that no spec names the "
            f"devices: make it true in {system.config_path()} and run gpushim refresh, {OTHERWISE}",
            CONFIG,
        )
    foreign_path, name = _find_foreign(path, policy["kind"], {*names}, policy["spec-dirs"])
    if foreign_path:
        raise GpushimError(
            f"{foreign_path} has the CDI device {name} too, so that engines do not use gpushim's {path}: disable "
            f"what writes it (such as nvidia-cdi-refresh), remove it and run gpushim refresh, {OTHERWISE}",
            INVENTORY,
        )
    spec = publish.saved(path) or {"kind": "", "devices": ()}
    spec_names = {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
    missing = [name for name in names if name not in spec_names]
    if missing:
        raise _describe_missing(missing[0], path, snapshot)


def _find_foreign(path: str, kind: str, names: set[str], directories: Sequence[str]) -> tuple[str, str]:
    """Return another spec that has one of the names in gpushim's place, and the name; or "" and ""."""
    own_folder, file = os.path.split(path)
    folders = [*directories] if _resolve([own_folder]) <= _resolve(directories) else [*directories, own_folder]
    rank = max(number for number, folder in enumerate(folders) if _resolve([folder]) == _resolve([own_folder]))
    for foreign_path, priority, document in specs.load(folders, [kind])[0]:
        folder, base = os.path.split(foreign_path)
        shared_names = names & {f"{kind}={device['name']}" for device in document["devices"]}
        if shared_names and priority >= rank and not (base == file and _resolve([folder]) == _resolve([own_folder])):
            return foreign_path, min(shared_names)
    return "", ""


def _resolve(folders: Sequence[str]) -> set[str]:
    return {os.path.realpath(folder) for folder in folders}


def _describe_missing(name: str, path: str, snapshot: Snapshot) -> GpushimError:
    policy = snapshot["policy"]["cdi"]
    form, value, _ = (device_names.parse([name], [policy["kind"]]) or [("", None, "")])[0]
    strategy = _STRATEGIES.get(form)
    if strategy and strategy not in policy["device-names"]:
        alternative = "uuid" if strategy == "index" else "index"
        remedy = f"or let device-id-strategy be {alternative}" if alternative in policy["device-names"] else OTHERWISE
        return GpushimError(
            f"{path} does not name devices by {strategy}, as in {name}: add {strategy} to device-names under [cdi] "
            f"in {system.config_path()} and run gpushim refresh, {remedy}",
            CONFIG,
        )
    if form == device_names.FEATURE and not snapshot["features"].get(str(value)):
        return GpushimError(
            f"{value} is true in the plugin's settings, but this host has no device node for it: load its kernel "
            f"module and run gpushim refresh, or make {value} false",
            INVENTORY,
        )
    return GpushimError(
        f"{path} has no device {name}, so that engines cannot give it to containers: run gpushim refresh, which "
        f"writes it or says why it cannot, {OTHERWISE}",
        INVENTORY,
    )
