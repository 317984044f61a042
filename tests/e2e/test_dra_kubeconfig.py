"""The DRA driver of a package, at a real API server with kubelet's own credentials: a certificate that rotates.

Both halves are real; the one at the API server is not root, and cannot read what the other one tells it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fakehost
from e2e import claims, controlplane, dranode, trees
from e2e.apiserver import Api, api
from e2e.engines import SYSTEM_PATH, run
from e2e.leftovers import until
from e2e.witness import settings
from gpuplugin.kubelet import dra

NODE, SECONDS = "mine", 60.0
STRANGER = 12345  # a user's number, of no rights
CA = """
key() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "$@"; }
key -x509 -days 1 -subj /CN=clients -keyout ca.key -out ca.crt
for node in mine others; do
  key -subj "/O=system:nodes/CN=system:node:$node" -keyout key -out csr
  openssl x509 -req -days 1 -CA ca.crt -CAkey ca.key -CAcreateserial -in csr -out crt
  cat crt key >$node.pem
done
"""


class Driver(dranode.Driver):
    """The node half, whose other half is a process, too."""

    def _answer(self, process: subprocess.Popen[bytes]) -> None:
        self.pools.append(None)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Certificates as kubelet has them, and sockets with short paths."""
    path = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))
    (path / "pki").mkdir(mode=0o700)
    subprocess.run(["/bin/sh", "-euc", CA], cwd=path / "pki", check=True, capture_output=True)
    shutil.copy(path / "pki/ca.crt", path)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Api]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controlplane, "APISERVER", f"{controlplane.APISERVER} --client-ca-file={folder}/ca.crt")
        with api() as found:
            nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in (NODE, "others")]
            done = found.kubectl("create", "--filename=-", objects=nodes)
            assert not done.returncode, done.stderr
            yield found


def use(folder: Path, name: str) -> None:
    """Have kubelet's certificate rotate, as kubelet does it: another file behind the link."""
    (folder / "pki/new").symlink_to(f"{name}.pem")
    (folder / "pki/new").rename(folder / "pki/kubelet-client-current.pem")


def slices(server: Api) -> list[str]:
    found = server.kubectl("get", "resourceslices", "--output=jsonpath={.items[*].spec.devices[*].name}")
    return found.stdout.split()


def claimed(server: Api, device: str) -> dict[str, str]:
    """Have the API server have a pod of the node's with a claim that has a device; return what kubelet says of it."""
    claim, pod = claims.claim("one"), claims.pod("it", "one", nodeName=NODE)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    done = server.kubectl("create", "--namespace=default", "--filename=-", objects=[account, claim, pod])
    assert not done.returncode, done.stderr
    names = server.kubectl("get", "resourceclaim/one", "pod/it", "--output=jsonpath={.items[*].metadata.uid}").stdout
    uid, of_pod = names.split()
    result = {"request": "gpu", "driver": claims.DRIVER, "pool": NODE, "device": device}
    reserved = [{"resource": "pods", "name": "it", "uid": of_pod}]
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    words = ("patch", "resourceclaim/one", "--subresource=status", "--type=merge")
    done = server.kubectl(*words, f"--patch={json.dumps({'status': status})}")
    assert not done.returncode, done.stderr
    return {"namespace": "default", "uid": uid, "name": "one"}


def kubeconfig(server: Api, current: Path) -> dict[str, Any]:
    """Return one as kubelet's is."""
    cluster = {"server": "https://localhost:443/", "certificate-authority": f"{server.work}/pki/apiserver.crt"}
    user = {"client-certificate": str(current), "client-key": str(current)}
    named = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    return {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": named,
        "current-context": "c",
    }


def test_kubelets_own_credentials_are_enough_and_are_read_anew(server: Api, folder: Path) -> None:
    host = fakehost.build(str(folder / "host"), 2, compile_cache=str(trees.TOP / ".cache" / "fakehost"))
    env, said = settings(folder, host.root), folder / "kubelet.conf"
    run([str(trees.TOP / "bin" / "gpushim"), "refresh"], env={"PATH": SYSTEM_PATH, **env})
    said.write_text(json.dumps(kubeconfig(server, folder / "pki/kubelet-client-current.pem")))
    said.chmod(0o600)
    use(folder, "others")
    node = Driver(folder, env)
    node.start(f"--kubeconfig={said}", f"--node-name={NODE}", f"--cluster-user={STRANGER}")
    words = ["/usr/bin/nsenter", f"--net={server.network}", "--", "/usr/bin/setpriv", f"--reuid={STRANGER}"]
    words += [f"--regid={STRANGER}", "--clear-groups", sys.executable, "-B", str(dranode.PROGRAM), "--cluster"]
    paths = ":".join(str(trees.TOP / name) for name in ("plugin", "shim", "vendor"))
    seen = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "NODE_NAME": NODE, "GPUSHIM_CONFIG": "/none"}
    log = folder / "cluster"
    with log.open("wb") as output:
        half = subprocess.Popen([*words, f"--socket={folder}/s"], env=seen, stderr=output)
    try:
        node.register()
        assert until(lambda: b"can only" in log.read_bytes() or b"403" in log.read_bytes(), SECONDS), log.read_text()
        assert not slices(server)
        use(folder, NODE)
        wanted = sorted(gpu.uuid.lower() for gpu in host.gpus)
        assert until(lambda: sorted(slices(server)) == wanted, SECONDS), log.read_text() + node.log.read_text()
        method, claim = f"/{dra.PREPARING[0]}/NodePrepareResources", claimed(server, wanted[0])
        found = node.call(node.endpoint(), method, ("Claims", {"claims": [claim]}), "PreparedClaims")
        assert [one["device_name"] for one in found["claims"][0]["value"]["devices"]] == wanted[:1], found
        said.write_text("{}")
        assert until(lambda: b"it has no current-context" in node.log.read_bytes(), SECONDS), node.log.read_text()
        server.kubectl("delete", "resourceslices", "--all")
        assert until(lambda: sorted(slices(server)) == wanted, SECONDS), log.read_text()  # by what it said before
    finally:
        half.kill()
        half.wait()
        node.stop()
