"""The record of the files that gpushim-node has installed on a node, for their removal.

It is written before the first file, so that the next run knows the files of a killed installer.
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
    """Files and settings that were installed.

    Attributes:
        files: SHA-256 of each file, in hex, by its path; includes files that a killed installer did not get to.
        folders: that were made for the files.
        engine: words of `gpushim configure` that configured an engine; [] if none was.
        former: words of earlier settings, parts of which stay as long as containers need them.
    """

    files: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    engine: list[str] = field(default_factory=list)
    former: list[list[str]] = field(default_factory=list)
    form: int = FORM

    def save(self) -> None:
        """Write the record if it differs from the file."""
        self.note_folder(os.path.dirname(PATH))
        os.makedirs(os.path.dirname(PATH), 0o755, exist_ok=True)
        members = asdict(self)
        if not self.former:  # earlier versions do not read it
            del members["former"]
        text = json.dumps(members, indent=1, sort_keys=True).encode() + b"\n"
        if content(PATH) != text:
            replace(PATH, text)

    def note_folder(self, folder: str) -> None:
        """Add a directory that is about to be made, and its missing parents."""
        while not os.path.isdir(folder):
            if folder not in self.folders:
                self.folders.append(folder)
            folder = os.path.dirname(folder)

    def is_unchanged(self, path: str) -> bool:
        """Return whether a file is as it was written."""
        data = content(path)
        return data is not None and digest(data) == self.files.get(path)


def load() -> Record:
    """Read the record; return an empty one if there is no file.

    Raises:
        GpushimError: this version cannot read it.
    """
    data = content(PATH)
    if data is None:
        return Record()
    try:
        names = {member.name for member in fields(Record)}  # other versions may have more members
        record = Record(**{name: value for name, value in json.loads(data).items() if name in names})
        if record.form == FORM and _is_well_formed(record):
            return record
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise GpushimError(f"{PATH} cannot be understood; use the version of gpushim that wrote it, or remove it")


def _is_well_formed(record: Record) -> bool:
    lists = [record.folders, record.engine, record.former]
    lists += record.former if isinstance(record.former, list) else []
    if not isinstance(record.files, dict) or not all(isinstance(entry, list) for entry in lists):
        return False
    words = [word for entry in (record.folders, record.engine, *record.former) for word in entry]
    return all(isinstance(entry, str) for entry in (*record.files.values(), *words)) and all(record.former)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
