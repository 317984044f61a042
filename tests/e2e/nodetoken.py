"""The token of gpushim-node's container that labels: what it asks a real API server for, and what that answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e import charts, pages
from e2e.apiserver import Api
from e2e.leftovers import until

# Asks with a token; the answers are "", or why not.
ASK = """
import json, sys
sys.path[:0] = sys.argv[2:]
from gpuplugin.cluster.cluster import MERGE, Api, ApiError
api = Api({"KUBERNETES_SERVICE_HOST": "localhost"}, sys.argv[1])
for path, body in json.load(sys.stdin):
    try:
        api.ask("PATCH", path, {"fieldManager": "x"}, body, kind=MERGE)
    except ApiError as error:
        print(error)
    else:
        print()
"""
MINE, LABEL = "/api/v1/nodes/mine", "gpushim/installed"


def labels(**given: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {LABEL if key == "own" else key: value for key, value in given.items()}}}


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}
TAINT = {"key": "x", "effect": "NoSchedule"}
ALONE = "gpushim-node may change the label gpushim/installed alone", "gpushim-node may change labels alone"
# What gpushim-node asks for, and why it does not get it.
PATCHES: tuple[tuple[str, dict[str, Any], str], ...] = (
    (MINE, labels(own="true"), ""),
    (MINE, labels(own="true"), ""),
    (MINE, labels(own=None), ""),
    (MINE, labels(own="false"), ALONE[0]),
    (MINE, labels(own="true", more="x"), ALONE[0]),
    (MINE, labels(kept="y"), ALONE[0]),
    (MINE, labels(kept=None), ALONE[0]),
    (MINE, {"metadata": {"labels": None}}, ALONE[0]),
    (MINE, {"metadata": {"annotations": {"x": "y"}}}, ALONE[1]),
    (MINE, {"metadata": {"finalizers": ["x.org/y"]}}, ALONE[1]),
    (MINE, {"metadata": {"ownerReferences": [OWNER]}}, ALONE[1]),
    (MINE, {"spec": {"taints": [TAINT]}}, ALONE[1]),
    (MINE, {"spec": {"unschedulable": True}}, ALONE[1]),
    (MINE, {"status": {"capacity": {"nvidia.com/gpu": "8"}}}, ""),  # which the API server leaves as it is
    (f"{MINE}/status", {"status": {"capacity": {"nvidia.com/gpu": "8"}}}, "cannot patch resource .nodes/status"),
    ("/api/v1/nodes/others", labels(own="true"), "gpushim-node may change its own node alone"),
    ("/api/v1/nodes/none", labels(own="true"), "not found"),
    ("/api/v1/namespaces/gpushim/pods/x", labels(own="true"), "cannot patch resource .pods"),
)
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "gpushim"}} | {
    "spec": {
        "nodeName": "mine",
        "serviceAccountName": "gpushim-node",
        "containers": [{"name": "x", "image": "x"}],
    }
}


def token(server: Api, *words: str) -> str:
    """Make a token of gpushim-node's account; words go to `kubectl create token`."""
    done = server.kubectl("create", "token", "gpushim-node", "--namespace=gpushim", *words)
    assert not done.returncode, done.stderr
    return done.stdout


def bound(server: Api) -> str:
    """Make the chart's objects for that container, the nodes `mine` and `others`, and its pod on the first.

    Returns:
        The pod's token; the policy holds already.
    """
    nodes: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kept": "x"}}}
        for name in ("mine", "others")
    ]
    rendered = charts.objects()
    rights = [rendered[name] for name in charts.LABELLER]
    done = server.kubectl("apply", "--filename=-", objects=[*rights, *nodes, POD])
    assert not done.returncode, done.stderr
    found = token(server, "--bound-object-kind=Pod", "--bound-object-name=x")
    refused = [("/api/v1/nodes/others", labels(more="x"))]
    with tempfile.TemporaryDirectory() as folder:
        held = until(lambda: answers(server, Path(folder), found, refused) != [""], 20)
    assert held, "the policy does not hold"
    return found


def answers(server: Api, folder: Path, said: str, asked: Sequence[tuple[str, Any]]) -> list[str]:
    """Patch with a token; returns "" or why not, of each.

    Args:
        server: the API server.
        folder: existing one, for what kubelet would mount.
        said: the token.
        asked: paths and bodies.
    """
    (folder / "token").write_text(said)
    shutil.copy(server.work / "pki/apiserver.crt", folder / "ca.crt")
    words = ["/usr/bin/nsenter", f"--net={server.network}", "--", sys.executable, "-B", "-c", ASK, str(folder)]
    words += [str(pages.TOP / name) for name in ("plugin", "shim")]
    done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()
