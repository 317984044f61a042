"""A node's ResourceSlices on a real API server, as the cluster half of the DRA driver keeps them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import controlplane
from e2e.apiserver import Api, api
from e2e.trees import TOP

pytestmark = pytest.mark.skipif("GPUSHIM_LONG" not in os.environ, reason="half a minute: tests/long/run dra")
NODE, PLACE = "node-1", "dra"
PROGRAM = (
    "import os, sys; from gpuplugin.cluster import in_cluster; "
    "in_cluster.run(os.environ, '', '', False, sys.argv[1], '', *sys.argv[2:])"
)
RULES: list[dict[str, Any]] = [
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": ["get", "list", "watch", "create", "update", "delete"],
    },
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
]
DEEP = "the API server's answer is nested too deep"
SLICE = "resourceslices.resource.k8s.io"
Devices = list[dict[str, Any]]


def devices(count: int, product: str = "A100", begin: int = 0) -> Devices:
    return [
        {
            "name": f"gpu-{number}",
            "attributes": {"productName": {"string": product}, "index": {"int": number}},
            "capacity": {"memory": {"value": "81920Mi"}},
        }
        for number in range(begin, begin + count)
    ]


THREE = [devices(50), devices(50, begin=50), devices(30, begin=100)]


def account(server: Api, name: str) -> Path:
    """Make a service account, and what kubelet mounts of it."""
    folder = server.work / f"account-{name}"
    folder.mkdir()
    server.kubectl("create", "serviceaccount", name, f"--namespace={PLACE}")
    token = server.kubectl("create", "token", name, f"--namespace={PLACE}").stdout
    for file, text in (("token", token), ("namespace", PLACE)):
        (folder / file).write_text(text)
    (folder / "ca.crt").write_bytes((server.work / "pki/apiserver.crt").read_bytes())
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    with api() as found:
        role = {"kind": "ClusterRole", "name": "driver", "apiGroup": "rbac.authorization.k8s.io"}
        objects: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}},
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "driver"},
                "rules": RULES,
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "driver"},
                "roleRef": role,
                "subjects": [{"kind": "ServiceAccount", "name": "driver", "namespace": PLACE}],
            },
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": "c", "namespace": PLACE},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}},
            },
        ]
        done = found.kubectl("create", "--filename=-", objects=objects)
        assert not done.returncode, done.stderr
        yield found


class Half:
    """The cluster half as a process, and this end of its socket."""

    def __init__(self, server: Api, folder: Path, account: Path) -> None:
        path = str(folder / "cluster.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listener.settimeout(20)
        env = {"PYTHONPATH": f"{TOP}/plugin:{TOP}/shim", "NODE_NAME": NODE, "PATH": os.environ["PATH"]}
        env.update({"KUBERNETES_SERVICE_HOST": controlplane.API, "KUBERNETES_SERVICE_PORT": "443"})
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["nsenter", f"--net={server.network}", sys.executable, "-B", "-c", PROGRAM, path, str(account)],
                env=env,
                stderr=log,
            )
        self.socket = listener.accept()[0]
        listener.close()
        self.socket.settimeout(20)
        self.file = self.socket.makefile("rb")

    def send(self, said: Any) -> None:
        self.socket.sendall(json.dumps(said).encode() + b"\n")

    def heard(self, well: Callable[[Any], Any]) -> Any:
        """Return the first line from now on that is as it should be."""
        for line in self.file:
            if well(json.loads(line)):
                return json.loads(line)
        raise AssertionError(self.log.read_text())

    def publish(self, slices: list[Devices]) -> Any:
        """Have slices published, and return what it said then."""
        self.send({"pool": {"slices": slices}})
        said = self.heard(lambda one: "published" in one)["published"]
        assert said["problem"] == "", said
        return said

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(10)
        self.file.close()
        self.socket.close()
        assert code == 0, self.log.read_text()


@pytest.fixture(scope="module")
def driver(server: Api) -> Path:
    return account(server, "driver")


@contextlib.contextmanager
def running(server: Api, folder: Path, driver: Path) -> Iterator[Half]:
    folder.mkdir()
    half = Half(server, folder, driver)
    try:
        yield half
    finally:
        half.end()


@pytest.fixture(scope="module")
def half(server: Api, driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Half]:
    with running(server, tmp_path_factory.mktemp("half") / "a", driver) as found:
        yield found


def there(server: Api) -> list[Any]:
    done = server.kubectl("get", SLICE, "--output=json")
    assert not done.returncode, done.stderr
    found: list[Any] = json.loads(done.stdout)["items"]
    return sorted(found, key=lambda one: one["metadata"]["name"])


def names(slices: list[Any]) -> list[list[str]]:
    return [[device["name"] for device in one["spec"].get("devices") or ()] for one in slices]


def right(server: Api, slices: list[Devices]) -> bool:
    """Return whether the pool is complete and has these devices, in this order, and nothing else."""
    found = there(server)
    pools = {(one["spec"]["pool"]["generation"], one["spec"]["pool"]["resourceSliceCount"]) for one in found}
    products = {
        device["attributes"]["productName"]["string"] for one in found for device in one["spec"].get("devices") or ()
    }
    wanted = {device["attributes"]["productName"]["string"] for each in slices for device in each}
    return (
        names(found) == [[device["name"] for device in each] for each in slices]
        and len(pools) == 1
        and {count for _, count in pools} == {len(slices)}
        and products == wanted
    )


def until(well: Callable[[], Any], seconds: float = 10.0) -> float:
    """Wait for a state; returns the seconds that it took."""
    began = time.monotonic()
    while not well():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


def versions(server: Api) -> list[str]:
    return [one["metadata"]["resourceVersion"] for one in there(server)]


def test_slices_are_published_and_change(server: Api, half: Half) -> None:
    generations = []
    more: list[list[Devices]] = [THREE, [*THREE[:2], devices(9, "H100", 100)], THREE[:2], [[]]]
    for slices in ([devices(2)], [devices(2, "H100")], *more):
        generations.append(half.publish(slices)["generation"])
        assert right(server, slices)
    assert generations == sorted({*generations})
    (found,) = there(server)
    assert (found["spec"]["driver"], found["spec"]["nodeName"], found["spec"]["pool"]["name"]) == (
        "gpu.nvidia.com",
        NODE,
        NODE,
    )
    node = json.loads(server.kubectl("get", "node", NODE, "--output=json").stdout)
    assert [one["uid"] for one in found["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]


@pytest.mark.parametrize("slices", [[devices(2)], THREE], ids=["one", "three"])
@pytest.mark.parametrize("harm", ["delete", "edit", "wipe"])
def test_what_others_do_is_put_right(server: Api, half: Half, slices: list[Devices], harm: str) -> None:
    half.send({"pool": None})  # as a new beginning: others may have edited often
    half.publish(slices)
    name = there(server)[-1]["metadata"]["name"]
    before = versions(server)
    patch = '[{"op": "replace", "path": "/spec/devices/0/attributes/productName/string", "value": "other"}]'
    words = {
        "delete": ("delete", SLICE, name),
        "edit": ("patch", SLICE, name, "--type=json", f"--patch={patch}"),
        "wipe": ("delete", SLICE, "--all"),
    }
    assert not server.kubectl(*words[harm]).returncode
    half.heard(lambda one: "published" in one)
    until(lambda: right(server, slices), 5)
    assert versions(server) != before


def test_without_a_pool_nothing_is_repaired(server: Api, half: Half) -> None:
    half.publish(THREE)
    half.send({"pool": None})
    name = there(server)[0]["metadata"]["name"]
    half.send({"claim": 1, "namespace": PLACE, "name": "c", "uid": "other"})
    assert half.heard(lambda one: "claim" in one) == {"claim": 1, "absent": True}  # so null has been read
    server.kubectl("delete", SLICE, name)
    time.sleep(1.5)
    assert len(there(server)) == 2
    half.publish(THREE)
    assert right(server, THREE)


def test_claims(server: Api, half: Half) -> None:
    found = json.loads(server.kubectl("get", "resourceclaim", "c", f"--namespace={PLACE}", "--output=json").stdout)
    uid = found["metadata"]["uid"]
    for number, name in enumerate(["c"] * 30 + ["no"]):
        half.send({"claim": number, "namespace": PLACE, "name": name, "uid": uid})
    said = {one["claim"]: one for one in (half.heard(lambda one: "claim" in one) for _ in range(31))}
    assert said.pop(30) == {"claim": 30, "absent": True}
    assert [one["object"] for one in said.values()] == [{"metadata": {"uid": uid}, "status": {}}] * 30


def test_a_claim_that_is_nested_deep(server: Api, half: Half) -> None:
    """As the API server takes it; kubectl sends what it reads."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{PLACE}/resourceclaims"
    kubectl = [*server.prefix, "/usr/bin/kubectl", f"--kubeconfig={server.work}/admin"]
    words = [*kubectl, "create", "-f-", f"--raw={path}"]
    request = {"name": "r", "exactly": {"deviceClassName": "x"}}
    config = {"opaque": {"driver": "other.example", "parameters": {"x": "@"}}}
    spec = {"devices": {"requests": [request], "config": [config]}}
    made = {"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "deep"}, "spec": spec}
    text = json.dumps(made).replace('"@"', "[" * 2000 + "]" * 2000)
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    name = "--output=jsonpath={.metadata.uid}"
    uid = server.kubectl("get", "resourceclaim", "deep", f"--namespace={PLACE}", name).stdout
    for number, asked in enumerate([uid, "another"]):
        half.send({"claim": number, "namespace": PLACE, "name": "deep", "uid": asked})
    said = [half.heard(lambda one: "claim" in one) for _ in range(2)]
    said.sort(key=lambda one: one["claim"])
    assert said == [{"claim": 0, "error": DEEP}, {"claim": 1, "absent": True}]


def test_a_restart_writes_nothing(server: Api, driver: Path, half: Half, tmp_path: Path) -> None:
    half.publish(THREE)
    before = versions(server)
    half.send({"pool": None})
    with running(server, tmp_path / "b", driver) as other:
        other.publish(THREE)
    assert versions(server) == before


def asked(server: Api) -> int:
    lines = server.kubectl("get", "--raw=/metrics").stdout.splitlines()
    rows = [line for line in lines if line.startswith("apiserver_request_total{") and '"resourceslices"' in line]
    return sum(int(float(row.rpartition(" ")[2])) for row in rows)


def test_at_rest_nothing_is_asked(server: Api, half: Half) -> None:
    half.publish(THREE)
    before = asked(server)
    time.sleep(3)
    assert asked(server) == before


def test_an_account_without_rights(server: Api, tmp_path: Path) -> None:
    with running(server, tmp_path / "c", account(server, "nobody")) as other:
        other.send({"pool": {"slices": [[]]}})
        said = other.heard(lambda one: one.get("published", {}).get("problem"))["published"]["problem"]
    assert "give the service account the right to list resourceslices" in said


def test_an_api_server_that_was_killed(server: Api, half: Half) -> None:
    half.publish([devices(2)])
    assert server.daemon
    server.daemon.stop(signal.SIGKILL)
    half.send({"pool": {"slices": [devices(3)]}})
    assert half.heard(lambda one: one.get("published", {}).get("problem"))
    server.daemon.start()
    controlplane.served(server.place, server.work)
    half.socket.settimeout(40)
    half.heard(lambda one: one.get("published", {}).get("problem") == "")
    assert right(server, [devices(3)])
