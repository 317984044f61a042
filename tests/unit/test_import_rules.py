"""Rooms are folders: what each is for, and which others it may import, a table in docs/architecture.md says.

An import inside a function counts, for it only hides what stands on what, and so does one for the type checker.
Commands that are looked up by name (gpushim/cli/__init__.py, gpuhook/nvidia/dispatch.py) are no imports.
"""

from __future__ import annotations

import ast
import functools
import re
from graphlib import TopologicalSorter
from pathlib import Path

TOP = Path(__file__).parents[2]
PACKAGES = {"gpushim": TOP / "shim", "gpuhook": TOP / "hook", "gpuplugin": TOP / "plugin"}
ROW = re.compile(r"^\| `(gpu[\w/]+)/` \| (.+) \| ([\w/ ]*)\|$", re.MULTILINE)
EVERYWHERE = {"gpushim", "gpushim.ground", "gpushim.paths"}  # the version is in gpushim/__init__.py


def imports(tree: ast.AST) -> set[str]:
    """The modules, and the names in them, that a source imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@functools.lru_cache
def collected() -> dict[str, set[str]]:
    """Each module of ours with what it imports."""
    found = {}
    for package, base in PACKAGES.items():
        for path in (base / package).rglob("*.py"):
            name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            found[name] = imports(ast.parse(path.read_text()))
    return found


def graph() -> dict[str, set[str]]:
    """Each module with those of ours that it imports."""
    modules = collected()
    return {
        name: {one if one in modules else one.rpartition(".")[0] for one in found} & modules.keys() - {name}
        for name, found in modules.items()
    }


FOLDERS = {
    ".".join(path.parent.relative_to(base).parts)
    for package, base in PACKAGES.items()
    for path in (base / package).rglob("__init__.py")
}


def room(module: str) -> str:
    return module if module in FOLDERS else module.rpartition(".")[0]


def table() -> dict[str, tuple[str, set[str]]]:
    """Each room's purpose, and the rooms that it may import: of its own package if there is one of that name."""
    found = {}
    for path, purpose, words in ROW.findall((TOP / "docs/architecture.md").read_text()):
        own = [f"{path.partition('/')[0]}.{word.replace('/', '.')}" for word in words.split()]
        here = path.replace("/", ".")
        named = [one if one in FOLDERS - {here} else one.partition(".")[2] for one in own]
        others = {one if one in FOLDERS else f"gpushim.{one}" for one in named}
        found[here] = (purpose, others)
    return found


ROOMS = table()


def arrows() -> dict[str, set[str]]:
    """Each room with the others that its modules import."""
    found: dict[str, set[str]] = {name: set() for name in FOLDERS}
    for module, others in graph().items():
        found[room(module)] |= {room(other) for other in others} - {room(module)}
    return found


def test_every_folder_is_a_room() -> None:
    assert ROOMS.keys() == FOLDERS


def test_a_room_imports_what_the_table_says() -> None:
    found = {name: others - EVERYWHERE for name, others in arrows().items()}
    assert found == {name: others for name, (_, others) in ROOMS.items()}


def test_a_room_says_what_it_is_for() -> None:
    paths = {name: PACKAGES[name.partition(".")[0]] / name.replace(".", "/") / "__init__.py" for name in FOLDERS}
    docstrings = {name: ast.get_docstring(ast.parse(path.read_text())) or "" for name, path in paths.items()}
    first = {name: text.partition("\n")[0] for name, text in docstrings.items()}
    assert first == {name: f"{purpose}." for name, (purpose, _) in ROOMS.items()}


def test_no_rooms_and_no_modules_import_each_other() -> None:
    TopologicalSorter(arrows()).prepare()  # raises CycleError, which names them
    TopologicalSorter(graph()).prepare()


def test_packages_stand_on_each_other_in_one_order() -> None:
    below = {name: {other.partition(".")[0] for other in found} for name, found in arrows().items()}
    of = {
        package: {other for name in below if name.partition(".")[0] == package for other in below[name]}
        for package in PACKAGES
    }
    assert of == {"gpushim": {"gpushim"}, "gpuhook": {"gpushim", "gpuhook"}, "gpuplugin": {"gpushim", "gpuplugin"}}


def test_what_speaks_to_kubelet_alone_knows_grpc() -> None:
    """Names, man pages and --check need none, and no module of it is loaded before the settings are known."""
    knows = {name for name, found in collected().items() if any(f"{one}.".startswith("grpc.") for one in found)}
    assert {room(name) for name in knows} == {"gpuplugin.kubelet"}


def test_what_counts_as_an_import() -> None:
    text = "if TYPE_CHECKING:\n    import a\ndef f():\n    from b import c\nif x:\n    import d.e"
    assert imports(ast.parse(text)) == {"a", "b.c", "d.e"}
    assert [room(name) for name in ("gpushim.cdi", "gpushim.cdi.form", "gpuhook.prestart")] == [
        "gpushim.cdi",
        "gpushim.cdi",
        "gpuhook",
    ]
