"""Command lines as getopt_long(3) reads them: a unique beginning of a name is enough, and options may follow words.

Python's own getopt knows no optional values before 3.14, and imports os, for which container engines would wait.
"""

from __future__ import annotations

from gpushim.ground.errors import USAGE, GpushimError, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    Options = Mapping[str, tuple[str, str]]  # long name: (letter or "", NO, REQUIRED or OPTIONAL)
    OptionValues = list[tuple[str, str]]  # long name and value, in the order of the command line

NO, REQUIRED, OPTIONAL = "no", "required", "optional"


def parse(words: Sequence[str], options: Options, in_order: bool = False) -> tuple[OptionValues, list[str]]:
    """Read a command line as getopt_long(3) does; return the options with their values, and the other words.

    Args:
        words: of the command line after the program's or command's name.
        in_order: stop at the first word that is no option; otherwise options may stand behind such words too.

    Raises:
        GpushimError: USAGE, for an unknown option, or a value too many or too few.
    """
    values: OptionValues = []
    arguments: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            return values, arguments + remaining
        if word.startswith("--"):
            values.append(_read_long(word, remaining, options))
        elif word.startswith("-") and word != "-":
            values += _read_letters(word, remaining, options)
        elif in_order:
            return values, [word, *remaining]
        else:
            arguments.append(word)
    return values, arguments


def _read_long(word: str, remaining: list[str], options: Options) -> tuple[str, str]:
    text, equals, value = word[2:].partition("=")
    # A unique beginning is enough.
    matches = [text] if text in options else [name for name in options if name.startswith(text)]
    if len(matches) != 1:
        problem = "ambiguous" if matches else "not an option here"
        raise GpushimError(f"--{quote(text)} is {problem}; see --help", USAGE)
    arity = options[matches[0]][1]
    if arity == NO and equals:
        raise GpushimError(f"--{matches[0]} takes no value", USAGE)
    if arity == REQUIRED and not equals:
        value = _take_value(f"--{matches[0]}", remaining)
    return matches[0], value


def _read_letters(word: str, remaining: list[str], options: Options) -> OptionValues:
    names = {letter: name for name, (letter, _) in options.items() if letter}
    values: OptionValues = []
    for position, letter in enumerate(word[1:], 2):
        if letter not in names:
            raise GpushimError(f"-{quote(letter)} is not an option here; see --help", USAGE)
        arity = options[names[letter]][1]
        if arity == NO:
            values.append((names[letter], ""))
            continue
        value = word[position:] or (_take_value(f"-{letter}", remaining) if arity == REQUIRED else "")
        return [*values, (names[letter], value)]
    return values


def _take_value(option: str, remaining: list[str]) -> str:
    if not remaining:
        raise GpushimError(f"{option} needs a value", USAGE)
    return remaining.pop(0)
