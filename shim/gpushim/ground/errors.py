"""The one exception of the project, its exit codes, and how foreign text is put into its sentence."""

from __future__ import annotations

# Exit codes. What stands behind each is its row in docs/errors.md; the page at its end has more.
FAILED = 1  # anything without a code of its own: a file in the way, output that cannot be written, a bug of gpushim
USAGE = 2  # the command line is wrong: see --help
REQUEST = 10  # the container asks for something malformed, unknown or forbidden (requests.md)
REQUIREMENT = 11  # an NVIDIA_REQUIRE_* condition does not hold; NVIDIA_DISABLE_REQUIRE=true ignores it (requests.md)
INVENTORY = 12  # what the host has cannot be found out: no driver, trouble with NVML, the deadline (symptoms.md)
DRIVER = 13  # kernel module and libraries of the driver differ; reboot, or reload the module (symptoms.md)
BUNDLE = 14  # config.json cannot be read, understood or replaced
CONFIG = 15  # config.toml, a flag, a variable or config-file is wrong (configuration.md)
ROOTFS = 16  # the hook cannot make the container's rootfs ready
LEFT_OUT = 17  # gpushim migrate: a setting of NVIDIA's toolkit is left out, others are taken over (from-nvidia.md)
NOT_EXECUTABLE = 126  # the low-level runtime cannot be executed, or is gpushim itself
NOT_FOUND = 127  # there is no low-level runtime, or no Python
READER_GONE = 141  # of gpushim: whoever read its output has gone, as head does; as after SIGPIPE


LONGEST = 4096 + 512  # PATH_MAX, so that any path is shown whole, and a sentence around it
# Words that engines look for in a runtime's messages (daemon/errors.go of moby, libpod/oci_util.go of Podman), to
# change the exit code or to advise about mounts. Most are the kernel's.
MATCHED = (
    ("permission denied", "no permission"),
    ("operation not permitted", "not permitted"),
    ("not a directory", "no directory"),
    ("no such file or directory", "it is not there"),
    ("executable file not found", "executable file is missing"),
)


# Printable for Python, and yet nothing to see: blanks, joiners, fillers, and what selects a variant of a letter, of
# which there are more from U+E0100 on (Default_Ignorable_Code_Point in Unicode's DerivedCoreProperties.txt).
UNSEEN = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    "\ufe00\ufe01\ufe02\ufe03\ufe04\ufe05\ufe06\ufe07\ufe08\ufe09\ufe0a\ufe0b\ufe0c\ufe0d\ufe0e\ufe0f"
)


class GpushimError(Exception):
    """A refusal or failure, as one sentence for the engine's user.

    Args:
        sentence: what is wrong, where, and what to do about it; shortened to LONGEST.
        exit_code: one of this module's codes.
    """

    def __init__(self, sentence: str, exit_code: int = FAILED) -> None:
        super().__init__(shortened(sentence))
        self.exit_code = exit_code


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:700]} ... {text[-700:]}"


def for_engines(sentence: str) -> str:
    """Replace the words by which engines recognise errors of a container's command (MATCHED)."""
    for words, replacement in MATCHED:
        sentence = sentence.replace(words, replacement).replace(words.capitalize(), replacement)
    return sentence


def quote(text: str) -> str:
    r"""Return foreign text for a message: at most 80 ASCII characters, with escapes such as \n and \u0660."""
    escaped = ascii(text[:81])[1:-1]
    return escaped if len(escaped) <= 80 else escaped[:77] + "..."


def visible(text: str, keep: str = "") -> str:
    r"""Return a line for a terminal, with escapes such as \x1b and \u202e for unprintable characters not in `keep`.

    Invisible letters and marks, and bytes that are not UTF-8, are escaped too.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if _shows(letter) or letter in keep else ascii(letter)[1:-1] for letter in text)


def _shows(letter: str) -> bool:
    return letter.isprintable() and letter not in UNSEEN and not "\U000e0100" <= letter <= "\U000e01ef"
