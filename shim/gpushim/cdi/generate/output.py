"""The path of refresh's CDI spec, for modules that must not import publish.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpushim.cdi import specs
from gpushim.ground import system

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_DIRECTORY = specs.DIRECTORIES[-1]


def path_of(policy: Mapping[str, Any]) -> str:
    """Return the path that refresh writes; its name follows the advice of the CDI specification."""
    directory: str = policy["cdi"]["output-directory"] or default_directory()
    return os.path.join(directory, policy["cdi"]["kind"].replace("/", "-") + ".json")


def default_directory() -> str:
    """Return the directory of specs without a setting, which does not outlive a boot."""
    state = system.state_dir()
    # A state directory of their own, as of a test or a rootless engine, has the specs too.
    return DEFAULT_DIRECTORY if state == system.STATE_DIR else state + "/cdi"
