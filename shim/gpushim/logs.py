"""Set up logging of refresh and the command line: on stderr, as text or as JSON lines with runc's field names.

Never on the create path: `logging` costs 13 ms. Out of scope: the log of GPU containers (decide.py).
"""

from __future__ import annotations

import logging
import sys
import time
from importlib import import_module
from typing import Any

logger = logging.getLogger("gpushim")


def start(form: str, level: str) -> None:
    """Send the project's log to stderr; to people on a terminal as text, without what the command itself says.

    Args:
        form: "json" or "text"; without python-json-logger it is text, with a warning.
        level: the least that is logged: "error", "warning", "info" or "debug".
    """
    if sys.stderr is not None and sys.stderr.isatty():
        form, level = "text", "warning" if level == "info" else level
    formatter = _json_formatter() if form == "json" else None
    logging.raiseExceptions = False  # a full or closed stderr is no reason for tracebacks on it
    handler = logging.StreamHandler()
    handler.setFormatter(formatter or logging.Formatter("gpushim: %(levelname)s: %(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    if form == "json" and formatter is None:
        logger.warning("python-json-logger is missing: logging as text")


def _json_formatter() -> logging.Formatter | None:
    json_formatter = _imported()
    if json_formatter is None:
        return None

    class RuncFormatter(json_formatter):  # type: ignore[misc, valid-type]
        converter = staticmethod(time.gmtime)

        def process_log_record(self, fields: dict[str, Any]) -> dict[str, Any]:
            fields["level"] = fields["level"].lower()
            fields.pop("taskName", None)  # Python 3.12 has it, which older editions of the library take for ours
            return fields

    names = {"levelname": "level", "message": "msg", "asctime": "time"}
    return RuncFormatter("%(levelname)s %(message)s %(asctime)s", "%Y-%m-%dT%H:%M:%SZ", rename_fields=names)


def _imported() -> type[logging.Formatter] | None:
    """Import python-json-logger late, for a host may lack it; its module has had two names."""
    for name in ("pythonjsonlogger.json", "pythonjsonlogger.jsonlogger"):
        try:
            found: type[logging.Formatter] = import_module(name).JsonFormatter
        except ImportError:
            continue
        return found
    return None
