"""The saved snapshot: save it, with the small files that launcher and hook read; read one of another version's.

While a cluster is updated, versions of gpushim meet. A snapshot says its "form", and as "version" the form that its
reader must know at least. A form that only adds members, or drops one that no reader reads, asks no more of readers
than the one before: they ignore what they do not know, and `completed` has a default for what an older form lacks. So
"version" is raised only where an old reader would misunderstand. A create, and whoever else lists GPUs itself, goes
by its own version's alone (ensure.py).
Out of scope: what is in the snapshot (survey.py), CDI specs (gpushim.cdi.generate.publish).
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from gpushim.config import policy
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure, failure, procfs
from gpushim.paths import selinux, trust
from gpushim.paths.replace import replace

if TYPE_CHECKING:
    from gpushim.ground.model import Snapshot


OLDEST = 10  # the oldest form that `completed` can complete


def prepare(state: str, config: str = "") -> None:
    """Make the state directory; refuse one where others could put a snapshot, or where this user may not put one."""
    try:
        os.mkdir(state)
        os.chmod(state, 0o755)  # noqa: S103 - the launcher reads it in rootless engines too; mkdir minds the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise GpushimError(
            f"{state} cannot be made: {error.strerror}; run gpushim refresh as root, or set GPUSHIM_STATE to a "
            "directory of your own",
            INVENTORY,
        ) from None
    if not trust.ours(state):
        os.lstat(state)  # raises if it was removed meanwhile; refresh then starts again
        raise GpushimError(
            f"{state} cannot be trusted: it must be a directory that only root can write to; remove it", INVENTORY
        )
    selinux.give(state, selinux.STATE)  # and so to what is made in it
    if os.statvfs(state).f_flag & os.ST_RDONLY:
        raise GpushimError(
            f"the snapshot in {state} is out of date, and the file system there is mounted read-only: mount it "
            "writable, or set GPUSHIM_STATE to a directory elsewhere",
            INVENTORY,
        )
    if not os.access(state, os.W_OK):
        if config and ensure.read(config, state) is not None:
            raise GpushimError(
                f"this user may not renew the snapshot in {state}, which is not out of date; to list the GPUs again, "
                "run gpushim refresh as root, or set GPUSHIM_STATE to a directory of your own",
                INVENTORY,
            )
        raise GpushimError(
            f"the snapshot in {state} is out of date, and this user may not renew it: run gpushim refresh as root, "
            "or set GPUSHIM_STATE to a directory of your own",
            INVENTORY,
        )


def for_hook(snapshot: Snapshot) -> None:
    """Make the files that containers of a snapshot, or of its CDI spec, get from the hook."""
    driver = snapshot["driver"]
    with contextlib.suppress(FileExistsError):
        os.mkdir(driver["empty"], 0o555)
    selinux.give(driver["empty"], selinux.READABLE)
    if driver["params"]:
        params = procfs.restricted_params(ensure.proc_dir(driver["root"]))
        replace(driver["params"], os.fsencode(params), finish=lambda fd: selinux.give(fd, selinux.READABLE))


def save(state: str, snapshot: Snapshot) -> None:
    """Save a snapshot, after the files that the launcher reads: if it is true, so are they."""
    _tell_launcher(state, snapshot)
    _remove(f"{state}/{failure.FAILURE}")
    _replace(f"{state}/{ensure.SNAPSHOT}", json.dumps(snapshot, separators=(",", ":")) + "\n")


def _tell_launcher(state: str, snapshot: Snapshot) -> None:
    """Write what the launcher reads: `triggers`; `config`, a link to the configuration, if there is one; `runtime`.

    `runtime` has the configuration's mtime, which the shell can compare: it says that all three are up to date. It is
    removed before the other two change.
    """
    requests, cdi = snapshot["policy"]["requests"], snapshot["policy"]["cdi"]
    known = policy.defaults()["cdi"]["annotation-prefixes"]
    words = [*requests["swarm-variables"], *(word for word in cdi["annotation-prefixes"] if word not in known)]
    text, runtime = "".join(f"{word}\n" for word in words), state + "/runtime"
    identity = snapshot["stamp"]["config"]
    target, time = (os.path.realpath(snapshot["inputs"]["config"]), identity[2]) if identity else ("", None)
    if trust.identity(target) != identity:  # replaced since it was read, maybe with the same time
        target, time = "", None
    low = snapshot["runtime"] or _stand_in(runtime)
    if _launcher_files(state) != (text, target):
        _remove(runtime)
        _remove(state + "/config")
        if target:
            os.symlink(target, state + "/config")
        _replace(state + "/triggers", text)
    _replace(runtime, low + "\n", time)
    if time is not None and os.stat(runtime).st_mtime_ns != time:
        snapshot["notes"].append(
            f"the file system of {state} keeps times less exactly than that of {target}, so every call of "
            "gpushim-runtime starts Python; let GPUSHIM_STATE name a directory on a tmpfs"
        )
    snapshot["told"] = ensure.launcher_facts(state)


def _stand_in(path: str) -> str:
    """Find a runtime for running containers where the configured one is missing."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            last = file.readline().rstrip("\n")
    except OSError:
        last = ""
    try:
        return policy.stand_in([], last)
    except GpushimError:
        return last


def _launcher_files(state: str) -> tuple[str, str] | None:
    """Read the words and the configuration's path that the launcher has now."""
    try:
        with open(state + "/triggers", encoding="utf-8", errors="surrogateescape") as file:
            return file.read(), os.readlink(state + "/config") if os.path.lexists(state + "/config") else ""
    except OSError:
        return None


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _replace(path: str, text: str, time: int | None = None) -> None:
    """Replace a file of the state directory; `time` is its mtime in nanoseconds."""
    replace(path, os.fsencode(text), time=time)


def understood(found: Any) -> bool:
    """Say whether a JSON object is a snapshot of a form that this version can read."""
    least = found.get("version")
    form = found.get("form", least)  # 10 and those before did not say it
    return isinstance(least, int) and isinstance(form, int) and least <= ensure.FORM and form >= OLDEST


def completed(found: Any) -> Snapshot:
    """Add what forms since OLDEST have added to a snapshot that is understood."""
    gpus = [{"nvml": gpu["index"], "addressing": "", "fabric_problem": "", **gpu} for gpu in found["gpus"]]
    migs = [{"placement": [], **mig} for mig in found["mig"]]
    requests = {**policy.defaults()["requests"], **found["policy"]["requests"]}
    more = {"gpus": gpus, "mig": migs, "policy": {**found["policy"], "requests": requests}}
    return {"form": found["version"], "absent": [], **found, **more}  # type: ignore[typeddict-item]


def of_another(config: str, state: str) -> Snapshot | None:
    """Return the saved snapshot if another version has written it, and it is true as far as this one can say."""
    found: Any = ensure.own(f"{state}/{ensure.SNAPSHOT}") if trust.ours(state) else {}
    try:
        if not understood(found) or found["inputs"]["config"] != config or not ensure.alive(found):
            return None
        then, now = found["stamp"], ensure.current(found["inputs"])
        same = all(then.get(name) == fact for name, fact in now.items())
        return completed(found) if same and found["told"] == ensure.launcher_facts(state) else None
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None
