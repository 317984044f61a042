"""Parse the arguments of `gpushim-hook prestart`, by the table in gpushim.oci.hookargs. On the hook path."""

from __future__ import annotations

from gpushim.ground.errors import USAGE, GpushimError
from gpushim.oci.hookargs import OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Library = tuple[str, str, str]  # SONAME, directory, file name
    Link = tuple[str, str, str]  # text, directory, file name


class Options:
    """The options' values, each under its option's name; those that may be repeated as lists.

    Raises:
        GpushimError: one of them cannot be understood.
    """

    rootfs = log = empty = driver = cuda = bindings = own_libcuda = memory_limits = memory_every = nvml = ""
    profile_mask = 0

    def __init__(self, argv: list[str]) -> None:
        self.cover: list[tuple[str, str]] = []  # path on the host, path in the container
        self.gpu: list[tuple[int, str]] = []  # minor number, PCI address
        self.bound: list[tuple[int, int]] = []  # minor number, number of the inode of its binding
        self.lib: list[Library] = []
        self.lib32: list[Library] = []
        self.link: list[Link] = []
        self.mount: list[tuple[str, str]] = []  # as in cover
        self.socket: list[tuple[str, str]] = []
        self.mounted: list[tuple[str, str]] = []
        self.node_link: list[Link] = []
        self.memory: list[tuple[str, int]] = []  # PCI address, bytes
        self.take(argv)

    def take(self, argv: list[str]) -> None:
        """Add the values of more words; raise GpushimError as above."""
        words = iter(argv)
        for word in words:
            value = next(words, "")
            parsed = _PARSERS[OPTIONS[word][0]](word, value) if word in OPTIONS else None
            if parsed is None:
                raise GpushimError(f"{word} {value}: not an option of prestart, or not an absolute path", USAGE)
            name = word[2:].replace("-", "_")
            current = getattr(self, name)
            if type(current) is list:
                current.append(parsed)
            else:
                setattr(self, name, parsed)


def usage() -> str:
    words = [f"[{option} {form}]" + "..." * ("=" in form or "::" in form) for option, (form, _) in OPTIONS.items()]
    return " ".join(words)


def _path(word: str, value: str) -> str | None:
    return value if value.startswith("/") else None


def _cover(word: str, value: str) -> tuple[str, str] | None:
    source, _, path = value.partition("::")
    below = path.startswith("/proc/") and ".." not in path.split("/")
    return (source, path) if value.startswith("/") and below else None


def _mounted(word: str, value: str) -> tuple[str, str] | None:
    source, _, path = value.partition("::")
    return (source, path) if source.startswith("/") and path.startswith("/") else None


def _mask(word: str, value: str) -> int:
    digits = value[2:] if value.startswith("0x") else ""
    mask = 0 if digits.strip("0123456789abcdef") else int(digits or "0", 16)
    if not 0 < mask < 1 << 64:
        raise GpushimError(f"--profile-mask {value!r}: want a mask of 64 bits in hexadecimal", USAGE)
    return mask


def _gpu(word: str, value: str) -> tuple[int, str]:
    minor, _, name = value.partition("=")
    is_number = minor.isascii() and minor.isdecimal() and len(minor) < 8
    if not is_number or name in ("", ".", "..") or "/" in name or "\n" in name:
        raise GpushimError(f"--gpu {value!r}: want MINOR=PCINAME", USAGE)
    return int(minor), name


def _bound(word: str, value: str) -> tuple[int, int]:
    minor, _, inode = value.partition("=")
    if not all(text.isascii() and text.isdecimal() and len(text) < 21 for text in (minor, inode)):
        raise GpushimError(f"--bound {value!r}: want MINOR=INODE", USAGE)
    return int(minor), int(inode)


def _memory(word: str, value: str) -> tuple[str, int] | None:
    name, _, size = value.partition("=")
    digits = size.isascii() and size.isdecimal() and len(size) < 20
    return (name, int(size)) if digits and name.count(":") == 2 and "\n" not in name else None


def _library(word: str, value: str) -> Library:
    soname, _, path = value.partition("=")
    directory, _, name = path.rpartition("/")
    if _odd(soname, path, value) or "/" in soname or soname in (".", ".."):
        raise GpushimError(f"{word} {value!r}: want SONAME=PATH with an absolute PATH", USAGE)
    return soname, directory or "/", name


def _link(word: str, value: str) -> Link:
    text, _, path = value.partition("::")
    if _odd(text, path, value):
        raise GpushimError(f"{word} {value!r}: want TARGET::PATH with an absolute PATH", USAGE)
    directory, _, name = path.rpartition("/")
    return text, directory or "/", name


def _node_link(word: str, value: str) -> Link:
    text, directory, name = _link(word, value)
    if not f"{directory}/".startswith("/dev/") or ".." in directory.split("/"):
        raise GpushimError(f"{word} {value!r}: want TARGET::NODE with a NODE below /dev/", USAGE)
    return text, directory, name


def _odd(target: str, path: str, value: str) -> bool:
    return not target or not path.startswith("/") or path.endswith(("/", "/.", "/..")) or "\n" in value


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "DIR": _path,
    "FILE": _path,
    "VERSION": lambda word, value: value,
    "REASON": lambda word, value: value,
    "MASK": _mask,
    "MINOR=PCINAME": _gpu,
    "MINOR=INODE": _bound,
    "SONAME=PATH": _library,
    "TARGET::PATH": _link,
    "TARGET::NODE": _node_link,
    "SOURCE::PATH": _cover,
    "SOURCE::MOUNT": _mounted,
    "PCINAME=BYTES": _memory,
    "WORD": lambda word, value: value,
}
