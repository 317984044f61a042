"""Which of several instances of the driver speaks for the node, as during an update: the one kubelet took last.

Two that published what each thinks right would count generations up against each other. A file names the newest, and
a lock that the kernel keeps says whether that one lives.
Out of scope: the locks (gpuplugin.processes.instances).
"""

from __future__ import annotations

import contextlib

from gpuplugin.processes.instances import Instances
from gpushim.paths.replace import replace

NAME = "dra-newest"  # in the directory of what the plugin keeps
LOCK = f"{NAME}.lock"


class Newest:
    """This instance, among all."""

    def __init__(self) -> None:
        self._instances, self._path = Instances(), ""

    def join(self, folder: str) -> None:
        """Become one of them.

        Args:
            folder: directory of what the plugin keeps, root's alone.
        """
        self._path = f"{folder}/{NAME}"
        self._instances.join(folder, LOCK)

    def become(self) -> None:
        """Take note that kubelet has registered this one just now."""
        with contextlib.suppress(OSError):  # then the one before goes on as long as it lives
            replace(self._path, str(self._instances.number).encode(), 0o600, durable=False)

    def is_it(self) -> bool:
        """Return whether none that came later lives."""
        try:
            with open(self._path, "rb") as file:
                number = int(file.read(32))
        except (OSError, ValueError):
            return True
        return number == self._instances.number or not self._instances.lives(number)
