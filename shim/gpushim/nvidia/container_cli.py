"""`nvidia-container-cli info` and `list`, in the forms that scripts for NVIDIA's program read.

The options are getopt's, not click's, and so are the messages. Out of scope: configure (container_cli_configure.py).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpushim import __version__, plan, selection
from gpushim.cli.program import guard
from gpushim.errors import FAILED, REQUEST, GpushimError, quote
from gpushim.inventory import present
from gpushim.nvidia import getopt
from gpushim.nvidia.getopt import NO, REQUIRED, USAGE
from gpushim.request import AUTOMATIC_KIND, LAST_CHANNEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.nvidia.getopt import Given, Options

PROC_CAPABILITIES = "/proc/driver/nvidia/capabilities"
LABEL_WIDTH = 16
DRIVER_NODES = ("/dev/nvidiactl", *plan.UVM_NODES, plan.MODESET_NODE)
# In this order NVIDIA's program looks for libraries; what belongs to no capability comes last.
ORDER = ("utility", "compute", "ngx", "video", "graphics", "display", "any")
INFO: Options = {"csv": ("", NO), **getopt.HELP}
LIST: Options = {
    "device": ("d", REQUIRED),
    "libraries": ("l", NO),
    "binaries": ("b", NO),
    "ipcs": ("i", NO),
    "firmwares": ("f", NO),
    "compat32": ("", NO),
    "mig-config": ("", REQUIRED),
    "mig-monitor": ("", REQUIRED),
    "imex-channel": ("", REQUIRED),
    "no-persistenced": ("", NO),
    "no-fabricmanager": ("", NO),
    **getopt.HELP,
}
USAGE_TEXT = f"""\
Usage: nvidia-container-cli [OPTION...] COMMAND [ARG...]
This is gpushim's; `gpushim --help` shows what else there is.

  info [--csv]                 the driver and the GPUs
  list [-d ID] [-l] [-b] [-i] [-f] [--compat32] [--imex-channel=N] [--mig-config=all] [--mig-monitor=all]
       [--no-persistenced] [--no-fabricmanager]
                               nodes and files, one path per line; all of them without an option
  configure [-p PID] [-d ID]... [-r CONDITION]... [--compute] [--utility] [--video] [--graphics] [--display]
       [--ngx] [--compat32] [--mig-config=all] [--mig-monitor=all] [--imex-channel=N] [--no-cgroups]
       [--no-devbind] [--no-persistenced] [--no-fabricmanager] [--no-gsp-firmware] [--no-cntlibs]
       [--cuda-compat-mode=mount|ldconfig|disabled] [--ldconfig=PATH] ROOTFS
                               give a created container GPUs and driver

Options: {" ".join("--" + name for name in getopt.GLOBAL)}
"""


def main(words: list[str]) -> None:
    """Run as a process, and exit.

    Args:
        words: behind the program's name.
    """
    guard()
    try:
        code = run(words)
        sys.stdout.flush()
    except GpushimError as error:
        print(getopt.sentence(error), file=sys.stderr)
        code = 1
    sys.exit(code)


def run(words: list[str]) -> int:
    """Do what the words say; returns the exit code.

    Raises:
        GpushimError: the command line is wrong, or the host cannot be listed.
    """
    given, rest = getopt.parse(words, getopt.GLOBAL, in_order=True)
    named = {name for name, _ in given}
    command = rest[0] if rest else ""
    if "version" in named:
        print(f"cli-version: {__version__}\nlib-version: {__version__}\nbuild flags: gpushim")
        return 0
    if named & {"help", "usage"} or {"--help", "--usage", "-?"} & set(rest[1:]):
        print(USAGE_TEXT, end="")
        return 0
    if command not in ("info", "list"):
        if command:
            raise GpushimError(f"{quote(command)} is not a command; there are {', '.join(getopt.COMMANDS)}", USAGE)
        print(USAGE_TEXT, end="", file=sys.stderr)
        return 1
    options, others = getopt.parse(rest[1:], INFO if command == "info" else LIST)
    if others:
        raise GpushimError(f"{command} takes no {quote(others[0])}; see --help", USAGE)
    inventory = present.snapshot()
    getopt.check_root(given, inventory["driver"]["root"])
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])
    text = (
        info(inventory, bool(options))
        if command == "info"
        else "".join(f"{path}\n" for path in paths(options, inventory))
    )
    print(text, end="")
    return 0


def info(inventory: dict[str, Any], csv: bool = False) -> str:
    """Write what NVIDIA's `info` writes.

    Args:
        inventory: the snapshot.
        csv: the form for programs, in which nothing is quoted.
    """
    driver = inventory["driver"]
    about = [("NVRM version", driver["version"]), ("CUDA version", driver["cuda"])]
    gpus = [
        [
            ("Device Index", gpu["index"]),
            ("Device Minor", gpu["minor"]),
            ("Model", gpu["model"]),
            ("Brand", gpu["brand"]),
            ("GPU UUID", gpu["uuid"]),
            ("Bus Location", gpu["pci"]),
            ("Architecture", gpu["arch"]),
        ]
        for gpu in inventory["gpus"]
    ]
    if not csv:
        blocks = [
            "".join(f"{label + ':':{LABEL_WIDTH}}{value}\n" for label, value in rows) for rows in [about, *gpus]
        ]
        return "\n".join(blocks)
    names = ["Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture"]
    lines = [",".join(label for label, _ in about), ",".join(str(value) for _, value in about), "", ",".join(names)]
    lines += [",".join(str(value) for _, value in rows) for rows in gpus]
    return "".join(f"{line}\n" for line in lines)


def paths(options: Given, inventory: dict[str, Any]) -> list[str]:
    """List what NVIDIA's `list` lists, in its order.

    Args:
        options: from the command line.
        inventory: the snapshot.

    Returns:
        paths as seen inside the driver root, each once.

    Raises:
        GpushimError: a device is unknown, or a value malformed.
    """
    named = {name for name, _ in options}
    if not named - {"imex-channel"}:
        named |= {"libraries", "binaries", "ipcs", "firmwares", "compat32", "device"}
        options = [*options, ("device", "all")]
    found = _devices(options, inventory) if "device" in named else []
    found += _channels(options, inventory)
    for name, node in (("mig-config", plan.MIG_CONFIG_NODE), ("mig-monitor", plan.MIG_MONITOR_NODE)):
        if getopt.only_all(options, name):
            found += [f"{PROC_CAPABILITIES}/mig/{name[4:]}", *([node] if node in inventory["nodes"] else [])]
    wanted = [("binaries", "binary", ""), ("libraries", "library", "")]
    wanted += [("libraries", "library32", "32")] if "compat32" in named else []
    wanted += [("ipcs", "socket", ""), ("firmwares", "firmware", "")]
    for option, kind, suffix in wanted:
        if option in named:
            found += _files(inventory, kind, suffix)
    left_out = [f"/nvidia-{name[3:]}/" for name in named if name in ("no-persistenced", "no-fabricmanager")]
    return [path for path in dict.fromkeys(found) if not any(part in path for part in left_out)]


def _files(inventory: dict[str, Any], kind: str, suffix: str) -> Iterable[str]:
    for name in (*ORDER, "mps"):
        for file in inventory["files"].get(name + suffix, ()):
            if file["kind"] == kind:
                yield file["path"]


def _devices(options: Given, inventory: dict[str, Any]) -> list[str]:
    """List the nodes of the driver, and of the GPUs and MIG instances named."""
    nodes = inventory["nodes"]
    if inventory["platform"] != "native":
        return list(nodes)
    words = getopt.words_of(options, "device")
    if any(word.lower() == "all" for word in words):
        words = ["all"]
    items = selection.parse(words, (inventory["policy"]["cdi"]["kind"], AUTOMATIC_KIND))
    if items is None or any(item[0] == "cdi" for item in items):
        raise GpushimError(f"{quote(','.join(words))}: unknown device", REQUEST)
    gpus, migs = selection.select(items, inventory, "--device")
    parents = {mig["gpu"] for mig in migs}
    chosen = [*gpus, *(gpu for gpu in inventory["gpus"] if gpu["index"] in parents and gpu not in gpus)]
    minors = {gpu["index"]: gpu["minor"] for gpu in inventory["gpus"]}
    found = [path for path in DRIVER_NODES if path in nodes] + [gpu["node"] for gpu in chosen]
    for mig in migs:
        instance = f"{PROC_CAPABILITIES}/gpu{minors[mig['gpu']]}/mig/gi{mig['gi']}"
        found += [f"{instance}/access", f"{instance}/ci{mig['ci']}/access", *mig["nodes"]]
    return found


def _channels(options: Given, inventory: dict[str, Any]) -> list[str]:
    found = []
    for word in getopt.words_of(options, "imex-channel"):
        path = f"/dev/nvidia-caps-imex-channels/channel{word}"
        if not 0 <= selection.number(word) <= LAST_CHANNEL or path not in inventory["nodes"]:
            raise GpushimError(f"--imex-channel={quote(word)}: there is no such channel on this host", FAILED)
        found.append(path)
    return found
