"""A kubeconfig as kubeadm writes it."""

from __future__ import annotations

import base64
from typing import Any

CA = "-----BEGIN CERTIFICATE-----"
DATA = base64.b64encode(CA.encode()).decode()
SERVER = {"server": "https://localhost:6443/base", "certificate-authority-data": DATA}


def kubeconfig(user: dict[str, Any], cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "clusters": [{"name": "x"}, {"name": "c", "cluster": {**SERVER, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "k", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "k",
    }
