"""One decision: how a request comes to a true inventory, what the log is told, and that each edit has its reasons."""

from __future__ import annotations

from typing import Any

import pytest

from gpushim.decision import without_config
from gpushim.decision.decide import Decision, of_items
from gpushim.ground import bounds, system
from gpushim.ground.errors import INVENTORY, GpushimError
from gpushim.inventory import ensure
from unit.gpushim.decision.inventories import BUNDLE, UUIDS, snapshot, with_specs

DEVICES = "NVIDIA_VISIBLE_DEVICES"


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the last refresh has left: a snapshot, and in which way it is stale."""
    found = [snapshot(), ""]
    monkeypatch.setattr(ensure, "last", lambda *_: (found[0], found[1]))
    monkeypatch.setattr(system, "config_path", lambda: "/none.toml")
    return found


def asking(*env: str) -> dict[str, Any]:
    return {"root": {"path": "/r"}, "process": {"env": list(env)}}


def decided(*env: str, renew: Any = None) -> Decision:
    decision = Decision({"container": "x"})
    decision.ask(asking(*env), renew)
    decision.plan(BUNDLE)
    return decision


def test_a_container_that_gets_what_it_asks_for(last: list[Any]) -> None:
    decision = decided(f"{DEVICES}=2:0,1")
    line = decision.line()
    assert line.pop("milliseconds") >= 0
    words = {"level": "info", "msg": "GPU container", "container": "x", "request": f"env {DEVICES}=2:0,1"}
    assert line == {**words, "gpus": [UUIDS[1], "MIG-1"]}
    assert {text: [device["index"] for device in found] for text, found in decision.devices.items()} == {
        "2:0": [0],
        "1": [1],
    }
    assert all(edit.why for edit in decision.edits)


def test_one_that_asks_for_nothing_has_no_line(last: list[Any]) -> None:
    decision = decided()
    assert (decision.request, decision.edits, decision.line()) == (None, [], {})


def test_one_that_gets_nothing_is_a_warning(last: list[Any]) -> None:
    last[0]["policy"]["requests"]["accept-env-when-unprivileged"] = False
    line = decided(f"{DEVICES}=0").line()
    assert (line["level"], line["msg"], len(line["ignored"])) == ("warning", "no GPU", 1)


def test_a_refusal_is_an_error_of_bounded_length(last: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an inventory, none of whose policy tells the log, without_config.py finds it."""
    disclosed: list[Any] = []
    monkeypatch.setattr(without_config, "record", disclosed.append)
    Decision({"container": "x"}).record("w" * (bounds.LOG_TEXT + 1))
    assert disclosed == [{"level": "error", "msg": "w" * bounds.LOG_TEXT, "container": "x"}]


def test_of_many_ignored_things_the_first_are_told(last: list[Any]) -> None:
    decision = decided(f"{DEVICES}=0")
    decision.ignored = [str(number) for number in range(bounds.LISTED + 3)]
    assert decision.line()["ignored"] == [*decision.ignored[: bounds.LISTED], "and 3 more"]


@pytest.mark.parametrize(
    ("asks", "stale", "renewed"),
    [("0", "", 0), ("0", "host", 1), ("0", "policy", 1), ("void", "host", 0), ("void", "policy", 1)],
)
def test_who_waits_for_a_refresh(last: list[Any], asks: str, stale: str, renewed: int) -> None:
    calls: list[Any] = []

    def renew(*paths: str) -> Any:
        calls.append(paths)
        return snapshot()

    last[1] = stale
    decided(f"{DEVICES}={asks}", renew=renew)
    assert len(calls) == renewed


def test_effects_are_those_of_the_policy_that_counts(last: list[Any]) -> None:
    last[0]["policy"]["requests"]["swarm-variables"] = ["A"]
    last[1] = "host"
    decision = decided("A=0", f"{DEVICES}=1", renew=lambda *_: snapshot())
    assert "A" not in decision.effects
    assert decision.effects[DEVICES] == "names the devices"


def test_devices_of_others_do_not_wait(last: list[Any], tmp_path: Any) -> None:
    last[:] = [with_specs(tmp_path), "host"]
    decision = decided(f"{DEVICES}=vendor.com/net=a")
    assert decision.uuids() == []
    assert {reason for edit in decision.edits for reason in edit.why} == {
        "stops later hooks from injecting anything",
        "CDI device vendor.com/net=a",
    }


@pytest.mark.parametrize(("env", "refused"), [((), False), ((f"{DEVICES}=0",), True)])
def test_a_failing_refresh_harms_only_who_may_ask(last: list[Any], env: tuple[str, ...], refused: bool) -> None:
    def fail(*_: str) -> Any:
        raise GpushimError("trouble", INVENTORY)

    last[1] = "policy"
    if refused:
        with pytest.raises(GpushimError, match="trouble"):
            decided(*env, renew=fail)
    else:
        assert decided(*env, renew=fail).line() == {}


def test_names_alone_are_decided_without_a_bundle() -> None:
    edits = of_items([("index", 0, "0")], snapshot(), "/hook", ["utility"])
    (hook,) = [edit.value for edit in edits if edit.kind == "hook"]
    assert "--rootfs" not in hook["args"]
    assert [edit.value["path"] for edit in edits if edit.kind == "node"] == ["/dev/nvidiactl", "/dev/nvidia1"]
