"""Which room of the source may import which, and that no modules import each other in a circle.

An import inside a function counts, for it only hides what stands on what; one for the type checker does not. Commands
that are looked up by name (gpushim/cli/__init__.py, gpushim/nvidia/dispatch.py) are no imports.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

TOP = Path(__file__).parents[2]
# Room: its modules, by the longest beginning of a name that fits; the rooms, or single modules, that it may import.
ROOMS = {
    "ground": ("gpushim", ""),
    "inventory": ("gpushim.inventory", "ground"),
    "decision": (
        "gpushim.decide gpushim.plan gpushim.not_given gpushim.unread gpushim.refusal gpushim.explain",
        "ground inventory cdi",
    ),
    "create": (
        "gpushim.create gpushim.again gpushim.update gpushim.verbs gpushim.stub",
        "ground inventory decision refresh",
    ),
    "refresh": ("gpushim.refresh gpushim.keep gpushim.asked gpushim.wanted", "ground inventory cdi"),
    "cdi": ("gpushim.cdi", "ground decision gpushim.inventory.ensure"),
    "engines": ("gpushim.engines", "ground cdi decision gpuhook.walk"),
    "holders": ("gpushim.holders gpushim.names gpushim.runtime_state", "ground engines"),
    "claims": ("gpushim.claims", "ground decision"),
    "pods": ("gpushim.pods gpushim.kubelet", "ground inventory decision claims holders"),
    "doctor": ("gpushim.doctor", "ground inventory cdi engines migrate claims gpushim.kubelet"),
    "hook": ("gpuhook", "ground decision"),
    "migrate": (
        "gpushim.nvidia.migrate gpushim.nvidia.migrate_keys gpushim.nvidia.migrate_engines "
        "gpushim.nvidia.migrate_plugin gpushim.nvidia.device_plugin gpushim.nvidia.device_plugin_keys",
        "ground cdi engines",
    ),
    "nvidia": ("gpushim.nvidia", "ground inventory decision engines hook migrate cli"),
    "cli": ("gpushim.cli", "ground inventory decision refresh cdi engines holders pods doctor migrate"),
    # The device plugin: what a node has is told apart from how kubelet asks for it.
    "kubelet": (
        "gpuplugin.protobuf gpuplugin.v1beta1 gpuplugin.sockets gpuplugin.service gpuplugin.endpoint "
        "gpuplugin.podresources gpuplugin.plugins",
        "ground claims gpuplugin.tasks gpuplugin.counts",
    ),
    "resources": (
        "gpuplugin.resources gpuplugin.preferred gpuplugin.sharing gpuplugin.forms gpuplugin.division",
        "ground",
    ),
    "settings": (
        "gpuplugin.settings gpuplugin.profiles",
        "ground resources gpuplugin.xids gpushim.nvidia.device_plugin gpushim.nvidia.device_plugin_keys",
    ),
    "mps": ("gpuplugin.mps", "ground inventory"),
    "kept": ("gpuplugin.kept", "ground inventory"),
    "allocation": ("gpuplugin.allocation gpuplugin.cdi", "ground cdi resources mps"),
    "children": (
        "gpuplugin.watching gpuplugin.listening gpuplugin.asking gpuplugin.kmsg gpuplugin.limits gpuplugin.figures",
        "ground inventory",
    ),
    "supervisor": (
        "gpuplugin.mps_supervisor gpuplugin.mps_control gpuplugin.compute_mode",
        "ground inventory resources mps children",
    ),
    # What puts all of it onto a node, from an image.
    "node": ("gpuplugin.node", "ground engines cli gpushim.inventory.rooted gpushim.wanted"),
    "book": (
        "gpuplugin.book gpuplugin.book_state gpuplugin.page gpuplugin.recorded gpuplugin.changes gpuplugin.evidence "
        "gpuplugin.promised",
        "ground inventory claims resources gpushim.kubelet",
    ),
    "offer": ("gpuplugin.offer", "ground book mps inventory resources settings allocation gpuplugin.v1beta1"),
    "told": (
        "gpuplugin.check gpuplugin.explain gpuplugin.labels gpuplugin.labels_file",
        "ground inventory book decision cdi cli resources settings allocation children offer kept",
    ),
    # The container beside the plugin, without GPUs.
    "cluster": (
        "gpuplugin.cluster gpuplugin.node_label gpuplugin.node_feature gpuplugin.in_cluster",
        "ground gpuplugin.labels_file",
    ),
    "plugin": (
        "gpuplugin",
        "ground inventory book claims holders cli kubelet resources settings allocation mps kept children offer told "
        "supervisor cluster gpushim.nvidia.device_plugin gpushim.nvidia.device_plugin_keys gpushim.wanted "
        "gpushim.kubelet",
    ),
}
# What is not so yet. Whoever changes it takes the line out here; a new one needs a better place for the code instead.
NOT_YET = {
    "gpushim.holders imports gpuhook.mountinfo",
    "gpushim.runtime_state imports gpuhook.walk",
    "gpushim.not_given imports gpuhook.finish",
    "gpushim.not_given imports gpuhook.rootfs",
}


def imports(tree: ast.AST) -> set[str]:
    """The modules, and the names in them, that a source imports when it runs."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        found |= imports(node)
    return found


def collected() -> dict[str, set[str]]:
    """Each module of ours with what it imports."""
    found = {}
    for base in (TOP / "shim", TOP / "hook", TOP / "plugin"):
        for path in base.rglob("*.py"):
            name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            found[name] = imports(ast.parse(path.read_text()))
    return found


def room(module: str) -> str:
    fitting = {
        name: beginning
        for name, (members, _) in ROOMS.items()
        for beginning in members.split()
        if f"{module}.".startswith(f"{beginning}.")
    }
    return max(fitting, key=lambda name: len(fitting[name]))


IMPORTS = collected()
# With those of ours.
GRAPH = {
    name: {one if one in IMPORTS else one.rpartition(".")[0] for one in found} & IMPORTS.keys() - {name}
    for name, found in IMPORTS.items()
}


def test_rooms_import_what_they_may() -> None:
    wrong = {
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        for other in others
        if not {room(other), other} & {room(module), *ROOMS[room(module)][1].split()}
    }
    assert wrong == NOT_YET


def test_no_modules_import_each_other() -> None:
    TopologicalSorter(GRAPH).prepare()  # raises CycleError, which names them


def test_what_speaks_to_kubelet_alone_knows_grpc() -> None:
    """Names, man pages and --check need none, and no module of it is loaded before the settings are known."""
    knows = {name for name, found in IMPORTS.items() if any(f"{one}.".startswith("grpc.") for one in found)}
    assert {room(name) for name in knows} == {"kubelet"}


def test_what_counts_as_an_import() -> None:
    text = "if TYPE_CHECKING:\n    import a\ndef f():\n    from b import c\nif x:\n    import d.e"
    assert imports(ast.parse(text)) == {"b.c", "d.e"}
    assert {room(name) for name in ("gpushim", "gpushim.errors", "gpushim.created")} == {"ground"}
