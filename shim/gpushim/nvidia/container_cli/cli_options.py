"""The options of `nvidia-container-cli`, and how its commands read the common ones.

Imports as little as `configure` may, which container engines wait for. Out of scope: the grammar (getopt.py).
"""

from __future__ import annotations

from gpushim.ground.errors import BUNDLE, REQUEST, REQUIREMENT, ROOTFS, USAGE, GpushimError, quote
from gpushim.nvidia.container_cli.getopt import NO, OPTIONAL, REQUIRED, parse
from gpushim.oci import device_names
from gpushim.oci.device_list import AUTOMATIC_KIND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpushim.nvidia.container_cli.getopt import Options, OptionValues
    from gpushim.oci.device_names import Item

GLOBAL: Options = {
    "debug": ("d", REQUIRED),
    "load-kmods": ("k", NO),
    "no-pivot": ("n", NO),
    "user": ("u", OPTIONAL),
    "root": ("r", REQUIRED),
    "ldcache": ("l", REQUIRED),
    "no-create-imex-channels": ("", NO),
    "help": ("?", NO),
    "usage": ("", NO),
    "version": ("V", NO),
}
_HELP: Options = {"help": ("?", NO), "usage": ("", NO)}
_CHOICE: Options = {
    "device": ("d", REQUIRED),
    "compat32": ("", NO),
    "mig-config": ("", REQUIRED),
    "mig-monitor": ("", REQUIRED),
    "imex-channel": ("", REQUIRED),
    "no-persistenced": ("", NO),
    "no-fabricmanager": ("", NO),
    **_HELP,
}
COMMANDS: dict[str, Options] = {
    "configure": {
        **_CHOICE,
        "pid": ("p", REQUIRED),
        "require": ("r", REQUIRED),
        "ldconfig": ("l", REQUIRED),
        "compute": ("c", NO),
        "utility": ("u", NO),
        "video": ("v", NO),
        "graphics": ("g", NO),
        "display": ("D", NO),
        "ngx": ("n", NO),
        "no-cgroups": ("", NO),
        "no-devbind": ("", NO),
        "no-gsp-firmware": ("", NO),
        "no-cntlibs": ("", NO),
        "cuda-compat-mode": ("", REQUIRED),
    },
    "info": {"csv": ("", NO), **_HELP},
    "list": {**_CHOICE, "libraries": ("l", NO), "binaries": ("b", NO), "ipcs": ("i", NO), "firmwares": ("f", NO)},
}
_LEFT_OUT = {
    "no-persistenced": "/nvidia-persistenced/",
    "no-fabricmanager": "/nvidia-fabricmanager/",
    "no-gsp-firmware": "/firmware/nvidia/",
}
# NVIDIA's names for kinds of errors, by our exit codes; all other codes are initialization errors.
_KINDS = {
    USAGE: "input error",
    REQUEST: "device error",
    REQUIREMENT: "requirement error",
    BUNDLE: "container error",
    ROOTFS: "mount error",
}


def find_command(words: list[str]) -> str:
    """Return the command of a command line, or "" if there is none, help is asked for, or the line is wrong."""
    try:
        options, command_words = parse(words, GLOBAL, in_order=True)
    except GpushimError:
        return ""
    if not command_words or asks_for_help(command_words) or {"help", "usage", "version"} & list_names(options):
        return ""
    return command_words[0]


def asks_for_help(words: list[str]) -> bool:
    return bool({"--help", "--usage", "-?"} & set(words))


def list_names(options: OptionValues) -> set[str]:
    return {name for name, _ in options}


def format_error(error: Exception) -> str:
    """Write an error as nvidia-container-cli does, with the kind of error first."""
    kind = _KINDS.get(error.exit_code, "initialization error") if isinstance(error, GpushimError) else "mount error"
    return f"nvidia-container-cli: {kind}: {error}"


def check_root(options: OptionValues, driver_root: str) -> None:
    """Check that --root names the driver root that gpushim knows.

    Raises:
        GpushimError: USAGE; it names another directory.
    """
    for name, value in options:
        if name == "root" and (value.rstrip("/") or "/") != driver_root:
            raise GpushimError(
                f"--root={quote(value)}, but gpushim gives out the driver below {driver_root}; set [driver] root in "
                "config.toml",
                USAGE,
            )


def collect_words(options: OptionValues, name: str) -> list[str]:
    """Collect the comma-separated words of an option that may be given more than once."""
    return [word.strip() for key, value in options if key == name for word in value.split(",") if word.strip()]


def has_only_all(options: OptionValues, name: str) -> bool:
    """Return whether an option is given with "all" as its only value.

    Raises:
        GpushimError: USAGE; the option has another value.
    """
    words = collect_words(options, name)
    for word in words:
        if word.lower() != "all":
            raise GpushimError(f"--{name}={quote(word)}: only 'all' devices are currently supported", USAGE)
    return bool(words)


def read_devices(options: OptionValues, kind: str) -> tuple[str, list[Item]]:
    """Return the GPUs and MIG instances that --device names; `kind` is the CDI kind of this host's own GPUs.

    Returns:
        the option's words, and the devices that they name.

    Raises:
        GpushimError: REQUEST; a device that no GPU or MIG instance can be.
    """
    words = collect_words(options, "device")
    if any(word.lower() == "all" for word in words):
        words = ["all"]  # which includes the words before it
    items = device_names.parse(words, (kind, AUTOMATIC_KIND))
    foreign = [item[2] for item in items or () if item[0] in device_names.NOT_GPU_KINDS]  # no option may name these
    if items is None or foreign:
        raise GpushimError(f"{quote(foreign[0]) if foreign else 'void'}: unknown device", REQUEST)
    return ",".join(words), items


def is_left_out(option_names: set[str], path: str) -> bool:
    """Return whether options of these names leave out a file of the driver."""
    return any(part in path for name, part in _LEFT_OUT.items() if name in option_names)
