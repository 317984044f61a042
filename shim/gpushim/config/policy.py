"""The administrator's policy: /etc/gpushim/config.toml, checked against config.schema.json beside this file.

Read by refresh and the command line; a create gets it from the snapshot. `driver` is its section [driver].
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import stat
import sys
from glob import glob
from typing import TYPE_CHECKING, Any

from gpushim.ground.errors import CONFIG, FAILED, INVENTORY, NOT_FOUND, GpushimError
from gpushim.paths import host_files, trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushim.ground.model import Config, DriverPolicy, Policy

CONFIG_LIMIT = 1 << 20  # bytes
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where engines have programs of their own, their runtimes among them.
ENGINES = {
    "crio": "/usr/libexec/crio",  # the launcher has it too
    "k3s": "/var/lib/rancher/k3s/data/current/bin",
    "rke2": "/var/lib/rancher/rke2/bin",
    "k0s": "/var/lib/k0s/bin",
    "microk8s": "/snap/microk8s/current/bin",
    "docker": "/snap/docker/current/bin",
}
# And those per version, of which the newest comes first.
ENGINES_PATH = (*ENGINES.values(), "/var/lib/rancher/k3s/data/*/bin", "/var/lib/rancher/rke2/data/*/bin")
RUNTIMES = ("runc", "crun")  # without a configuration
_QUOTES = "'\""
# The switches of a profile, for keys that config.toml does not set itself.
PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    "multi-tenant": {
        "requests": {
            "accept-env-when-unprivileged": False,
            "accept-annotations-when-unprivileged": False,
            "accept-volume-mounts": True,  # an image cannot have any: the one way left for a device plugin
            "swarm-variables": [],
            "list-devices-in-refusals": False,
        },
        "cdi": {"foreign-kinds": []},
        "mps": {"enabled": False},
    },
}
_TYPES: dict[str, type[Any]] = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
_TOML_NAMES = {
    "object": "a table",
    "array": "an array",
    "string": "a string",
    "boolean": "true or false",
    "integer": "an integer",
}


def schema() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "config.schema.json"), encoding="utf-8") as file:
        parsed: dict[str, Any] = json.load(file)
    return parsed


def defaults() -> Config:
    """Return the policy of a host without a config.toml, new objects each time."""
    return _complete({})


def load(path: str) -> Config:
    """Read, check and complete a config.toml, which need not exist.

    Returns:
        every section and key of the schema; driver.dev-root is filled in.

    Raises:
        GpushimError: the file cannot be read or trusted, is not TOML, or has what the schema does not allow.
    """
    return _complete(given(path) or {})


def usable(path: str) -> Config:
    """Return what `load` does, with defaults for wrong values: for explanations, never to grant anything."""
    try:
        document = _parse(trusted(path, "config.toml"), path)
    except (OSError, GpushimError):
        return defaults()
    right: dict[str, Any] = {}
    for section, rule in schema()["properties"].items():
        entries, rules = document.get(section), rule["properties"]
        pairs = entries.items() if isinstance(entries, dict) else ()
        right[section] = {
            key: value for key, value in pairs if key in rules and not [*problems(value, rules[key], key)]
        }
    return _complete(right)


def of_containers(config: Policy) -> Policy:
    """Return a snapshot's part of a config: a create has no use for the device plugin's section."""
    entries_by_section: Any = {section: entries for section, entries in config.items() if section != "device-plugin"}
    policy: Policy = entries_by_section
    return policy


def given(path: str) -> dict[str, Any] | None:
    """Return the sections and keys that a config.toml sets itself, checked; None if there is no such file."""
    try:
        data = trusted(path, "config.toml")
    except FileNotFoundError:
        link = _dangling(path)
        if not link:
            return None
        raise GpushimError(
            f"{path} cannot be read: {'it' if link == path else link} is a link that leads nowhere; put there "
            "what it leads to, or remove it",
            CONFIG,
        ) from None
    except OSError as error:
        raise GpushimError(f"{path} cannot be read: {error.strerror}", CONFIG) from None
    return checked(data, path)


def checked(data: bytes, path: str) -> dict[str, Any]:
    """Parse and check the content of a config.toml; `path` is for messages."""
    document = _parse(data, path)
    for problem in problems(document, schema(), ""):
        raise GpushimError(f"{path}: {problem}", CONFIG)
    return document


def absent(driver: DriverPolicy) -> str:
    """Return which directory of [driver] does not exist or cannot be seen, or ""."""
    return no_directory("driver.root", driver["root"]) or no_directory("driver.dev-root", driver["dev-root"])


def no_directory(setting: str, path: str) -> str:
    """Return the sentence that what a setting or option names is no directory, or cannot be seen; "" if it is one."""
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            return ""
    except PermissionError:  # it may well be there
        return f"{setting} is {path!a}, which user {os.geteuid()} cannot read"
    except (OSError, ValueError):
        pass
    return f"{setting} is {path!a}, which is no directory of this host"


def check_directories(driver: DriverPolicy, path: str) -> None:
    """Raise for a [driver] whose directories do not exist on this host; `path` is config.toml's."""
    sentence = absent(driver)
    if sentence:
        raise GpushimError(f"{path}: {sentence}; correct it, or start what puts the driver there", INVENTORY)


def low_level(names: list[str]) -> str:
    """Return the path of the low-level runtime: the first of these names or absolute paths that can be executed.

    Names are looked up in the system's directories and those of PATH that only root and this user can write to, and
    then, all of them, in ENGINES_PATH.

    Raises:
        GpushimError: none is there.
    """
    for folders in _folders():
        for name in names:
            for path in [name] if "/" in name else [f"{folder}/{name}" for folder in folders]:
                # The launcher reads the path as one line; a relative one would depend on the engine's directory.
                if path.startswith("/") and "\n" not in path and os.path.isfile(path) and os.access(path, os.X_OK):
                    return path
    raise GpushimError(
        f"no low-level runtime: none of {', '.join(names)} is an executable file in {SYSTEM_PATH}, PATH or an "
        'engine\'s own directory; install one, or name yours: low-level = ["/path/to/runc"] under [runtime]',
        NOT_FOUND,
    )


def stand_in(names: list[str], last: str) -> str:
    """Return a low-level runtime for running containers, even if none that the configuration names is installed.

    Then it is the `last` one that a refresh found, or one of that name in another directory: another kind knows
    nothing of its containers, and may isolate less. If none was ever found, it is one of RUNTIMES.
    """
    spares = [last, posixpath.basename(last)] if last else [name for name in RUNTIMES if name not in names]
    return low_level([*dict.fromkeys([*names, *spares])])


def problems(value: Any, rule: dict[str, Any], name: str) -> Iterator[str]:
    """Check a value against a rule of the schema; yields a sentence about `name` for each error.

    Only the subset of JSON Schema that config.schema.json uses; a test holds it against jsonschema.
    """
    kind = rule["type"]
    if not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
        line = f"; write {name.rpartition('.')[2]} = [{_shorten(value)}]" if _needs_brackets(value, rule) else ""
        yield f"{name} is {_shorten(value)}, not {_TOML_NAMES[kind]}{line}"
    elif kind == "object":
        for key, member in value.items():
            if key in rule["properties"]:
                yield from problems(member, rule["properties"][key], _dotted(name, key))
            else:
                yield _unknown(_dotted(name, key))
    elif kind == "array":
        if len(value) < rule.get("minItems", 0):
            yield f"{name} is empty"
        for number, member in enumerate(value):
            yield from problems(member, rule["items"], f"{name}[{number}]")
    elif "enum" in rule and value not in rule["enum"]:
        yield f"{name} is {_shorten(value)}, not one of {', '.join(rule['enum'])}"
    elif "pattern" in rule and not re.search(rule["pattern"], value):
        yield f"{name} is {_shorten(value)}, which is not allowed there: {rule.get('description', 'see the schema')}"
    elif "minimum" in rule and not rule["minimum"] <= value <= rule["maximum"]:
        yield f"{name} is {_shorten(value)}, not between {rule['minimum']} and {rule['maximum']}"


def trusted(path: str, kind: str, mounted: bool = False) -> bytes:
    """Read a file of the administrator's settings.

    Args:
        path: of the file, absolute; links are followed, as a ConfigMap needs it.
        kind: of the file, as in "that is not a config.toml".
        mounted: another user may own it if its mount is read-only: another container of the pod writes it.

    Raises:
        OSError: it cannot be read.
        GpushimError: it is not a regular file, is too large, or users other than root and this one can write to it or
            replace it.
    """
    # O_NONBLOCK: a FIFO must not hang us; it does not matter to regular files (open(2)).
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise GpushimError(f"{path} is not a regular file", CONFIG)
        if trust.others_may(status) and not (mounted and os.fstatvfs(fd).f_flag & os.ST_RDONLY):
            raise GpushimError(
                f"{path} cannot be trusted: user {status.st_uid} owns it, its mode is "
                f"{stat.S_IMODE(status.st_mode):04o}; make it root's, with nobody else allowed to write",
                CONFIG,
            )
        culprit = host_files.replaceable(path)
        if culprit:
            raise GpushimError(
                f"{path} cannot be trusted: users other than root can put another file there, since {culprit} is "
                "theirs or written by them; make it root's, with nobody else allowed to write",
                CONFIG,
            )
        data = os.read(fd, CONFIG_LIMIT + 1)
    finally:
        os.close(fd)
    if len(data) > CONFIG_LIMIT:
        raise GpushimError(f"{path} is larger than {CONFIG_LIMIT >> 20} MiB; that is not a {kind}", CONFIG)
    return data


def _folders() -> Iterator[list[str]]:
    """List the directories of runtimes: first the system's and PATH's, then the engines' own."""
    yield [*SYSTEM_PATH.split(":"), *filter(_is_safe, os.environ.get("PATH", "").split(":"))]
    folders = []
    for pattern in ENGINES_PATH:
        folders += sorted(glob(pattern), key=_modification_time, reverse=True) if "*" in pattern else [pattern]
    yield [*filter(_is_safe, folders)]


def _modification_time(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # a link that leads nowhere, or a version that is being removed
        return 0.0


def _is_safe(folder: str) -> bool:
    try:
        safe = folder.startswith("/") and not trust.others_may(os.stat(folder))
        return safe and not host_files.replaceable(folder)
    except (OSError, ValueError):
        return False


def _dangling(path: str) -> str:
    """Return the dangling link on the way to a file; "" if there is none.

    The file may be on a volume that is not mounted yet; until then, what it forbids must not be allowed.
    """
    while path.strip("/"):
        if os.path.islink(path) and not os.path.exists(path):
            return path
        path = os.path.dirname(path)
    return ""


def _parse(data: bytes, path: str) -> dict[str, Any]:
    if data.startswith(b"\xef\xbb\xbf"):
        raise GpushimError(f"{path}, line 1: begins with a byte order mark; save it as UTF-8 without one", CONFIG)
    try:
        return _toml(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise GpushimError(f"{path}, line {line}: is not UTF-8; save it as UTF-8", CONFIG) from None
    except RecursionError:
        raise GpushimError(f"{path} is nested too deeply; correct it", CONFIG) from None
    except ValueError as error:  # tomllib's has line and column; or too long an integer
        raise GpushimError(f"{path} is not TOML: {str(error)[:200]}; correct it", CONFIG) from None


def _toml(text: str) -> dict[str, Any]:
    from importlib import import_module  # 13 ms with the parser, and most hosts have no config.toml

    root = __file__.rpartition("/gpushim/")[0] or "."
    # A create has not got the private dependencies on its path.
    private = [] if sys.version_info >= (3, 11) else [root + "/vendor", root + "/../vendor"]
    sys.path += private
    try:
        parser = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise GpushimError("config.toml cannot be read: Python's tomli is missing; install it", FAILED) from None
    finally:
        del sys.path[len(sys.path) - len(private) :]
    parsed: dict[str, Any] = parser.loads(text)
    return parsed


def _needs_brackets(value: Any, rule: dict[str, Any]) -> bool:
    """Return whether a string should be in brackets: a list of it would be right."""
    if rule["type"] != "array" or not isinstance(value, str) or _shorten(value)[1:-1] != value:
        return False
    return not [*problems(value, rule["items"], "")]


def _unknown(name: str) -> str:
    sections = schema()["properties"]
    keys = [f"{section}.{key}" for section, rule in sections.items() for key in rule["properties"]]
    near = _most_similar(name, [*sections, *keys])
    section = name.partition(".")[0]
    hint = f"the sections are {', '.join(sections)}"
    if near or section in sections:
        hint = (
            f"did you mean {near}?"
            if near
            else f"the keys of [{section}] are {', '.join(sections[section]['properties'])}"
        )
    return f"{_shorten(name).strip(_QUOTES)} is not a known key; {hint}"


def _most_similar(name: str, keys: list[str]) -> str:
    """Return the most similar key, preferring its own section; "" if none is similar."""
    from difflib import SequenceMatcher  # only for a config.toml that is wrong

    section, _, key = name.rpartition(".")
    ranked = [(0.0, "")]
    for path in keys:
        own_section, _, own_key = path.rpartition(".")
        ratios = (SequenceMatcher(None, key, end).ratio() for end in (own_key, own_key[: len(key) + 1]))
        bonus = 0.1 if own_section == section else 0.0 if key == own_key else -0.1
        ranked.append((max(ratios) + bonus, path))
    likeness, path = max(ranked, key=lambda pair: pair[0])
    return path if likeness >= 0.85 else ""


def _complete(sections: dict[str, Any]) -> Config:
    profile = PROFILES[sections.get("requests", {}).get("profile", "default")]
    policy: Any = {
        section: {
            **{key: entry["default"] for key, entry in rule["properties"].items()},
            **profile.get(section, {}),
            **sections.get(section, {}),
        }
        for section, rule in schema()["properties"].items()
    }
    completed: Config = policy
    driver = completed["driver"]
    driver["root"] = _clean_path(driver["root"])
    driver["dev-root"] = _clean_path(driver["dev-root"] or driver["root"])
    return completed


def _clean_path(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")  # normpath keeps two leading slashes


def _dotted(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _shorten(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
