"""What the chart's containers may on a node, and which of them have a token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e import charts
from e2e.charts import ALL, CLAIMS, containers
from e2e.helm import Values

OWN = 61017  # of nobody else on the node, whose processes the pod sees: 65532 is what many images have
AGENT = {  # what the half on the node sees in any case
    "/var/lib/kubelet/pod-resources=/var/lib/kubelet/pod-resources",
    "!/run/gpushim=/run/gpushim",
    "!/var/lib/gpushim/device-plugin=/var/lib/gpushim/device-plugin",
    "/etc/gpushim=/etc/gpushim",
    "/etc/cdi=/etc/cdi",
    "/host/sys/fs/cgroup=/sys/fs/cgroup",
}
# Of each container: its user, whether it is privileged, and what of the node it sees, with ! where it may write.
SECURITY = {
    "gpushim-node install": (None, True, {"!/host=/"}),
    "gpushim-node keep": (None, True, {"!/host=/"}),
    "gpushim-node label": (OWN, False, set()),
    "gpushim-uninstall uninstall": (None, True, {"!/host=/"}),
    "gpushim-uninstall unlabel": (OWN, False, set()),
    "gpushim-uninstall done": (OWN, False, set()),
    "gpushim-device-plugin profile": (OWN, False, set()),
    "gpushim-device-plugin cluster": (OWN, False, set()),
    "gpushim-device-plugin device-plugin": (
        0,
        False,
        {
            *AGENT,
            "!/var/lib/kubelet/device-plugins=/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/plugins_registry=/var/lib/kubelet/plugins_registry",
            "/var/run/cdi=/var/run/cdi",
        },
    ),
}
OF_CLAIMS = {
    *("!/var/lib/kubelet/plugins=/var/lib/kubelet/plugins", "!/var/run/cdi=/var/run/cdi"),
    "!/var/lib/kubelet/plugins_registry=/var/lib/kubelet/plugins_registry",
}
WITH_CLAIMS = {
    "gpushim-device-plugin cluster": (OWN, False, set()),
    "gpushim-device-plugin device-plugin": (
        0,
        False,
        {*AGENT, *OF_CLAIMS, "!/var/lib/kubelet/device-plugins=/var/lib/kubelet/device-plugins"},
    ),
    "gpushim-dra-driver cluster": (OWN, False, set()),
    "gpushim-dra-driver node": (
        0,
        False,
        {*AGENT, *OF_CLAIMS, "/var/lib/kubelet/device-plugins=/var/lib/kubelet/device-plugins"},
    ),
}
DROPPED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def daemon_sets(*chosen: Values) -> Iterator[dict[str, Any]]:
    for values in chosen or (ALL, CLAIMS, {"uninstall": True}):
        yield from (each for each in charts.objects(values).values() if each["kind"] == "DaemonSet")


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ((ALL, {"uninstall": True}), SECURITY),
        ((CLAIMS,), {**{name: row for name, row in SECURITY.items() if "gpushim-node " in name}, **WITH_CLAIMS}),
    ],
)
def test_what_containers_may(chosen: tuple[Values, ...], wanted: dict[str, Any]) -> None:
    found = {}
    for each in daemon_sets(*chosen):
        pod = each["spec"]["template"]["spec"]
        places = {row["name"]: row["hostPath"]["path"] for row in pod["volumes"] if "hostPath" in row}
        for name, container in containers(each).items():
            rights = dict(container["securityContext"])
            submounts = [row for row in container.get("volumeMounts", ()) if row["name"] == "cgroups"]
            assert all(row["recursiveReadOnly"] == "IfPossible" for row in submounts), name
            mounts = [row for row in container.get("volumeMounts", ()) if row["name"] in places]
            seen = {f"{'!' * (not row.get('readOnly'))}{row['mountPath']}={places[row['name']]}" for row in mounts}
            user, privileged = rights.pop("runAsUser", None), rights.pop("privileged", False)
            nobody = {"runAsNonRoot": True, "runAsGroup": user} if user else {}
            assert rights == ({"readOnlyRootFilesystem": True} if privileged else {**DROPPED, **nobody}), name
            found[f"{each['metadata']['name']} {name}"] = (user, privileged, seen)
    assert found == wanted


def test_the_token_is_where_the_api_server_is_asked() -> None:
    with_token = set()
    for each in daemon_sets():
        pod = each["spec"]["template"]["spec"]
        assert (pod["automountServiceAccountToken"], pod.get("hostNetwork"), pod.get("hostIPC")) == (
            False,
            None,
            None,
        )
        assert pod.get("hostPID", False) == (each["metadata"]["name"] in ("gpushim-node", "gpushim-uninstall"))
        tokens = {row["name"] for row in pod["volumes"] if "serviceAccountToken" in str(row)}
        for name, container in containers(each).items():
            with_token |= {name for row in container.get("volumeMounts", ()) if row["name"] in tokens}
    assert with_token == {"profile", "cluster", "label", "unlabel"}


def test_who_has_the_drivers_token_changes_nothing_in_what_root_shares_with_it() -> None:
    """In that directory root makes its socket."""
    for name in ("DaemonSet gpushim-device-plugin", "DaemonSet gpushim-dra-driver"):
        agent = charts.objects(CLAIMS)[name]
        assert all(row.get("readOnly") for row in containers(agent)["cluster"]["volumeMounts"])
