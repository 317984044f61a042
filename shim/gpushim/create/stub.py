"""Start gpushim's code on the system's bare Python (`python3 -IBS stub.py WHAT ...`).

A script is compiled at each start, a module once: every line here costs a create half a percent of Python's start.
"""

import gc
import marshal
import posix
import sys

root = __file__.rpartition("/gpushim/")[0] or "."
sys.path.append(root)
gc.disable()  # a create ends in execve soon; collecting would be 4 % of it
try:  # all that a create imports, in one file, which brings `main` (precompile.py)
    fd = posix.open(
        root + "/gpushim/create/__pycache__/" + sys.argv[1] + "." + sys.implementation.cache_tag + ".precompiled", 0
    )
    if posix.read(fd, 4) != sys.modules["_frozen_importlib_external"].MAGIC_NUMBER:
        raise ImportError
    load, modules = marshal.loads(posix.read(fd, 1 << 20))  # noqa: S302 - as any .pyc
    exec(load)  # noqa: S102 - defines main, of `modules`
except Exception:  # noqa: BLE001 - there is none, or not of this Python, or not of these sources
    from gpushim.create.verbs import main
main(sys.argv[2:])
