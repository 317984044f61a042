"""What pages and settings say of the code, written from the code's own tables.

In a page a made part stands between `<!-- made: NAME -->` and `<!-- end -->`; the rest is written by hand. Files
without such marks are made as a whole, or in the parts that tools/page_settings.py finds in them.
Out of scope: man pages (man.py), which packages make as they are built, and sessions (sessions.py).
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / name) for name in ("tools", "shim", "hook", "plugin")]
sys.path += [str(TOP / "vendor")]

import page_errors  # noqa: E402
import page_rooms  # noqa: E402
import page_settings  # noqa: E402
import page_tables  # noqa: E402

PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/architecture.md": {"rooms": page_rooms.table},
    "docs/configuration.md": {
        "keys": page_settings.keys,
        "profiles": page_settings.profiles,
        "names": page_settings.names,
    },
    "docs/doctor.md": {"general": page_tables.general_checks, "engines": page_tables.engine_checks},
    "docs/errors.md": {"codes": page_errors.codes, "sentences": page_errors.sentences},
    "docs/health.md": {"xids": page_tables.xids},
    "docs/labels.md": {"labels": page_tables.labels},
    "docs/metrics.md": {
        "gpu": page_tables.gpu_metrics,
        "container": page_tables.container_metrics,
        "plugin": page_tables.plugin_metrics,
        "dra": page_tables.dra_metrics,
    },
}
FILES: dict[str, Callable[[str], str]] = {
    "packaging/config.toml": page_settings.config_toml,
    "packaging/kubernetes/chart/values.yaml": page_settings.chart_values,
    "packaging/kubernetes/chart/values.schema.json": page_settings.chart_schema,
}
MADE = re.compile(r"(<!-- made: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(argv: list[str]) -> int:
    """Write all parts.

    Args:
        argv: --check, or nothing.

    Returns:
        0; with --check, 1 if a file is not what it would be now.
    """
    changed = []
    for name in (*PARTS, *FILES):
        old = (TOP / name).read_text(encoding="utf-8")
        new = FILES[name](old) if name in FILES else made(old, PARTS[name])
        if new == old:
            continue
        changed.append(name)
        if argv == ["--check"]:
            lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, "made now")
            sys.stdout.writelines(lines)
        else:
            (TOP / name).write_text(new, encoding="utf-8")
            print(f"changed {name}")
    if changed and argv == ["--check"]:
        print(f"pages: not what the code says: {', '.join(changed)}; run tools/pages", file=sys.stderr)
    return 1 if changed and argv == ["--check"] else 0


def made(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """Return a page with its made parts made anew.

    Raises:
        ValueError: the page has other parts, or not each once.
    """
    if sorted(name for _, name, _ in MADE.findall(text)) != sorted(parts):
        raise ValueError(f"a page must have the parts {', '.join(parts)}, each once")
    return MADE.sub(lambda part: f"{part[1]}\n{parts[part[2]]()}\n\n{part[3]}", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
