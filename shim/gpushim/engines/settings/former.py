"""What gpushim wrote into files of others before it had drop-in files, taken back by its records.

Beside each file lies what it was without gpushim (NAME.before-gpushim) and with it (NAME.after-gpushim).
This can go on 2027-12-01, and its callers' lines with it.
"""

from __future__ import annotations

from difflib import SequenceMatcher

from gpushim.engines.settings import files, toml
from gpushim.engines.settings.files import Change
from gpushim.ground.errors import GpushimError

AFTER = ".after-gpushim"


def without(path: str, content: bytes | None) -> bytes | None:
    """Return what a file holds without what gpushim wrote into it.

    Raises:
        GpushimError: it has been edited since in a way that lets nobody tell the two apart.
    """
    made = files.read(files.copy_path(path, AFTER))
    if content is None or made is None:
        return content
    first = files.read(files.copy_path(path, files.BEFORE))
    if content == made:
        return first
    text, lines, old = (toml.decoded(content_bytes, path) for content_bytes in (content, made, first or b""))
    return _taken_back(path, text, lines.splitlines(True), old.splitlines(True)).encode()


def records(path: str) -> list[Change]:
    """Return the changes that remove the records of a file, if gpushim made them before it had drop-in files."""
    after = files.copy_path(path, AFTER)
    if files.read(after) is None:
        return []
    return [Change(record, files.read(record), None) for record in (after, files.copy_path(path, files.BEFORE))]


def after(path: str) -> list[Change]:
    """Return the change that removes the record of a daemon.json with gpushim, if there is one."""
    record = files.copy_path(path, AFTER)
    content = files.read(record)
    return [] if content is None else [Change(record, content, None)]


def _taken_back(path: str, text: str, made: list[str], first: list[str]) -> str:
    """Return a text in which each run of lines that gpushim wrote is again what it was."""
    if "gpushim" not in text:
        return text  # somebody has taken it out
    for _, begin, end, start, stop in SequenceMatcher(None, made, first, autojunk=False).get_opcodes():
        made_text, old = "".join(made[begin:end]), "".join(first[start:stop])
        if made_text == old:
            continue
        if text.count(made_text) != 1:
            raise GpushimError(
                f"{path} has been edited since gpushim wrote into it; take out by hand what diff "
                f"{files.copy_path(path, files.BEFORE)} {files.copy_path(path, AFTER)} shows, remove these two, "
                "then try again"
            )
        text = text.replace(made_text, old)
    return text
