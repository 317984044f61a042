"""Whether a container could be asking for a GPU while the configuration cannot be read, or is wrong.

Then nothing says which variables, annotations and mounts count. A container that could be asking under any
configuration is refused, for it would start without its GPU; others are not affected: a variable or an annotation
asks only if the file may name it, and its value may be a device. Out of scope: what is wrong (policy.py).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from gpushim.config import policy
from gpushim.ground.errors import GpushimError
from gpushim.oci import request, selection

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
    variables = {name for name, value in _variables(spec) if _is_device(value)}
    annotations = [key for key, value in _annotations(spec) if _is_device(value, "cdi")]
    known = [text for text in texts if text is not None]
    if len(known) == len(texts):
        variables &= {word for text in known for word in _words(text)}
        prefixes = tuple({word for text in known for word in _words(_strings(text))})
        annotations = [key for key in annotations if key.startswith(prefixes)]
    settings = policy.defaults()
    settings["requests"].update({"accept-volume-mounts": True, "swarm-variables": sorted(variables)})
    settings["cdi"]["annotation-prefixes"] += annotations
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


def _variables(spec: dict[str, Any]) -> list[tuple[str, str]]:
    process = spec.get("process")
    env = process.get("env") if isinstance(process, dict) else None
    listed = env if isinstance(env, list) else ()
    pairs = [entry.partition("=") for entry in listed if isinstance(entry, str)]
    return [(name, value) for name, _, value in pairs]


def _annotations(spec: dict[str, Any]) -> list[tuple[str, str]]:
    found = spec.get("annotations")
    listed = found.items() if isinstance(found, dict) else ()
    return [(key, value) for key, value in listed if isinstance(value, str)]
