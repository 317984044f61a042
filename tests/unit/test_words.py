"""One word for one thing: names that hid what a thing is have not come back (docs/architecture.md, "Words")."""

from __future__ import annotations

import functools
import io
import re
import tokenize
from pathlib import Path

TOP = Path(__file__).parents[2]
SOURCES = [path for base in ("shim", "hook", "plugin") for path in sorted((TOP / base).rglob("*.py"))]
RETIRED = {
    *("ail", "ails", "blind", "figures", "genuine", "givers", "hush", "joined", "keeper", "kept", "loose", "place"),
    *("places", "said", "stranger", "strangers", "told", "trouble", "troubles", "unread", "wanted", "wish"),
}
# Members of JSON, which other versions and programs read.
MEMBERS = {"shim/gpushim/ground/model.py: told", "plugin/gpuplugin/health/causes.py: told", "health.py: told"}


@functools.cache
def names_of(source: str) -> set[str]:
    return {token.string for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == 1}


def words_of(name: str) -> set[str]:
    return {*re.split("[_0-9]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())}


def retired(source: str) -> set[str]:
    """The names of a source, and its own, that have a retired word in them."""
    return {name for name in names_of(source) if RETIRED & words_of(name)}


def test_names_have_the_fields_words() -> None:
    found = {
        f"{path.relative_to(TOP)}: {name}"
        for path in SOURCES
        for name in retired(path.read_text()) | retired(path.stem)
    }
    assert {one for one in found if not one.endswith(tuple(MEMBERS))} == set()


def test_few_words_are_our_own_and_the_code_has_each() -> None:
    section = (TOP / "docs/architecture.md").read_text().partition("\n## Words\n")[2].partition("\n## ")[0]
    own = {word.lower() for word in re.findall(r"^- \*\*(\w+)\*\*", section, re.M)}
    used = {word for path in SOURCES for name in names_of(path.read_text()) for word in words_of(name)}
    assert 0 < len(own) <= 10
    assert {word for word in own if not {word, f"{word}s"} & used} == set()


def test_a_modules_name_stands_once() -> None:
    """But for the command line's, whose files have their commands' names, and what a package has at its top."""
    names = [path.stem for path in SOURCES if "cli" not in path.parts and not path.stem.startswith("__")]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == set()


def test_what_counts_as_one() -> None:
    assert retired("_told = Wish(mps_trouble, untold)  # wanted") == {"_told", "Wish", "mps_trouble"}
