"""Tables of pages that are tables of the code: doctor's checks, XIDs, labels, metrics."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping

from gpuplugin.cluster import label_names
from gpuplugin.metrics import metrics
from gpuplugin.settings import xids as table_of_xids
from gpushim.doctor import checks

ENDS = {
    table_of_xids.TIME: f"{table_of_xids.TRANSIENT:.0f} s after the last one, when the GPU answers",
    table_of_xids.ACTION: (
        f"{table_of_xids.SETTLE:.0f} s after the last one, when the driver asks for no recovery action"
    ),
    table_of_xids.AGAIN: "when the driver has asked for a recovery action, and asks no more",
}


def general_checks() -> str:
    """Return the checks of the host."""
    return _checks(checks.GENERAL)


def engine_checks() -> str:
    """Return the checks of engines and of Kubernetes."""
    return _checks({name: check for named in checks.ENGINES.values() for name, check in named.items()})


def _checks(named: Mapping[str, object]) -> str:
    """Return checks by name, with what each function says that it does."""
    return "\n".join(f"- `{name}`: {_sentence(check)}" for name, check in named.items())


def _sentence(check: object) -> str:
    text = " ".join((inspect.getdoc(check) or "").partition("\n\n")[0].split()).rstrip(".")
    return text.removeprefix("Check ").removeprefix("that ")


def xids() -> str:
    """Return the XIDs by what follows from them."""
    rows = []
    other = (table_of_xids.UNKNOWN.counts, table_of_xids.UNKNOWN.ends)
    known = {
        (verdict.counts, verdict.ends if verdict.counts else ""): None for verdict in table_of_xids.TABLE.values()
    }
    for counts, ends in known:
        numbers = [
            xid
            for xid, verdict in sorted(table_of_xids.TABLE.items())
            if (verdict.counts, verdict.ends if verdict.counts else "") == (counts, ends)
        ]
        named = ", ".join(_ranges(numbers)) + (", all that are not here" if (counts, ends) == other else "")
        why = "yes" if counts else "no: an application's error, or a notice"
        rows.append((named, why, ENDS.get(ends, "")))
    return table(("XIDs", "count", "end"), rows)


def _ranges(numbers: list[int]) -> list[str]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def labels() -> str:
    """Return the labels of GPUs, and those of MIG instances by an example of a profile."""
    by_text: dict[str, list[str]] = {}
    for name, text in label_names.TEXTS.items():
        by_text.setdefault(text, []).append(f"`{name}`")
    return "\n".join(f"- {', '.join(names)}: {text}" for text, names in by_text.items())


def gpu_metrics() -> str:
    """Return the metrics of GPUs."""
    return _metrics(metrics.GPU)


def container_metrics() -> str:
    """Return the metrics of containers with a limit of GPU memory."""
    return _metrics(metrics.CONTAINER)


def plugin_metrics() -> str:
    """Return the metrics of the device plugin."""
    return _metrics(metrics.PLUGIN)


def dra_metrics() -> str:
    """Return those metrics of the DRA driver that the device plugin does not have, too."""
    own = {row.name.removeprefix(metrics.OWN) for row in metrics.PLUGIN}
    return _metrics(row for row in metrics.DRA if row.name.removeprefix(metrics.DRIVER) not in own)


def _metrics(rows: Iterable[metrics.Row]) -> str:
    """Return metrics with their labels, what they are, and kind and unit but for gauges of a number."""
    lines = []
    for row in rows:
        labels = f"{{{', '.join(row.labels)}}}" if row.labels else ""
        kind = ", ".join(word for word in (row.kind if row.kind != "gauge" else "", row.unit) if word)
        own = ", also a MIG instance's own" if row.mig else ""
        lines.append(f"- `{row.name}{labels}`: {row.text.rstrip('.')}{own}{kind and f' ({kind})'}")
    return "\n".join(lines)


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in lines)
