"""Checks of gpushim's own configuration, snapshot, log, installed files and Python."""

from __future__ import annotations

import os
import re
import shlex
import stat
from typing import TYPE_CHECKING

import gpushim
from gpushim.config import policy
from gpushim.doctor import (
    REFRESH,
    Finding,
    Host,
    broken,
    corrected,
    listing,
    ok,
    pods,
    skipped,
    some,
    untrusted,
    warning,
)
from gpushim.engines.processes import ask
from gpushim.engines.settings import setup
from gpushim.ground import seen, system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.inventory.renew import SOCKET, UNIT
from gpushim.paths import logfile, trust
from gpushim.refresh import keep

if TYPE_CHECKING:
    from collections.abc import Iterator

THEN = f"do what it says, if that is not done yet; then {REFRESH}"
UNSAID = f"look for it in docs/errors.md; then {REFRESH}"  # which has the refusals
NOTED = f"mend what it names, where containers lack something; then {REFRESH}"
# The beginnings of the advice in a sentence of ours.
ADVICE = re.compile(r"; |: (?:correct|install|load|make|reboot|set)\b|run gpushim")
PYTHON = "/usr/bin/python3"  # what the launcher starts
OLDEST = (3, 9)
NEEDED = 1 << 20  # bytes that must be free where bundles and snapshot are
# The subjects of the stamp's facts.
FACTS = {
    "boot": "the boot",
    "config": "config.toml",
    "module": "the module",
    "majors": "the major numbers",
    "gpus": "the GPUs",
    "mig": "the MIG instances",
    "libraries": "ld.so.cache",
    "nodes": "the device nodes or files",
}


def config(host: Host) -> Iterator[Finding]:
    """Check that config.toml is valid."""
    absent = policy.absent(host.driver)
    if host.problem:
        yield broken(host.problem, _config_fix(host.config))
    elif absent:
        for path in (host.driver["root"], host.driver["dev-root"]):
            seen.exists(path)  # checks.py warns of what this user may not look up
        yield broken(absent, f"{corrected(host.config)}, or start what puts the driver there; then {REFRESH}")
    elif os.path.exists(host.config):
        yield ok(f"{host.config} is valid")
    else:
        yield ok(f"there is no {host.config}: all settings have their defaults")


def _config_fix(config: str) -> str:
    try:
        if os.geteuid() and not os.access(config, os.R_OK):
            return "gpushim doctor"  # this user may not read it; root may
        if stat.S_ISREG((status := os.stat(config)).st_mode) and trust.others_may(status):
            return untrusted.file(config)
    except OSError:
        pass
    return f"{corrected(config)}; then gpushim config check"


def directory(host: Host) -> Iterator[Finding]:
    """Check that only root can write to the state directory."""
    try:
        status = os.lstat(host.state)
    except OSError:
        yield warning(f"{host.state} does not exist: the first GPU container waits for a refresh", REFRESH)
        return
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        yield broken(f"{host.state} is not a directory", f"rm {shlex.quote(host.state)} && {REFRESH}")
    elif trust.others_may(status):
        yield broken(
            f"{host.state} cannot be trusted: user {status.st_uid} owns it, its mode is {mode:04o}",
            f"rm -r {shlex.quote(host.state)} && {REFRESH}",
        )
    else:
        yield ok(f"only root can write to {host.state}")


def snapshot(host: Host) -> Iterator[Finding]:
    """Check that the snapshot exists, is current, and has GPUs."""
    path = f"{host.state}/{ensure.SNAPSHOT}"
    inventory, stale = ensure.last(host.config, host.state)
    changed: list[str] = []
    if stale == "host":  # none, if it has only expired
        saved, host_stamp = dict(inventory["stamp"]), dict(ensure.current(inventory["inputs"]))
        changed = [words for fact, words in FACTS.items() if saved[fact] != host_stamp[fact]]
    if os.path.lexists(host.state) and not trust.ours(host.state):
        yield skipped(f"{path} is not used, because state-directory is broken")
    elif not os.path.lexists(path):
        yield warning(f"there is no {path}: the first GPU container waits for a refresh", REFRESH)
    elif stale == "policy":
        yield warning(f"{path} is not used: {_unused_reason(path, host.config)}", REFRESH)
    elif changed:
        yield warning(f"{path} is stale: {some(changed)} changed since {inventory['written']}", REFRESH)
    elif inventory["error"]:
        yield broken(inventory["error"]["sentence"], _refresh_fix(inventory["error"]["sentence"]))
    else:
        for note in inventory["notes"]:
            yield warning(f"the snapshot notes: {note}", fix_of_note(note))
        if not inventory["notes"]:
            old = f"; it is older than {inventory['life']} s, so the next GPU container lists again" if stale else ""
            yield ok(f"{path} of {inventory['written']} matches the host: {len(inventory['gpus'])} GPUs{old}")


def _unused_reason(path: str, config: str) -> str:
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
    if snapshot.get("form") != ensure.FORM or snapshot.get("gpushim") != gpushim.__version__:
        return f"another version of gpushim wrote it ({snapshot.get('gpushim')}; this is {gpushim.__version__})"
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


def fix_of_note(note: str) -> str:
    """Return the fix for a note of a snapshot; most are no fault, and docs/errors.md has none of them."""
    return THEN if ADVICE.search(note) else NOTED


def _refresh_fix(sentence: str) -> str:
    return THEN if ADVICE.search(sentence) else UNSAID


def log(host: Host) -> Iterator[Finding]:
    """Check that the log can be written."""
    path = host.settings["log"]["file"]
    folder, fix = os.path.dirname(path), f"change file under [log] in {shlex.quote(host.config)}"
    if not path:
        yield skipped("no log is kept")
    elif not os.path.lexists(folder):
        yield warning(
            f"the log's directory {folder} does not exist: nothing is logged", f"mkdir -p {shlex.quote(folder)}"
        )
    elif logfile.refused(path):
        if logfile.refused(f"{path}.gpushim-doctor"):
            reason = (
                f"does not lie in a directory, or users other than root own or can write to {folder} or one above it"
            )
            yield warning(f"the log {path} {reason}: nothing is logged", fix)
        else:
            yield warning(f"the log {path} {_log_problem(os.lstat(path))}: nothing is logged", untrusted.away(path))
    elif os.path.isfile(path) and os.stat(path).st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        yield warning(
            f"the log {path} has mode {mode:04o}: everybody can forge and delete lines", untrusted.away(path)
        )
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        if os.geteuid():
            yield skipped(f"user {os.geteuid()} may not write {path}, so containers of that user are not logged")
        else:
            yield warning(f"the log {path} cannot be written: its file system is read-only", fix)
    else:
        yield ok(f"{path} can be written")


def _log_problem(status: os.stat_result) -> str:
    """Return why logfile.py refuses to write a log."""
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
        return "is neither a file nor a FIFO"
    return f"is user {status.st_uid}'s" if not trust.trusted(status.st_uid) else f"has {status.st_nlink} names"


def space(host: Host) -> Iterator[Finding]:
    """Check that there is room for config.json, the snapshot and the log."""
    folders = (host.state, f"{host.top}/run")
    full = [folder for folder in folders if _is_full(folder)]
    log = os.path.dirname(host.settings["log"]["file"])
    room = "remove what is not needed there, or make it larger"
    if full:
        yield broken(
            f"the file system of {some(full)} is full (`df -h` or `df -i` shows it): no container can be given GPUs",
            room,
        )
    elif log and _is_full(log):
        yield warning(f"the file system of {log} is full (`df -h` or `df -i` shows it): nothing is logged", room)
    else:
        yield ok(f"{' and '.join(folders)} have room")


def _is_full(folder: str) -> bool:
    """Return whether a directory, or the nearest existing one above it, lies on a file system without room."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize < NEEDED or bool(free.f_files and not free.f_favail)


def installed(host: Host) -> Iterator[Finding]:
    """Check that only root can change the code that engines run."""
    top = host.code
    writable = []
    for folder, _, names in os.walk(top):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode) and (status.st_uid or status.st_mode & trust.OTHERS_WRITE):
                writable.append(path)
    if writable and os.geteuid() == 0:
        yield broken(
            f"users other than root can change what engines run as root: {some(writable)}",
            f"remove {shlex.quote(top)} and install gpushim again",
        )
    else:
        yield ok(f"{'only root can change' if not writable else 'this user runs its own'} {top}")


def python(host: Host) -> Iterator[Finding]:
    """Check that the Python that starts containers is 3.9 or newer and complete."""
    path = f"{host.top}{PYTHON}"
    answer = ask.program([path, "-IBS", "-c", "import sys; print(*sys.version_info[:3], sep='.')"])
    version = answer.out.strip()
    if answer.code != 0:
        yield broken(f"{PYTHON} does not run: {answer.last}", "install Python 3 (package python3)")
    elif tuple(int(part) for part in version.split(".")) < OLDEST:
        yield broken(f"{PYTHON} is {version}", f"install Python {OLDEST[0]}.{OLDEST[1]} or newer there")
    else:
        yield ok(f"{PYTHON} is {version}")


def yaml(host: Host) -> Iterator[Finding]:
    """Check that CDI specs in YAML can be read, if there are any."""
    documents = [p for folder in host.settings["cdi"]["spec-dirs"] for p in listing(folder) if p.endswith(".yaml")]
    if not documents:
        yield skipped("no CDI spec is in YAML")
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(gpushim.__file__)))
    script = f"import sys; sys.path += [{root + '/vendor'!r}, {root + '/../vendor'!r}]; import yaml"
    answer = ask.program([f"{host.top}{PYTHON}", "-IBS", "-c", script])
    system = ask.program([f"{host.top}{PYTHON}", "-IB", "-c", "import yaml"])
    if answer.code and system.code:
        yield warning(
            f"PyYAML is missing, so {some(documents)} cannot be read", "install PyYAML (package python3-yaml)"
        )
    else:
        yield ok(f"PyYAML is there for {some(documents)}")


def units(host: Host) -> Iterator[Finding]:
    """Check that refreshes are run, by systemd or by `gpushim refresh --keep`."""
    if host.unit("gpushim-refresh.service"):
        socket = f"{system.STATE_DIR}/{SOCKET}"
        unit = host.unit(UNIT)  # masked, it is not wanted
        if os.path.realpath(unit or os.devnull) == os.devnull or os.path.lexists(host.top + socket):
            yield ok("gpushim-refresh.service is installed")
        else:
            yield warning(
                f"{UNIT} is installed, and {socket} is not there: a container that finds the list of GPUs out of "
                "date lists them itself, within the limits of its tenant",
                f"systemctl enable {UNIT} && systemctl restart {UNIT}",
            )
    elif keep.runs(host.state):
        yield ok("gpushim refresh --keep runs" + (", by gpushim-node" if host.by_node else ""))
    elif host.by_node:
        yield warning(
            "gpushim-node has put gpushim here, and its gpushim refresh --keep does not run: the list of GPUs is not "
            "renewed, which gpushim's device plugin in a pod waits for, nor are CDI specs",
            pods("node"),
        )
    elif not os.path.isdir(host.top + system.SYSTEMD):
        yield skipped(
            "neither systemd runs here nor gpushim refresh --keep, which another init could run: CDI specs are not "
            "renewed, and containers list the GPUs"
        )
    else:
        yield warning(
            "gpushim-refresh.service is not installed: CDI specs are not renewed after a boot or a driver upgrade",
            "install gpushim's package, which brings it",
        )


def programs(host: Host) -> Iterator[Finding]:
    """Check that the programs that engines call exist."""
    try:
        yield ok(" and ".join(setup.installed(name) for name in (setup.PROGRAM, setup.HOOK)) + " are there")
    except GpushimError as error:
        # These commands need the programs.
        blocks = (("", "gpushim configure"), ("", "gpushim-hook"), ("cdi-paths", "gpushim refresh"))
        yield broken(str(error), host.install("them"), blocks)
