"""The launcher's reading of runc's arguments against runc's own: which verb, and which bundle?

Each bundle's config.json is no JSON and begins with a letter of its own, so that whoever reads it says which it was:
runc as "invalid character 'A'", the launcher's Python as "A/config.json is not valid JSON".
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from e2e import recorder
from fuzz.oracles import scratch

TOP = Path(__file__).parents[3]
LOADER, LIBRARIES = "lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu"
LAUNCHER = TOP / "bin" / "gpushim-runtime"
# Of the host, and of trees of other distributions named in FUZZ_TREES, with the loader and libraries of those.
TREES = [Path(tree) for tree in os.environ.get("FUZZ_TREES", "").split(":") if tree]
RUNCS = [
    ["/usr/sbin/runc"],
    *([f"{tree}/{LOADER}", "--library-path", f"{tree}/{LIBRARIES}", f"{tree}/usr/sbin/runc"] for tree in TREES),
]
WORK = scratch()
CWD = WORK / "cwd"
BUNDLES = {".": "A", "fz": "B", "create": "C", "-b": "D", "--": "E", "run": "F", "fz-x": "G", "=b": "H", "b c\n": "I"}
SEEN = re.compile(r"invalid character '([A-I])' looking for beginning of value")
OURS = re.compile(r"gpushim: (.*)/config\.json is not valid JSON", re.DOTALL)
RAN = "does not exist"  # of a container, says a verb that looks for it
# Options with what they take; "" is a bundle.
GLOBAL = {"--root": "root", "--log": "log", "--log-format": "json", "--criu": "fz", "--rootless": "auto"}
OPTIONS = {"--bundle": "", "-b": "", "--console-socket": "fz", "--pid-file": "-b", "--preserve-fds": "0"}
SWITCHES = ("--debug", "--systemd-cgroup", "--debug=false")
FLAGS = ("--no-pivot", "--no-new-keyring", "--no-pivot=true")
ASKS = ("--help", "-h", "--version", "-v", "-help")
ODD = (*BUNDLES, "", "text", "auto", "0", "fz-none", "./fz", "fz/", *GLOBAL, *OPTIONS, *ASKS, "--unknown", "-x", "-")
OTHERS = ("state", "start", "delete", "kill", "help", "h", "features", "list", "exec", "")
VERBS = (*["create"] * 9, *["run"] * 5, *OTHERS)
IDS = ("fz-x", "create", "run", "fz", "fz-y")  # of no container that anybody on this machine has


class Verdict(NamedTuple):
    bundle: str  # the letter of the bundle that is created from, or ""
    refused: bool  # runc did nothing, for the words are wrong


def seeds() -> list[bytes]:
    """Return nothing: `line` makes all inputs."""
    return []


def line(number: int) -> bytes:
    """Make a command line, words apart by NULs, as engines write them or with something odd in it."""
    choice = random.Random(number)
    words = [word for _ in range(choice.choice((0, 1, 1, 2))) for word in _option(choice, GLOBAL, SWITCHES)]
    words += ["--"] * (choice.random() < 0.05) + [choice.choice(VERBS)]
    rest = [_option(choice, OPTIONS, FLAGS) for _ in range(choice.choice((0, 1, 1, 2, 3)))]
    rest.append([choice.choice(IDS)])
    if choice.random() < 0.3:
        choice.shuffle(rest)
    words += [word for part in rest for word in part]
    if choice.random() < 0.25:
        at = choice.randint(0, len(words))
        words[at : at + choice.choice((0, 0, 1))] = [choice.choice((*ODD, "--"))]
    return b"\0".join(word.encode() for word in words)


def _option(choice: random.Random, names: dict[str, str], switches: tuple[str, ...]) -> list[str]:
    if choice.random() < 0.3:
        return [choice.choice(ASKS if choice.random() < 0.1 else switches)]
    name = choice.choice(list(names))
    value = names[name] or choice.choice(list(BUNDLES))
    name = name[1:] if name.startswith("--") and choice.random() < 0.15 else name
    return [f"{name}={value}"] if choice.random() < 0.4 else [name, value]


def one(data: bytes) -> None:
    """Give a line to each runc and to the launcher."""
    words = [word.decode() for word in data.split(b"\0")]
    ours = _launcher(words)
    for runc in RUNCS:
        theirs = _runc([*runc, *words])
        # Where runc refuses the words, it does not matter whether Python has looked at a bundle before it.
        assert ours == theirs.bundle or theirs.refused, (words, runc, ours, theirs)


def _fresh() -> None:
    for name, letter in BUNDLES.items():
        (CWD / name).mkdir(parents=True, exist_ok=True)
        (CWD / name / "config.json").write_text(f'{letter} "NVIDIA_VISIBLE_DEVICES=0"')


def _runc(words: list[str]) -> Verdict:
    _fresh()
    command = ["/usr/bin/env", "-i", *words]
    done = subprocess.run(command, cwd=CWD, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    said = "\n".join([done.stdout, done.stderr, *_logs()])
    match = SEEN.search(said)
    return Verdict(match[1] if match else "", not match and RAN not in said and done.returncode != 0)


def _logs() -> list[str]:
    """Return what was written to files in the working directory, and remove them."""
    paths = [path for path in CWD.iterdir() if path.is_file() and path.name != "config.json"]
    texts = [path.read_text() for path in paths]
    for path in paths:
        path.unlink()
    return texts


def _launcher(words: list[str]) -> str:
    _fresh()
    env = {"GPUSHIM_STATE": str(WORK), "RECORD": str(WORK / "record.json"), "GPUSHIM_CONFIG": "/nonexistent"}
    command = [str(LAUNCHER), *words]
    done = subprocess.run(
        command, cwd=CWD, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    _logs()
    match = OURS.search(done.stderr)
    return (CWD / match[1] / "config.json").read_text()[0] if match else ""


(WORK / "triggers").touch()
(WORK / "runtime").write_text(f"{recorder.build(WORK)}\n")
