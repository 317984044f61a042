"""Collect the sentences of all errors from the source: what GpushimError is raised with, and the launcher's `fail`.

What varies in a sentence is written as "...". A name that was assigned in the same function is followed, and so is a
call of a function of the same file; the rest, sentences that come from elsewhere, is told apart. Beside these there
are sentences that a child returns with its code (inventory/ensure.py), the ends of some (PARTS), and what the schema
of config.toml refuses.

The source is read, and not what tests raise, because a quarter of these sentences come from child processes and from
kernels and engines that unit tests do not have: a page held against what was raised would not miss them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushim.ground import errors

TOP = Path(__file__).resolve().parents[2]
USAGE = 2
# Files where a sentence's end is one of a dict's values, and that dict.
PARTS = {"shim/gpushim/engines/settings/rewrite.py": "_REASONS"}
# Generators whose sentences follow the name of a file, and the code that they are raised with.
FOLLOWING = {"shim/gpushim/config/policy.py": ("problems", errors.CONFIG)}


@dataclass(frozen=True)
class Sentence:
    """A sentence, its exit code (0 where the source computes it), and where it stands."""

    text: str
    code: int
    place: str


class _File:
    """One file of Python, and what is found in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        self.functions = {node.name: node for node in ast.walk(self.tree) if isinstance(node, functions)}
        self.elsewhere: list[str] = []

    def sentences(self) -> Iterator[Sentence]:
        name = str(self.path.relative_to(TOP))
        for function in self.functions.values():
            for node in _own(function):
                if isinstance(node, ast.Call) and _name(node.func) == "GpushimError":
                    texts, code = self.texts(node.args[0], function), _code(node.args[1:])
                elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and _coded(node.value):
                    texts, code = self.texts(node.value.elts[1], function), _code(node.value.elts[:1])
                elif isinstance(node, ast.Yield) and node.value and FOLLOWING.get(name, [""])[0] == function.name:
                    texts = [f"...: {text}" for text in self.texts(node.value, function)]
                    code = FOLLOWING[name][1]
                else:
                    continue
                for text in texts:
                    yield Sentence(text.replace("......", "..."), code, f"{name}:{getattr(node, 'lineno', 0)}")
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and PARTS.get(name) == _name(node.targets[0]):
                assert isinstance(node.value, ast.Dict)
                for value in node.value.values:
                    yield Sentence(f"... {_text(value)}", errors.FAILED, f"{name}:{value.lineno}")

    def texts(self, node: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
        """The texts that an expression may have."""
        if isinstance(node, ast.IfExp):
            return [*self.texts(node.body, function), *self.texts(node.orelse, function)]
        if isinstance(node, ast.BoolOp):
            return [text for value in node.values for text in self.texts(value, function)]
        if isinstance(node, ast.Name):
            found = [
                text
                for each in _own(function)
                if isinstance(each, ast.Assign) and [_name(target) for target in each.targets] == [node.id]
                for text in self.texts(each.value, function)
            ]
            if found:
                return found
        if isinstance(node, ast.Call) and _name(node.func) in self.functions:
            callee = self.functions[_name(node.func)]
            returned = [each.value for each in _own(callee) if isinstance(each, ast.Return) and each.value]
            return [text for value in returned for text in self.texts(value, callee)]
        text = _text(node)
        if not re.search("[a-z]", text):
            self.elsewhere.append(f"{self.path.relative_to(TOP)}: {ast.unparse(node)}")
            return []
        return [text]


def collected() -> tuple[list[Sentence], list[str]]:
    """Return all sentences, and the expressions whose sentences come from elsewhere."""
    found: list[Sentence] = []
    elsewhere: list[str] = []
    for path in sorted(one for root in ("shim", "hook", "plugin") for one in (TOP / root).rglob("*.py")):
        file = _File(path)
        found += file.sentences()
        elsewhere += file.elsewhere
    launcher = TOP / "shim/gpushim/launcher"
    for code, text in re.findall(r"\|\| fail (\d+) '([^']*)'", launcher.read_text()):
        found.append(Sentence(text, int(code), "shim/gpushim/launcher"))
    return found, elsewhere


def _own(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Walk a function without those that are defined in it, which are walked by themselves."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop(0)
        yield node
        waiting += [
            each
            for each in ast.iter_child_nodes(node)
            if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.JoinedStr):
        return re.sub(r"(\.\.\.){2,}", "...", "".join(map(_text, node.values)))
    return "..."


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _coded(node: ast.Tuple) -> bool:
    """Say whether a function returns an exit code with something else."""
    return len(node.elts) == 2 and (_name(node.elts[0]) == "code" or _name(node.elts[0]) in vars(errors))


def _code(rest: list[ast.expr]) -> int:
    if not rest:
        return errors.FAILED
    name = _name(rest[0])
    return USAGE if name == "USAGE" else int(getattr(errors, name, 0))
