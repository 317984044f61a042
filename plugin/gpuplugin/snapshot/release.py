"""Whether the GPUs are released, which a file says: for scripts, and for a plugin that is started again meanwhile.

An open NVML keeps a GPU from being reset, its MIG mode from changing, and the driver from being unloaded. They are
taken again when the file is removed, and by itself when the driver was away and is back.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from gpushim.ground import system
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.ground.logs import logger
from gpushim.inventory import ensure, failure, save
from gpushim.paths import trust
from gpushim.paths.replace import replace
from gpushim.refresh import plugin_requests

if TYPE_CHECKING:
    from gpushim.ground.model import Stamp

FOLDER, _, NAME = plugin_requests.RELEASED.partition("/")  # of the state directory
PROBLEM = "released by gpushim device-plugin release; gpushim device-plugin take ends that"


def folder() -> str:
    """Return the directory of what the plugin keeps until the next boot."""
    return f"{system.state_dir()}/{FOLDER}"


def prepare() -> str:
    """Make that directory, and return it.

    Raises:
        GpushimError: it cannot be made, or others can write to it.
    """
    save.prepare(system.state_dir())
    try:
        os.makedirs(folder(), 0o700, exist_ok=True)
    except OSError as error:
        raise GpushimError(f"{folder()} cannot be made: {error.strerror}", FAILED) from None
    if not trust.ours(folder()):
        raise GpushimError(
            f"{folder()} cannot be trusted: it must be a directory that only root can write to; remove it", FAILED
        )
    return folder()


class Release:
    """The file, and the driver's version and bindings when it was made.

    Attributes:
        since: seconds since 1970, while the GPUs are released; else 0.
    """

    def __init__(self) -> None:
        self.since = 0.0
        self._driver_before: dict[str, Any] = {}
        self._away = False  # the driver has been, since then

    @property
    def path(self) -> str:
        return f"{folder()}/{NAME}"

    def requested(self) -> bool:
        """Return whether the GPUs are to be released now; without the file they are not."""
        if not (trust.ours(folder()) and os.path.lexists(self.path)):
            self.since, self._away = 0.0, False
            return False
        driver = _driver()
        if not self.since:
            self._read(driver)
        self._away = self._away or driver["module"] is None
        if self._is_back(driver):
            logger.info("the driver was away and is back: the GPUs are given out again")
            self.take()
            return False
        return True

    def ask(self) -> None:
        """Make the file.

        Raises:
            GpushimError: it cannot be made.
        """
        prepare()
        try:
            self._write(time.time(), _driver())
        except OSError as error:
            raise GpushimError(f"{self.path} cannot be made: {error.strerror}", FAILED) from None

    def take(self) -> None:
        """Remove the file.

        Raises:
            GpushimError: it cannot be removed.
        """
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        except OSError as error:
            raise GpushimError(f"{self.path} cannot be removed: {error.strerror}; remove it", FAILED) from None
        self.since, self._away = 0.0, False

    def _read(self, driver: dict[str, Any]) -> None:
        """Read what the file says of the driver; one of a script says nothing."""
        saved = ensure.own(self.path)
        try:
            self._driver_before = {"module": saved["module"], "gpus": [*map(int, saved["gpus"])]}
            self.since = float(saved["since"])
            time.gmtime(self.since)  # which all who show it must be able to
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            self._driver_before, self.since = driver, time.time()
            with contextlib.suppress(OSError):  # then the next plugin begins again
                self._write(self.since, driver)

    def _write(self, since: float, driver: dict[str, Any]) -> None:
        replace(self.path, json.dumps({"since": since, **driver}).encode(), 0o600)

    def _is_back(self, driver: dict[str, Any]) -> bool:
        """Return whether the driver is another since then; numbers of bindings never come again (ensure.driver)."""
        if driver["module"] is None or not driver["gpus"]:
            return False
        rebound = bool(self._driver_before["gpus"]) and set(driver["gpus"]).isdisjoint(self._driver_before["gpus"])
        return self._away or rebound or driver["module"] != self._driver_before["module"]


def _driver() -> dict[str, Any]:
    """Return what changes when the driver is unloaded and loaded: its version, the bindings of GPUs to it."""
    facts: Stamp = failure.facts(system.config_path())["stamp"]
    return {"module": facts["module"], "gpus": sorted(inode for inode in facts["gpus"].values() if inode is not None)}
