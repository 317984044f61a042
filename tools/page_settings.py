"""What is said of settings, from shim/gpushim/config/config.schema.json: name, type, default and one sentence.

That is in docs/configuration.md, packaging/config.toml and, of the settings that a chart's values can have, in its
values.yaml and values.schema.json. Which those are, and what the chart alone says of one, is said in these two files.
"""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any

from gpushim.config import policy
from gpushim.nvidia.migrate.device_plugin_keys import SECTION, SETTINGS

WIDTH = 118
# The chart's own, with rules of its own: pods have no /run but gpushim's, and no port below 1000.
CHART_ONLY = ("metrics",)
HEAD = """\
# gpushim's configuration. What is commented out is the default, where no profile says otherwise. `gpushim config
# show` shows what is in force, `gpushim doctor` what is wrong with it. A create notices a change of this file by
# itself. It must belong to root and be writable by nobody else. docs/configuration.md has more.
"""


def keys() -> str:
    """Return the keys of each section, with default and sentence."""
    parts = []
    for section, rule in policy.schema()["properties"].items():
        lines = [f"- `{key} = {_toml(entry['default'])}`: {_told(entry)}" for key, entry in _entries(rule)]
        parts.append("\n".join((f"### [{section}]", "", *lines)))
    return "\n\n".join(parts)


def profiles() -> str:
    """Return the keys that the profile for several tenants sets."""
    entries = policy.PROFILES["multi-tenant"].items()
    return "\n".join(
        f"- `[{section}] {key} = {_toml(value)}`" for section, keys in entries for key, value in keys.items()
    )


def names() -> str:
    """Return NVIDIA's names of settings of the device plugin, where there are such; a flag, if it is not the key."""
    lines = []
    for setting in SETTINGS:
        if setting.key and setting.variables:
            flag = "" if setting.flags[0] == setting.key else f"--{setting.flags[0]}"
            others = [f"`{name}`" for name in (flag, setting.variables[0], setting.file) if name]
            why = f": {setting.note.rstrip('.')}" if setting.note else ""
            lines.append(f"- `{setting.key}`: {', '.join(others)}{why}")
    return "\n".join(lines)


def config_toml(_: str) -> str:
    """Return packaging/config.toml: the defaults in comments, each below its sentence."""
    parts = [HEAD]
    for section, rule in policy.schema()["properties"].items():
        lines = [f"[{section}]"]
        for key, entry in _entries(rule):
            lines += [*_comment(_told(entry), ""), f"# {key} = {_toml(entry['default'])}"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def chart_values(text: str) -> str:
    """Return values.yaml with the sentences of the settings made anew; lines behind "null:" are the chart's own."""
    head, begin, rest = text.partition("\nsettings:\n")
    body, end, tail = rest.partition("\n\n")
    lines: list[str] = []
    comments: list[str] = []
    for line in body.splitlines():
        if line.lstrip().startswith("#"):
            comments.append(line)
            continue
        key = line.partition(":")[0].strip()
        own = [place for place, comment in enumerate(comments) if comment.lstrip().startswith("# null:")]
        told = [] if key in CHART_ONLY else _comment(_told(_plugin()[key]), "  ")
        lines += [*told, *(comments if key in CHART_ONLY else comments[own[0] :] if own else []), line]
        comments = []
    return head + begin + "\n".join(lines) + end + tail


def chart_schema(text: str) -> str:
    """Return values.schema.json with the rules of the settings made anew, where they are the schema's."""

    def rule(line: re.Match[str]) -> str:
        key = line[2]
        return line[0] if key in CHART_ONLY else f'{line[1]}"{key}": {json.dumps(_of_chart(_plugin()[key]))}{line[3]}'

    head, begin, rest = text.partition('    "settings": {\n')
    body, end, tail = rest.partition("\n      }\n")
    return head + begin + re.sub(r'^( {8})"([a-z-]+)": \{.*\}(,?)$', rule, body, flags=re.MULTILINE) + end + tail


def _of_chart(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the rule of a value: the setting's, or null; Helm's patterns have no look-ahead."""
    kept = {key: value for key, value in entry.items() if key not in ("description", "default", "type", "pattern")}
    if "enum" in entry:
        return {"enum": [*entry["enum"], None]}
    if "items" in entry:
        kept["items"] = {key: value for key, value in _of_chart(entry["items"]).items() if key != "type"}
        kind = entry["items"]["type"]
        kept["items"] = (
            {"enum": entry["items"]["enum"]} if "enum" in entry["items"] else {"type": kind, **kept["items"]}
        )
    if "pattern" in entry:
        kept["pattern"] = re.sub(r"\(\?![^()]*\)", "", entry["pattern"])
    return {"type": [entry["type"], "null"], **kept}


def _plugin() -> dict[str, Any]:
    entries: dict[str, Any] = policy.schema()["properties"][SECTION]["properties"]
    return entries


def _entries(rule: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [*rule["properties"].items()]


def _told(entry: dict[str, Any]) -> str:
    """Return a setting's sentence, with the words and numbers that it may be, if the sentence lacks one."""
    text: str = entry["description"]
    words = entry.get("enum") or entry.get("items", {}).get("enum") or ()
    if not all(re.search(rf"\b{word}\b", text) for word in words):
        text += f" One of {', '.join(words)}." if "enum" in entry else f" Of {', '.join(words)}."
    return text


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
