"""The entry point of NVIDIA's programs: the name of the process tells which of them it is.

    nvidia-cdi-hook ..., nvidia-ctk hook ...  cdi_hook.py
    nvidia-ctk ...                            ctk.py
    nvidia-container-cli configure ...        container_cli_configure.py
    nvidia-container-cli ...                  gpushim/nvidia/container_cli/info.py

What engines wait for starts at once; what people call has click and site-packages too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(argv: list[str], top: str) -> None:
    """Run as one of NVIDIA's programs, argv[0]; `top` is the directory above the one that the program is in."""
    name = argv[0].rpartition("/")[2]
    if name == "nvidia-container-cli":
        from gpushim.nvidia.container_cli.cli_options import find_command

        if find_command(argv[1:]) == "configure":
            from gpuhook.nvidia import container_cli_configure

            container_cli_configure.main(argv[1:])
        _for_people("container_cli.info", top).main(argv[1:])
    elif name == "nvidia-ctk" and [word for word in argv[1:] if not word.startswith("-")][:1] != ["hook"]:
        _for_people("ctk", top).main(prog_name=name)
    else:
        from gpuhook.nvidia import cdi_hook

        cdi_hook.main(argv)


def _for_people(name: str, top: str) -> Any:
    """Import a program of this room that needs what `gpushim` does: the launcher left site-packages out."""
    import gc
    import site
    from importlib import import_module

    gc.enable()  # the launcher of a hook is without, too
    site.main()
    sys.path += [sys.path[0] + "/vendor", top + "/vendor"]
    return import_module("gpushim.nvidia." + name)
