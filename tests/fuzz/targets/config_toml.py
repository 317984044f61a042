"""config.toml: taken exactly when tomllib and jsonschema take it, and then complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import jsonschema
import tomllib

from fuzz.oracles import refused, scratch
from gpushim.config import policy
from gpushim.ground.errors import GpushimError

DATA = Path(__file__).parents[2] / "data"
FILE = scratch() / "config.toml"
SCHEMA = policy.schema()
CHECK = jsonschema.Draft202012Validator(SCHEMA)
KEYS = {section: set(keys) for section, keys in cast(Any, policy.defaults()).items()}
NEAR = (
    *(
        "",
        "[requests]\naccept-volume-mounts = 1\n",
        "[log]\nlevels = 'x'\n",
        "a.b.c = 1979-05-27",
        "[refresh]\ndeadline-seconds = true",
    ),
    *("[runtime]\nlow-level = ['/x', \"\\u0000\"]\n", "x = " + "[" * 400 + "]" * 400, "x = 0x" + "f" * 50),
)


def seeds() -> list[bytes]:
    """Return a file with all defaults, near misses, and files of other programs."""
    sections = [
        f"[{section}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
        for section, keys in cast(Any, policy.defaults()).items()
    ]
    others = sorted((DATA / "engines" / "containerd").glob("*.toml"))
    texts = ["".join(sections), *sections, *NEAR]
    return [*(text.encode() for text in texts), *(path.read_bytes() for path in others)]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else repr(value)


def one(data: bytes) -> None:
    """Load a file."""
    FILE.write_bytes(data)
    try:
        loaded = policy.load(str(FILE))
    except GpushimError as error:
        refused(error)
        assert not _valid(data), "it is valid"
        return
    assert _valid(data), "it is not valid"
    assert {section: set(keys) for section, keys in cast(Any, loaded).items()} == KEYS
    assert re.match("/[^/]|/$", loaded["driver"]["dev-root"])


def _valid(data: bytes) -> bool:
    try:
        return bool(CHECK.is_valid(tomllib.loads(data.decode())))
    except (ValueError, RecursionError):
        return False
