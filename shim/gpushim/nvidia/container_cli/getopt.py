"""Command lines as getopt_long(3) reads them: a unique beginning of a name is enough, and options may follow words.

Python's own getopt knows no optional values before 3.14, and imports os, for which container engines would wait.
"""

from __future__ import annotations

from gpushim.ground.errors import USAGE, GpushimError, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Sequence

    Options = Mapping[str, tuple[str, str]]  # long name: (letter or "", NO, REQUIRED or OPTIONAL)
    Given = list[tuple[str, str]]  # long name and value, in the order of the command line

NO, REQUIRED, OPTIONAL = "no", "required", "optional"


def parse(words: Sequence[str], options: Options, in_order: bool = False) -> tuple[Given, list[str]]:
    """Read a command line as getopt_long(3) does; return the options with their values, and the other words.

    Args:
        words: behind the program's or command's name.
        options: those that there are.
        in_order: stop at the first word that is no option; otherwise options may stand behind such words too.

    Raises:
        GpushimError: USAGE, for an unknown option, or a value too many or too few.
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


def _long(word: str, rest: list[str], options: Options) -> tuple[str, str]:
    text, equals, value = word[2:].partition("=")
    # A unique beginning is enough.
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
