"""Which bundle a command line is about: gpushim-runtime's answer against that of the real runc.

Every bundle's config.json is a different character that is no JSON, and a word that looks like a request. So runc
names the character when it is about to make a container of that bundle, and gpushim names the file when it
wants to edit it; what reaches runc through gpushim must be answered as runc answers without it.
Out of scope: what create and run then do.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from e2e.bundles import RUNTIME
from e2e.witness import RUNC

# Directory by the character in its config.json; names that are options, verbs and delimiters as well.
BUNDLES = {"Q": ".", "A": "A", "B": "B", "C": "create", "R": "run", "X": "-b", "Y": "--", "E": "a=b", "S": "a b"}
NAMES = list(BUNDLES.values())

VERBS = ["create", "run", "create", "run", "state", "start", "restore", "exec", "delete", "features", "list", "help"]
GLOBAL_VALUES = ["--root", "--log", "--log-format", "--criu", "--rootless"]
GLOBAL_FLAGS = ["--debug", "--systemd-cgroup", "--debug=false", "--version", "-v", "--help", "-h", "--version=false"]
VERB_VALUES = ["--console-socket", "--pid-file", "--preserve-fds"]
VERB_FLAGS = ["--no-pivot", "--no-new-keyring", "--no-pivot=true", "--no-new-keyring=0"]
LESS_FLAGS = ["--detach", "-d", "--keep", "--help", "-h"]
BUNDLE = ["--bundle", "-b", "-bundle", "--b"]
ODD = [
    "",
    "-",
    "--",
    "-=",
    "--=A",
    "---b",
    "---b=A",
    *LESS_FLAGS,
    "--unknown",
    "--unknown=A",
    "x",
    "create",
    "run",
    "state",
    "json",
    "0",
    "1",
]

words = st.sampled_from([*ODD, *NAMES, *VERBS, *GLOBAL_VALUES, *GLOBAL_FLAGS, *VERB_VALUES, *VERB_FLAGS, *BUNDLE])


def option(names: list[str], values: list[str]) -> st.SearchStrategy[list[str]]:
    """An option with a value, in one word or in two."""
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(values))
    return pairs.flatmap(lambda pair: st.sampled_from([list(pair), ["=".join(pair)]]))


def flag(names: list[str]) -> st.SearchStrategy[list[str]]:
    """One word out of a list."""
    return st.sampled_from(names).map(lambda name: [name])


def joined(parts: st.SearchStrategy[list[str]], most: int) -> st.SearchStrategy[list[str]]:
    """Some of them, one behind the other."""
    return st.lists(parts, max_size=most).map(lambda lists: [word for words in lists for word in words])


before = joined(
    option(["--root", "--log", "--criu"], ["log", "create", "--"])
    | option(GLOBAL_VALUES, [*ODD, *NAMES])
    | flag(GLOBAL_FLAGS),
    2,
)
behind = joined(option(BUNDLE, ["", *NAMES, "nowhere"]) | option(VERB_VALUES, ["0", "-b", "x"]) | flag(VERB_FLAGS), 2)
# Most command lines make sense to runc, for those are the ones that must not be missed; the rest is anything.
sensible = st.tuples(
    before, flag(["create", "run"]), behind, flag(["x", "create", "run", "x"]), behind | st.just([])
).map(lambda parts: [word for part in parts for word in part])
other_verbs = st.tuples(before, flag(VERBS), behind, st.lists(words, max_size=2)).map(
    lambda parts: [word for part in parts for word in part]
)
argvs = st.one_of(sensible, sensible, other_verbs, st.lists(words, max_size=6))


class Answer(NamedTuple):
    status: int
    output: str
    bundle: str | None  # directory of the config.json that it stumbled over


def ask(program: Path | str, argv: Sequence[str], state: Path) -> Answer:
    """Call a runtime where the bundles are, afresh."""
    with tempfile.TemporaryDirectory(prefix="verbs-") as name:
        work = Path(name) / "cwd"
        for letter, bundle in BUNDLES.items():
            (work / bundle).mkdir(parents=True, exist_ok=True)
            (work / bundle / "config.json").write_text(f'{letter} "NVIDIA_VISIBLE_DEVICES=0"')
        # A state of its own, also where the words name one more: the host's containers are nobody's business here.
        command = [str(program), "--root", f"{name}/state", *argv]
        env = {"GPUSHIM_STATE": str(state), "GPUSHIM_CONFIG": f"{name}/none.toml", "XDG_RUNTIME_DIR": name}
        done = subprocess.run(
            command,
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    output = re.sub(r"time=\S+|verbs-\w+|\d\d:\d\d:\d\d", "", done.stdout + done.stderr)
    runcs = re.search(r"invalid character '(.)' looking for beginning of value", output)
    ours = re.search(r"^gpushim: (.*)/config\.json is not valid JSON", output)
    return Answer(done.returncode, output, ours[1] if ours else BUNDLES[runcs[1]] if runcs else None)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state of the shim in which runc is the low-level runtime."""
    directory = tmp_path_factory.mktemp("state")
    (directory / "triggers").touch()
    (directory / "runtime").write_text(f"{RUNC}\n")
    return directory


def agree(argv: list[str], state: Path) -> str:
    """Assert that gpushim looks where runc looks; return what the command line came to."""
    theirs, ours = ask(RUNC, argv, state), ask(RUNTIME, argv, state)
    looked = ours.output.startswith("gpushim: ")
    if theirs.bundle is not None:
        assert (looked, ours.bundle) == (True, theirs.bundle)  # never missed
        return "both look"
    if looked:
        # Harmless, for runc makes no container of it either: it refuses the words, or explains them.
        assert theirs.bundle is None
        assert theirs.status != 0 or theirs.output.startswith("NAME:\n")
        return "gpushim looks in vain"
    assert ours == theirs
    return "runc alone"


@settings(max_examples=100)
@given(argv=argvs)
@example(argv=["create", "-b", "-b", "x"])
@example(argv=["create", "x", "-b", "--"])
@example(argv=["create", "--no-pivot", "x", "-b", "A"])
@example(argv=["create", "--no-pivot", "--", "-b", "A", "x"])
@example(argv=["--version=false", "run", "-b=a=b", "create"])
@example(argv=["--", "create", "--bundle", "a b", "--", "x"])
def test_gpushim_looks_where_runc_looks(argv: list[str], state: Path) -> None:
    event(agree(argv, state))


@pytest.mark.parametrize("argv", [["create", "A", "x", "--bundle"], ["run", "x", "y", "--pid-file"]])
def test_an_option_at_the_end_takes_the_first_word_that_is_none(argv: list[str], state: Path) -> None:
    assert ask(RUNC, argv, state).bundle is not None  # runc moves options to the front before it reads them
    agree(argv, state)


def test_the_answers_can_be_told_apart(state: Path) -> None:
    assert ask(RUNC, ["create", "-b", "A", "x"], state).bundle == "A"
    assert ask(RUNTIME, ["create", "-b", "A", "x"], state).bundle == "A"
    assert ask(RUNC, ["create", "-b", "A", "x", "y"], state).bundle is None
    assert agree(["create", "x"], state) == "both look"
    assert agree(["state", "create"], state) == "runc alone"
    assert agree(["create", "-b", "A", "x", "y"], state) == "gpushim looks in vain"
