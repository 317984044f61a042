"""Whether dockerd would start with a daemon.json: `dockerd --validate` says so since version 23, but not all of it.

What it does not look at, and where no dockerd can be asked all that gpushim touches, is looked at here.
Out of scope: what dockerd looks at only as it starts; options of its command line that exclude a setting (the
room's own module).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpushim.engines.processes import ask, programs
from gpushim.engines.settings import jsontext
from gpushim.ground.errors import GpushimError, quote

if TYPE_CHECKING:
    from gpushim.engines.processes.running import Engine

# Runtimes that dockerd has by itself: runc, shims by their type, and from version 23 on shims by their path.
STOCK = re.compile(r"runc|io\.containerd\.[^/]+|/.+")
_TYPES: dict[str, tuple[type, str]] = {
    "runtimes": (dict, "an object"),
    "features": (dict, "an object"),
    "default-runtime": (str, "a string"),
}


def program(engine: Engine | None, top: str = "") -> str:
    """Find the dockerd that may be asked about its settings: the one that runs, or (None) that would be started."""
    return programs.find("dockerd", engine, top)


def wrong(content: bytes | None, path: str, dockerd: str, more: tuple[str, ...] = ()) -> str:
    """Say why dockerd would not start with a daemon.json; "" if it would, as far as can be told.

    Args:
        content: of the file; None if there is none.
        path: of the file, for the sentence.
        dockerd: from `program`.
        more: runtimes that dockerd has by its command line.
    """
    try:
        settings = jsontext.get(jsontext.parse(content or b"", path), ()) or {}
    except GpushimError as error:
        return str(error)
    problem = mistyped(settings) or _unknown_default(settings, more) or _refused(content or b"", path, dockerd)
    return f"{path}: {problem}" if problem else ""


def mistyped(settings: dict[str, Any]) -> str:
    """Say, as a clause, which setting that gpushim touches has the wrong type; "" if none."""
    for key, value in settings.items():
        # Go matches keys in any case, but dockerd then does not know the key.
        if key not in _TYPES and key.lower() in _TYPES:
            return f"{quote(key)} is written {key.lower()}"
        if key in _TYPES and value is not None and not isinstance(value, _TYPES[key][0]):
            return f"{key} is not {_TYPES[key][1]}"
    for name, entry in (settings.get("runtimes") or {}).items():
        if name == "runc":
            return "the name runc under runtimes is Docker's own"
        if entry is not None and not isinstance(entry, dict):
            return f"runtimes.{name} is not an object"
        if not isinstance((entry or {}).get("path") or "", str):
            return f"runtimes.{name}.path is not a string"
    for name, value in (settings.get("features") or {}).items():
        if value is not None and not isinstance(value, bool):
            return f"features.{name} is neither true nor false"
    return ""


def _unknown_default(settings: dict[str, Any], more: tuple[str, ...]) -> str:
    default = settings.get("default-runtime")
    if not default or STOCK.fullmatch(default) or default in (*(settings.get("runtimes") or {}), *more):
        return ""
    return f"there is no runtime {quote(default)}, which is the default-runtime"


def _refused(content: bytes, path: str, dockerd: str) -> str:
    if not dockerd:
        return ""
    # The same bytes that were judged here, whatever the file becomes in the meantime.
    command = [dockerd, "--validate", "--config-file", "/dev/stdin"]
    answer = ask.program(command, feed=content)
    last_line = (answer.error.strip().splitlines() or [""])[-1]
    if answer.code == 0 or "configure the Docker daemon" not in last_line:  # before 23 it does not know the option
        return ""
    return f"dockerd says: {last_line.rpartition('/dev/stdin: ')[2][:300]}"
