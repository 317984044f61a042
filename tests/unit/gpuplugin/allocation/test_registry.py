"""What is held back is told at once; the daemon's tests have the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpuplugin.allocation.registry import Registry
from gpuplugin.record.kubelet_watch import KubeletWatch


def test_kubelet_writes_its_checkpoint_by_one_list_that_it_has() -> None:
    registry: Any = Registry(lambda work: work, KubeletWatch(str))
    again: list[str] = []
    for name, listed in (("a", False), ("b", True), ("c", True)):
        endpoint = SimpleNamespace(listed=listed, repeat=lambda name=name: again.append(name))
        registry.served[name] = SimpleNamespace(endpoint=endpoint)
    registry.repeat()
    assert again == ["b"]


def test_what_is_held_is_told_at_once_and_what_is_let_go_by_the_next_offer() -> None:
    registry: Any = Registry(lambda work: work, KubeletWatch(str))
    told: list[str] = []
    resource = SimpleNamespace(fail=told.append)
    registry.served["nvidia.com/gpu"] = SimpleNamespace(resource=resource, tell=lambda: told.append("kubelet"))
    for problem in ("released", ""):
        registry.hold(problem)
        assert told == ["released", "kubelet"]
