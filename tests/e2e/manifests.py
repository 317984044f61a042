"""Manifests of pods, as the pages have them."""

from __future__ import annotations

from typing import Any

from e2e.installed import Machine


def by_variable(uuid: str) -> dict[str, Any]:
    return {"env": {"NVIDIA_VISIBLE_DEVICES": uuid}}


def pod(machine: Machine, handler: str, asked: dict[str, Any], command: list[str]) -> str:
    with machine.containerd.cri() as client:
        image = "docker.io/library/debian:local"
        container = client.create(client.run_pod(handler), image, ["sleep", "1000"], **asked)
        client.start(container)
        return client.execute(container, *command)
