"""MIG instances on demand, as a real API server takes them and a real scheduler allocates them.

kubelet is the test's, which has the driver prepare what is allocated; GPUs are simulated.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import claims, controlplane, dranode, plane
from e2e.apiserver import Api, api
from e2e.leftovers import until
from e2e.on_demand_node import Node, on_demand
from e2e.trees import TOP
from gpuplugin.kubelet import dra
from sample import turn

pytestmark = pytest.mark.skipif(not turn(2), reason="a minute, with every second commit; GPUSHIM_LONG=1")
SECONDS = 60.0
LAYOUTS = """version: v1
mig-configs:
  day: [{devices: [8], mig-enabled: true, mig-devices: {3g.20gb: 2}}]
  night: [{devices: [8], mig-enabled: true, mig-devices: {7g.40gb: 1}}]
  on-demand: [{devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1}}]
"""
GPUS = 8  # that are cut on demand; their sets of counters fill a slice
STRANGER = 12345  # a user's number, of no rights
MIG = "mig.nvidia.com"
OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": dranode.NODE}},
    {
        "apiVersion": claims.VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": MIG},
        "spec": {"selectors": [{"cel": {"expression": f"device.attributes['{claims.DRIVER}'].type == 'mig'"}}]},
    },
]


class Driver(dranode.Driver):
    """The node half, whose other half is a process, too: as in a pod it may not write the files of that one."""

    flags: tuple[str, ...] = ()

    @property
    def layout(self) -> Path:
        return self.folder / "labels" / "layout"

    def start(self, *flags: str) -> None:
        self.flags, folder = self.flags or flags, self.layout.parent
        folder.mkdir(exist_ok=True)
        os.chown(folder, STRANGER, STRANGER)
        mount = f'mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec "$@"'
        self.prefix = ("/usr/bin/unshare", "--mount", "/bin/sh", "-c", mount, "sh")
        super().start(f"--mig-layout-file={self.layout}", *self.flags)

    def _answer(self, process: subprocess.Popen[bytes]) -> None:
        self.pools.append(None)


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    """The control plane, with a node that is ready."""
    with (
        api() as found,
        controlplane.daemon(found.place, found.work, plane.SCHEDULER),
        controlplane.daemon(found.place, found.work, plane.CONTROLLERS),
    ):
        done = found.kubectl("create", "--filename=-", objects=OBJECTS)
        assert not done.returncode, done.stderr
        status = {
            "status": {"allocatable": {"pods": "99", "cpu": "99", "memory": "99Gi"}, "capacity": {"pods": "99"}}
        }
        done = found.kubectl("patch", f"node/{dranode.NODE}", "--subresource=status", f"--patch={json.dumps(status)}")
        assert not done.returncode, done.stderr
        yield found


@pytest.fixture(scope="module")
def node(server: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """The node, whose halves run."""
    folder = tmp_path_factory.mktemp("on-demand")
    credentials = folder / "kubeconfig"
    credentials.write_text((server.work / "admin").read_text())
    credentials.chmod(0o600)
    flags = (f"--kubeconfig={credentials}", f"--cluster-user={STRANGER}")
    with on_demand(folder / "root", GPUS, Driver, *flags) as found:
        Path(found.driver.env["GPUSHIM_CONFIG"]).with_name("mig.yaml").write_text(LAYOUTS)
        found.host.set_mig(GPUS, [])
        words = ["/usr/bin/nsenter", f"--net={server.network}", "--", "/usr/bin/setpriv", f"--reuid={STRANGER}"]
        words += [f"--regid={STRANGER}", "--clear-groups", sys.executable, "-B", str(dranode.PROGRAM), "--cluster"]
        paths = ":".join(str(TOP / name) for name in ("plugin", "shim", "vendor"))
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "NODE_NAME": dranode.NODE, "GPUSHIM_CONFIG": "/none"}
        log = Path(found.driver.folder, "cluster")
        found.driver.folder.chmod(0o755)
        with log.open("wb") as output:
            assert isinstance(found.driver, Driver)
            words += [f"--socket={found.driver.folder}/s", f"--mig-layout-file={found.driver.layout}"]
            half = subprocess.Popen(words, env=env, stderr=output)
        try:
            assert until(lambda: len(counted(server)) > 2, SECONDS), log.read_text() + found.driver.log.read_text()
            yield found
        finally:
            half.kill()
            half.wait()


def items(server: Api, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(server.kubectl("get", "--output=json", *words).stdout)["items"]
    return rows


def counted(server: Api) -> list[dict[str, Any]]:
    """Return the devices of slices that consume counters."""
    rows = [row for slice_ in items(server, "resourceslices") for row in slice_["spec"].get("devices", ())]
    return [row for row in rows if row.get("consumesCounters")]


def ask(server: Api, profile: str, *names: str) -> None:
    """Have pods be made that have a claim each, for a profile."""
    expression = f"device.attributes['{claims.DRIVER}'].profile == '{profile}'"
    request = claims.request(device_class=MIG, selectors=[{"cel": {"expression": expression}}])
    objects = [
        made
        for name in names
        for made in (claims.claim(name, request), claims.pod(name, name, tolerations=[{"operator": "Exists"}]))
    ]
    done = server.kubectl("create", "--filename=-", objects=objects)
    assert not done.returncode, done.stderr


def allocated(server: Api) -> dict[str, tuple[str, str]]:
    """Return uid and device of claims that are allocated, by name."""
    found = {}
    for claim in items(server, "resourceclaims"):
        for row in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()):
            found[claim["metadata"]["name"]] = claim["metadata"]["uid"], row["device"]
    return found


def prepare(server: Api, node: Node, *names: str) -> list[str]:
    """Be kubelet, once these claims are allocated; return what is wrong with them."""
    assert until(lambda: {*names} <= allocated(server).keys(), SECONDS), items(server, "pods")
    found = allocated(server)
    rows = [{"namespace": "default", "uid": found[name][0], "name": name} for name in names]
    method = f"/{dra.PREPARING[0]}/NodePrepareResources"
    answer = node.driver.call(node.driver.endpoint(), method, ("Claims", {"claims": rows}), "PreparedClaims")
    return [row["value"]["error"] for row in answer["claims"] if row["value"]["error"]]


def remove(server: Api, node: Node, *names: str) -> None:
    """Remove pods and their claims, and be kubelet, which gives these back."""
    uids = {name: uid for name, (uid, _) in allocated(server).items() if name in names}
    rows = [{"namespace": "default", "uid": uid, "name": name} for name, uid in uids.items()]
    method = f"/{dra.PREPARING[0]}/NodeUnprepareResources"
    node.driver.call(node.driver.endpoint(), method, ("Claims", {"claims": rows}), "UnpreparedClaims")
    server.kubectl("delete", "pod", *names, "--force", "--grace-period=0")
    server.kubectl("delete", "resourceclaim", *names, "--wait=false")
    assert until(lambda: not {*names} & allocated(server).keys(), SECONDS), items(server, "resourceclaims")


def waits(server: Api, name: str) -> bool:
    """Whether the scheduler has found no device for a pod."""
    (pod,) = (pod for pod in items(server, "pods") if pod["metadata"]["name"] == name)
    return any(
        row["type"] == "PodScheduled" and row["status"] == "False" for row in pod["status"].get("conditions", ())
    )


def test_all_of_a_gpu_and_a_part_of_it_wait_for_each_other(server: Api, node: Node) -> None:
    whole = [f"all-{number}" for number in range(GPUS)]
    ask(server, "7g.40gb", *whole)
    assert prepare(server, node, *whole) == []
    assert node.instances() == [(index, "7g.40gb", "0:8") for index in range(GPUS)]
    ask(server, "1g.5gb", "part")
    assert until(lambda: waits(server, "part"), SECONDS)
    remove(server, node, whole[3])
    assert prepare(server, node, "part") == []
    (row,) = (row for row in node.instances() if row[1] != "7g.40gb")
    assert row[1:] == ("1g.5gb", "6:1")
    ask(server, "7g.40gb", "late")
    assert until(lambda: waits(server, "late"), SECONDS)
    remove(server, node, "part")
    assert prepare(server, node, "late") == []
    remove(server, node, "late", *whole[:3], *whole[4:])
    assert node.instances() == []


def test_all_parts_of_all_gpus_are_asked_for_at_once(server: Api, node: Node) -> None:
    names = [f"part-{number}" for number in range(7 * GPUS)]
    ask(server, "1g.5gb", *names)
    assert prepare(server, node, *names) == []
    assert [row[1] for row in node.instances()] == ["1g.5gb"] * 7 * GPUS
    ask(server, "1g.5gb", "one-more")
    assert until(lambda: waits(server, "one-more"), SECONDS)
    remove(server, node, *names)
    assert prepare(server, node, "one-more") == []
    remove(server, node, "one-more")
    assert node.instances() == []


def label(server: Api, text: str) -> None:
    """Set the label gpushim/mig-layout, or another that counts as well; text- removes it."""
    words = (text if "/" in text else f"gpushim/mig-layout{text}", "--overwrite")
    done = server.kubectl("label", "node", dranode.NODE, *words)
    assert not done.returncode, done.stderr


def cut(node: Node) -> list[str]:
    """Return the profiles of the GPU that layouts are about."""
    return [profile for index, profile, _ in node.instances() if index == GPUS]


def waiting(server: Api) -> int:
    """Return how many devices wait for a layout."""
    rows = [row for slice_ in items(server, "resourceslices") for row in slice_["spec"].get("devices", ())]
    return sum(any(taint["key"].endswith("/layout") for taint in row.get("taints", ())) for row in rows)


def test_day_and_night_by_a_label(server: Api, node: Node) -> None:
    """A claim of the GPU is waited for, those of other GPUs are not, and none of these is tainted."""
    label(server, "=day")
    assert until(lambda: cut(node) == ["3g.20gb"] * 2, SECONDS), node.driver.log.read_text()
    ask(server, "7g.40gb", "other")  # which only the other GPUs have by day
    assert prepare(server, node, "other") == []
    ask(server, "3g.20gb", "inference")
    assert prepare(server, node, "inference") == []
    label(server, "=night")
    assert until(lambda: waiting(server) == 2, SECONDS), node.driver.log.read_text()
    node.driver.stop(signal.SIGKILL)
    Path(node.driver.registration()).unlink()  # or kubelet, the test, would take it for the next one's
    node.driver.start()
    node.driver.register()
    assert until(lambda: waiting(server) == 2, SECONDS), node.driver.log.read_text()
    assert cut(node) == ["3g.20gb"] * 2
    remove(server, node, "inference")
    assert until(lambda: cut(node) == ["7g.40gb"] and not waiting(server), SECONDS), node.driver.log.read_text()
    label(server, "-")
    label(server, "nvidia.com/mig.config=day")
    assert until(lambda: cut(node) == ["3g.20gb"] * 2 and not waiting(server), SECONDS), node.driver.log.read_text()
    assert len(node.instances()) == 3
    label(server, "=on-demand")
    assert until(lambda: "is cut on demand; name it in no layout" in node.driver.log.read_text(), SECONDS)
    assert prepare(server, node, "other") == []
    remove(server, node, "other")
    assert cut(node) == ["3g.20gb"] * 2
