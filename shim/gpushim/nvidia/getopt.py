"""The command line of nvidia-container-cli: options as getopt_long(3) reads them, and those that it has.

Out of scope: what the options do. Imports nothing beyond gpushim's errors: container engines wait for `configure`.
"""

from __future__ import annotations

from gpushim.errors import (
    BUNDLE,
    CONFIG,
    DRIVER,
    INVENTORY,
    NOT_FOUND,
    REQUEST,
    REQUIREMENT,
    ROOTFS,
    GpushimError,
    quote,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    Options = Mapping[str, tuple[str, str]]  # long name: (letter or "", NO, REQUIRED or OPTIONAL)
    Given = list[tuple[str, str]]  # long name and value, in the order of the command line

USAGE = 2  # exit code of GpushimError for a wrong command line; the program itself exits with 1, as NVIDIA's does
NO, REQUIRED, OPTIONAL = "no", "required", "optional"
COMMANDS = ("configure", "info", "list")
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
HELP: Options = {"help": ("?", NO), "usage": ("", NO)}
# What NVIDIA's program calls the kinds of its errors, by our exit codes.
CLASSES = {
    USAGE: "input error",
    REQUEST: "device error",
    REQUIREMENT: "requirement error",
    INVENTORY: "initialization error",
    DRIVER: "initialization error",
    CONFIG: "initialization error",
    NOT_FOUND: "initialization error",
    BUNDLE: "container error",
    ROOTFS: "mount error",
}


def parse(words: Sequence[str], options: Options, in_order: bool = False) -> tuple[Given, list[str]]:
    """Read a command line as getopt_long(3) does.

    Args:
        words: behind the program's or command's name.
        options: those that there are.
        in_order: stop at the first word that is no option, else options may stand behind such words too.

    Returns:
        options with their values, and the other words.

    Raises:
        GpushimError: USAGE, for an option that there is not, or a value too many or too few.
    """
    given: Given = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return given, others + rest
        if word.startswith("--"):
            given.append(_long(word, rest, options))
        elif word.startswith("-") and word != "-":
            given += _letters(word, rest, options)
        elif in_order:
            return given, [word, *rest]
        else:
            others.append(word)
    return given, others


def sentence(error: Exception) -> str:
    """Write an error as nvidia-container-cli does, with the kind of error first."""
    kind = CLASSES.get(error.exit_code, "initialization error") if isinstance(error, GpushimError) else "mount error"
    return f"nvidia-container-cli: {kind}: {error}"


def check_root(given: Given, driver_root: str) -> None:
    """See that --root names the driver that gpushim knows.

    Raises:
        GpushimError: USAGE; it is another.
    """
    for name, value in given:
        if name == "root" and (value.rstrip("/") or "/") != driver_root:
            raise GpushimError(
                f"--root={quote(value)}, but gpushim gives out the driver below {driver_root}; set [driver] root in "
                "config.toml",
                USAGE,
            )


def words_of(given: Given, name: str) -> list[str]:
    """Collect the comma-separated words of an option that may be given more than once."""
    return [word.strip() for key, value in given if key == name for word in value.split(",") if word.strip()]


def only_all(given: Given, name: str) -> bool:
    """Say whether an option is given whose only value is "all".

    Raises:
        GpushimError: USAGE; it has another.
    """
    words = words_of(given, name)
    for word in words:
        if word.lower() != "all":
            raise GpushimError(f"--{name}={quote(word)}: only 'all' devices are currently supported", USAGE)
    return bool(words)


def _long(word: str, rest: list[str], options: Options) -> tuple[str, str]:
    text, equals, value = word[2:].partition("=")
    # A beginning that only one option has will do.
    found = [text] if text in options else [name for name in options if name.startswith(text)]
    if len(found) != 1:
        raise GpushimError(f"--{quote(text)} is {'ambiguous' if found else 'not an option here'}; see --help", USAGE)
    takes = options[found[0]][1]
    if takes == NO and equals:
        raise GpushimError(f"--{found[0]} takes no value", USAGE)
    if takes == REQUIRED and not equals:
        value = _next(f"--{found[0]}", rest)
    return found[0], value


def _letters(word: str, rest: list[str], options: Options) -> Given:
    names = {letter: name for name, (letter, _) in options.items() if letter}
    given: Given = []
    for place, letter in enumerate(word[1:], 2):
        if letter not in names:
            raise GpushimError(f"-{quote(letter)} is not an option here; see --help", USAGE)
        takes = options[names[letter]][1]
        if takes == NO:
            given.append((names[letter], ""))
            continue
        value = word[place:] or (_next(f"-{letter}", rest) if takes == REQUIRED else "")
        return [*given, (names[letter], value)]
    return given


def _next(option: str, rest: list[str]) -> str:
    if not rest:
        raise GpushimError(f"{option} needs a value", USAGE)
    return rest.pop(0)
