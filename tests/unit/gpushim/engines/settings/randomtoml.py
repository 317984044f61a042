"""Random TOML: valid, of every spelling of names and values, with comments, around an engine's settings."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from gpushim.engines.settings import syntax
from gpushim.engines.settings.text import Toml

VALUES = (
    "1", "0x1F", "1_000", "0.5e3", "nan", "-inf", "true", "07:32:00", "1979-05-27 07:32:00Z",
    "1979-05-27", '""', "''",
    '"# no comment"', "'[no.header]'", '"\\" \\\\ \\u00e9"', '"""\n[no.header]\n# no "comment"\n"""',
    "'''\nx = 'y'\n# no\n'''", '"""a""""', '[]', '["a", "b"]', '[ # {c}\n  1, # {c}\n\n  2\n  # {c}\n]', "{}",
    '{ x = 1, "y" = [ { z = "}" } ] }', "{a.b = 1, a.c = '#'}", '"""\\\n  a \\\n  b"""', "[[1], ['a', \"]\"]]",
)  # fmt: skip
OTHERS = ("a", "b", "x y", "é", "", "a.b", "#", "[x]", "key", "127")


def name(rng: random.Random, plain: str) -> str:
    """Write a name in one of its forms."""
    forms = [json.dumps(plain, ensure_ascii=False), json.dumps(plain)]
    forms += [plain] * 3 if plain and plain.replace("_", "").replace("-", "").isalnum() and plain.isascii() else []
    forms += [f"'{plain}'"]
    return rng.choice(forms)


def key(rng: random.Random, names: list[str]) -> str:
    dot = rng.choice([".", ".", " . ", " .", "\t.\t"])
    return dot.join(name(rng, each) for each in names)


class Document:
    """A text that grows statement by statement, each of which leaves it valid."""

    def __init__(self, rng: random.Random, vocabulary: Mapping[tuple[str, ...], tuple[str, ...]]) -> None:
        self.rng, self.vocabulary, self.text, self.count = rng, vocabulary, "", 0

    def comment(self) -> str:
        self.count += 1
        return f"# c{self.count} " + self.rng.choice(["", "[x]", '"', "'''", "= {", "é"])

    def grown(self, size: int) -> str:
        """Return a text of about as many statements."""
        for _ in range(size):
            self.add(self.statement())
        if self.rng.random() < 0.15:
            self.text = self.text.rstrip("\n")
        if self.rng.random() < 0.15:
            self.text = self.text.replace("\n", "\r\n")
        return self.text

    def add(self, statement: str) -> None:
        text = self.text + statement
        if valid(text):
            self.text = text

    def table(self) -> list[str]:
        """Return a table of the engine's, or one on the way to it, or another."""
        rng = self.rng
        path = [*rng.choice([*self.vocabulary])][:-1]
        path = path[: rng.randint(0, len(path))] if rng.random() < 0.3 else path
        path += [rng.choice(OTHERS)] if rng.random() < 0.2 or not path else []
        return path if rng.random() < 0.8 else [rng.choice(OTHERS) for _ in range(rng.randint(1, 3))]

    def pair(self) -> tuple[list[str], str]:
        """Return a setting of the engine's, now and then of another kind than it takes, or another."""
        rng = self.rng
        if rng.random() < 0.5:
            path, values = rng.choice([*self.vocabulary.items()])
            return [*path], rng.choice(values if rng.random() < 0.97 else VALUES)
        return [*self.table(), rng.choice(OTHERS)], rng.choice(VALUES)

    def statement(self) -> str:
        rng = self.rng
        indent = rng.choice(["", "", "  ", "\t"])
        behind = rng.choice(["", "", " ", f"  {self.comment()}", f"\t{self.comment()}"])
        kind = rng.random()
        if kind < 0.2:
            return f"{indent}{self.comment()}\n"
        if kind < 0.3:
            return rng.choice(["\n", "  \n"])
        if kind < 0.55:
            space = rng.choice(["", "", " "])
            both = ("[[", "]]") if rng.random() < 0.05 else ("[", "]")
            return f"{indent}{both[0]}{space}{key(rng, self.table())}{space}{both[1]}{behind}\n"
        names, value = self.pair()
        names = names[rng.randrange(len(names)) :] if rng.random() < 0.7 else names
        while "{c}" in value:
            value = value.replace("{c}", self.comment()[2:], 1)
        equals = rng.choice([" = ", "=", "  =\t"])
        return f"{indent}{key(rng, names)}{equals}{value}{behind}\n"


def valid(text: str) -> bool:
    try:
        syntax._parser().loads(text)
    except ValueError:
        return False
    return True


def meaning(text: str) -> dict[str, Any]:
    """Return what a text says; a nan equals itself."""
    return Toml(text).data
