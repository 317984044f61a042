"""Low-level runtimes before runc and crun that decide who does the hook's work, for tests that want to know."""

from __future__ import annotations

from pathlib import Path

# At create the child is gone when the hook asks for it; `$$` is the create.
LONE = """#!/bin/sh
case " $* " in *" create "*)
  read -r child <"/proc/$$/task/$$/children" || :
  kill -9 $child
esac
exec {low} "$@"
"""
# There is no gpushim-hook that the hook could become. The child is ready.
AHEAD = """#!/bin/sh
case " $* " in *" create "*)
  read -r child <"/proc/$$/task/$$/children" || :
  name=
  until [ "$name" = gpushim-hook ]; do read -r name <"/proc/${{child% }}/comm"; done
  last=
  for word; do
    [ "$last" != --bundle ] || sed -i 's#"[^"]*/bin/gpushim-hook"#"/bin/false"#' "$word/config.json"
    last=$word
  done
esac
exec {low} "$@"
"""


def write(path: Path, script: str, low: str) -> str:
    """Write one of these; return its path."""
    path.write_text(script.format(low=low))
    path.chmod(0o755)
    return str(path)
