"""A snapshot of the host for commands that show it: nothing is saved, loaded or made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure

if TYPE_CHECKING:
    from gpushim.ground.model import Policy, Snapshot


def snapshot(config: str = "", state: str = "") -> Snapshot:
    """Return the saved snapshot if it is true, else a survey; "" stands for the paths in force.

    Raises:
        GpushimError: the configuration is wrong, or there is no low-level runtime.
    """
    config = config or system.config_path()
    saved = ensure.read(config, state or system.state_dir())
    return look(policy.load(config)) if saved is None else saved


def anyhow(notes: list[str]) -> Snapshot:
    """Return a snapshot by the default policy, with a note, if the configuration is wrong."""
    try:
        return snapshot()
    except GpushimError as error:
        notes.append(f"{error}; the host is looked at as without a configuration")
        return look(policy.defaults())


def look(settings: Policy) -> Snapshot:
    """Survey the host and save nothing; a survey that takes too long ends the process."""
    from gpushim.inventory import earlier, failure, survey  # slow to import, and rarely needed

    config, state, seconds = system.config_path(), system.state_dir(), settings["refresh"]["deadline-seconds"]
    with failure.deadline(seconds, config, lambda error: None) as waiting:
        return survey.survey(config, settings, waiting, earlier.settled(state), earlier.HungGpus(state).read())


def age(config: str, state: str) -> tuple[str, str]:
    """Return when the saved snapshot was written (UTC, "" if there is none), and a few words on whether it holds."""
    saved, stale = ensure.last(config, state)
    if stale == "policy":
        return "", "there is none, or it is from another configuration or version"
    return str(saved["written"]), "the host has changed since" if stale else "true now"
