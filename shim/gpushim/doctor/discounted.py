"""Why a saved snapshot does not count: the one reason of those that `ensure.last` knows.

Out of scope: changes of the host, which `stamp` tells, and whether the state directory is ours.
"""

from __future__ import annotations

import os
import stat

from gpushim import __version__
from gpushim.inventory import ensure
from gpushim.paths import trust


def why(path: str, config: str) -> str:
    """Say, as the end of a sentence, why `ensure.last` has said "policy" of the snapshot at `path`."""
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
    found = ensure.own(path)
    if not found:
        return "it is damaged, or this user may not read it"
    if found.get("form") != ensure.FORM or found.get("gpushim") != __version__:
        return f"another version of gpushim wrote it ({found.get('gpushim')}; this is {__version__})"
    try:
        if found["inputs"]["config"] != config:
            return f"it was made with {found['inputs']['config']}"
        if found["stamp"]["config"] != ensure.current(found["inputs"])["config"]:
            return f"{config} has changed since"
        if found["told"] != ensure.launcher_facts(os.path.dirname(path)):
            return "a file beside it, which launcher or hook read, has changed"
    except (KeyError, IndexError, TypeError, ValueError):
        pass
    return "it is damaged"
