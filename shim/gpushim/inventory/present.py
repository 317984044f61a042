"""What the host has now, for commands that show things: nothing is saved, loaded or made.

Out of scope: bringing the saved snapshot up to date (gpushim.refresh).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushim import policy, stamp
from gpushim.errors import GpushimError
from gpushim.inventory import ensure

if TYPE_CHECKING:
    from gpushim.model import Policy, Snapshot


def snapshot(config: str = "", state: str = "") -> Snapshot:
    """Return the saved snapshot if it is true, else look at the host.

    Args:
        config: path of config.toml; "" for the one in force.
        state: directory of the snapshot; "" for the one in force.

    Returns:
        a snapshot; its "error" may say that the host cannot serve GPUs.

    Raises:
        GpushimError: the configuration is wrong, or there is no low-level runtime.
    """
    config = config or stamp.config_path()
    found = ensure.read(config, state or stamp.state_dir())
    return look(policy.load(config)) if found is None else found


def anyhow(notes: list[str]) -> Snapshot:
    """Return a snapshot as `snapshot`, with the defaults where the configuration is wrong.

    Args:
        notes: gets a sentence about that.
    """
    try:
        return snapshot()
    except GpushimError as error:
        notes.append(f"{error}; the host is looked at as without a configuration")
        return look(policy.defaults())


def look(settings: Policy) -> Snapshot:
    """List the host and save nothing; it ends the process as a refresh does if it takes too long.

    Args:
        settings: the policy.
    """
    from gpushim.inventory import deadline, survey  # much, beside a snapshot that is true

    config, seconds = stamp.config_path(), settings["refresh"]["deadline-seconds"]
    with deadline.deadline(seconds, config, lambda error: None) as waiting:
        return survey.survey(config, settings, waiting)


def age(config: str, state: str) -> tuple[str, str]:
    """Tell when the saved snapshot was written, and whether it holds.

    Args:
        config: path of config.toml.
        state: directory of the snapshot.

    Returns:
        its time in UTC, or "" if there is none that could be used; and a few words.
    """
    saved, stale = ensure.last(config, state)
    if stale == "policy":
        return "", "there is none, or it is from another configuration or version"
    return str(saved["written"]), "the host has changed since" if stale else "true now"
