"""All files of a cluster's node, to find what is left there.

Out of scope: the files of the kernel, of the cluster and of its engine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e import packages, workload
from e2e.engines import run
from e2e.plane import Cluster

# The file of labels, and directories that kubelet makes for a hostPath, and that are left behind, empty.
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/gpushim"
MADE = {"/etc/cdi", *map(str, Path(FEATURES).parents)}
# Mode, owner, size or target of all files but those of kernel, cluster and engine, and what is in those below /etc.
FILES = """
import hashlib, json, os, stat
found, kept = {}, ["/root", "/var/lib/cni", "/run/containerd", "/run/etcd", "/run/netns"]
kept += ["/var/log/containers", "/var/log/pods", "/run/containers", "/run/crio", "/run/crun", "/run/runc"]
kept += ["/var/lib/containers", "/var/lib/crio", "/run/ipcns", "/run/utsns"]
for top in ("/", "/run"):
    device = os.stat(top).st_dev
    for folder, names, leaves in os.walk(top):
        for path in (os.path.join(folder, name) for name in names + leaves):
            status = os.lstat(path)
            kind = [oct(status.st_mode), status.st_uid, status.st_gid]
            if stat.S_ISREG(status.st_mode):
                etc = path.startswith("/etc/")
                kind.append(hashlib.sha256(open(path, "rb").read()).hexdigest() if etc else status.st_size)
            found[path] = str([*kind, os.readlink(path)] if stat.S_ISLNK(status.st_mode) else kind)
        paths = {name: os.path.join(folder, name) for name in names}
        names[:] = [name for name, path in paths.items() if path not in kept and os.lstat(path).st_dev == device]
print(json.dumps(found))
"""


def files(cluster: Cluster) -> dict[str, str]:
    """Return what is on the node, by path."""
    found: dict[str, str] = json.loads(run([*cluster.place.prefix, "/usr/bin/python3", "-IBc", FILES]).stdout)
    return found


@pytest.fixture(scope="module")
def before(cluster: Cluster) -> dict[str, str]:
    """What the node has before anything is installed, after a first pod of its own network."""
    workload.create(cluster, "first", {}, runtime="")
    workload.running(cluster, "first")
    workload.remove(cluster, "first")
    return files(cluster)


def nothing_is_left(cluster: Cluster, before: dict[str, str]) -> None:
    """Assert that the node is as it was when `files` told this, but for MADE and what a removal leaves."""
    now, but = files(cluster), MADE | packages.LEFT
    left = {path: (row, before.get(path)) for path, row in now.items() if path not in but and before.get(path) != row}
    assert not left, left
    assert not before.keys() - now.keys()
