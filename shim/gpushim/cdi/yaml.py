"""YAML files as plain data: what JSON can express, no tags, few aliases, one document.

Built from PyYAML's events, so that limits hold before anything is built. A safe loader with a stricter composer would
save 25 lines, but cost a create 10 ms instead of 4 for 30 KB, because it builds nodes before data.
Imported only for YAML: importing PyYAML takes longer than all the rest of a create.
"""

from __future__ import annotations

import sys

from gpushim.ground import bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

MISSING = "is YAML, and PyYAML is not installed; install it, or write JSON"
_STRING = "tag:yaml.org,2002:str"
_PLAIN = ("null", "bool", "int", "float")  # other plain forms, such as dates, are strings


class YamlError(Exception):
    """Why a text is no such data, as the rest of a sentence."""


def loads(data: bytes) -> Any:
    """Parse one YAML document, UTF-8; an alias gives the same object again.

    Raises:
        YamlError: PyYAML is missing, the text is not YAML, or has something that a CDI spec does not need.
    """
    module = _library()
    loader = getattr(module, "CSafeLoader", module.SafeLoader)
    try:
        text = str(data, "utf-8")
        builder = _Builder(module, module.parse(text, Loader=loader))
        return builder.document()
    except UnicodeDecodeError as error:
        raise YamlError(f"is not UTF-8 at byte {error.start}") from None
    except module.YAMLError as error:
        raise YamlError("is not YAML: " + " ".join(_problem(error, text).split())[:200]) from None


def _problem(error: Any, text: str) -> str:
    """Return PyYAML's problem and its position, without the line itself, which may have a secret."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark and text[mark.index : mark.index + 1] == "\t":
        problem = "a tab where only blanks can be"
    return f"{problem}, line {mark.line + 1}, column {mark.column + 1}" if mark and problem else str(error)


def check_size(data: Any, limit: int) -> None:
    """Raise for data of more than `limit` values or nested too deeply, each alias counted with its content.

    Raises:
        YamlError: it is too large.
    """
    number, rows = 0, [iter([data])]
    while rows:
        value = next(rows[-1], rows)
        if value is rows:
            rows.pop()
            continue
        number += 1
        if number > limit:
            raise YamlError(f"has more than {limit} values; make it smaller")
        if len(rows) > bounds.YAML_DEPTH:
            raise YamlError("is nested too deeply; put less into each other")
        if isinstance(value, (dict, list)):
            rows.append(iter(value.values() if isinstance(value, dict) else value))


def _library() -> Any:
    """Import PyYAML, if need be from gpushim's private dependencies, which a create has not on its path."""
    root = __file__.rpartition("/gpushim/")[0] or "."
    private = [path for path in (root + "/vendor", root + "/../vendor") if path not in sys.path]
    sys.path += private
    try:
        from importlib import import_module

        return import_module("yaml")
    except ImportError:
        raise YamlError(MISSING) from None
    finally:
        sys.path[:] = [path for path in sys.path if path not in private]


class _Builder:
    __slots__ = ("aliases", "anchors", "constructor", "events", "module", "resolver")

    def __init__(self, module: Any, events: Iterator[Any]) -> None:
        self.module, self.events = module, events
        self.resolver, self.constructor = module.resolver.Resolver(), module.constructor.SafeConstructor()
        self.anchors: dict[str, Any] = {}
        self.aliases = 0

    def document(self) -> Any:
        starts = (event for event in self.events if isinstance(event, self.module.DocumentStartEvent))
        value = self.value(next(self.events), 0) if next(starts, None) else None
        if next(starts, None):
            raise YamlError("has more than one document")
        return value

    def value(self, event: Any, depth: int) -> Any:
        if depth > bounds.YAML_DEPTH:
            raise YamlError("is nested too deeply")
        if isinstance(event, self.module.AliasEvent):
            self.aliases += 1
            if self.aliases > bounds.YAML_ALIASES:
                raise YamlError(f"has more than {bounds.YAML_ALIASES} aliases")
            if event.anchor not in self.anchors:  # or it names a part that is not complete yet
                raise YamlError(f"has the alias {ascii(event.anchor)[:60]}, which names nothing before it")
            return self.anchors[event.anchor]
        if isinstance(event, self.module.ScalarEvent):
            data = self.scalar(event)
        elif event.tag is not None:
            raise YamlError(f"has the tag {ascii(event.tag)[:60]}, which is not read")
        elif isinstance(event, self.module.SequenceStartEvent):
            data = list(self.members(self.module.SequenceEndEvent, depth + 1))
        else:
            data = self.mapping(depth + 1)
        if event.anchor is not None:
            self.anchors[event.anchor] = data
        return data

    def members(self, end: Any, depth: int) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, end):
                return
            yield self.value(event, depth)

    def mapping(self, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        members = self.members(self.module.MappingEndEvent, depth)
        for key in members:
            if not isinstance(key, str):
                raise YamlError(f"has the key {ascii(key)[:60]}, which is not a string; put it in quotes")
            if key in result:
                raise YamlError(f"has the key {ascii(key)[:60]} twice in the same place")
            result[key] = next(members)
        return result

    def scalar(self, event: Any) -> Any:
        if event.tag not in (None, "!", _STRING):
            raise YamlError(f"has the tag {ascii(event.tag)[:60]}, which is not read")
        node = self.module.ScalarNode
        tag = self.resolver.resolve(node, event.value, event.implicit)
        if event.tag is not None or tag.rpartition(":")[2] not in _PLAIN:
            return event.value
        try:
            if len(event.value) > bounds.YAML_DIGITS:
                raise ValueError
            return self.constructor.construct_object(node(tag, event.value))
        except ValueError:  # such as an endless integer
            raise YamlError(f"has {ascii(event.value)[:60]}, which is not a usable number") from None
