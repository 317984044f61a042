"""Exit codes and refusals for docs/errors.md, from the sources that raise them.

What varies in a sentence is "..." here, and one that is wrong in FEW words explains itself: it is left out.
Listed is what engines print of a container (LISTED, ROOTS): commands print theirs on the terminal, the device plugin
and the DRA driver in events and logs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
ERRORS = TOP / "shim/gpushim/ground/errors.py"
ROOTS = ("shim", "hook")
SHELLS = ("shim/gpushim/launcher", "shim/gpushim/removed")
LISTED = range(10, 128)
FEW = 4
CODE = re.compile(r"^([A-Z_]+) = (\d+)  # (.+)$", re.MULTILINE)
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


def sentences() -> str:
    """Return the refusals by code, each once, by what is wrong."""
    by_code: dict[int, dict[str, str]] = {code: {} for code in meanings() if code in LISTED}
    for code, sentence in (*_raised(), *_of_shells()):
        wrong = sentence.partition(";")[0]
        if code in by_code and len(re.findall("[A-Za-z]{2,}", wrong)) > FEW:
            by_code[code].setdefault(wrong, re.sub(r"[:;,]? ?\.\.\.$", "", sentence.strip()))
    parts = [
        "\n".join((f"### {code}", "", "```text", *sorted(texts.values(), key=_key), "```"))
        for code, texts in by_code.items()
        if texts
    ]
    return "\n\n".join(parts)


def _table() -> str:
    """Return the source of the exit codes: what stands above the first blank lines behind them."""
    return ERRORS.read_text(encoding="utf-8").partition("# Exit codes")[2].partition("\n\n\n")[0]


def _raised() -> Iterator[tuple[int, str]]:
    numbers = {name: int(number) for name, number, _ in CODE.findall(_table())}
    for root in ROOTS:
        for path in sorted((TOP / root).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
                    code = numbers.get(ast.unparse(node.args[1]), 0) if len(node.args) > 1 else 0
                    if code:
                        yield code, re.sub(r"(?:\.\.\. ?)+(?=\.\.\.)", "", _text(node.args[0]))


def _of_shells() -> Iterator[tuple[int, str]]:
    for name in SHELLS:
        text = (TOP / name).read_text(encoding="utf-8") if (TOP / name).exists() else ""
        for code, sentence in re.findall(r"\bfail (\d+) '([^']*)'", text):
            yield int(code), sentence


def _text(node: ast.AST) -> str:
    """Return a text of the source, with "..." for what varies."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return "..."


def _key(sentence: str) -> str:
    return re.sub("[^a-z]", "", sentence.lower())
