"""CRI-O: a drop-in file, or the file that somebody names, and what `crio status config` says.

CRI-O reads every file of its drop-in directory, whatever its name, and adds up runtimes by name; it always does CDI.
Out of scope: RuntimeClass, which gives the runtime to pods.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

from gpushim.engines import Plan, Wish, dropin, is_ours, programs, running, tomltext, undo
from gpushim.engines.files import Change
from gpushim.errors import GpushimError, quote

PROGRAM = "crio"
UNIT = "crio.service"
CONFIG, DIRECTORY = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
FILE = "99-gpushim.toml"
STATUS_SECONDS = 20
RUNTIMES = ("crio", "runtime", "runtimes")
DEFAULT = ("crio", "runtime", "default_runtime")
# What the default runtime has and a runtime beside it needs too.
_SHARED = ("runtime_root", "monitor_path", "monitor_cgroup", "monitor_env", "allowed_annotations")


def plan(wish: Wish) -> Plan:
    """Work out what to change in CRI-O's settings.

    Args:
        wish: what somebody wants.

    Raises:
        GpushimError: the file cannot be read, understood or safely changed.
    """
    engine, notes = (None, []) if wish.files_only else running.reading(PROGRAM, "", CONFIG)
    main, folder = CONFIG, DIRECTORY
    if engine:
        main = engine.config or engine.environ.get("CONTAINER_CONFIG") or CONFIG
        given = engine.option("--config-dir", "-d") or [engine.environ.get("CONTAINER_CONFIG_DIR", DIRECTORY)]
        folder = given[-1]
        main, folder = engine.seen(main), engine.seen(folder) if folder else ""
    path = wish.config or (f"{folder}/{FILE}" if folder else main)
    if wish.remove:
        change = dropin.take_out(KIND, path)
    else:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", wish.name):
            raise GpushimError(f"{quote(wish.name)} cannot be the name of a runtime in CRI-O; take another")
        change = _change(wish, path, dropin.merged([main, folder] if folder else [main]))
    if wish.cdi:
        notes.append("CRI-O always does CDI: there is nothing to turn on")
    return Plan(path, [change] if change.new != change.old else [], notes, engine)


def verify(wish: Wish, found: Plan) -> list[str]:
    """Ask CRI-O whether it has what somebody wanted.

    Args:
        wish: what that is.
        found: from `plan`.

    Returns:
        a sentence for each thing that is missing.
    """
    # Before version 1.26 a program of its own asked.
    for name, *words in ((PROGRAM, "status", "config"), ("crio-status", "config")):
        command = [programs.find(name), *words]
        try:
            if not command[0]:
                continue
            done = subprocess.run(command, capture_output=True, timeout=STATUS_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return _missing(wish, tomltext.parse(done.stdout, "the answer of CRI-O"))
    return ["CRI-O does not answer `crio status config`; see its journal"]


def _missing(wish: Wish, text: str) -> list[str]:
    has = is_ours(tomltext.get(text, (*RUNTIMES, wish.name, "runtime_path")))
    if wish.remove:
        return [f"CRI-O still has the runtime {wish.name}"] if has else []
    missing = [] if has else [f"CRI-O does not have the runtime {wish.name}"]
    if wish.default and tomltext.get(text, DEFAULT) != wish.name:
        missing.append(f"the default runtime is {tomltext.get(text, DEFAULT)}; a later file of CRI-O's may set it")
    return missing


def _change(wish: Wish, path: str, known: dict[str, Any]) -> Change:
    runtimes = dropin.table(known, *RUNTIMES)
    if wish.config:
        runtimes = {**runtimes, **dropin.table(dropin.merged([path]), *RUNTIMES)}
    now = dropin.table(runtimes, wish.name).get("runtime_path")
    dropin.check_entry(path, wish.name, now, is_ours(now), wish.force)
    like = dropin.table(runtimes, str(dropin.table(known, *DEFAULT[:-1]).get("default_runtime")))
    entry = {"runtime_path": wish.program, "runtime_type": "oci"}
    entry.update({key: like[key] for key in _SHARED if like.get(key)})
    settings: dict[tuple[str, ...], Any] = {(*RUNTIMES, wish.name, "runtime_path"): wish.program}
    if now is not None and not is_ours(now):
        settings = {(*RUNTIMES, wish.name): entry}
    if wish.default:
        settings[DEFAULT] = wish.name
    return dropin.put(KIND, path, settings, {(*RUNTIMES, wish.name): entry})


def _settings(text: str) -> list[undo.Setting]:
    runtimes = tomltext.get(text, RUNTIMES)
    entries = runtimes.items() if isinstance(runtimes, dict) else ()
    names = [name for name, entry in entries if isinstance(entry, dict) and is_ours(entry.get("runtime_path"))]
    return [
        *(undo.Setting((*RUNTIMES, name), certain=True) for name in names),
        undo.Setting(DEFAULT, certain=tomltext.get(text, DEFAULT) in names),
    ]


KIND = undo.Kind(tomltext, _settings, dropin.HEADER.format(engine="crio"))
