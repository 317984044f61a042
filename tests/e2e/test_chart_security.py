"""What the chart's containers may on a node, and which of them have a token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from e2e import charts
from e2e.charts import ALL, CLAIMS, containers

OWN = 61017  # of nobody else on the node, whose processes the pod sees: 65532 is what many images have
# Of each container: its user, whether it is privileged, and what of the node it sees, with ! where it may write.
SECURITY = {
    "gpushim-node install": (None, True, {"!/host=/"}),
    "gpushim-node keep": (None, True, {"!/host=/"}),
    "gpushim-node label": (OWN, False, set()),
    "gpushim-uninstall uninstall": (None, True, {"!/host=/"}),
    "gpushim-uninstall unlabel": (OWN, False, set()),
    "gpushim-uninstall done": (OWN, False, set()),
    "gpushim-device-plugin profile": (65532, False, set()),
    "gpushim-device-plugin cluster": (65532, False, set()),
    "gpushim-device-plugin device-plugin": (
        0,
        False,
        {
            "!/var/lib/kubelet/device-plugins=/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/pod-resources=/var/lib/kubelet/pod-resources",
            "/var/lib/kubelet/plugins_registry=/var/lib/kubelet/plugins_registry",
            "!/run/gpushim=/run/gpushim",
            "!/var/lib/gpushim/device-plugin=/var/lib/gpushim/device-plugin",
            "/etc/gpushim=/etc/gpushim",
            "/etc/cdi=/etc/cdi",
            "/var/run/cdi=/var/run/cdi",
            "/host/sys/fs/cgroup=/sys/fs/cgroup",
        },
    ),
    "gpushim-dra-driver cluster": (OWN, False, set()),
    "gpushim-dra-driver node": (
        0,
        False,
        {
            "!/var/lib/kubelet/plugins=/var/lib/kubelet/plugins",
            "!/var/lib/kubelet/plugins_registry=/var/lib/kubelet/plugins_registry",
            "/var/lib/kubelet/device-plugins=/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/pod-resources=/var/lib/kubelet/pod-resources",
            "!/run/gpushim=/run/gpushim",
            "!/var/lib/gpushim/device-plugin=/var/lib/gpushim/device-plugin",
            "/etc/gpushim=/etc/gpushim",
            "/etc/cdi=/etc/cdi",
            "!/var/run/cdi=/var/run/cdi",
            "/host/sys/fs/cgroup=/sys/fs/cgroup",
        },
    ),
}
DROPPED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def daemon_sets() -> Iterator[dict[str, Any]]:
    for values in (ALL, CLAIMS, {"uninstall": True}):
        yield from (each for each in charts.objects(values).values() if each["kind"] == "DaemonSet")


def test_what_containers_may() -> None:
    found = {}
    for each in daemon_sets():
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
    assert found == SECURITY


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
    driver = charts.objects(CLAIMS)["DaemonSet gpushim-dra-driver"]
    assert all(row.get("readOnly") for row in containers(driver)["cluster"]["volumeMounts"])
