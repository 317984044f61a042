"""Whether a container could ask for a GPU, when nobody can tell: the configuration cannot be read, or is wrong.

Then nothing says which variables, annotations and mounts count. Whoever could ask under any configuration is refused,
for it would else start without its GPU; nobody else is harmed. Out of scope: what is wrong (policy.py).
"""

from __future__ import annotations

import os
import re
from typing import Any

from gpushim import policy, request
from gpushim.errors import GpushimError

_WORD = re.compile(r"[A-Za-z0-9._/-]+")
_COMMENT = re.compile(r"""^((?:[^#"'\n]|"[^"\n]*"|'[^'\n]*')*)#.*$""", re.MULTILINE)


def may_ask(spec: dict[str, Any], config: str, state: str) -> bool:
    """Say whether a container may have a request.

    Args:
        spec: a parsed config.json.
        config: path of config.toml.
        state: directory of the snapshot.
    """
    try:
        settings = policy.load(config)  # it is the host that cannot be listed
    except GpushimError:
        settings = _widest(spec, _words(config) | _words(state + "/triggers"))
    try:
        return request.read(spec, settings) is not None
    except GpushimError:  # why no snapshot can be had is what must be said
        return True


def _widest(spec: dict[str, Any], words: set[str]) -> dict[str, Any]:
    """Make the policy under which everything counts, with the variables and annotations that these words may name."""
    settings = policy.defaults()
    settings["requests"].update({"accept-volume-mounts": True, "swarm-variables": sorted(words & _names(spec))})
    settings["cdi"]["annotation-prefixes"] += sorted(words)
    settings["cdi"]["foreign-kinds"] = ["*"]
    return settings


def _words(path: str) -> set[str]:
    """Read what a file may name as a variable or an annotation, however wrong it is; comments name nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)  # a FIFO must not hang us
        with open(fd, "rb") as file:
            text = (file.read(policy.CONFIG_LIMIT) or b"").decode("utf-8", "replace")
    except OSError:
        return set()
    return set(_WORD.findall(_COMMENT.sub(r"\1", text)))


def _names(spec: dict[str, Any]) -> set[str]:
    process = spec.get("process")
    env = process.get("env") if isinstance(process, dict) else None
    listed = env if isinstance(env, list) else ()
    return {entry.partition("=")[0] for entry in listed if isinstance(entry, str)}
