"""Which module imports which, and the table of rooms in docs/architecture.md.

A room is a folder with an __init__.py. An import inside a function counts, for it only hides what stands on what, and
so does one for the type checker. Out of scope: which imports there may be (tests/unit/test_import_rules.py).
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PACKAGES = {"gpushim": TOP / "shim", "gpuhook": TOP / "hook", "gpuplugin": TOP / "plugin"}
EVERYWHERE = {"gpushim", "gpushim.ground", "gpushim.paths"}  # the version is in gpushim/__init__.py
FOLDERS = {
    ".".join(path.parent.relative_to(base).parts)
    for package, base in PACKAGES.items()
    for path in (base / package).rglob("__init__.py")
}


def imports(tree: ast.AST) -> set[str]:
    """Return the modules, and the names in them, that a source imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@functools.lru_cache
def modules() -> dict[str, set[str]]:
    """Return each module of ours with what it imports."""
    names = {}
    for package, base in PACKAGES.items():
        for path in (base / package).rglob("*.py"):
            name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            names[name] = imports(ast.parse(path.read_text(encoding="utf-8")))
    return names


def graph() -> dict[str, set[str]]:
    """Return each module with those of ours that it imports."""
    own = modules()
    return {
        name: {module if module in own else module.rpartition(".")[0] for module in names} & own.keys() - {name}
        for name, names in own.items()
    }


def room(module: str) -> str:
    """Return the room of a module."""
    return module if module in FOLDERS else module.rpartition(".")[0]


def rooms() -> dict[str, set[str]]:
    """Return each room with the others that its modules import."""
    others: dict[str, set[str]] = {name: set() for name in FOLDERS}
    for module, imported in graph().items():
        others[room(module)] |= {room(name) for name in imported} - {room(module)}
    return others


def purpose(name: str) -> str:
    """Return what a room is for: the first line of its docstring."""
    path = PACKAGES[name.partition(".")[0]] / name.replace(".", "/") / "__init__.py"
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0].rstrip(".")


def table() -> str:
    """Return the rooms, each below those that it imports if they are of its package."""
    imported = rooms()
    rows = ["| room | what it is for | imports |", "| --- | --- | --- |"]
    for name in _ordered(imported):
        others = sorted(_shown(other, name) for other in imported[name] - EVERYWHERE)
        rows.append(f"| `{name.replace('.', '/')}/` | {purpose(name)} | {' '.join(others)} |")
    return "\n".join(rows)


def _ordered(imported: dict[str, set[str]]) -> list[str]:
    """Return the rooms by package, in each those first that import the fewest, a room before what imports it."""
    names: list[str] = []
    for package in PACKAGES:
        left = {name for name in imported if name.partition(".")[0] == package}
        while left:
            ready = [name for name in left if not (imported[name] - {name}) & left]
            names += sorted(ready)
            left -= {*ready}
    return names


def _shown(other: str, name: str) -> str:
    package, _, rest = other.partition(".")
    return rest.replace(".", "/") if package in ("gpushim", name.partition(".")[0]) and rest else other
