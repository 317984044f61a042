"""What an API server was asked, by its audit log: flags that have it kept, and requests of one user.

Out of scope: what asks (dra.py, dra_nodes.py).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

# One user's alone: the log of all that a cluster asks would cost more than what is measured.
POLICY = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {{level: Metadata, users: ["{user}"]}}
- {{level: None}}
"""


@dataclass(frozen=True)
class Request:
    """A request.

    Attributes:
        at: time.time() when the server had it.
        what: verb and resource.
        status: of HTTP.
    """

    at: float
    what: str
    status: int


class Audit:
    """The log of one user's requests.

    Args:
        folder: for its files, which the server must see, too.
        user: name of the user.
    """

    def __init__(self, folder: Path, user: str) -> None:
        self._policy, self._log = folder / "audit-policy", folder / "audit.log"
        self._policy.write_text(POLICY.format(user=user))

    @property
    def flags(self) -> str:
        """Those of kube-apiserver."""
        return f"--audit-policy-file={self._policy} --audit-log-path={self._log}"

    def requests(self, since: float = 0.0, until: float = float("inf")) -> list[Request]:
        """List the requests of a time, each once: a watch is logged when it begins and when it ends."""
        found: dict[str, Request] = {}
        for line in self._log.read_text().splitlines() if self._log.exists() else ():
            row = json.loads(line)
            found.setdefault(row["auditID"], _request(row))
        return sorted((one for one in found.values() if since <= one.at < until), key=lambda one: one.at)


def _request(row: dict[str, Any]) -> Request:
    at = datetime.fromisoformat(row["requestReceivedTimestamp"].replace("Z", "+00:00")).timestamp()
    what = f"{row['verb']} {row.get('objectRef', {}).get('resource', '')}".strip()
    return Request(at, what, row.get("responseStatus", {}).get("code", 0))


def kinds(requests: list[Request]) -> str:
    """Return how many requests of each kind there are; a status is named if it is an error."""
    names = [one.what if one.status < 400 else f"{one.what} ({one.status})" for one in requests]
    return ", ".join(f"{number} {name}" for name, number in Counter(names).most_common()) or "none"


def peak(requests: list[Request]) -> int:
    """Return the most requests in any second."""
    times = [one.at for one in requests]
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most
