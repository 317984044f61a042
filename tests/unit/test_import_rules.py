"""Rooms are folders, which stand on each other in one order (docs/architecture.md, "Rooms")."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

from page_rooms import PACKAGES, graph, imports, modules, purpose, room, rooms

TESTS = Path(__file__).parents[1]
MENTION = re.compile(r"(?:\bimport|[.,(])\s*test_")  # which every import of a test module has


def test_every_room_says_what_it_is_for() -> None:
    assert {name for name in rooms() if not purpose(name)} == set()


def test_no_rooms_and_no_modules_import_each_other() -> None:
    TopologicalSorter(rooms()).prepare()  # raises CycleError, which names them
    TopologicalSorter(graph()).prepare()


def test_packages_stand_on_each_other_in_one_order() -> None:
    below = {name: {other.partition(".")[0] for other in found} for name, found in rooms().items()}
    of = {
        package: {other for name in below if name.partition(".")[0] == package for other in below[name]}
        for package in PACKAGES
    }
    assert of == {"gpushim": {"gpushim"}, "gpuhook": {"gpushim", "gpuhook"}, "gpuplugin": {"gpushim", "gpuplugin"}}


def test_what_speaks_to_kubelet_alone_knows_grpc() -> None:
    """Names, man pages and --check need none, and no module of it is loaded before the settings are known."""
    knows = {name for name, found in modules().items() if any(f"{one}.".startswith("grpc.") for one in found)}
    assert {room(name) for name in knows} == {"gpuplugin.kubelet"}


def test_no_test_module_is_imported() -> None:
    """What tests share is in a module with a name of its own; but vulnerable builds name the tests that find them."""
    paths = {str(path.relative_to(TESTS)): path for path in TESTS.rglob("*.py") if ".cache" not in path.parts}
    tests = {name.removesuffix(".py").replace("/", ".") for name in paths if "/test_" in name}
    assert len(tests) > 300
    shared = {
        (name, test)
        for name, path in paths.items()
        if not Path(name).name.startswith("vulnerable_") and name != "e2e/vulnerable.py"
        if MENTION.search(source := path.read_text())  # parsing them all takes seconds
        for imported in imports(ast.parse(source))
        for test in (imported, imported.rpartition(".")[0])
        if test in tests
    }
    assert shared == set()


def test_what_counts_as_an_import() -> None:
    text = "if TYPE_CHECKING:\n    import a\ndef f():\n    from b import c\nif x:\n    import d.e"
    assert imports(ast.parse(text)) == {"a", "b.c", "d.e"}
    assert [room(name) for name in ("gpushim.cdi", "gpushim.cdi.form", "gpuhook.prestart")] == [
        "gpushim.cdi",
        "gpushim.cdi",
        "gpuhook",
    ]
