"""A watch of a cluster's API server: what came, and when."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from e2e.plane import Cluster

DEADLINE = 60.0  # seconds for an event


class Watch:
    """A watch of the API server's: each event with the time.time() at which it came.

    Args:
        cluster: whose.
        path: of the API, with its query.
    """

    def __init__(self, cluster: Cluster, path: str) -> None:
        self._news = threading.Condition()
        self._events: list[tuple[float, dict[str, Any]]] = []
        command = [
            *cluster.place.prefix,
            "/usr/bin/kubectl",
            f"--kubeconfig={cluster.kubeconfig}",
            "get",
            "--raw",
            path,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            at = time.time()
            with self._news:
                self._events.append((at, json.loads(line)))
                self._news.notify_all()

    def first(self, condition: Callable[[str, dict[str, Any]], bool], since: float = 0.0) -> float:
        """Return when the first event from a time on came of which something is so."""

        def found() -> float:
            return next(
                (at for at, one in self._events if at >= since and condition(one["type"], one["object"])), 0.0
            )

        with self._news:
            assert self._news.wait_for(found, DEADLINE), f"none of {len(self._events)} events"
            return found()

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def watching(cluster: Cluster, path: str) -> Iterator[Watch]:
    """Watch for the block."""
    found = Watch(cluster, path)
    try:
        yield found
    finally:
        found.stop()
