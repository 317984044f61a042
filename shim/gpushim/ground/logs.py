"""Set up logging of refresh and the command line: on stderr, as text or as JSON lines with runc's field names.

Never on the create path: `logging` costs 13 ms.
"""

from __future__ import annotations

import logging
import sys
import time
from importlib import import_module
from typing import Any

logger = logging.getLogger("gpushim")


def start(form: str, level: str, people: bool = False) -> None:
    """Send gpushim's log to stderr: for people, as at a terminal, as text and without "info" lines."""
    if people or (sys.stderr is not None and sys.stderr.isatty()):
        form, level = "text", "warning" if level == "info" else level
    formatter = _json_formatter() if form == "json" else None
    logging.raiseExceptions = False  # no tracebacks about a full or closed stderr
    handler = logging.StreamHandler()
    handler.setFormatter(formatter or logging.Formatter("gpushim: %(levelname)s: %(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    if form == "json" and formatter is None:
        logger.warning("python-json-logger is missing: logging as text")


def _json_formatter() -> logging.Formatter | None:
    json_formatter = _import_formatter()
    if json_formatter is None:
        return None

    class RuncFormatter(json_formatter):  # type: ignore[misc, valid-type]
        converter = staticmethod(time.gmtime)

        def process_log_record(self, fields: dict[str, Any]) -> dict[str, Any]:
            fields["level"] = fields["level"].lower()
            fields.pop("taskName", None)  # of Python 3.12; older versions of the library log it
            return fields

    names = {"levelname": "level", "message": "msg", "asctime": "time"}
    return RuncFormatter("%(levelname)s %(message)s %(asctime)s", "%Y-%m-%dT%H:%M:%SZ", rename_fields=names)


def _import_formatter() -> type[logging.Formatter] | None:
    """Import python-json-logger late, as a host may lack it; its module has had two names."""
    for name in ("pythonjsonlogger.json", "pythonjsonlogger.jsonlogger"):
        try:
            formatter: type[logging.Formatter] = import_module(name).JsonFormatter
        except ImportError:
            continue
        return formatter
    return None
