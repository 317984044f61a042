"""YAML: no more than PyYAML's own safe loader takes, with the same values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml as pyyaml

from gpushim.cdi import yaml

DATA = Path(__file__).parents[2] / "data" / "cdi"
PLAIN = (dict, list, str, int, float, bool, type(None))
FORMS = "a: [1, 0x1f, 0o7, 1_000, 1:30, .5, -.inf, 1e3, ~, yes, 'x''y', \"\\u00e9\\n\"]\n"
ODD = (
    b"<<: {a: 1}\n",
    b"a: &x [1]\nb: *x\n",
    b"a: 2001-01-01",
    b"a: =",
    b"a: !!str 1",
    b"--- 1\n--- 2",
    b"a: !x 1",
    b"? [1]\n: 2",
    b"a: |\n  x\n",
    b"a: >-\n x\n y",
)


def seeds() -> list[bytes]:
    """Return a spec as YAML, each form of scalar, and what is refused."""
    spec = json.loads((DATA / "wsl.json").read_text())
    return [pyyaml.safe_dump(spec).encode(), FORMS.encode(), *ODD]


def one(data: bytes) -> None:
    """Read one document."""
    try:
        value = yaml.loads(data)
    except yaml.YamlError as error:
        assert str(error).isprintable(), ascii(str(error))
        assert len(str(error)) < 1000
        return
    _plain(value)
    try:
        theirs = pyyaml.safe_load(data.decode())
    except (pyyaml.YAMLError, ValueError, AttributeError, TypeError):
        return  # theirs makes dates, sets and merged mappings, and can fail at it
    # PyYAML takes the tag "!" for none at all.
    if not _dated(theirs) and "<<" not in repr(value) and b"!" not in data:
        assert repr(theirs) == repr(value), (theirs, value)


def _plain(value: Any) -> None:
    assert type(value) in PLAIN
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _plain(member)


def _dated(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_dated(key) or _dated(member) for key, member in value.items())
    return any(map(_dated, value)) if isinstance(value, list) else type(value) not in PLAIN
