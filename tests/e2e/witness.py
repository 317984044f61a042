"""The shim's settings for a test, and a witness of what it does to config.json.

The witness is two POSIX shell scripts around the shim: the front one is what the engine calls, the back one
is what the shim's configuration names as the low-level runtime. Both keep a copy of the bundle's config.json
with its times, so that a test can tell an untouched file from one replaced by its equal.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

RUNC = "/usr/sbin/runc"

SCRIPT = """#!/bin/sh
set -eu
{exports}
bundle=
previous=
for word do
    case $previous in --bundle | -b) bundle=$word ;; esac
    previous=$word
done
# The id is the last word of `create` and `run`.
if [ -n "$bundle" ]; then cp -p "$bundle/config.json" {kept}/"$previous".{when}; fi
exec {program} "$@"
"""


def settings(directory: Path, root: str, low_level: str = RUNC) -> dict[str, str]:
    """Write a configuration for a simulated host.

    Args:
        directory: existing directory for configuration, state and log; CDI specs are sought in its cdi/.
        root: the host's driver root.
        low_level: absolute path of the runtime below the shim.

    Returns:
        The variables that make the shim use it.
    """
    tables: dict[str, dict[str, object]] = {
        "driver": {"root": root, "dev-root": root},
        "runtime": {"low-level": [low_level]},
        "log": {"file": str(directory / "gpushim.log")},
        "cdi": {"spec-dirs": [str(directory / "cdi"), str(directory / "state" / "cdi")], "foreign-kinds": ["*"]},
    }
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    config = directory / "config.toml"
    config.write_text("\n".join(lines) + "\n")
    return {"GPUSHIM_CONFIG": str(config), "GPUSHIM_STATE": str(directory / "state")}


@dataclass
class Copy:
    """One copy of a config.json."""

    content: bytes
    modified: int  # nanoseconds


class Witness:
    """The shim between its two scripts."""

    def __init__(self, directory: Path, runtime: Path, root: str) -> None:
        self.front = directory / "front"
        self._kept = directory / "kept"
        self._kept.mkdir()
        back = directory / "back"
        env = settings(directory, root, str(back))
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())
        self._write(self.front, str(runtime), "before", exports)
        self._write(back, RUNC, "after", "")

    def _write(self, script: Path, program: str, when: str, exports: str) -> None:
        kept, program = shlex.quote(str(self._kept)), shlex.quote(program)
        script.write_text(SCRIPT.format(exports=exports, kept=kept, when=when, program=program))
        script.chmod(0o755)

    def copies(self, container: str) -> tuple[Copy, Copy]:
        """Return what the engine wrote for a container and what the low-level runtime read."""
        before, after = (self._kept / f"{container}.{when}" for when in ("before", "after"))
        return _copy(before), _copy(after)


def _copy(path: Path) -> Copy:
    return Copy(path.read_bytes(), path.stat().st_mtime_ns)
