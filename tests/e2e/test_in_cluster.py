"""--cluster at a real API server, with the chart's rights: the node's label, and the NodeFeature object."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import scratch
from e2e import chroots, controlplane, helm, kube, leftovers, trees
from e2e.engines import SYSTEM_PATH
from e2e.leftovers import until

CHART = trees.TOP / "packaging/kubernetes/chart"
VALUES: helm.Values = {
    "config": {"map": {"small": "version: v1\n", "whole": "version: v1\n"}, "default": "small"},
    "labels": {"publish": "node-feature"},
}
LABEL, ACCOUNT = "nvidia.com/device-plugin.config", "/run/secrets/kubernetes.io/serviceaccount"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "nodefeatures.nfd.k8s-sigs.io",
        # The group is protected, so that the API server wants to know who has approved it.
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
    },
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "features": {
                                        "type": "object",
                                        "required": ["flags", "attributes", "instances"],
                                        "properties": {
                                            name: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                                            for name in ("flags", "attributes", "instances")
                                        },
                                    },
                                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
# As a pod's container: another user, without capabilities, and a service account's directory.
POD = f"""
mount -t tmpfs none /run
mkdir -p {ACCOUNT}
cp "$1"/account/* {ACCOUNT}
shift
exec setpriv --reuid=65532 --regid=65532 --clear-groups --bounding-set=-all --no-new-privs "$@"
"""


class Server:
    """The API server, with a node, a namespace and an account for the pod."""

    def __init__(self, place: chroots.Chroot, work: Path) -> None:
        self.place, self.work = place, work

    def kubectl(self, *words: str, said: str = "") -> str:
        command = [*self.place.prefix, "/usr/bin/kubectl", f"--kubeconfig={self.work}/admin", *words]
        env = {"PATH": SYSTEM_PATH, "HOME": "/root"}
        done = subprocess.run(command, input=said, capture_output=True, text=True, check=False, env=env, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def feature(self) -> Any:
        found = self.kubectl("get", "nodefeatures", "--namespace=gpushim", "--output=json")
        return {row["metadata"]["name"]: row for row in json.loads(found)["items"]}

    @contextlib.contextmanager
    def pod(self, *words: str) -> Iterator[None]:
        """Run --cluster as in a pod of the node."""
        env = {
            "PATH": SYSTEM_PATH, "KUBERNETES_SERVICE_HOST": controlplane.API, "NODE_NAME": "node-1",
            "POD_NAME": "gpushim-x", "POD_UID": "11111111-2222-3333-4444-555555555555",
        }  # fmt: skip
        program = [str(trees.TOP / "bin/gpushim-device-plugin"), "--cluster", *words]
        prefix = ["nsenter", f"--net={self.place.network}", "unshare", "--mount", "sh", "-euc", POD, "sh"]
        with (self.work / "pod.log").open("ab") as log:
            process = subprocess.Popen([*prefix, str(self.work), *program], env=env, stderr=log, stdout=log)
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(20) == 0, (self.work / "pod.log").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    program = kube.program()
    with leftovers.state() as state, contextlib.ExitStack() as stack:
        place = stack.enter_context(chroots.entered("plane", program.parent, view="v1", network=True))
        work = state / "plane"
        stack.enter_context(controlplane.api_server(place, work))
        controlplane.served(place, work)
        found = Server(place, work)
        found.kubectl("create", "namespace", "gpushim")
        rows = [row for row in helm.template(CHART, VALUES).split("\n---\n") if "/templates/rbac.yaml" in row]
        objects = [CRD, *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{n}"}} for n in (1, 2))]
        found.kubectl("apply", "--filename=-", said="\n---\n".join([*rows, *map(json.dumps, objects)]))
        account = work / "account"
        account.mkdir()
        token = found.kubectl("create", "token", "gpushim-device-plugin", "--namespace=gpushim")
        (account / "token").write_text(token)
        (account / "ca.crt").write_bytes((work / "pki/apiserver.crt").read_bytes())
        (account / "namespace").write_text("gpushim")
        yield found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the pod's user may write."""
    with tempfile.TemporaryDirectory(dir=scratch.top()) as name:  # pytest's own may be closed to others at any time
        Path(name).chmod(0o777)
        yield Path(name)


def soon(condition: Callable[[], object]) -> None:
    assert until(lambda: bool(condition()), 20)  # less than a look without news from the API server


def says(path: Path, word: str) -> bool:
    return path.exists() and path.read_text() == word


def test_the_label_is_followed(server: Server, folder: Path) -> None:
    path = folder / "profile"
    with server.pod(f"--profile-file={path}"):
        soon(partial(says, path, ""))
        server.kubectl("label", "node", "node-2", f"{LABEL}=small")
        for said, word in (("=small", "small\n"), ("=whole", "whole\n"), ("-", "")):
            server.kubectl("label", "--overwrite", "node", "node-1", LABEL + said)
            soon(partial(says, path, word))


def test_labels_are_a_nodefeature_object(server: Server, folder: Path) -> None:
    labels = folder / "labels"
    labels.write_text("nvidia.com/gpu.count=2\nnvidia.com/gpu.mode=compute\n")
    with server.pod("--node-feature", f"--labels-file={labels}"):
        soon(lambda: server.feature())
        found = server.feature()["gpushim-node-1"]
        labels.write_text("nvidia.com/gpu.count=3\n")
        soon(lambda: server.feature()["gpushim-node-1"]["spec"]["labels"] == {"nvidia.com/gpu.count": "3"})
    assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": "node-1"}
    assert [owner["name"] for owner in found["metadata"]["ownerReferences"]] == ["gpushim-x"]
    assert found["spec"]["labels"] == {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.mode": "compute"}
