"""`nvidia-container-cli info` and `list`, in the forms that scripts for NVIDIA's program read.

The options are getopt's, not click's, and so are the messages. Out of scope: which options there are
(cli_options.py); configure (gpuhook/nvidia/container_cli_configure.py).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpushim import __version__
from gpushim.cli.program import guard
from gpushim.ground.errors import FAILED, USAGE, GpushimError, quote
from gpushim.inventory import ensure, present
from gpushim.nvidia.container_cli import cli_options as cli
from gpushim.nvidia.container_cli.getopt import parse
from gpushim.oci import device_names, selection
from gpushim.oci.request import LAST_CHANNEL
from gpushim.paths import rooted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpushim.ground.model import Gpu, Snapshot
    from gpushim.nvidia.container_cli.getopt import OptionValues

PROC_CAPABILITIES = "/proc/driver/nvidia/capabilities"
LABEL_WIDTH = 16
# NVIDIA's program looks for libraries in this order; those of no capability come last.
ORDER = ("utility", "compute", "ngx", "video", "graphics", "display", "any")
LABELS = ("Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture")
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

Options: {" ".join("--" + name for name in cli.GLOBAL)}
"""


def main(words: list[str]) -> None:
    """Run as a process, with the words after the program's name, and exit."""
    guard()
    try:
        code = run(words)
        sys.stdout.flush()
    except GpushimError as error:
        print(cli.format_error(error), file=sys.stderr)
        code = 1
    sys.exit(code)


def run(words: list[str]) -> int:
    """Run the command that the words name; return the exit code.

    Raises:
        GpushimError: the command line is wrong, or the host cannot be listed.
    """
    global_options, command_words = parse(words, cli.GLOBAL, in_order=True)
    option_names = cli.list_names(global_options)
    command = command_words[0] if command_words else ""
    if "version" in option_names:
        print(f"cli-version: {__version__}\nlib-version: {__version__}\nbuild flags: gpushim")
        return 0
    if option_names & {"help", "usage"} or cli.asks_for_help(command_words[1:]):
        print(USAGE_TEXT, end="")
        return 0
    if command not in ("info", "list"):
        if command:
            raise GpushimError(f"{quote(command)} is not a command; there are {', '.join(cli.COMMANDS)}", USAGE)
        print(USAGE_TEXT, end="", file=sys.stderr)
        return 1
    options, arguments = parse(command_words[1:], cli.COMMANDS[command])
    if arguments:
        raise GpushimError(f"{command} takes no {quote(arguments[0])}; see --help", USAGE)
    inventory = present.snapshot()
    cli.check_root(global_options, inventory["driver"]["root"])
    if inventory["error"]:
        raise GpushimError(inventory["error"]["sentence"], inventory["error"]["code"])
    lines = list_paths(options, inventory) if command == "list" else format_info(inventory, csv=bool(options))
    print("".join(f"{line}\n" for line in lines), end="")
    return 0


def format_info(inventory: Snapshot, csv: bool = False) -> list[str]:
    """Return the lines of NVIDIA's `info`; the form for programs, `csv`, quotes nothing."""
    driver = inventory["driver"]
    driver_facts: dict[str, object] = {"NVRM version": driver["version"], "CUDA version": driver["cuda"]}
    gpus = [dict(zip(LABELS, _list_values(gpu))) for gpu in inventory["gpus"]]
    if csv:
        rows = [driver_facts, driver_facts.values(), (), LABELS, *[gpu.values() for gpu in gpus]]
        return [",".join(map(str, row)) for row in rows]
    lines: list[str] = []
    for facts in [driver_facts, *gpus]:
        lines += ["", *[f"{label + ':':{LABEL_WIDTH}}{value}" for label, value in facts.items()]]
    return lines[1:]


def _list_values(gpu: Gpu) -> tuple[object, ...]:
    return gpu["index"], gpu["minor"], gpu["model"], gpu["brand"], gpu["uuid"], gpu["pci"], gpu["arch"]


def list_paths(options: OptionValues, inventory: Snapshot) -> list[str]:
    """Return the paths that NVIDIA's `list` prints, in its order, as seen inside the driver root, each once.

    Raises:
        GpushimError: a device is unknown, or a value malformed.
    """
    option_names = cli.list_names(options)
    if not option_names - {"imex-channel"}:
        option_names |= {"libraries", "binaries", "ipcs", "firmwares", "compat32", "device"}
        options = [*options, ("device", "all")]
    paths = _list_nodes(options, inventory) if "device" in option_names else []
    paths += _list_channels(options, inventory)
    for name, node in (("mig-config", ensure.MIG_CONFIG_NODE), ("mig-monitor", ensure.MIG_MONITOR_NODE)):
        if cli.has_only_all(options, name):
            paths += [f"{PROC_CAPABILITIES}/mig/{name[4:]}", *([node] if node in inventory["nodes"] else [])]
    rows = [("binaries", "binary", ""), ("libraries", "library", "")]
    rows += [("libraries", "library32", "32")] if "compat32" in option_names else []
    rows += [("ipcs", "socket", ""), ("firmwares", "firmware", "")]
    for option, kind, suffix in rows:
        if option in option_names:
            paths += _list_files(inventory, kind, suffix)
    return [path for path in dict.fromkeys(paths) if not cli.is_left_out(option_names, path)]


def _list_files(inventory: Snapshot, kind: str, suffix: str) -> Iterable[str]:
    for name in (*ORDER, "mps"):
        for file in inventory["files"].get(name + suffix, ()):
            path = file["path"]
            if file["kind"] == kind and (kind != "socket" or rooted.kind(inventory["driver"]["root"], path)):
                yield path


def _list_nodes(options: OptionValues, inventory: Snapshot) -> list[str]:
    nodes = inventory["nodes"]
    if inventory["platform"] != "native":
        return list(nodes)
    _, items = cli.read_devices(options, inventory["policy"]["cdi"]["kind"])
    gpus, migs = selection.select(items, inventory, "--device")
    parents = {mig["gpu"] for mig in migs}
    chosen = [*gpus, *(gpu for gpu in inventory["gpus"] if gpu["index"] in parents and gpu not in gpus)]
    minors = {gpu["index"]: gpu["minor"] for gpu in inventory["gpus"]}
    paths = [path for path in ensure.CONTROL_NODES if path in nodes] + [gpu["node"] for gpu in chosen]
    for mig in migs:
        instance = f"{PROC_CAPABILITIES}/gpu{minors[mig['gpu']]}/mig/gi{mig['gi']}"
        paths += [f"{instance}/access", f"{instance}/ci{mig['ci']}/access", *mig["nodes"]]
    return paths


def _list_channels(options: OptionValues, inventory: Snapshot) -> list[str]:
    paths = []
    for word in cli.collect_words(options, "imex-channel"):
        path = f"{ensure.IMEX_CHANNEL}{word}"
        if not 0 <= device_names.number(word) <= LAST_CHANNEL or path not in inventory["nodes"]:
            raise GpushimError(f"--imex-channel={quote(word)}: there is no such channel on this host", FAILED)
        paths.append(path)
    return paths
