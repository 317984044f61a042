"""The record of what gpushim-node has laid down on a node, by which it is taken away again.

It is written before the first file is: what a killed installer leaves is known to the next.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields

from gpushim.ground.errors import GpushimError
from gpushim.paths.replace import content, replace
from gpushim.refresh import keep

PATH = keep.RECORD
FORM = 1


@dataclass
class Record:
    """What was laid down.

    Attributes:
        files: SHA-256 of each, in hex, by its path; what a killed installer was about to lay down is there too.
        folders: those that were made for them.
        engine: what `gpushim configure` was given to configure an engine; [] if none was.
        former: what it was given before, of which something is there as long as containers need it.
    """

    files: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    engine: list[str] = field(default_factory=list)
    former: list[list[str]] = field(default_factory=list)
    form: int = FORM

    def save(self) -> None:
        """Write it, if it is another than the one that is there."""
        self.note(os.path.dirname(PATH))
        os.makedirs(os.path.dirname(PATH), 0o755, exist_ok=True)
        members = asdict(self)
        if not self.former:  # which earlier versions do not read
            del members["former"]
        text = json.dumps(members, indent=1, sort_keys=True).encode() + b"\n"
        if content(PATH) != text:
            replace(PATH, text)

    def note(self, folder: str) -> None:
        """Note that a directory is about to be made, with its parents, where they are missing."""
        while not os.path.isdir(folder):
            if folder not in self.folders:
                self.folders.append(folder)
            folder = os.path.dirname(folder)

    def has(self, path: str) -> bool:
        """Say whether a file is as it was laid down."""
        data = content(path)
        return data is not None and digest(data) == self.files.get(path)


def load() -> Record:
    """Read the record; an empty one if there is none.

    Raises:
        GpushimError: it is none that this version can read.
    """
    data = content(PATH)
    if data is None:
        return Record()
    try:
        known = {each.name for each in fields(Record)}  # other versions may have more
        found = Record(**{name: its for name, its in json.loads(data).items() if name in known})
        if found.form == FORM and _is_well_formed(found):
            return found
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise GpushimError(f"{PATH} cannot be understood; use the version of gpushim that wrote it, or remove it")


def _is_well_formed(found: Record) -> bool:
    lists = [found.folders, found.engine, found.former]
    lists += found.former if isinstance(found.former, list) else []
    if not isinstance(found.files, dict) or not all(isinstance(each, list) for each in lists):
        return False
    words = [word for each in (found.folders, found.engine, *found.former) for word in each]
    return all(isinstance(each, str) for each in (*found.files.values(), *words)) and all(found.former)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
