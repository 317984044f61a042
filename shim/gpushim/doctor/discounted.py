"""The reason why a saved snapshot does not count, of those that `ensure.last` knows."""

from __future__ import annotations

import os
import stat

from gpushim import __version__
from gpushim.inventory import ensure
from gpushim.paths import trust


def why(path: str, config: str) -> str:
    """Return, as the end of a sentence, why `ensure.last` has returned "policy" for the snapshot at `path`."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if trust.others_may(status):
        return "users other than root own it, or can write to it"
    if status.st_size > ensure.SNAPSHOT_LIMIT:
        return f"it has more than {ensure.SNAPSHOT_LIMIT} bytes"
    snapshot = ensure.own(path)
    if not snapshot:
        return "it is damaged, or this user may not read it"
    if snapshot.get("form") != ensure.FORM or snapshot.get("gpushim") != __version__:
        return f"another version of gpushim wrote it ({snapshot.get('gpushim')}; this is {__version__})"
    try:
        if snapshot["inputs"]["config"] != config:
            return f"it was made with {snapshot['inputs']['config']}"
        if snapshot["stamp"]["config"] != ensure.current(snapshot["inputs"])["config"]:
            return f"{config} has changed since"
        if snapshot["told"] != ensure.launcher_facts(os.path.dirname(path)):
            return "a file beside it, which launcher or hook read, has changed"
    except (KeyError, IndexError, TypeError, ValueError):
        pass
    return "it is damaged"
