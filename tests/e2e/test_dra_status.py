"""What Prometheus and kubelet's probes see of the DRA driver on a node, whose kubelet is the test's.

Out of scope: a cluster's (test_dra_told.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from e2e.dranode import DRIVER, NODE, OTHER, PROGRAM, Driver, becomes, driver, env, folder, host, name, port
from e2e.nogrpc import WITHOUT_GRPC
from e2e.plugins import environment
from e2e.prometheus import get, of, scrape
from fakehost import Host
from gpuplugin.kubelet.v1beta1 import POD_RESOURCES, reader, writer
from gpuplugin.processes import instances
from gpushim.containers.kubelet import PODS_SOCKET

__all__ = ["env", "folder", "host", "port"]
OWN = "gpushim_dra_driver_"


@pytest.fixture
def one(env: dict[str, str], folder: Path, port: int) -> Iterator[Driver]:
    """A driver that is registered, has published, and serves metrics."""
    with driver(folder, env, f"--metrics=127.0.0.1:{port}") as found:
        becomes(found, lambda: found.devices())
        becomes(found, lambda: ready(port)[0] == 200)
        yield found


def ready(port: int) -> tuple[int, str]:
    """Ask as kubelet's probe does."""
    with contextlib.suppress(OSError):
        return get(port, "/readyz")[:2]
    return 0, ""


def value(port: int, metric: str, **labels: str) -> float | None:
    """Return the value of the driver's own metric; None if there is none."""
    found = of(port, OWN + metric, **labels)
    assert len(found) < 2
    return found[0][1] if found else None


@contextlib.contextmanager
def listing(folder: Path, *rows: tuple[str, str, str, str]) -> Iterator[None]:
    """Be the kubelet that lists claims: pod, claim, device and UUID of each."""

    def pod(name: str, claim: str, device: str, uuid: str) -> dict[str, Any]:
        gave = {"driver_name": DRIVER, "pool_name": NODE, "device_name": device}
        gave["cdi_devices"] = [{"name": f"nvidia.com/gpu={uuid}"}]  # type: ignore[assignment]
        resource = {"claim_name": claim, "claim_namespace": "d", "claim_resources": [gave]}
        return {"name": name, "namespace": "d", "containers": [{"name": "main", "dynamic_resources": [resource]}]}

    answer = {"pod_resources": [pod(*row) for row in rows]}
    method = grpc.unary_unary_rpc_method_handler(
        lambda *_: answer, reader("Empty"), writer("ListPodResourcesResponse")
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handler = grpc.method_handlers_generic_handler(POD_RESOURCES.strip("/"), {"List": method})
    server.add_generic_rpc_handlers((handler,))
    path = folder / PODS_SOCKET
    path.parent.mkdir(exist_ok=True)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


def test_ready_once_kubelet_has_it_and_the_slices_are_published(env: dict[str, str], folder: Path, port: int) -> None:
    found = Driver(folder, env, problem="no rights")
    found.start(f"--metrics=127.0.0.1:{port}")
    try:
        becomes(found, lambda: ready(port) == (503, "kubelet has not registered the driver\n"))
        assert get(port, "/healthz")[0] == 200
        assert value(port, "registered", Hostname=NODE) == 0
        found.register()
        becomes(found, lambda: ready(port) == (503, "its ResourceSlices are not published: no rights\n"))
        found.problem = ""
        found.stop()
        found.start(f"--metrics=127.0.0.1:{port}")
        found.register()
        becomes(found, lambda: ready(port) == (200, "ok\n"))
        becomes(found, lambda: value(port, "published", Hostname=NODE) == 1)
    finally:
        found.stop()


def test_what_it_does_is_counted(one: Driver, host: Host, port: int) -> None:
    gpu, mig = host.gpus[1].uuid, host.gpus[0].mig[0].uuid
    one.allocate("a", name(gpu), name(mig))
    one.allocate("b", OTHER)
    one.allocate("admin", name(gpu), adminAccess=True)
    one.prepare("a", "b", "admin")
    one.unprepare("never")

    def told() -> dict[str, float | None]:
        return {
            "ok": value(port, "prepare_seconds_count", result="ok"),
            "error": value(port, "prepare_seconds_count", result="error"),
            "back": value(port, "unprepare_seconds_count", result="ok"),
            "claims": value(port, "claims"),
            "gpus": value(port, "claimed_devices", resource=DRIVER),
            "migs": value(port, "claimed_devices", resource="mig.nvidia.com"),
            "healthy": value(port, "devices", resource=DRIVER, health="healthy"),
            "slices": value(port, "slices"),
        }

    wanted = {"ok": 2, "error": 1, "back": 1, "claims": 2, "gpus": 1, "migs": 1, "healthy": 2, "slices": 1}
    becomes(one, lambda: told() == wanted)
    assert (value(port, "pool_generation") or 0) > 0
    one.unprepare("a", "admin")
    becomes(one, lambda: value(port, "claims") == 0)


def test_a_sick_gpu_has_its_cause(one: Driver, host: Host, port: int) -> None:
    sick = host.gpus[2]

    def struck() -> bool:
        host.xid(sick.index, 48)
        return value(port, "devices", resource=DRIVER, health="unhealthy", reason="xid") == 1

    becomes(one, struck)
    assert value(port, "tainted_devices", reason="xid", effect="NoSchedule") == 1
    becomes(one, lambda: of(port, "DCGM_FI_DEV_XID_ERRORS", UUID=sick.uuid)[0][1] == 48)
    assert ready(port) == (200, "ok; 1 of 3 GPUs are unhealthy\n")


def test_gpus_have_the_pods_of_their_claims(one: Driver, host: Host, port: int) -> None:
    """As the device plugin tells them, with the same names and labels."""
    gpu, mig = host.gpus[1], host.gpus[0].mig[1]
    rows = (("p", "mine", name(gpu.uuid), gpu.uuid), ("q", "q-extended-resources-x", name(mig.uuid), mig.uuid))
    with listing(one.folder, *rows):
        becomes(one, lambda: value(port, "pod_resources_up") == 1)
        host.figure(gpu.index, temperature=43)
        wanted = {"namespace": "d", "pod": "p", "container": "main", "claim": "mine", "Hostname": NODE}
        becomes(one, lambda: [row[1] for row in of(port, "DCGM_FI_DEV_GPU_TEMP", **wanted)] == [43])
        (found,) = of(port, "DCGM_FI_DEV_FB_USED", GPU_I_ID=str(mig.gi), UUID=host.gpus[0].uuid)
        assert (found[0]["pod"], found[0]["claim"]) == ("q", "q-extended-resources-x")


def test_who_has_a_claim_is_known_without_grpcio(one: Driver, env: dict[str, str], host: Host) -> None:
    """As on a node of the chart: the driver that runs says it."""
    gpu = host.gpus[1].uuid
    words = [*WITHOUT_GRPC, str(PROGRAM), "--explain-claim=d/mine", f"--kubelet-dir={one.folder}"]
    with listing(one.folder, ("p", "mine", name(gpu), gpu)):
        done = subprocess.run(words, env=environment(env), capture_output=True, text=True, check=True)
    assert re.search(rf"^d/p +main +{DRIVER} ", done.stdout, re.MULTILINE), done
    assert "grpcio" not in done.stdout


def test_a_device_plugin_that_serves_metrics_tells_of_gpus_alone(one: Driver, env: dict[str, str], port: int) -> None:
    """Two would count a GPU twice; when it goes, the driver's metrics have them, and back."""
    becomes(one, lambda: "gpushim_gpu_figures_up" in scrape(port))
    path = Path(env["GPUSHIM_STATE"], "device-plugin", instances.NAME)
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb") as plugin:
        lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, instances._byte(instances.METRICS), 1, 0)
        fcntl.fcntl(plugin, fcntl.F_OFD_SETLK, lock)
        becomes(one, lambda: not [each for each in scrape(port) if not each.startswith((OWN, "python"))])
    becomes(one, lambda: "gpushim_gpu_figures_up" in scrape(port))


def test_metrics_want_the_token_and_probes_do_not(env: dict[str, str], folder: Path, port: int) -> None:
    token = folder / "token"
    token.write_text("secret")
    with driver(folder, env, f"--metrics=127.0.0.1:{port}", f"--metrics-token-file={token}") as found:
        becomes(found, lambda: ready(port)[0] == 200)
        assert get(port)[0] == 401


def test_without_a_place_for_metrics_the_device_plugins_is_left_alone(
    env: dict[str, str], folder: Path, port: int
) -> None:
    config = Path(env["GPUSHIM_CONFIG"])
    config.write_text(f'{config.read_text()}\n[device-plugin]\nmetrics = "127.0.0.1:{port}"\n')
    with driver(folder, env) as found:
        becomes(found, lambda: found.devices())
        assert ready(port)[0] == 0
