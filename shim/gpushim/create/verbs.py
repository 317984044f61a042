"""What stub.py starts: `create`, if there is no precompiled file; `refresh`; `compile`, at installation."""

from __future__ import annotations

import gc
import sys


def main(argv: list[str]) -> None:
    """Run the verb that stub.py got; `argv` are the words after it."""
    if sys.argv[1] == "create":
        from gpushim.create import create

        create.main(argv)
    gc.enable()
    root = sys.path[-1]
    if sys.argv[1] == "compile":
        from gpushim.create import precompile

        precompile.main()
    else:
        from gpushim.refresh import refresh

        sys.path += [root + "/vendor", root + "/../vendor"]  # private dependencies
        refresh.main(argv)
