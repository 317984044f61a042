"""The doors for callers of NVIDIA's programs: by its name, a process knows whose place it takes.

    nvidia-ctk hook ...                 cdihook.py
    nvidia-ctk ...                      gpushim.cli.ctk
    nvidia-container-cli configure ...  container_cli.py
    nvidia-container-cli ...            gpushim.cli.container_cli

What engines wait for starts at once; what people call has click and site-packages too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = ("nvidia-ctk", "nvidia-container-cli")


def main(argv: list[str], top: str) -> None:
    """Run as one of NVIDIA's programs.

    Args:
        argv: the program's name, one of NAMES, and the words behind it.
        top: directory above the one that the program is in.
    """
    words = [word for word in argv[1:] if not word.startswith("-")]
    if argv[0].rpartition("/")[2] == "nvidia-ctk":
        if words[:1] == ["hook"]:
            from gpuhook import cdihook

            cdihook.main(argv)
        else:
            _bring_libraries(top)
            import_module("gpushim.cli.ctk").main(prog_name="nvidia-ctk")
        return
    from gpuhook import container_cli

    command = container_cli.command_of(argv[1:])
    if command == "configure":
        container_cli.main(argv[1:])
    _bring_libraries(top)
    import_module("gpushim.cli.container_cli").main(argv[1:])


def import_module(name: str) -> Any:
    """Import a module by its name; importlib takes its time too."""
    from importlib import import_module as found

    return found(name)


def _bring_libraries(top: str) -> None:
    """Let this process import what `gpushim` imports: the launcher left site-packages out, which take their time."""
    import site

    site.main()
    sys.path += [sys.path[0] + "/vendor", top + "/vendor"]
