"""Change a JSON document as a tree, so that it stays one."""

from __future__ import annotations

import json
import random
from typing import Any, Sequence

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e300),
    *("", "x", "/", "..", "\0", "\n", "\r", "\u00e9", "\u0660", "\ud800", "a" * 300),
    *([], {}, [[]], [None], {"": None}, [0], [""], [{}], {"a": {}}),
)


def changed(data: bytes, choice: random.Random, values: Sequence[Any]) -> bytes | None:
    """Change a document in up to four places; None if it is no JSON.

    Args:
        data: of the document.
        choice: decides where and how.
        values: that mean something to the code under test, beside ODD; strings are used as keys too.
    """
    try:
        tree = [json.loads(data)]
        for _ in range(choice.randint(1, 4)):
            _change(tree, choice, values)
        return json.dumps(tree[0], ensure_ascii=choice.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return None


def _change(tree: list[Any], choice: random.Random, values: Sequence[Any]) -> None:
    parent, key = choice.choice(list(_places(tree)))
    others = [place[key] for place, key in _places(tree)]
    what = choice.randrange(6)
    if what == 0 and parent is not tree:
        del parent[key]
    elif what == 1 and isinstance(parent, list) and parent is not tree:
        parent.insert(key, choice.choice(others))
    elif what == 2 and isinstance(parent, dict):
        word = choice.choice([value for value in values if isinstance(value, str)])
        parent[word] = _copy(choice.choice([*values, *others]))
    elif what == 3 and isinstance(parent[key], str):
        parent[key] = _spliced(parent[key], choice, values)
    elif what == 4 and isinstance(parent[key], list):
        parent[key] = [*parent[key], _copy(choice.choice([*values, *ODD, *others]))]
    else:
        parent[key] = _copy(choice.choice([*values, *ODD] if what % 2 else [*values, *others]))


def _places(tree: Any) -> Any:
    """List all (container, key) below a container."""
    found = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    for key, value in found:
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _spliced(text: str, choice: random.Random, values: Sequence[Any]) -> str:
    at = choice.randint(0, len(text))
    word = choice.choice([value for value in (*values, *ODD) if isinstance(value, str)])
    return text[:at] + word + text[min(len(text), at + choice.choice((0, 1, len(word), 1000))) :]


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))
