"""Show another container of the pod, by a file in a shared volume, that gpushim is installed on the node.

Out of scope: reading it (gpuplugin.cluster.installed_label).
"""

from __future__ import annotations

import os

from gpushim.cli.show import say
from gpushim.ground.errors import GpushimError


class InstalledFile:
    """The file that exists once gpushim is installed.

    Args:
        path: absolute; its directory is opened now, as the node has another directory of that name. "" for no file.

    Raises:
        GpushimError: its directory cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        folder, self._name = os.path.split(path)
        try:
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if path else -1
        except OSError as error:
            raise GpushimError(f"{folder} cannot be opened: {error.strerror}; mount a volume there") from None

    def create(self) -> None:
        """Create the file, also after entering the node; a failure is only logged, as gpushim works without it."""
        if self._folder < 0:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.close(os.open(self._name, flags, 0o644, dir_fd=self._folder))
        except OSError as error:
            say(f"gpushim-node: the node gets no label: {self._path} cannot be made: {error.strerror}", error=True)
