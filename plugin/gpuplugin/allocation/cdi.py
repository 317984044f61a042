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
from gpushim.oci import selection

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
    other, name = _other(path, policy["kind"], {*names}, policy["spec-dirs"])
    if other:
        raise GpushimError(
            f"{other} has the CDI device {name} too, so that engines do not use gpushim's {path}: disable what "
            f"writes it (such as nvidia-cdi-refresh), remove it and run gpushim refresh, {OTHERWISE}",
            INVENTORY,
        )
    spec = publish.saved(path) or {"kind": "", "devices": ()}
    there = {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
    missing = [name for name in names if name not in there]
    if missing:
        raise _missing(missing[0], path, snapshot)


def _other(path: str, kind: str, names: set[str], directories: Sequence[str]) -> tuple[str, str]:
    """Return another spec that has one of the names in gpushim's place, and the name; or "" and ""."""
    own, file = os.path.split(path)
    folders = [*directories] if _places([own]) <= _places(directories) else [*directories, own]
    rank = max(place for place, folder in enumerate(folders) if _places([folder]) == _places([own]))
    for other, priority, document in specs.load(folders, [kind])[0]:
        folder, base = os.path.split(other)
        both = names & {f"{kind}={device['name']}" for device in document["devices"]}
        if both and priority >= rank and not (base == file and _places([folder]) == _places([own])):
            return other, min(both)
    return "", ""


def _places(folders: Sequence[str]) -> set[str]:
    return {os.path.realpath(folder) for folder in folders}


def _missing(name: str, path: str, snapshot: Snapshot) -> GpushimError:
    policy = snapshot["policy"]["cdi"]
    form, value, _ = (selection.parse([name], [policy["kind"]]) or [("", None, "")])[0]
    strategy = _STRATEGIES.get(form)
    if strategy and strategy not in policy["device-names"]:
        other = "uuid" if strategy == "index" else "index"
        instead = f"or let device-id-strategy be {other}" if other in policy["device-names"] else OTHERWISE
        return GpushimError(
            f"{path} does not name devices by {strategy}, as in {name}: add {strategy} to device-names under [cdi] "
            f"in {system.config_path()} and run gpushim refresh, {instead}",
            CONFIG,
        )
    if form == selection.FEATURE and not snapshot["features"].get(str(value)):
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
