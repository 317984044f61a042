"""The chart's alert rules in a real Prometheus: silent while all is well, and each fires for what it is about.

The metrics are written here, under the plugin's names; how long something has to last is left out.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import prometheus
from e2e.charts import CHART
from e2e.leftovers import until
from gpuplugin.metrics import metrics

RULES = yaml.safe_load((CHART / "alerts.yaml").read_text())
NAMES = {rule["alert"] for group in RULES["groups"] for rule in group["rules"]}
SECONDS = 30.0
WELL = """gpushim_device_plugin_build_info{version="1"} 1
gpushim_device_plugin_devices{resource="nvidia.com/gpu",health="healthy",reason=""} 2
gpushim_device_plugin_devices{resource="nvidia.com/gpu",health="unhealthy",reason="released"} 1
DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="n",pod=""} 0
gpushim_gpu_throttle_reason{gpu="0",Hostname="n",reason="sw_thermal_slowdown"} 0
gpushim_gpu_throttle_reason{gpu="0",Hostname="n",reason="gpu_idle"} 1
gpushim_device_plugin_refresh_errors_total 1
"""
SICK = """gpushim_device_plugin_build_info{version="1"} 1
gpushim_device_plugin_devices{resource="nvidia.com/gpu",health="unhealthy",reason="ecc"} 1
DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="n",pod=""} 79
gpushim_gpu_throttle_reason{gpu="0",Hostname="n",reason="sw_thermal_slowdown"} 1
gpushim_device_plugin_refresh_errors_total 5
"""


@pytest.fixture
def told() -> Iterator[dict[str, Any]]:
    """A scraped place: `text` is what it says, "" an error; `port` where it is, `asked` how often it was asked."""
    found: dict[str, Any] = {"text": WELL, "asked": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found["asked"] += 1
            self.send_response(200 if found["text"] else 500)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(found["text"].encode())

        def log_message(self, *words: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found["port"] = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def free_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return int(server.server_port)


def test_each_alert_fires_for_what_it_is_about(told: dict[str, Any], tmp_path: Path) -> None:
    for rule in (rule for group in RULES["groups"] for rule in group["rules"]):
        rule.pop("for", None)
    (tmp_path / "alerts.json").write_text(json.dumps(RULES))
    address = f"127.0.0.1:{told['port']}"
    with prometheus.prometheus(tmp_path, address, free_port(), tmp_path / "alerts.json") as found:

        def firing() -> set[str]:
            return {str(one["labels"]["alertname"]) for one in found.ask("alerts")["alerts"]}

        rules = [rule for group in found.ask("rules")["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == NAMES
        enough = told["asked"] + 3
        assert until(lambda: told["asked"] >= enough, SECONDS)
        assert firing() == set()
        told["text"] = SICK
        wanted = NAMES - {"GpushimPluginGone"}
        assert until(lambda: firing() == wanted, SECONDS), firing()
        told["text"] = ""
        assert until(lambda: "GpushimPluginGone" in firing(), SECONDS), firing()


def test_alerts_ask_for_what_the_plugin_tells() -> None:
    known = {row.name for row in (*metrics.PLUGIN, *metrics.GPU)}
    asked = set(re.findall(r"(?:gpushim|DCGM)_\w+", (CHART / "alerts.yaml").read_text()))
    assert asked
    assert asked <= known
    slow = next(re.findall(r'reason=~"([^"]+)"', rule["expr"]) for rule in RULES["groups"][0]["rules"][-1:])
    assert set(slow[0].split("|")) <= set(metrics.THROTTLES)
