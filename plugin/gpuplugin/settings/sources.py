"""The files that settings come from, and whether one of them has changed: config.toml, config-file, profile-file.

Out of scope: what they say (settings.py, profiles.py), and what follows from a change (daemon.py).
"""

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
from gpushim.paths import places, trust


class Sources:
    """What settings are read from.

    In a loop: have `folders` watched by inotify (`Watch.add(*sources.folders, written=True)`), and whenever that
    tells something, and every few seconds besides, ask `changed`; where it says yes, `renew`, as on SIGHUP. A file
    that is wrong is read again when it changes, not before: so its sentence is said once.

    Args:
        flags: values by flag, without dashes, in the order of the command line.
        environment: variables.

    Attributes:
        problem: what is wrong with what was read last; or "".
    """

    def __init__(self, flags: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> None:
        self._flags, self._environment = flags, environment
        self._seen: dict[str, object] = {}  # identity by path, from before it was read
        self._begins = True  # no settings have been read
        self._turn: Optional[asyncio.Lock] = None  # not before `renew`: Python 3.9 ties it to the loop of that moment
        self.problem = ""

    def read(self) -> Settings:
        """Read them all; the first time, a profile that does not exist counts as none that is named.

        Raises:
            GpushimError: what they say is wrong. `changed` still looks at those that count now.
        """
        config = system.config_path()
        self._seen[config] = before = trust.identity(config)  # or a change during the read would be missed
        section = policy.load(config)["device-plugin"]
        files = settings.files(self._flags, self._environment, section)
        self._seen = {config: before, **{path: trust.identity(path) for path in files if path}}
        found = settings.resolve(self._flags, self._environment, section, begins=self._begins)
        self._begins = False
        return found

    async def renew(self, asked: bool) -> Optional[Settings]:
        """Read them all in a thread, for a large file takes a second, and log what is wrong with them.

        Args:
            asked: what is wrong is said even if it was said before.

        Returns:
            them; None if they are wrong.
        """
        self._turn = self._turn or asyncio.Lock()
        async with self._turn:
            try:
                found = await asyncio.to_thread(self.read)
            except GpushimError as error:
                before, self.problem = self.problem, f"the settings stay as they were: {error}"
                if asked or before != self.problem:
                    logger.error("%s", self.problem)
                return None
        self.problem = ""
        return found

    def changed(self) -> bool:
        """Say whether a file has changed since it was read, or since this was asked last; a file costs two stats.

        While they are read it is not known: ask again then.
        """
        if self._turn and self._turn.locked():
            return False
        now: dict[str, object] = {path: trust.identity(path) for path in self._seen}
        before, self._seen = self._seen, now
        return now != before

    @property
    def folders(self) -> list[str]:
        """The directories in which a change shows: the files' own, and those of links, as a ConfigMap's ..data."""
        return [*dict.fromkeys(folder for path in self._seen for folder in places.folders(path))]
