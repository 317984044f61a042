"""A variable is the noun of what it holds, and a docstring begins with a verb that says what comes back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PACKAGES = (TOP / "shim/gpushim", TOP / "hook/gpuhook", TOP / "plugin/gpuplugin")
PRONOUNS = {
    *("all", "another", "anything", "both", "each", "everything", "it", "its", "itself", "many", "mine"),
    *("more", "most", "much", "nobody", "nothing", "one", "ones", "other", "others", "ours", "own", "rest"),
    *("same", "some", "somebody", "something", "that", "theirs", "them", "these", "they", "thing", "things"),
    *("this", "those", "what", "which", "who", "whole", "whom", "whose"),
    *("again", "behind", "beside", "here", "home", "homes", "how", "inside", "now", "page", "place", "places"),
    *("then", "there", "way", "ways", "when", "where", "why", "without"),
    *("asked", "done", "found", "given", "giver", "gone", "held", "kept", "known", "left", "meant", "met"),
    *("named", "needed", "noted", "owed", "put", "rival", "said", "seen", "settled", "shown", "spared", "taken"),
    *("told", "wanted", "written"),
}
OTHERS = ("tests", "bench", "tools", "packaging")
LIMIT = 3.0  # percent of the names that a room binds


def modules() -> dict[str, Path]:
    """The sources by their path below the package's parent."""
    return {str(path.relative_to(top.parent)): path for top in PACKAGES for path in top.rglob("*.py")}


def bound(tree: ast.AST) -> list[str]:
    """Each name that a source binds to a value, as often as it does: by assignment, as a parameter or by `as`."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.append(node.name)
    return [name for name in names if name not in ("self", "cls") and name.strip("_")]


def pronouns(names: list[str]) -> list[str]:
    return [name for name in names if name.strip("_") in PRONOUNS]


def docstrings(tree: ast.AST) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [text for node in ast.walk(tree) if isinstance(node, kinds) if (text := ast.get_docstring(node))]


ROOMS = sorted({name.rpartition("/")[0] for name in modules()})


@pytest.mark.parametrize("room", ROOMS)
def test_a_rooms_variables_are_nouns(room: str) -> None:
    paths = [path for name, path in modules().items() if name.rpartition("/")[0] == room]
    names = [name for path in paths for name in bound(ast.parse(path.read_text()))]
    assert 100 * len(pronouns(names)) <= LIMIT * len(names), sorted(pronouns(names))


@pytest.mark.parametrize(
    ("folders", "verbs"), [(("shim", "hook", "plugin"), ("Say", "Tell", "Let")), (OTHERS, ("Say", "Tell"))]
)
def test_docstrings_begin_with_the_verb_of_what_is_done(folders: tuple[str, ...], verbs: tuple[str, ...]) -> None:
    paths = [path for folder in folders for path in (TOP / folder).rglob("*.py") if ".cache" not in path.parts]
    sources = {str(path): path.read_text() for path in paths}
    assert len(sources) > 300
    pattern = re.compile(rf"""["']\s*({"|".join(verbs)})\b""")  # parsing them all takes seconds
    texts = {name: docstrings(ast.parse(source)) for name, source in sources.items() if pattern.search(source)}
    assert [(name, text) for name in texts for text in texts[name] if text.split()[0] in verbs] == []


def test_what_counts_as_bound() -> None:
    source = "def f(found, *, _left=1):\n    with a as b:\n        here: int = [x for x in known]\n        use(why)"
    assert bound(ast.parse(source)) == ["found", "_left", "b", "here", "x"]
    assert pronouns(bound(ast.parse(source))) == ["found", "_left", "here"]
