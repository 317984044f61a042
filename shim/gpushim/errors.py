"""The one exception of the project, the exit codes that go with it, and how others' text gets into its sentence.

Out of scope: printing and logging; `main` functions do that.
"""

from __future__ import annotations

# Exit codes; docs/errors.md says the same to users.
FAILED = 1  # anything without a code of its own
USAGE = 2  # the command line is wrong
REQUEST = 10  # the container asks for something malformed, unknown or forbidden
REQUIREMENT = 11  # an NVIDIA_REQUIRE_* condition does not hold
INVENTORY = 12  # what the host has cannot be found out: no driver, NVML trouble, deadline
DRIVER = 13  # kernel module and libraries of the driver differ
BUNDLE = 14  # config.json cannot be read, or not be replaced
CONFIG = 15  # /etc/gpushim/config.toml is wrong
ROOTFS = 16  # the container's rootfs cannot be made ready
LEFT_OUT = 17  # a setting of NVIDIA's toolkit could not be taken over
NOT_EXECUTABLE = 126  # the low-level runtime cannot be executed, or is gpushim itself
NOT_FOUND = 127  # there is no low-level runtime


LONGEST = 4096 + 512  # PATH_MAX, so that each path that can exist is shown whole, and what is said about it
# Words that engines look for in what a runtime says, dockerd in daemon/errors.go of moby, Podman in
# libpod/oci_util.go: with them they change the exit code, or advise about mounts. Most are the kernel's own.
MATCHED = (
    ("permission denied", "no permission"),
    ("operation not permitted", "not permitted"),
    ("not a directory", "no directory"),
    ("no such file or directory", "it is not there"),
    ("executable file not found", "executable file is missing"),
)


class GpushimError(Exception):
    """A refusal or failure, as one sentence for the engine's user.

    Args:
        sentence: what is wrong, where, and what to do about it; of one that repeats something longer than any path
            can be, the middle is left out.
        exit_code: one of this module's codes.
    """

    def __init__(self, sentence: str, exit_code: int = FAILED) -> None:
        super().__init__(shortened(sentence))
        self.exit_code = exit_code


def shortened(text: str) -> str:
    """Leave the middle out of text that is longer than LONGEST."""
    return text if len(text) <= LONGEST else f"{text[:700]} ... {text[-700:]}"


def for_engines(sentence: str) -> str:
    """Replace words by which engines tell errors of a container's own command from others (MATCHED)."""
    for words, others in MATCHED:
        sentence = sentence.replace(words, others).replace(words.capitalize(), others)
    return sentence


def quote(text: str) -> str:
    r"""Make text that others wrote fit for a message.

    Args:
        text: any string, lone surrogates included.

    Returns:
        At most 80 printable ASCII characters without quotation marks around them; other characters appear
        as escapes such as \n and \u0660, and what was cut off as "...".
    """
    shown = ascii(text[:81])[1:-1]
    return shown if len(shown) <= 80 else shown[:77] + "..."


def visible(text: str, keep: str = "") -> str:
    r"""Make text fit for a terminal.

    Args:
        text: one line, lone surrogates included.
        keep: characters that stay as they are whatever they do.

    Returns:
        the same with escapes such as \x1b and \u202e for what is no printable character: controls, ends of lines,
        marks that change the direction of writing, bytes that are not UTF-8, and letters that look like a blank.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = "".join(each if each.isprintable() or each in keep else ascii(each)[1:-1] for each in text)
    for blank in "\u115f\u1160\u2800\u3164\uffa0":
        shown = shown.replace(blank, ascii(blank)[1:-1])
    return shown
