"""daemon.json as data: parsed as strictly as dockerd does, edited, and written with the layout that it has.

Names keep their order and numbers their spelling; indentation, line ends and the file's last bytes stay as they are
in most of it. Out of scope: files (settings/files.py); what dockerd says of one (dockerd.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpushim.engines.settings.setup import is_ours
from gpushim.ground.errors import GpushimError, quote

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from gpushim.engines.settings.setup import Options

BOM, SPACE = "\ufeff", " \t\r\n"
DEPTH = 100  # levels; keeps recursion far from Python's limit
# Runtimes that dockerd has by itself: runc, shims by their type, and from version 23 on shims by their path.
STOCK = re.compile(r"runc|io\.containerd\.[^/]+|/.+")
_TYPES: dict[str, tuple[type, str]] = {
    "runtimes": (dict, "an object"),
    "features": (dict, "an object"),
    "default-runtime": (str, "a string"),
}
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]]|NaN|Infinity')
_FIRST_MEMBER = re.compile(r'\{[ \t]*\r?\n\s*?([ \t]*)"')
_NUMBER = f"{os.urandom(8).hex()} "  # before one, while it is written; no string of a file has it

# Root runs it in whatever directory, so it is isolated (-I). Numbers stay as they are spelled.
_BY_HAND = """import json, os, shutil, sys; path, *names = sys.argv[1:]; path = os.path.realpath(path); \
mark = os.urandom(8).hex(); number = lambda text: mark + text + mark; \
settings = json.load(open(path, encoding="utf-8-sig"), parse_int=number, parse_float=number); \
[settings.get("runtimes", {}).pop(name, None) for name in names]; \
settings.get("default-runtime") in names and settings.pop("default-runtime"); \
text = json.dumps(settings, indent=2).replace(chr(34) + mark, "").replace(mark + chr(34), "") + "\\n"; \
open(path + ".new", "w").write(text); shutil.copystat(path, path + ".new"); \
os.chown(path + ".new", os.stat(path).st_uid, os.stat(path).st_gid); os.replace(path + ".new", path)"""


@dataclass(frozen=True)
class Number:
    """A number as it is spelled, which may be of any length."""

    spelling: str


def parse(content: bytes | None, path: str) -> dict[str, Any]:
    """Return the settings in a daemon.json; an empty file has none, as for dockerd.

    Raises:
        GpushimError: it is not JSON, or json would lose something of it: a name occurs twice in one object.
    """
    try:
        text = (content or b"").decode().removeprefix(BOM)
        parsed: Any = json.loads(text if text.strip(SPACE) else "{}", parse_int=Number, parse_float=Number)
        line, reason = _misread(text)
        if not isinstance(parsed, dict):
            line, reason = 1, "it is not an object"
    except UnicodeDecodeError as error:
        line, reason = (content or b"").count(b"\n", 0, error.start) + 1, "it is not UTF-8"
    except json.JSONDecodeError as error:
        line, reason = error.lineno, f"it is not JSON ({error.msg})"
    except RecursionError:
        line, reason = 1, "it is nested too deeply"
    if reason:
        raise GpushimError(f"{path}, line {line}: {reason}; correct it first")
    settings: dict[str, Any] = parsed
    return settings


def _misread(text: str) -> tuple[int, str]:
    """Return the line of what Python's json takes and dockerd does not, or means otherwise, and what it is."""
    names: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        reason = ""
        if token[0] in ("{", "["):
            names.append(set())
            reason = "it is nested too deeply" if len(names) > DEPTH else ""
        elif token[0] in ("}", "]"):
            names.pop()
        elif token[2]:
            name = json.loads(token[1])
            reason = f"the name {quote(name)} occurs twice in one object" if name in names[-1] else ""
            names[-1].add(name)
        elif not token[1]:
            reason = f"it is not JSON ({token[0]})"
        if reason:
            return text.count("\n", 0, token.start()) + 1, reason
    return 0, ""


def write(settings: dict[str, Any], like: bytes | None) -> bytes:
    """Return the content of a daemon.json with these settings, laid out as `like`, which `parse` has taken."""
    old = (like or b"").decode()
    mark, body = old[: old.startswith(BOM)], old.removeprefix(BOM).strip(SPACE)
    first = _FIRST_MEMBER.match(body)
    indent = first[1] if first else None if '"' in body and "\n" not in body else "  "
    text = json.dumps(settings, indent=indent, ensure_ascii=False, default=lambda number: _NUMBER + number.spelling)
    text = re.sub(f'"{_NUMBER}([^"]*)"', r"\1", text).replace("\n", "\r\n" if "\r\n" in old else "\n")
    end = old[len(old.rstrip(SPACE)) :] if body else "\n"
    return f"{mark}{text}{end}".encode(errors="backslashreplace")  # half a surrogate pair, which JSON escapes so


def entries(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    runtimes = settings.get("runtimes")
    listed = runtimes.items() if isinstance(runtimes, dict) else ()
    return {name: entry for name, entry in listed if isinstance(entry, dict)}


def program_of(entry: object) -> str:
    """Return the program of an entry of `runtimes`: its path, or what runc's shim is to execute in runc's place."""
    options = entry.get("options") if isinstance(entry, dict) else None
    path = entry.get("path") if isinstance(entry, dict) else None
    return str(path or (options.get("BinaryName") if isinstance(options, dict) else None) or "")


def add(settings: dict[str, Any], options: Options) -> dict[str, Any]:
    """Return settings, in which `mistyped` finds nothing, with gpushim's runtime in place of one of that name."""
    settings = deepcopy(settings)
    runtimes = settings["runtimes"] = settings.get("runtimes") or {}
    if not is_ours(program_of(runtimes.get(options.name))):
        runtimes[options.name] = {"path": options.program}
    elif runtimes[options.name].get("path"):
        runtimes[options.name]["path"] = options.program
    else:
        runtimes[options.name]["options"]["BinaryName"] = options.program
    if options.default:
        settings["default-runtime"] = options.name
    if options.cdi:
        settings["features"] = {**(settings.get("features") or {}), "cdi": True}
    return settings


def without_runtimes(settings: dict[str, Any], names: list[str], extra: Container[str] = ()) -> dict[str, Any]:
    """Return settings without some runtimes, and without a default runtime that would be missing then."""
    settings = deepcopy(settings)
    for name in names:
        del settings["runtimes"][name]
    if names and not settings["runtimes"]:
        del settings["runtimes"]
    if settings.get("default-runtime") in names and settings["default-runtime"] not in extra:
        del settings["default-runtime"]
    return settings


def is_same(settings: dict[str, Any], other_settings: dict[str, Any]) -> bool:
    """Return whether two daemon.json say the same; no runtimes are the same as none."""
    first, second = ({**data, "runtimes": data.get("runtimes") or {}} for data in (settings, other_settings))
    return first == second


def by_hand(path: str, names: list[str], copy: str, records: list[str]) -> list[str]:
    """Return the commands that do what `without_runtimes` does to a file, where there is no gpushim.

    Args:
        copy: path of a copy to make first; "" for none.
        records: paths of gpushim's own files beside it.
    """
    commands = [["cp", "--backup=numbered", path, copy]] if copy else []
    commands += [["python3", "-I", "-c", _BY_HAND, path, *names]] if names else []
    return [shlex.join(words) for words in [*commands, *(["rm", "-f", record] for record in records)]]


def lost(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether `old` has a setting that gpushim has not written and `new` does not have."""
    leaves, names = dict(_leaves(new)), [name for name, entry in entries(old).items() if is_ours(program_of(entry))]
    for keys, value in _leaves(old):
        is_own = (keys[:1], keys[2:]) == (("runtimes",), ("path",)) and is_ours(value)
        is_own = is_own or (keys == ("default-runtime",) and value in names)
        if leaves.get(keys) != value and value not in (None, {}) and not is_own:
            return True
    return False


def _leaves(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not isinstance(value, dict) or not value:
        yield keys, value
        return
    for name, member in value.items():
        yield from _leaves(member, (*keys, name))


def mistyped(settings: dict[str, Any]) -> str:
    """Return, as a clause, which setting that gpushim touches has the wrong type; "" for none."""
    for key, value in settings.items():
        # Go matches keys in any case, but dockerd then does not know the key.
        if key not in _TYPES and key.lower() in _TYPES:
            return f"{quote(key)} is written {key.lower()}"
        if key in _TYPES and value is not None and not isinstance(value, _TYPES[key][0]):
            return f"{key} is not {_TYPES[key][1]}"
    for name, entry in (settings.get("runtimes") or {}).items():
        if name == "runc":
            return "the name runc under runtimes is Docker's own"
        if entry is not None and not isinstance(entry, dict):
            return f"runtimes.{name} is not an object"
        if not isinstance((entry or {}).get("path") or "", str):
            return f"runtimes.{name}.path is not a string"
    for name, value in (settings.get("features") or {}).items():
        if value is not None and not isinstance(value, bool):
            return f"features.{name} is neither true nor false"
    return ""


def without_default(settings: dict[str, Any], extra: Container[str] = ()) -> str:
    """Return, as a clause, that the default runtime is missing; "" if it is not, or there is none."""
    default = settings.get("default-runtime")
    if not default or STOCK.fullmatch(default) or default in (settings.get("runtimes") or ()) or default in extra:
        return ""
    return f"there is no runtime {quote(default)}, which is the default-runtime"
