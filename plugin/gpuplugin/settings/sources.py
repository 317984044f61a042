"""The files that settings come from, and whether one of them has changed: config.toml, config-file, profile-file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Optional

from gpuplugin.settings import settings
from gpuplugin.settings.settings import Settings
from gpushim.config import policy
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.ground.logs import logger
from gpushim.paths import host_files, trust


class Sources:
    """The sources that settings are read from.

    In a loop: watch `folders` by inotify (`Watch.add(*sources.folders, written=True)`), and whenever that reports a
    change, and every few seconds besides, ask `changed`; where it is true, `renew`, as on SIGHUP. A wrong file is
    read again when it changes, not before: so its sentence is logged once.

    Args:
        flags: values by flag, without dashes, in the order of the command line.

    Attributes:
        problem: what is wrong with what was read last; or "".
    """

    def __init__(self, flags: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> None:
        self._flags, self._environment = flags, environment
        self._identities: dict[str, object] = {}  # identity by path, from before it was read
        self._followed: dict[str, object] = {}  # the same, for which `folders` was found
        self._folders: list[str] = []
        self._begins = True  # no settings have been read
        self._lock: Optional[asyncio.Lock] = None  # not before `renew`: Python 3.9 ties it to the loop of that moment
        self.problem = ""

    def read(self) -> Settings:
        """Read them all; the first time, a profile that does not exist counts as none that is named.

        Raises:
            GpushimError: they are wrong. `changed` still looks at those that count now.
        """
        config = system.config_path()
        self._identities[config] = identity = trust.identity(config)  # or a change during the read would be missed
        section = policy.load(config)["device-plugin"]
        files = settings.files(self._flags, self._environment, section)
        self._identities = {config: identity, **{path: trust.identity(path) for path in files if path}}
        settings_ = settings.resolve(self._flags, self._environment, section, begins=self._begins)
        self._begins = False
        return settings_

    async def renew(self, log_again: bool) -> Optional[Settings]:
        """Read them all in a thread, for a large file takes a second; log what is wrong, and return None then.

        What was logged before is logged once more only if `log_again`.
        """
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            try:
                settings_ = await asyncio.to_thread(self.read)
            except GpushimError as error:
                before, self.problem = self.problem, f"the settings stay as they were: {error}"
                if log_again or before != self.problem:
                    logger.error("%s", self.problem)
                return None
        self.problem = ""
        return settings_

    def changed(self) -> bool:
        """Return whether a file has changed since it was read, or since this was called last; a file costs two stats.

        While they are read it is not known: ask again then.
        """
        if self._lock and self._lock.locked():
            return False
        identities: dict[str, object] = {path: trust.identity(path) for path in self._identities}
        before, self._identities = self._identities, identities
        return identities != before

    @property
    def folders(self) -> list[str]:
        """Return the directories in which a change shows: the files' own, and those of links, as a ConfigMap's
        ..data.
        """
        if self._identities != self._followed:  # each time would cost more than all else that is looked at
            self._followed = self._identities
            self._folders = [*dict.fromkeys(folder for path in self._followed for folder in host_files.folders(path))]
        return self._folders
