"""What is decided without a snapshot, as while the configuration cannot be read: who could be asking for a GPU.

Then nothing says which variables, annotations and mounts count. A container that could be asking under any
configuration is refused, for it would start without its GPU; others are not affected: a variable or an annotation
asks only if the file may name it, and its value may be a device. And the refusal's line in the GPU log has to find
that log. Not on the create path: only trouble pays for these imports. Out of scope: what is wrong (policy.py), other
reports of a refusal (create.py), the line itself (decide.py).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from gpushim.config import policy
from gpushim.ground import fastjson, system
from gpushim.ground.errors import GpushimError
from gpushim.inventory import ensure
from gpushim.oci import request, selection
from gpushim.paths import trust
from gpushim.paths.logfile import append, now

if TYPE_CHECKING:
    from gpushim.ground.model import Policy

_WORD = re.compile(r"[A-Za-z0-9._/-]+")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)  # elsewhere a # may be part of a string that has no end
_MULTILINE = re.compile("\"\"\"|'''")
_NO_STRING = re.compile(r"""^(?:[^"'\n]*$|[ \t]*[\w.-]+[ \t]*=)""", re.MULTILINE)  # a header, a key
# TOML v1.1, "String": code points, and the end of a line in a string of several.
_ESCAPE = re.compile(r"\\(?:[ \t]*\n\s*|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(00[01][0-9a-fA-F]{5}))")


def may_ask(spec: dict[str, Any], config: str, state: str) -> bool:
    """Say whether a container may have a request."""
    try:
        settings: Policy = policy.load(config)  # then it is the host that cannot be surveyed
    except GpushimError:
        settings = _widest(spec, [_text(config), _text(state + "/triggers")])
    try:
        return request.read(spec, settings) is not None
    except GpushimError:  # the reason for the missing snapshot must be reported
        return True


def _widest(spec: dict[str, Any], texts: list[str | None]) -> Policy:
    """Return the policy under which all counts that these texts may name; None may name anything."""
    names = {name for name, value in environment(spec) if _is_device(value)}
    keys = [key for key, value in annotated(spec) if _is_device(value, "cdi")]
    known = [text for text in texts if text is not None]
    if len(known) == len(texts):
        names &= {word for text in known for word in _words(text)}
        prefixes = tuple({word for text in known for word in _words(_strings(text))})
        keys = [key for key in keys if key.startswith(prefixes)]
    settings = policy.defaults()
    settings["requests"].update({"accept-volume-mounts": True, "swarm-variables": sorted(names)})
    settings["cdi"]["annotation-prefixes"] += keys
    settings["cdi"]["foreign-kinds"] = ["*"]
    return settings


def _text(path: str) -> str | None:
    """Read any file without its comments, which name nothing; None if that cannot be done."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)  # a FIFO must not hang us
        with open(fd, "rb") as file:
            data = file.read(policy.CONFIG_LIMIT + 1) or b""
    except FileNotFoundError:
        return ""
    except OSError:
        return None
    if len(data) > policy.CONFIG_LIMIT:
        return None
    # Names are ASCII: without NULs, UTF-16 and UTF-32 have them like every other encoding.
    text = data.replace(b"\0", b"").decode("utf-8", "replace").replace("\r", "\n")
    return text if _MULTILINE.search(text) else _COMMENT.sub("", text)


def _strings(text: str) -> str:
    """Remove from a configuration what is surely in no string, such as headers and keys."""
    return text if _MULTILINE.search(text) else _NO_STRING.sub("", text)


def _words(text: str) -> set[str]:
    return {*_WORD.findall(text), *_WORD.findall(_ESCAPE.sub(_meant, text))}


def _meant(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2] or escape[3] or "0"
    return chr(int(digits, 16)) if int(digits, 16) in range(1, 0x110000) else ""


def _is_device(value: str, kind: str = "") -> bool:
    """Say whether a value may name devices, of a kind of selection.Item or any."""
    texts = [text.strip() for text in value.split(",") if text.strip()]
    kinds = {*map(_kind, texts)} - {"unknown"}
    return "void" not in texts and bool(kinds & {kind} if kind else kinds)


def _kind(text: str) -> str:
    try:
        items = selection.parse([text], ())
    except GpushimError:  # the request will be refused for it
        return "index"
    return items[0][0] if items else "none"


def environment(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """List the variables of a config.json, whatever else there is, with their values."""
    process = spec.get("process")
    env = process.get("env") if isinstance(process, dict) else None
    listed = env if isinstance(env, list) else ()
    pairs = [entry.partition("=") for entry in listed if isinstance(entry, str) and "=" in entry]
    return [(name, value) for name, _, value in pairs]


def annotated(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """List the annotations of a config.json that are texts, with their values."""
    found = spec.get("annotations")
    listed = found.items() if isinstance(found, dict) else ()
    return [(key, value) for key, value in listed if isinstance(value, str)]


def record(line: dict[str, Any]) -> None:
    """Write a refusal's line into the GPU log ([log] file), with the time added."""
    try:
        append(_log(), fastjson.dumps({"time": now(), **line}))
    except Exception:  # noqa: BLE001, S110 - the refusal itself must reach the engine
        pass


def _log() -> str:
    """Return the log's path in the configuration or, if that is wrong, in the last one.

    Without either it is the default, for the system's configuration alone.
    """
    config = system.config_path()
    default = config == system.CONFIG_FILE
    try:
        if default or os.path.exists(config):
            return str(policy.load(config)["log"]["file"])
    except GpushimError:
        pass
    try:
        state = system.state_dir()
        return str(ensure.own(f"{state}/{ensure.SNAPSHOT}")["policy"]["log"]["file"] if trust.ours(state) else "")
    except (GpushimError, KeyError, TypeError):  # none yet
        return str(policy.defaults()["log"]["file"]) if default else ""
