"""A driver of Dynamic Resource Allocation, as kubelet has it registered: its sockets, and an answer to each call.

It is told kubelet's directory and its name, and with what device it prepares every claim.
Out of scope: an API server, and publishing devices there.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from e2e.engines import SYSTEM_PATH
from e2e.leftovers import until
from e2e.plugins import ROOTS
from e2e.trees import TOP
from gpushim.containers import protobuf

REGISTRATION, DRIVER = "pluginregistration.Registration", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
SECONDS = 30.0
MESSAGES: dict[str, dict[int, tuple[str, str, bool]]] = {
    "Empty": {},
    "PluginInfo": {
        1: ("type", "string", False),
        2: ("name", "string", False),
        3: ("endpoint", "string", False),
        4: ("supported_versions", "string", True),
    },
    "RegistrationStatus": {1: ("plugin_registered", "bool", False), 2: ("error", "string", False)},
    "Claim": {1: ("namespace", "string", False), 2: ("uid", "string", False), 3: ("name", "string", False)},
    "Claims": {1: ("claims", "Claim", True)},
    "Given": {2: ("pool_name", "string", False), 3: ("device_name", "string", False), 4: ("cdi", "string", True)},
    "Prepared": {1: ("devices", "Given", True)},
    "Answer": {1: ("key", "string", False), 2: ("value", "Prepared", True)},
    "Answers": {1: ("claims", "Answer", True)},
}


def method(asked: str, answered: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a method of a server's: message names, and what answers."""
    return grpc.unary_unary_rpc_method_handler(
        lambda request, _: answer(request),
        request_deserializer=partial(protobuf.decode, MESSAGES, asked),
        response_serializer=partial(protobuf.encode, MESSAGES, answered),
    )


def serve(kubelet: str, name: str, *device: str) -> None:
    """Serve until killed, and say so when kubelet has registered it.

    Args:
        kubelet: its directory.
        name: the driver's.
        device: what it gives: pool, name, and the name by CDI.
    """
    own, registry = Path(kubelet, "plugins", name), Path(kubelet, "plugins_registry")
    for folder in (own, registry):
        folder.mkdir(parents=True, exist_ok=True)
    ends = own / "dra.sock", registry / f"{name}-reg.sock"

    def told(status: dict[str, Any]) -> dict[str, Any]:
        print(f"registered: {status}", flush=True)
        return {}

    gives = [dict(zip(("pool_name", "device_name", "cdi"), (*device[:2], device[2:])))]

    def answers(prepared: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        return {"claims": [{"key": one["uid"], "value": [prepared]} for one in request["claims"]]}

    info = {"type": "DRAPlugin", "name": name, "endpoint": str(ends[0]), "supported_versions": ["v1.DRAPlugin"]}
    calls = {"NodePrepareResources": {"devices": gives}, "NodeUnprepareResources": {}}
    services = (
        (DRIVER, {name: method("Claims", "Answers", partial(answers, what)) for name, what in calls.items()}),
        (
            REGISTRATION,
            {
                "GetInfo": method("Empty", "PluginInfo", lambda _: info),
                "NotifyRegistrationStatus": method("RegistrationStatus", "Empty", told),
            },
        ),
    )
    servers = []
    for end, (service, methods) in zip(ends, services):
        end.unlink(missing_ok=True)
        server = grpc.server(futures.ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{end}")
        server.start()
        servers.append(server)
    servers[-1].wait_for_termination()


@contextlib.contextmanager
def driver(kubelet: Path, name: str, log: Path, device: tuple[str, ...]) -> Iterator[None]:
    """Run a driver that kubelet has registered; its sockets stay when it is killed, as those of others do.

    Args:
        kubelet: its directory.
        name: the driver's.
        log: what it says.
        device: as for `serve`.
    """
    words = [sys.executable, "-m", "e2e.dradriver", str(kubelet), name, *device]
    paths = f"{ROOTS}:{TOP / 'tests'}"
    with log.open("wb") as output, subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={"PATH": SYSTEM_PATH, "PYTHONPATH": paths}
    ) as process:  # fmt: skip
        try:
            assert until(lambda: b"registered: " in log.read_bytes(), SECONDS), log.read_text()
            assert b"'plugin_registered': True" in log.read_bytes(), log.read_text()
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    serve(*sys.argv[1:])
