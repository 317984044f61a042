"""A real Prometheus, Debian's, that scrapes one address every two seconds, and its answers to a dashboard's panels.

It lies in .cache/prometheus, where tools/setup.sh puts it, or on the machine; without it the tests that want it are
skipped. Out of scope: what is scraped, and how a dashboard looks (packaging/kubernetes/dashboard.py).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from e2e.leftovers import until
from e2e.trees import TOP

PLACE = TOP / ".cache" / "prometheus" / "usr" / "bin"
DASHBOARD = TOP / "packaging" / "kubernetes" / "dashboard.json"
SECONDS = 30.0
VARIABLES = {"$instance": ".*", "$__rate_interval": "15s"}


def program(name: str = "prometheus") -> str:
    """Return a program of Debian's package; skip the test where there is none."""
    found = shutil.which(name, path=f"{PLACE}:/usr/bin")
    if not found:
        pytest.skip(f"there is no {name}, of Debian's package prometheus; tools/setup.sh test brings it")
    return found


def panels() -> list[dict[str, Any]]:
    """List the dashboard's panels."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expression(target: dict[str, Any]) -> str:
    """Return a query of a panel as Grafana sends it."""
    text = str(target["expr"])
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


def get(port: int, path: str = "/metrics") -> tuple[int, str, float]:
    """Ask for a path; return the status, the body, and how long it took."""
    began = time.monotonic()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode(), time.monotonic() - began
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), time.monotonic() - began


def scrape(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Scrape; return labels and values by name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse(get(port)[1]):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def of(port: int, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    """Scrape; return the samples of a name that have these labels."""
    return [one for one in scrape(port).get(name, ()) if labels.items() <= one[0].items()]


@dataclass
class Prometheus:
    """One that runs.

    Attributes:
        port: at which it answers.
        began: seconds since the epoch.
    """

    port: int
    began: float

    def ask(self, path: str, **words: Any) -> Any:
        """Ask its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def series(self, query: str, step: float = 1.0) -> list[dict[str, Any]]:
        """Return the series of a query since it runs."""
        now = time.time()
        found = self.ask("query_range", query=query, start=self.began, end=now, step=step)
        rows: list[dict[str, Any]] = found["result"]
        return rows

    def now(self, query: str) -> list[dict[str, Any]]:
        """Return the samples of a query."""
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def up(self) -> bool:
        """Return whether it has scraped."""
        with contextlib.suppress(OSError):
            return [one["value"][1] for one in self.now("up")] == ["1"]
        return False

    def answers(self, step: float = 1.0) -> list[dict[str, Any]]:
        """Return the panels with what it answers to them."""
        return [
            {
                **panel,
                "answers": [
                    self.now(expression(one)) if one.get("instant") else self.series(expression(one), step)
                    for one in panel["targets"]
                ],
            }
            for panel in panels()
        ]


@contextlib.contextmanager
def prometheus(work: Path, address: str, port: int, rules: Any = None, every: str = "2s") -> Iterator[Prometheus]:
    """Run one for the block.

    Args:
        work: directory for its data.
        address: that it scrapes, with a port.
        port: of its own.
        rules: groups of rules, as in its file of them.
        every: how often it scrapes, and goes by the rules.
    """
    job = {"job_name": "gpushim", "honor_labels": True, "static_configs": [{"targets": [address]}]}
    times = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
    (work / "rules.yml").write_text(json.dumps(rules or {}))
    config = {"global": times, "scrape_configs": [job], "rule_files": ["rules.yml"]}
    (work / "prometheus.yml").write_text(json.dumps(config))
    command = [program(), f"--config.file={work}/prometheus.yml", f"--storage.tsdb.path={work}/prometheus"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (work / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        found = Prometheus(port, time.time())
        assert until(found.up, SECONDS), (work / "prometheus.log").read_text()
        found.began = time.time()
        yield found
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
