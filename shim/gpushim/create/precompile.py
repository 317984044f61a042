"""Join what a create and a hook import into one compiled file each: `stub.py compile`, run at installation.

After the start of Python, imports cost a create most: for each module the import system searches directories, opens a
file and checks it. One file for all of them costs half of that. It is used only by the Python that wrote it (its
magic number comes first) and while every source is unchanged (size and mtime, as Python itself checks); else the
modules are imported one by one. Out of scope: all other modules.
"""

from __future__ import annotations

import ast
import compileall
import marshal
import os
import sys
from importlib.util import MAGIC_NUMBER
from types import CodeType

from gpushim.paths.replace import replace

# In this order each finds those that it imports; packages end with a dot.
CREATE = """
    gpushim. gpushim.ground. gpushim.ground.errors gpushim.ground.bounds gpushim.ground.fastjson gpushim.ground.system
    gpushim.paths. gpushim.paths.trust gpushim.paths.walk gpushim.paths.logfile
    gpushim.oci. gpushim.oci.bundle gpushim.oci.authorization gpushim.oci.device_names gpushim.oci.selection
    gpushim.oci.device_list
    gpushim.oci.require gpushim.oci.request gpushim.oci.edits gpushim.oci.hookargs
    gpushim.inventory. gpushim.inventory.ensure
    gpushim.decision. gpushim.decision.hook_entry gpushim.decision.plan gpushim.decision.decide
    gpushim.create. gpushim.create.ahead
    gpushim.create.create
"""
HOOK = """
    gpushim. gpushim.ground. gpushim.ground.errors gpushim.ground.bounds gpushim.ground.fastjson
    gpushim.ground.machines gpushim.oci. gpushim.oci.hookargs
    gpushim.paths. gpushim.paths.walk gpushim.paths.mountinfo gpushim.paths.directory gpushim.paths.rootfs
    gpuhook. gpuhook.inject. gpuhook.inject.roots gpuhook.loader. gpuhook.loader.options gpuhook.loader.ldcache
    gpuhook.loader.finish gpuhook.inject.cover gpuhook.confine gpuhook.prestart
"""

# The code at the file's beginning; it runs where the rest of the file is called `modules`.
LOADER = """
posix.close(fd)
spec = type(sys.__spec__)("precompiled", None)  # each import of a module without one raises an error and drops it
for root, file, size, changed, _, _, code in modules:
    if code:
        status = posix.stat(roots[root] + file)
        if (status.st_size, status.st_mtime_ns) != (size, changed):
            raise ImportError
for root, file, _, _, name, package, code in modules:
    module = sys.modules[name] = type(sys)(name)
    module.__file__, module.__package__, module.__spec__ = roots[root] + file, package, spec
    if name == package:
        module.__path__ = [roots[root] + file[: -len("/__init__.py")]]
    if code:
        exec(code, module.__dict__)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
main = module.main
"""


def main() -> None:
    """Compile everything below the source root, and write the precompiled files."""
    shim = os.path.abspath(__file__).rpartition("/gpushim/")[0]
    hook = os.path.join(os.path.dirname(shim), "hook")
    hook = hook if os.path.isdir(hook + "/gpuhook") else shim  # a checkout; installed, both are in one directory
    roots = {"gpushim": shim, "gpuhook": hook}
    for package, root in roots.items():
        compileall.compile_dir(os.path.join(root, package), quiet=1)
    write(roots, CREATE, 'roots = {"gpushim": root}')
    write(roots, HOOK, 'roots = {"gpuhook": lib, "gpushim": lib + "%s"}' % ("" if hook == shim else "/../shim"))


def write(roots: dict[str, str], names: str, roots_code: str) -> None:
    """Write the precompiled file of these modules into the __pycache__ of the last one, which has a `main`.

    `roots_code` is a statement that sets `roots`, the packages' directories, in the script that runs the file.
    """
    modules = []
    for name in names.split():
        package, _, last = name.rpartition(".")
        top = name.partition(".")[0]
        file = "/" + package.replace(".", "/") + f"/{last or '__init__'}.py"
        path = roots[top] + file
        status, code = os.stat(path), compiled(path)
        bare = None if not last and not code.co_names else code  # a package that says what it is for, and no more
        modules.append((top, file, status.st_size, status.st_mtime_ns, name.rstrip("."), package, bare))
    target = f"{roots[top]}/{package.replace('.', '/')}/__pycache__/{last}.{sys.implementation.cache_tag}.precompiled"
    loader = compile(roots_code + LOADER, "<precompiled>", "exec", dont_inherit=True)
    replace(target, MAGIC_NUMBER + marshal.dumps((loader, modules)))


def compiled(path: str) -> CodeType:
    """Compile a source without what a run does not need: docstrings, annotations and imports for them."""
    with open(path, encoding="utf-8") as source:
        tree = _Bare().visit(ast.parse(source.read(), path))
    name = "<" + path.rpartition("/")[2] + ">"  # the same wherever the tree is
    code: CodeType = compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True, optimize=2)
    return code


class _Bare(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return ast.copy_location(ast.Assign([node.target], node.value) if node.value else ast.Pass(), node)

    def visit_If(self, node: ast.If) -> ast.AST:
        for_mypy = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse
        return ast.copy_location(ast.Pass(), node) if for_mypy else self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if node.module == "__future__" else node
