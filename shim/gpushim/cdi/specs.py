"""CDI spec files: which count, whether they can be trusted, and which one has a device.

A spec decides what of the host goes into containers and what the host executes for them: only root's files count, in
directories where only root can write. An invalid file never affects a request for a device of another file.
Hot path: a file that does not mention a requested kind is read but not parsed; PyYAML is imported for YAML alone.
"""

from __future__ import annotations

import posix

from gpushim.cdi import form
from gpushim.ground import bounds, fastjson
from gpushim.ground.errors import INVENTORY, REQUEST, GpushimError, quote
from gpushim.paths import trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Sequence

    Spec = tuple[str, int, dict[str, Any]]  # path, priority, document
    Found = tuple[str, dict[str, Any], dict[str, Any]]  # path, document, its device

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")  # of engines without a setting
SUFFIXES = (".json", ".yaml")
_FILE = posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY  # a FIFO must not hang the engine


def find(names: Sequence[str], directories: Sequence[str]) -> list[Found]:
    """Return path of the file, spec, and device of each CDI name, vendor/class=device, in order.

    Of these absolute directories a later one takes precedence.

    Raises:
        GpushimError: REQUEST, for a device that no file has, or two files of one directory; INVENTORY, if an unusable
            file may have it.
    """
    kinds = [name.partition("=")[0] for name in names]
    specs, problems = load(directories, kinds)
    return [_find_device(name, specs, problems, directories) for name in names]


def load(directories: Sequence[str], kinds: Sequence[str] = ()) -> tuple[list[Spec], list[str]]:
    """Read the spec files of absolute directories, which need not exist; with `kinds`, specs of others are left out.

    Returns:
        (path, priority, document) of each valid spec, the priority being its directory's index; and a sentence
        "path: reason" for each unusable directory, and each unusable file that may have one of the kinds.
    """
    words = [kind.encode() for kind in kinds]
    specs: list[Spec] = []
    problems: list[str] = []
    for priority, directory in enumerate(directories):
        for path, data, reason in _files(directory):
            # A backslash may hide any word, in JSON and YAML alike.
            if words and not reason and b"\\" not in data and not any(word in data for word in words):
                continue
            try:
                document = None if reason else _parse(path, data)
            except form.FormError as error:
                reason = str(error)
            if reason:
                problems.append(f"{path}: {reason}")
            elif document and (not kinds or document["kind"] in kinds):
                specs.append((path, priority, document))
    return specs, problems


def _find_device(name: str, specs: list[Spec], problems: list[str], directories: Sequence[str]) -> Found:
    kind, _, device_name = name.partition("=")
    hits = []
    for path, priority, document in specs:
        if document["kind"] == kind:
            hits += [
                (priority, path, document, device) for device in document["devices"] if device["name"] == device_name
            ]
    best = [hit for hit in hits if hit[0] == max(hits, key=lambda hit: hit[0])[0]]
    if len(best) > 1:
        paths = " and ".join([hit[1] for hit in best])
        raise GpushimError(f'the CDI device "{quote(name)}" is in both {paths}; remove one of them', REQUEST)
    if not best:
        raise _unknown(name, problems, directories)
    return best[0][1:]


def _unknown(name: str, problems: list[str], directories: Sequence[str]) -> GpushimError:
    """Return the refusal of a device, without naming those that exist, which may be other tenants'."""
    folders = " and ".join(directories) or "no directory, for [cdi] spec-dirs is empty,"
    sentence = f'no CDI spec in {folders} has the device "{quote(name)}"; gpushim cdi list shows what there is'
    if problems:
        sentence += f"; and these cannot be used: {_join(problems)}"
    return GpushimError(sentence, INVENTORY if problems else REQUEST)


def _join(names: list[str]) -> str:
    count = len(names) - bounds.LISTED
    return (", ".join(names[: bounds.LISTED]) or "none") + (f" and {count} more" if count > 0 else "")


def _files(directory: str) -> Iterator[tuple[str, bytes, str]]:
    """List a directory's spec files: path, content, and "" or the reason for having none."""
    try:
        fd = posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        yield directory, b"", f"it cannot be read ({error.strerror})"
        return
    try:
        reason = _mistrust(posix.fstat(fd))
        names = [] if reason else sorted(name for name in posix.listdir(fd) if name.endswith(SUFFIXES))
        if len(names) > bounds.SPECS:
            reason = f"it has more than {bounds.SPECS} specs"
        if reason:
            yield directory, b"", reason
            return
        for name in names:
            yield (f"{directory.rstrip('/')}/{quote(name)}", *_read(name, fd))
    finally:
        posix.close(fd)


def _read(name: str, directory: int) -> tuple[bytes, str]:
    try:
        fd = posix.open(name, _FILE, dir_fd=directory)
    except OSError as error:
        return b"", f"it cannot be read ({error.strerror})"
    try:
        status = posix.fstat(fd)
        if status.st_mode & 0o170000 != 0o100000:  # S_IFMT, S_IFREG
            return b"", "it is not a regular file"
        reason = _mistrust(status)
        if not reason and status.st_size > bounds.SPEC:
            reason = f"it has more than {bounds.SPEC >> 20} MiB"
        return (b"", reason) if reason else (posix.read(fd, status.st_size), "")
    except OSError as error:
        return b"", f"it cannot be read ({error.strerror})"
    finally:
        posix.close(fd)


def _mistrust(status: posix.stat_result) -> str:
    if not trust.trusted(status.st_uid):
        return f"user {status.st_uid} owns it, not root"
    if status.st_mode & trust.OTHERS_WRITE:
        return f"its mode is {status.st_mode & 0o7777:04o}, so users other than its owner can write to it"
    return ""


def _parse(path: str, data: bytes) -> dict[str, Any]:
    document: Any
    if path.endswith(".yaml"):
        from gpushim.cdi import yaml

        try:
            document = yaml.loads(data)
        except yaml.YamlError as error:
            raise form.FormError(str(error)) from None
    else:
        try:
            document = fastjson.loads(data, "it")
        except GpushimError as error:
            raise form.FormError(str(error)[3:]) from None
    form.check(document)
    parsed: dict[str, Any] = document
    return parsed
