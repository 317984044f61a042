"""The chart's alerts in a real Prometheus: each comes with its cause, alone, and ends with it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import yaml

from e2e import charts, helm, pages
from e2e.leftovers import until
from e2e.prometheus import SECONDS, Prometheus, prometheus
from gpuplugin.metrics import metrics

# Of one node with one GPU, when all is well.
WELL = {
    'gpushim_device_plugin_build_info{version="1",python="3.11",Hostname="node"}': 1,
    'gpushim_dra_driver_build_info{version="1",python="3.11",Hostname="node"}': 1,
    'gpushim_dra_driver_devices{resource="gpu.nvidia.com",health="unhealthy",reason="xid"}': 0,
    "gpushim_dra_driver_snapshot_up": 1,
    "gpushim_dra_driver_released": 0,
    'gpushim_dra_driver_registered{Hostname="node"}': 1,
    'gpushim_dra_driver_published{Hostname="node"}': 1,
    'gpushim_dra_driver_prepare_seconds_count{result="ok"}': 7,
    'gpushim_dra_driver_prepare_seconds_count{result="error"}': 0,
    'gpushim_device_plugin_devices{resource="nvidia.com/gpu",health="healthy",reason=""}': 1,
    'gpushim_device_plugin_devices{resource="nvidia.com/gpu",health="unhealthy",reason="released"}': 1,
    'gpushim_device_plugin_devices{resource="nvidia.com/gpu",health="unhealthy",reason="giver"}': 1,
    'gpushim_device_plugin_devices{resource="nvidia.com/gpu",health="unhealthy",reason="xid"}': 0,
    'gpushim_gpu_owners{gpu="0",UUID="GPU-1",Hostname="node"}': 1,
    "gpushim_device_plugin_snapshot_up": 1,
    "gpushim_device_plugin_released": 0,
    'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1",Hostname="node"}': 0,
    'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",Hostname="node",namespace="a",pod="one"}': 90,
    'DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",Hostname="node",namespace="a",pod="one"}': 50,
    'DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-3",Hostname="node",namespace="a",pod="two"}': 10,
    'DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-4",Hostname="node",namespace="",pod=""}': 0,
    'gpushim_gpu_figures_up{gpu="0",UUID="GPU-1",Hostname="node"}': 1,
    'gpushim_gpu_throttle_reason{gpu="0",UUID="GPU-1",Hostname="node",reason="sw_power_cap"}': 1,
    'gpushim_gpu_throttle_reason{gpu="0",UUID="GPU-1",Hostname="node",reason="hw_thermal_slowdown"}': 0,
}
# Alert -> what begins its cause, by the beginning of the metric's name and labels; None: the metric is not there.
CAUSES: list[tuple[str, str, int | None]] = [
    (
        "GpushimGPUUnhealthy",
        'gpushim_device_plugin_devices{resource="nvidia.com/gpu",health="unhealthy",reason="xid',
        1,
    ),
    ("GpushimGPUUnhealthy", "gpushim_dra_driver_devices", 1),
    ("GpushimGPUTwice", "gpushim_gpu_owners", 2),
    ("GpushimXID", "DCGM_FI_DEV_XID_ERRORS", 79),
    ("GpushimPluginGone", "gpushim_gpu_figures_up", None),
    ("GpushimPluginGone", "gpushim_device_plugin_build_info", None),
    ("GpushimDRADriverGone", "gpushim_dra_driver_build_info", None),
    ("GpushimDRADriverUnready", "gpushim_dra_driver_registered", 0),
    ("GpushimDRADriverUnready", "gpushim_dra_driver_published", 0),
    ("GpushimClaimsRefused", 'gpushim_dra_driver_prepare_seconds_count{result="error', 3),
    ("GpushimSnapshotOld", "gpushim_device_plugin_snapshot_up", 0),
    ("GpushimSnapshotOld", "gpushim_dra_driver_snapshot_up", 0),
    (
        "GpushimGPUThrottled",
        'gpushim_gpu_throttle_reason{gpu="0",UUID="GPU-1",Hostname="node",reason="hw_thermal_slowdown',
        1,
    ),
]
TEXT: dict[str, int | None] = {}


class Metrics(BaseHTTPRequestHandler):
    """What is scraped: TEXT."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write("".join(f"{name} {value}\n" for name, value in TEXT.items() if value is not None).encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def rules() -> dict[str, Any]:
    """The chart's rules, whose minutes are seconds."""
    found = charts.objects({"prometheusRule": {"enabled": True}})[charts.RULE]["spec"]
    text = re.sub(r"\[(5m|15m|1h)\]", "[5s]", json.dumps(found))
    quick: dict[str, Any] = json.loads(re.sub(r'"for": "[0-9]+m"', '"for": "0s"', text))
    return quick


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    TEXT.update(WELL)
    with HTTPServer(("127.0.0.1", 0), Metrics) as server, HTTPServer(("127.0.0.1", 0), Metrics) as other:
        port = int(other.server_address[1])
        other.server_close()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        work = tmp_path_factory.mktemp("alerts")
        with prometheus(work, f"127.0.0.1:{server.server_address[1]}", port, rules(), "200ms") as found:
            yield found
        server.shutdown()


def firing(found: Prometheus) -> set[str]:
    return {one["labels"]["alertname"] for one in found.ask("alerts")["alerts"] if one["state"] == "firing"}


def test_rules_name_metrics_that_there_are() -> None:
    rows = (*metrics.PLUGIN, *metrics.DRA, *metrics.GPU, *metrics.CONTAINER)
    known = {row.name + "_count" * (row.kind == "histogram") for row in rows}
    found = [rule for group in rules()["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in found} == {alert for alert, *_ in CAUSES}
    named = {name for rule in found for name in re.findall(r"(?:gpushim|DCGM)_\w+", rule["expr"])}
    assert named <= known


@pytest.mark.parametrize(("alert", "begins", "value"), CAUSES)
def test_an_alert_comes_with_its_cause_and_ends_with_it(
    watching: Prometheus, alert: str, begins: str, value: int | None
) -> None:
    assert until(lambda: firing(watching) == set(), SECONDS), firing(watching)
    (name,) = [one for one in WELL if one.startswith(begins)]
    TEXT[name] = value
    assert until(lambda: firing(watching) == {alert}, SECONDS), firing(watching)
    (one,) = watching.ask("alerts")["alerts"]
    assert "{{" not in one["annotations"]["summary"]
    assert "<no value>" not in one["annotations"]["summary"]
    TEXT.update(WELL)
    assert until(lambda: firing(watching) == set(), SECONDS), firing(watching)


def test_a_device_plugin_that_nobody_wants_is_not_missed() -> None:
    def names(plugin: bool) -> set[str]:
        parts = {name: {"enabled": True} for name in ("prometheusRule", "dra")}
        values: helm.Values = {**parts, "plugin": {"enabled": plugin}}
        found = charts.objects(values)[charts.RULE]["spec"]["groups"]
        return {rule["alert"] for group in found for rule in group["rules"]}

    assert names(True) - names(False) == {"GpushimPluginGone"}


def test_the_rule_for_autoscaling_has_one_value_for_each_pod(watching: Prometheus) -> None:
    """As prometheus-adapter fills in the rule of docs/operating.md."""
    page = (pages.TOP / "docs/operating.md").read_text()
    (rule,) = next(yaml.safe_load(one.text)["rules"] for one in pages.blocks(page) if one.text.startswith("rules:"))
    name = rule["seriesQuery"].partition("{")[0]
    words = {"Series": name, "LabelMatchers": 'namespace="a",pod=~"one|two"', "GroupBy": "pod"}
    query = re.sub("<<[.]([A-Za-z]+)>>", lambda found: words[found[1]], rule["metricsQuery"])
    assert {row["metric"]["pod"]: row["value"][1] for row in watching.now(query)} == {"one": "70", "two": "10"}
    assert len(watching.now(rule["seriesQuery"])) == 3
