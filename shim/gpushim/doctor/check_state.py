"""Checks of gpushim's own things: configuration, snapshot, log, the files that are installed, Python.

Out of scope: CDI specs (check_cdi.py).
"""

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
    discounted,
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
UNSAID = f"look for it in docs/errors.md; then {REFRESH}"  # which has what is refused
NOTED = f"mend what it names, where containers lack something; then {REFRESH}"
# What a sentence of ours has behind what is wrong.
ADVICE = re.compile(r"; |: (?:correct|install|load|make|reboot|set)\b|run gpushim")
PYTHON = "/usr/bin/python3"  # what the launcher starts
OLDEST = (3, 9)
NEEDED = 1 << 20  # bytes that must be free where bundles and snapshot are
# What a fact of the stamp is about.
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
        yield broken(host.problem, _corrected(host.config))
    elif absent:
        for path in (host.driver["root"], host.driver["dev-root"]):
            seen.exists(path)  # checks.py warns of what this user may not look up
        yield broken(absent, f"{corrected(host.config)}, or start what puts the driver there; then {REFRESH}")
    elif os.path.exists(host.config):
        yield ok(f"{host.config} is valid")
    else:
        yield ok(f"there is no {host.config}: all settings have their defaults")


def _corrected(config: str) -> str:
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
    found, stale = ensure.last(host.config, host.state)
    changed: list[str] = []
    if stale == "host":  # none, if it has only expired
        then, now = dict(found["stamp"]), dict(ensure.current(found["inputs"]))
        changed = [words for fact, words in FACTS.items() if then[fact] != now[fact]]
    if os.path.lexists(host.state) and not trust.ours(host.state):
        yield skipped(f"{path} is not used, because state-directory is broken")
    elif not os.path.lexists(path):
        yield warning(f"there is no {path}: the first GPU container waits for a refresh", REFRESH)
    elif stale == "policy":
        yield warning(f"{path} is not used: {discounted.why(path, host.config)}", REFRESH)
    elif changed:
        yield warning(f"{path} is stale: {some(changed)} changed since {found['written']}", REFRESH)
    elif found["error"]:
        yield broken(found["error"]["sentence"], _then(found["error"]["sentence"]))
    else:
        for note in found["notes"]:
            yield warning(f"the snapshot notes: {note}", fix_of_note(note))
        if not found["notes"]:
            old = f"; it is older than {found['life']} s, so the next GPU container lists again" if stale else ""
            yield ok(f"{path} of {found['written']} matches the host: {len(found['gpus'])} GPUs{old}")


def fix_of_note(note: str) -> str:
    """Return what a note of a snapshot says itself; most are no fault, and docs/errors.md has none of them."""
    return THEN if ADVICE.search(note) else NOTED


def _then(sentence: str) -> str:
    return THEN if ADVICE.search(sentence) else UNSAID


def log(host: Host) -> Iterator[Finding]:
    """Check that the log can be written."""
    path = host.settings["log"]["file"]
    folder, other = os.path.dirname(path), f"change file under [log] in {shlex.quote(host.config)}"
    if not path:
        yield skipped("no log is kept")
    elif not os.path.lexists(folder):
        yield warning(
            f"the log's directory {folder} does not exist: nothing is logged", f"mkdir -p {shlex.quote(folder)}"
        )
    elif logfile.refused(path):
        if logfile.refused(f"{path}.gpushim-doctor"):
            why = (
                f"does not lie in a directory, or users other than root own or can write to {folder} or one above it"
            )
            yield warning(f"the log {path} {why}: nothing is logged", other)
        else:
            yield warning(f"the log {path} {_no_log(os.lstat(path))}: nothing is logged", untrusted.away(path))
    elif os.path.isfile(path) and os.stat(path).st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        yield warning(
            f"the log {path} has mode {mode:04o}: everybody can forge and delete lines", untrusted.away(path)
        )
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        if os.geteuid():
            yield skipped(f"user {os.geteuid()} may not write {path}, so containers of that user are not logged")
        else:
            yield warning(f"the log {path} cannot be written: its file system is read-only", other)
    else:
        yield ok(f"{path} can be written")


def _no_log(status: os.stat_result) -> str:
    """Say why logfile.py refuses to write a log."""
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
        return "is neither a file nor a FIFO"
    return f"is user {status.st_uid}'s" if not trust.trusted(status.st_uid) else f"has {status.st_nlink} names"


def space(host: Host) -> Iterator[Finding]:
    """Check that there is room for config.json, the snapshot and the log."""
    needed = (host.state, f"{host.top}/run")
    full = [place for place in needed if _is_full(place)]
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
        yield ok(f"{' and '.join(needed)} have room")


def _is_full(folder: str) -> bool:
    """Return whether a directory, or the next one above it that is there, lies on a file system without room."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize < NEEDED or bool(free.f_files and not free.f_favail)


def installed(host: Host) -> Iterator[Finding]:
    """Check that nobody but root can change the code that engines run as root."""
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
    """Check the Python of the create path."""
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
    found = [p for folder in host.settings["cdi"]["spec-dirs"] for p in listing(folder) if p.endswith(".yaml")]
    if not found:
        yield skipped("no CDI spec is in YAML")
        return
    root = os.path.dirname(os.path.dirname(os.path.abspath(gpushim.__file__)))
    script = f"import sys; sys.path += [{root + '/vendor'!r}, {root + '/../vendor'!r}]; import yaml"
    answer = ask.program([f"{host.top}{PYTHON}", "-IBS", "-c", script])
    system = ask.program([f"{host.top}{PYTHON}", "-IB", "-c", "import yaml"])
    if answer.code and system.code:
        yield warning(f"PyYAML is missing, so {some(found)} cannot be read", "install PyYAML (package python3-yaml)")
    else:
        yield ok(f"PyYAML is there for {some(found)}")


def units(host: Host) -> Iterator[Finding]:
    """Check that refreshes are run, by systemd or by `gpushim refresh --keep`."""
    if host.unit("gpushim-refresh.service"):
        asked = f"{system.STATE_DIR}/{SOCKET}"
        unit = host.unit(UNIT)  # masked, it is not wanted
        if os.path.realpath(unit or os.devnull) == os.devnull or os.path.lexists(host.top + asked):
            yield ok("gpushim-refresh.service is installed")
        else:
            yield warning(
                f"{UNIT} is installed, and {asked} is not there: a container that finds the list of GPUs out of "
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
    """Check that the programs that engines call are there."""
    try:
        yield ok(" and ".join(setup.installed(name) for name in (setup.PROGRAM, setup.HOOK)) + " are there")
    except GpushimError as error:
        # These write the same again before they are there.
        blocks = (("", "gpushim configure"), ("", "gpushim-hook"), ("cdi-paths", "gpushim refresh"))
        yield broken(str(error), host.install("them"), blocks)
