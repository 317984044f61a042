"""An API server with etcd, and credentials: a Kubernetes of which nothing runs, in a Debian's network.

Out of scope: what makes a cluster of it (plane.py).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

from e2e import programs
from e2e.chroots import Chroot
from e2e.engines import SYSTEM_PATH, Daemon, run
from e2e.kube import NAME
from e2e.leftovers import until

SECONDS = 60.0
API, NODE = "10.250.0.1", "10.249.0.1"  # addresses of the service, and of the node
NETWORK = 'ip link set lo up; mkdir -p /root; for address do ip address add "$address/32" dev lo; done'
ETCD = """{etcd} --data-dir=/run/etcd --unsafe-no-fsync --log-level=error
    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379
    --listen-peer-urls=http://127.0.0.1:2380"""
APISERVER = f"""kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=443
    --advertise-address={NODE} --service-cluster-ip-range=10.250.0.0/24 --endpoint-reconciler-type=none
    --external-hostname=localhost --cert-dir={{work}}/pki
    --token-auth-file={{work}}/tokens --authorization-mode=Node,RBAC --allow-privileged=true
    --service-account-key-file={{work}}/key --service-account-signing-key-file={{work}}/key
    --service-account-issuer=https://kubernetes.default.svc --kubelet-preferred-address-types=InternalIP
    --enable-admission-plugins=ExtendedResourceToleration"""


def _key() -> str:
    """Make a private key on the curve P-256, as in RFC 5915, without its public part."""
    der = bytes.fromhex("303102010104 20") + b"\x7f" + os.urandom(31) + bytes.fromhex("a00a06082a8648ce3d030107")
    return f"-----BEGIN EC PRIVATE KEY-----\n{base64.b64encode(der).decode()}\n-----END EC PRIVATE KEY-----\n"


def credentials(work: Path, nodes: Collection[str] = (NAME,)) -> None:
    """Write keys, tokens, and files for clients: `admin`, and `kubelet-NODE` for each node."""
    (work / "pki").mkdir(parents=True)
    (work / "key").write_text(_key())
    users = {"admin": ("admin", "system:masters")}
    users.update((f"kubelet-{name}", (f"system:node:{name}", "system:nodes")) for name in nodes)
    tokens = {name: os.urandom(16).hex() for name in users}
    rows = (f'{tokens[name]},{user},{name},"{group}"\n' for name, (user, group) in users.items())
    (work / "tokens").write_text("".join(rows))
    server = {"server": f"https://{API}", "certificate-authority": f"{work}/pki/apiserver.crt"}
    for name, token in tokens.items():
        said = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        (work / name).write_text(json.dumps(said))


@contextlib.contextmanager
def daemon(place: Chroot, work: Path, command: str, *ready: str, before: tuple[str, ...] = ()) -> Iterator[Daemon]:
    """Run a program of the cluster until the block ends, without waiting for anything."""
    words = command.format(work=work).split()
    name = Path(words[0]).name
    if name in programs.KUBERNETES:
        words[0] = str(programs.path(name))
    found = Daemon(
        [*place.prefix, *before, *words], work / f"{name}.log", {"PATH": SYSTEM_PATH}, [*place.prefix, *ready]
    )
    found.start()
    try:
        yield found
    finally:
        found.stop(*(signal.SIGTERM, signal.SIGKILL) if ready else (signal.SIGKILL,))  # nobody needs its state


@contextlib.contextmanager
def api_server(place: Chroot, work: Path, flags: str = "", nodes: Collection[str] = (NAME,)) -> Iterator[Daemon]:
    """Run etcd and the API server with an empty store for the block, without waiting for anything but addresses.

    Args:
        place: the Debian, with a network of its own.
        work: absent directory for credentials and logs; `admin` in it is what kubectl wants.
        flags: more of the API server's.
        nodes: that have credentials.

    Yields:
        The API server.
    """
    run([*place.prefix, "/bin/sh", "-euc", NETWORK, "sh", NODE, API])
    credentials(work, nodes)
    etcd = ETCD.format(etcd=programs.named("etcd") or "/usr/bin/etcd")
    with daemon(place, work, etcd), daemon(place, work, f"{APISERVER} {flags}") as server:
        yield server


def served(place: Chroot, work: Path) -> None:
    """Wait until the API server is ready; arguments as of `api_server`."""
    ask = [*place.prefix, "/usr/bin/kubectl", f"--kubeconfig={work}/admin", "get", "--raw=/readyz"]
    certificate, log = work / "pki/apiserver.crt", work / "kube-apiserver.log"
    ready = until(lambda: certificate.exists() and run(ask, check=False).returncode == 0, SECONDS)
    assert ready, log.read_text()[-3000:]
