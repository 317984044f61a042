"""Which module imports which, and the list of rooms in docs/architecture.md.

A room is a folder with an __init__.py. An import inside a function counts, for it only hides what stands on what, and
so does one for the type checker. Out of scope: which imports there may be (tests/unit/test_import_rules.py).
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PACKAGES = {"gpushim": TOP / "shim", "gpuhook": TOP / "hook", "gpuplugin": TOP / "plugin"}
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
    """Return the rooms of each package, each below those that it imports."""
    return "\n".join(f"- `{name.replace('.', '/')}/`: {purpose(name)}" for name in _ordered(rooms()))


def _ordered(imported: dict[str, set[str]]) -> list[str]:
    names: list[str] = []
    for package in PACKAGES:
        left = {name for name in imported if name.partition(".")[0] == package}
        while left:
            ready = [name for name in left if not (imported[name] - {name}) & left]
            if not ready:
                raise SystemExit(f"pages: rooms import each other: {', '.join(sorted(left))}")
            names += sorted(ready)
            left -= {*ready}
    return names
