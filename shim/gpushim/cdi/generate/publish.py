"""The CDI spec that every refresh writes, or removes where it would be wrong.

The end of a refresh decides about the spec that the last one wrote:

| the refresh | the spec |
| --- | --- |
| lists GPUs | is replaced, but by an emptier one only if NVML was asked (`emptier`) |
| finds that the host can give no GPU (the snapshot's error: module and libraries differ, no module, no libraries, \
no driver root) | is removed: engines would give containers what does not fit, or is not there |
| would name a hook that others could change (paths/changeable.py) | is removed, and none is written |
| lists no GPU that can be used, and nothing else is wrong | stays |
| fails: config.toml is wrong, NVML hangs, memory, processes or files are short, the state cannot be saved | stays: \
nothing is known of the host |

A process that may open no more files, and so misses the driver's, cannot remove a spec either. Only a file that is as
refresh wrote it is removed. Nothing here fails a refresh, for which a container may be waiting.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Optional

from gpushim.cdi import form, spec_text, specs
from gpushim.cdi.generate import output, write, written
from gpushim.decision.decide import hook_program
from gpushim.ground.errors import FAILED, GpushimError
from gpushim.oci.device_names import NOT_GPU_KINDS, parse
from gpushim.paths import changeable, exchange, selinux, trust

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushim.ground.model import Snapshot

CHOICE = (
    "engines take that one; to have gpushim's again, disable what writes it (nvidia-cdi-refresh), remove {}, and "
    "refresh; write-spec = false under [cdi] says that it is to stay"
)


def on_refresh(snapshot: Snapshot, first: Callable[[], object] = lambda: None) -> None:
    """Write the spec of a snapshot as its policy says, and remove outdated ones; "notes" gets the problems.

    Where no GPU can be given out (the snapshot's "error"), all specs of refresh's are removed, after a call of
    `first`.
    """
    notes: list[str] = []
    path = output.path_of(snapshot["policy"]) if snapshot["policy"]["cdi"]["write-spec"] else ""
    try:
        if path and snapshot["error"]:
            _take_back(path, first, notes)
        elif path and (reason := _unsafe_hook()):
            _take_back(path, lambda: None, notes)
            notes.append(f"no CDI spec is written: {reason}")
        elif not path or _write(snapshot, path, notes):
            _remove_others(path, notes)
    except OSError as error:
        notes.append(f"no CDI spec is written: {error.filename2 or error.filename or path}: {error.strerror}")
    except (GpushimError, ValueError) as error:
        notes.append(f"no CDI spec is written: {error}")
    snapshot["notes"] = [*snapshot["notes"], *(note for note in notes if note not in snapshot["notes"])]


def check_hook(hook: str = "") -> None:
    """Raise if others could change a spec's hook; "" is the one beside this code.

    Raises:
        GpushimError: they could.
    """
    changeable.check(hook or hook_program())


def _unsafe_hook() -> str:
    try:
        check_hook()
    except GpushimError as error:
        return str(error)
    return ""


def _take_back(path: str, first: Callable[[], object], notes: list[str]) -> None:
    """Remove all specs that refresh has written; `path` is the current one's."""
    published = written.others("")
    if published:
        first()
    for spec in published:
        try:
            written.remove(spec)
            notes.append(f"{spec} is removed, until a refresh succeeds")
        except OSError as error:
            notes.append(f"{spec} cannot be removed ({error.strerror}), so engines use it; remove it")
    if path not in published and os.path.lexists(path):
        notes.append(f"{path} is not as refresh wrote it, and stays, so engines use it; move it away")


def _remove_others(path: str, notes: list[str]) -> None:
    for file in written.others(path):
        reason = f"{path} takes its place" if path else "write-spec under [cdi] is false"
        try:
            written.remove(file)
            notes.append(f"{file}, which refresh had written, is removed: {reason}")
        except OSError as error:
            notes.append(f"{file}, which refresh had written, cannot be removed ({error.strerror}), but {reason}")


def _write(snapshot: Snapshot, path: str, notes: list[str]) -> bool:
    """Write the spec, unless another file has its devices; returns whether a spec of this snapshot is there now."""
    policy = snapshot["policy"]["cdi"]
    try:
        spec = write.gpu_spec(snapshot, policy["kind"], policy["device-names"], notes)
    except GpushimError as error:
        old = saved(path)
        if old and not _withdraw(path, old, notes):
            notes.append(f"{path} stays as it was, for there is nothing to put in its place: {error}")
        elif not old:
            raise
        return False
    try:
        with _directory(path) as fd:
            file = written.in_folder(path, fd)
            notes += [f"the change made to {path} meanwhile is saved in {copy}" for copy in exchange.recover(file)]
            if _withdraw(path, spec, notes):
                return True
            there, expected = exchange.read_content(file.name, fd), spec_text.render(spec, "json")
            reason = _foreign_reason(path, there, expected) or emptier(path, spec, snapshot["source"])
            if reason:
                notes.append(reason)
                return False
            lost = written.note(path, expected)
            done = there == expected.encode() or _replace(file, path, there, expected, notes)
            notes += [lost] if lost else []
            return done
    except (GpushimError, OSError, ValueError):
        _remove_untrue(spec, notes)
        raise


def _foreign_reason(path: str, data: bytes | None, spec: str) -> str:
    """Return why a file stays, a spec or not: refresh has not written it; "" if it has."""
    if data is None or written.is_ours(path, data) or data == spec.encode():
        return ""
    return (
        f"{path} is not as refresh wrote it, and stays, so engines may give out other GPUs than gpushim does, "
        "or none; move it away, and refresh, or set write-spec = false under [cdi] to keep it"
    )


def _remove_untrue(spec: dict[str, Any], notes: list[str]) -> None:
    """Remove specs of refresh's that cannot be replaced and would give another GPU than they name."""
    for path in written.others(""):
        old = saved(path)
        if old and _has_contradiction(old, spec):
            written.remove(path)
            notes.append(f"{path}, which refresh had written, is removed: the nodes in it are of other devices now")


def _withdraw(path: str, spec: dict[str, Any], notes: list[str]) -> bool:
    """Return whether another file has the same devices; then refresh's goes, as engines would accept neither."""
    file, device, unreadable = conflicting(path, spec)
    notes += [f"{problem}; an engine that can read it may find a device of {path} twice" for problem in unreadable]
    if not file:
        return False
    sentence = f"{file} has {device} too, and a device in two files of a directory is none"
    if not os.path.lexists(path):
        notes.append(f"{path} is not written: {sentence}; {CHOICE.format(file)}")
    elif written.ours(path):
        written.remove(path)
        notes.append(f"{path} is removed: {sentence}; {CHOICE.format(file)}")
    else:
        notes.append(f"{path} is not as refresh wrote it, and stays: {sentence}; remove one of them")
    return True


def saved(path: str) -> Optional[dict[str, Any]]:
    try:
        spec, _ = spec_text.read(path, regular=True)
        form.check(spec)
    except (GpushimError, form.FormError):
        return None
    return dict(spec)


def emptier(path: str, spec: dict[str, Any], source: str) -> str:
    """Return why a spec must not replace the one at a path, or "".

    A spec made without NVML may lack GPUs and MIG instances that exist. The old one stays only if no device in both
    has changed its nodes: after GPUs were bound in another order it would give the wrong ones.
    """
    old = saved(path) if source == "proc" else None
    if old is None or old["kind"] != spec["kind"] or _has_contradiction(old, spec):
        return ""
    kind = spec["kind"]
    removed = sorted(_names(old) - _names(spec))  # what is beside GPUs is listed without NVML
    lost = [
        name
        for name in removed
        if not any(item[0] in NOT_GPU_KINDS for item in parse([f"{kind}={name}"], [kind]) or ())
    ]
    if not lost:
        return ""
    return (
        f"{path} stays as it was: it has {', '.join(lost[:4])}{' and others' if len(lost) > 4 else ''}, which cannot "
        "be listed while NVML is not usable; if they are gone for good, remove the file, and refresh"
    )


def conflicting(path: str, spec: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Search a spec's devices in other files of its directory.

    Returns:
        a file that has one, and the device's name, or "" twice; and a sentence on each unreadable file that may have
        one.
    """
    listed, problems = specs.load([os.path.dirname(path)], [spec["kind"]])
    unreadable = [problem for problem in problems if not problem.startswith(f"{path}: ")]
    for file, _, document in listed:
        shared = sorted(_names(document) & _names(spec)) if document["kind"] == spec["kind"] else []
        if os.path.basename(file) != os.path.basename(path) and shared:
            return file, f"{spec['kind']}={shared[0]}", unreadable
    return "", "", unreadable


def _has_contradiction(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether a device of both specs, or their common edits, have nodes that the other spec lacks."""
    before, after = _nodes(old), _nodes(new)
    return any(before[name] - after[name] and after[name] - before[name] for name in before.keys() & after.keys())


def _nodes(spec: dict[str, Any]) -> dict[str, set[tuple[Any, ...]]]:
    """Return path, major and minor number of nodes by device, those common to all devices under ""."""
    edits = {device["name"]: device.get("containerEdits", {}) for device in spec["devices"]}
    edits[""] = spec.get("containerEdits", {})
    return {
        name: {(node["path"], node.get("major"), node.get("minor")) for node in edit.get("deviceNodes", ())}
        for name, edit in edits.items()
    }


def _names(spec: dict[str, Any]) -> set[str]:
    return {device["name"] for device in spec["devices"]}


@contextlib.contextmanager
def _directory(path: str) -> Any:
    """Open a file's directory, made if missing; raise if others can write to it."""
    directory = os.path.dirname(path) or "."
    try:
        os.makedirs(directory)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)  # whatever is there now
        try:
            os.fchmod(fd, 0o755)  # engines of all users read it; makedirs minds the umask
            selinux.as_above(fd, os.path.dirname(directory) or ".")
        finally:
            os.close(fd)
    except FileExistsError:
        pass
    except OSError as error:
        raise GpushimError(f"the directory {directory} cannot be made: {error.strerror}", FAILED) from None
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise GpushimError(f"{directory} cannot be used: {error.strerror}", FAILED) from None
    try:
        status = os.fstat(fd)
        if trust.others_may(status):
            raise GpushimError(
                f"{directory} cannot be trusted with CDI specs: user {status.st_uid} owns it, its mode is "
                f"{status.st_mode & 0o7777:04o}; make it root's, with nobody else allowed to write",
                FAILED,
            )
        yield fd
    finally:
        os.close(fd)


def _replace(file: exchange.File, path: str, old: bytes | None, spec: str, notes: list[str]) -> bool:
    """Put a spec in the place of what was read; returns whether it is there."""

    def finish(fd: int) -> None:
        os.fchmod(fd, 0o644)
        selinux.as_above(fd, file.folder)

    try:
        failures = exchange.compare_and_swap(file, old, spec.encode(), finish)
    except exchange.Changed as changed:
        copies = "".join(f"; {copy} is a copy of that change" for copy in changed.copies)
        notes.append(f"{path} is not written: it is {changed}{copies}; refresh again")
        return False
    notes += [f"{path} is written, but {each}" for each in failures]
    return True
