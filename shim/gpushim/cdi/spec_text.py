"""Specs as JSON and YAML text, for the command line and refresh."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from typing import Any

from gpushim.cdi import yaml
from gpushim.ground import bounds, fastjson
from gpushim.ground.errors import FAILED, GpushimError


def read(path: str, regular: bool = False) -> tuple[Any, str]:
    """Read a JSON or YAML document, whatever its owner.

    Args:
        path: of the file; "-" is stdin.
        regular: whether to refuse all but regular files; a FIFO without a writer is empty otherwise.

    Returns:
        the document as plain data, and its format: "json" or "yaml".

    Raises:
        GpushimError: it cannot be read, is too large, or neither JSON nor YAML.
    """
    name = "stdin" if path == "-" else path
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb", opener=_open_file) as file:
            if regular and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise GpushimError(f"{name} is not a regular file", FAILED)
            data = file.read(bounds.SPEC + 1)
    except OSError as error:
        raise GpushimError(f"{name} cannot be read: {error.strerror}", FAILED) from None
    if len(data) > bounds.SPEC:
        raise GpushimError(f"{name} has more than {bounds.SPEC >> 20} MiB; make it smaller", FAILED)
    return parse(data, name)


def _open_file(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a FIFO must not hang us
    os.set_blocking(fd, True)  # a shell's <(command) may not have written yet
    return fd


def parse(data: bytes, name: str) -> tuple[Any, str]:
    """Parse a document, JSON if it begins with a brace, and return it with its format; `name` is for messages.

    Raises:
        GpushimError: it is neither.
    """
    try:
        if data.lstrip().startswith(b"{"):
            return fastjson.loads(data, name), "json"
        return yaml.loads(data), "yaml"
    except GpushimError as error:  # whose code is that of a bundle's config.json
        raise GpushimError(str(error), FAILED) from None
    except yaml.YamlError as error:
        raise GpushimError(f"{name} {error}", FAILED) from None


def render(spec: dict[str, Any], form: str) -> str:
    """Return a spec as one line of JSON, or as a YAML document that begins with "---"; `form` is "json" or "yaml".

    Raises:
        GpushimError: PyYAML, which YAML needs, is missing.
    """
    if form == "json":
        return json.dumps(spec, separators=(",", ":")) + "\n"
    try:
        import yaml as library
    except ImportError:
        raise GpushimError("writing YAML needs PyYAML, which is not installed; install it, or use JSON") from None

    class Dumper(library.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # the same edits under two names are written twice
            return True

    text: str = library.dump(spec, Dumper=Dumper, sort_keys=False, explicit_start=True, default_flow_style=False)
    return text


def form_of(path: str, chosen: str) -> tuple[str, str]:
    """Return the format to write a file in, and a warning or "".

    The extension of the path ("" is stdout) takes precedence over the chosen format, "json", "yaml" or "".
    """
    extension = os.path.splitext(path)[1]
    if extension in (".json", ".yaml"):
        form = extension[1:]
        return form, f"{path} becomes {form.upper()}, as its name says" if chosen not in ("", form) else ""
    warning = f"engines read only files that end with .json or .yaml, which {path} does not" if path else ""
    return chosen or "yaml", warning
