"""One directory of the driver's libraries for each capability, so that a container needs one mount instead of dozens.

Mounts are most of what a container with all capabilities costs the low-level runtime. The directories hold hard
links: nothing is copied, and an upgrade of the driver leaves those in use alone. They are never changed, and removed
only after the next boot, when no container can have them. Where links cannot be made, each library is mounted by
itself. Nothing is locked: containers and users can open all that is here, and what they can open they can hold. One
directory is made under a name of this state directory's, whose refresh has a lock, and gets its own by a rename.
Out of scope: which libraries there are (driver_files.py); how a container sees them (plan.py, gpuhook.finish.finish).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
from typing import TYPE_CHECKING

from gpushim.ground import system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure
from gpushim.paths import mountinfo, rooted, selinux, trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import File, Snapshot

AUTO = "auto"  # of library-directory: USUAL where that costs nothing, and no word where it cannot be
USUAL = "/usr/lib/gpushim-driver"  # most drivers' file system, and to SELinux of their libraries' type
KINDS = ("library", "library32")
UNFINISHED = ".gpushim-unfinished-"  # left by a refresh that was killed
_MADE = re.compile(rf"(?:{re.escape(UNFINISHED)})?([0-9a-f]{{8}})-[0-9a-f]{{16}}")  # the boot, a hash


def add(snapshot: Snapshot) -> None:
    """Make or find a snapshot's directories, set its "hardlinks" and each file's "in", and let its stamp watch them.

    If they cannot be made, "notes" gets a sentence, where the settings name a directory, and nothing else changes.
    """
    given, root = snapshot["policy"]["driver"]["library-directory"], snapshot["driver"]["root"]
    top = given if given != AUTO else USUAL if root == "/" and _links_are_free(os.path.dirname(USUAL)) else ""
    boot = snapshot["stamp"]["boot"]  # null where /proc cannot be read, and no container can run
    groups = _groups(snapshot["files"]) if top and snapshot["platform"] == "native" else {}
    if not groups or not boot:
        return
    try:
        place = _ready(top, boot[:8], root, groups)
    except GpushimError as error:
        if given != AUTO:
            snapshot["notes"].append(f"{error}; each library is mounted by itself")
        return
    snapshot["hardlinks"] = place
    for name, files in groups.items():
        for file in files:
            file["in"] = name
        snapshot["inputs"]["nodes"].append(f"{place}/{name}")
        snapshot["stamp"]["nodes"].append(ensure.node(f"{place}/{name}"))


def _links_are_free(folder: str) -> bool:
    """Tell whether a hard link there copies nothing; overlayfs copies a file of its lower layers first."""
    try:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            mount = mountinfo.find(mountinfo.read(""), mountinfo.mount_id(fd))
        finally:
            os.close(fd)
    except OSError:
        return False
    return mount is not None and mount.type != b"overlay"


def _groups(files: dict[str, list[File]]) -> dict[str, list[File]]:
    """Choose the libraries for each capability's directory, no two of which share a name."""
    groups = {}
    for capability, entries in files.items():
        chosen: dict[str, File] = {}
        for file in entries:
            names = {os.path.basename(file["path"]), file.get("soname", "")}
            if file["kind"] in KINDS and not names & {*chosen, "", ".", ".."} and "::" not in file["path"]:
                chosen.update((name, file) for name in names)
        found = list({file["path"]: file for file in chosen.values()}.values())
        if len(found) > 1:
            groups[capability] = found
    return groups


def _ready(top: str, boot: str, root: str, groups: dict[str, list[File]]) -> str:
    """Return the directory for these libraries, made now or earlier; remove those of former boots."""
    _check(top)
    fresh = f"{top}/{_unfinished(boot)}"
    try:
        expected = {path: _identity(file) if file else text for path, file, text in _entries(root, groups)}
        place = f"{top}/{boot}-{_hash(repr(sorted(expected.items())))}"
        for name in os.listdir(top):
            made = _MADE.fullmatch(name)
            if made and (made[1] != boot or f"{top}/{name}" == fresh):
                with contextlib.suppress(FileNotFoundError):  # another refresh removes it, too
                    shutil.rmtree(f"{top}/{name}")
        _check_label(top, root, groups)
        if not os.path.lexists(place):
            _note(top)
            _make(fresh, root, groups)
            _move(fresh, place)
        found = dict(_found(place))
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise GpushimError(
            f"{top} cannot have hard links to the driver's libraries ({error.filename}: {error.strerror}); choose a "
            "library-directory under [driver] on their file system",
            INVENTORY,
        ) from None
    if found != expected:
        raise GpushimError(f"{place} is not as gpushim made it; remove it when no container uses it", INVENTORY)
    return place


def _unfinished(boot: str) -> str:
    """Name what a refresh makes: a refresh with another state directory, thus another lock, may do so meanwhile."""
    return f"{UNFINISHED}{boot}-{_hash(system.state_dir())}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _move(fresh: str, place: str) -> None:
    """Give a directory its name, unless another refresh has made the same one first."""
    try:
        os.rename(fresh, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(fresh)


def _note(top: str) -> None:
    """Record a directory before something is made in it: the packages' removal scripts cannot read TOML."""
    state = system.state_dir()
    record = f"{system.LASTING_DIR if state == system.STATE_DIR else state}/library-directories"
    with contextlib.suppress(OSError):  # on a full disk nobody removes the directory later
        os.makedirs(os.path.dirname(record), 0o755, exist_ok=True)
        fd = os.open(record, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(fd, "r+", encoding="utf-8", errors="surrogateescape") as file:
            if "\n" not in top and f"{top}\n" not in file.readlines():
                file.write(f"{top}\n")


def _check(top: str) -> None:
    """Make the directory; refuse one where others could put libraries for containers."""
    try:
        os.makedirs(top, 0o755, exist_ok=True)
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise GpushimError(f"library-directory {top} cannot be made: {error.strerror}", INVENTORY) from None
    facts = os.fstat(fd)
    os.close(fd)
    if trust.others_may(facts):
        raise GpushimError(
            f"library-directory {top} cannot be trusted: users other than root can write to it, or it is not root's",
            INVENTORY,
        )


def _check_label(top: str, root: str, groups: dict[str, list[File]]) -> None:
    """Refuse a directory where SELinux labels files otherwise: a hard link has its label with the driver's file."""
    kind = selinux.type_of(top)
    folders = {os.path.dirname(file) for _, file, _ in _entries(root, groups) if file}
    for folder in sorted(folders) if kind else ():
        other = selinux.type_of(folder)
        if other and other != kind:
            raise GpushimError(
                f"library-directory {top} is {kind} to SELinux, and {folder} is {other}: relabelling its hard links "
                "would relabel the driver's libraries; choose a library-directory under [driver] below /usr/lib",
                INVENTORY,
            )


def _entries(root: str, groups: dict[str, list[File]]) -> Iterator[tuple[str, str, str]]:
    """List what belongs there: the path, and the file on the host that it is, or the text of the link."""
    for capability, files in groups.items():
        for file in files:
            name = os.path.basename(file["path"])
            yield f"{capability}/{name}", rooted.inside(root, file["path"]), ""
            if file["soname"] != name:
                yield f"{capability}/{file['soname']}", "", name


def _found(place: str) -> Iterator[tuple[str, list[int] | str]]:
    for capability in os.listdir(place):
        for name in os.listdir(f"{place}/{capability}"):
            yield f"{capability}/{name}", _identity(f"{place}/{capability}/{name}")


def _identity(path: str) -> list[int] | str:
    facts = os.lstat(path)
    if stat.S_ISLNK(facts.st_mode):
        return os.readlink(path)
    return [facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns]


def _make(place: str, root: str, groups: dict[str, list[File]]) -> None:
    for folder in (place, *(f"{place}/{capability}" for capability in groups)):
        os.mkdir(folder)
        os.chmod(folder, 0o755)  # noqa: S103 - containers' users read it; mkdir minds the umask
    for path, file, text in _entries(root, groups):
        if file:
            os.link(file, f"{place}/{path}", follow_symlinks=False)
        else:
            os.symlink(text, f"{place}/{path}")
