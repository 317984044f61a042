"""Daemons of MPS: whether the one of a group runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplugin.division import MpsGroup


def ready(state_dir: str, group: MpsGroup) -> str:
    """Say why the daemon of a group cannot serve clients, or "".

    Args:
        state_dir: gpushim's, such as /run/gpushim.
        group: as it is to be.
    """
    return f"the MPS daemon of {group.name} does not run in {state_dir}/mps; systemctl start gpushim-mps@{group.name}"
