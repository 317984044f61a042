"""Exit codes and refusals for docs/errors.md, from the sources that raise them.

What varies in a sentence is "..." here, and one that is wrong in FEW words explains itself: it is left out.
Listed is what engines print of a container (LISTED, ROOTS): commands print theirs on the terminal, the device plugin
and the DRA driver in events and logs.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
ERRORS = TOP / "shim/gpushim/ground/errors.py"
ROOTS = ("shim", "hook")
SHELLS = ("shim/gpushim/launcher", "shim/gpushim/removed")
LISTED = range(10, 128)
FEW = 4
CODE = re.compile(r"^([A-Z_]+) = (\d+)  # (.+)$", re.MULTILINE)
OPTIONAL = re.compile(r"(?:[:;,] ?|(?<=\w))\.\.\.$")  # the end of a sentence that is whole without it
PAGE = re.compile(r" \((\w[\w-]*\.md(?:#[\w-]+)?)\)$")


def meanings() -> dict[int, tuple[str, str]]:
    """Return what each exit code means, and the page about it or "", in order."""
    found = {}
    for _, number, text in CODE.findall(_table()):
        page = PAGE.search(text)
        found[int(number)] = (PAGE.sub("", text), page[1] if page else "")
    return dict(sorted(found.items()))


def codes() -> str:
    """Return the table of exit codes."""
    rows = ["| code | meaning | more |", "| --- | --- | --- |"]
    for code, (text, page) in meanings().items():
        rows.append(f"| `{code}` | {text} | {f'[{page}]({page})' if page else ''} |")
    return "\n".join(rows)


@functools.cache
def sentences() -> str:
    """Return the refusals by code, each once, by what is wrong."""
    by_code: dict[int, dict[str, str]] = {code: {} for code in meanings() if code in LISTED}
    for code, sentence in (*_raised(), *_of_shells()):
        wrong = sentence.partition(";")[0]
        if code in by_code and len(re.findall("[A-Za-z]{2,}", wrong)) > FEW:
            by_code[code].setdefault(wrong, OPTIONAL.sub("", sentence.strip()))
    parts = [
        "\n".join((f"### {code}", "", "```text", *sorted(texts.values(), key=_key), "```"))
        for code, texts in by_code.items()
        if texts
    ]
    return "\n\n".join(parts)


@functools.cache
def _table() -> str:
    """Return the source of the exit codes: what stands above the first blank lines behind them."""
    return ERRORS.read_text(encoding="utf-8").partition("# Exit codes")[2].partition("\n\n\n")[0]


def _raised() -> Iterator[tuple[int, str]]:
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for root in ROOTS for path in sorted((TOP / root).rglob("*.py"))
    ]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    owners = {
        node: function
        for tree in trees
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    for node in calls:
        if isinstance(node.func, ast.Name) and node.func.id.endswith("Error") and len(node.args) > 1:
            for code in _codes(node.args[1], owners.get(node), calls):
                yield code, re.sub(r"(?:\.\.\. ?)+(?=\.\.\.)", "", _text(node.args[0], _values(owners.get(node))))


def _codes(node: ast.expr | None, function: ast.FunctionDef | None, calls: list[ast.Call]) -> list[int]:
    """Return the exit codes that an expression can be: a constant, one of two, or what callers give a parameter."""
    numbers = {name: int(number) for name, number, _ in CODE.findall(_table())}
    if isinstance(node, ast.IfExp):
        return [code for part in (node.body, node.orelse) for code in _codes(part, function, calls)]
    if not isinstance(node, ast.Name):
        return []
    parameters = [parameter.arg for parameter in function.args.args] if function else []
    if not function or node.id not in parameters:
        return [numbers[node.id]] if node.id in numbers else []
    position, defaults = parameters.index(node.id), function.args.defaults
    given: list[ast.expr | None] = [*defaults[position - len(parameters) :][:1]] if defaults else []
    for call in calls:
        if ast.unparse(call.func).rpartition(".")[2] == function.name:
            given += call.args[position : position + 1]
            given += [keyword.value for keyword in call.keywords if keyword.arg == node.id]
    return [code for value in given for code in _codes(value, None, calls)]


def _of_shells() -> Iterator[tuple[int, str]]:
    for name in SHELLS:
        text = (TOP / name).read_text(encoding="utf-8") if (TOP / name).exists() else ""
        for code, sentence in re.findall(r"\bfail (\d+) '([^']*)'", text):
            yield int(code), sentence


def _values(function: ast.FunctionDef | None) -> dict[str, ast.expr]:
    """Return what a function assigns to each of its variables that it assigns once; it may append more."""
    nodes = list(ast.walk(function)) if function else []
    appended = [node.target for node in nodes if isinstance(node, ast.AugAssign)]
    names = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    bound = Counter(node.id for node in names if node not in appended)
    pairs = [(node.targets[0], node.value) for node in nodes if isinstance(node, ast.Assign)]
    return {name.id: value for name, value in pairs if isinstance(name, ast.Name) and bound[name.id] == 1}


def _text(node: ast.AST, values: dict[str, ast.expr]) -> str:
    """Return a text of the source, with "..." for what varies; a variable that is always one text is that."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, values) + _text(node.right, values)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, values) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, values)
    if isinstance(node, ast.Name) and isinstance(values.get(node.id), (ast.Constant, ast.JoinedStr)):
        return _text(values[node.id], {})
    return "..."


def _key(sentence: str) -> str:
    return re.sub("[^a-z]", "", sentence.lower())
