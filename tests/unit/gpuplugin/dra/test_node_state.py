from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplugin.dra import node_state, spec
from gpuplugin.dra.newest import Newest
from gpuplugin.dra.node_state import NodeState
from gpuplugin.health.health import Health
from gpuplugin.record import allocations_file
from gpuplugin.record.allocations_file import AllocationsFile
from gpuplugin.record.record_form import FORM
from gpuplugin.settings import settings
from gpuplugin.snapshot import node_snapshot, release
from gpushim.ground import system
from gpushim.ground.errors import GpushimError
from gpushim.refresh import plugin_socket
from unit.gpuplugin.record import rows
from unit.gpuplugin.snapshots import gpu, snapshot, uuid
from unit.gpushim.doctor.nodes import answering

HOST = snapshot([gpu(0), gpu(1)])
NO_DRIVER = "no gpushim-dra-driver runs on this node"


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is the tests', and all devices are in the CDI spec."""
    monkeypatch.setenv("GPUSHIM_STATE", str(tmp_path / "s"))
    monkeypatch.setattr(node_snapshot, "current", lambda: HOST)
    monkeypatch.setattr("gpuplugin.dra.spec.missing", lambda *_: (frozenset(), ""))


def present() -> NodeState:
    return node_state.present(settings.resolve({}, {}, {}))


def taints(found: NodeState) -> dict[str, list[dict[str, str]]]:
    """Return what the driver taints, as --check lists it."""
    settings_ = settings.resolve({}, {}, {})
    reasons, _ = node_state.reasons(settings_, HOST)
    return node_state.tainted(settings_, HOST, reasons, found.record)[0]


def watch() -> Health:
    """Have health watched, as the driver does."""
    found = Health(f"{release.prepare()}/health.json")
    found.problems(HOST, system.clock())
    found.quiet(system.clock())
    found.save(at_once=True)
    return found


@pytest.fixture
def running() -> Iterator[Newest]:
    """A driver, as far as others see whether it runs."""
    found = Newest()
    found.join(release.prepare())
    yield found
    found._instances.leave()


def test_without_a_driver_nothing_is_given_and_little_known() -> None:
    found = present()
    for words in (NO_DRIVER, "whether GPUs are healthy is not known"):
        assert any(note.startswith(words) for note in found.notes)
    assert (found.why, found.record, found.watched) == ({}, None, False)


def test_a_driver_that_has_ended(running: Newest) -> None:
    watch()
    assert present().watched
    running._instances.leave()
    found = present()
    assert not found.watched
    assert any(note.startswith(NO_DRIVER) for note in found.notes)


@pytest.mark.parametrize(
    ("answer", "there"),
    [
        ({"rival": "/x"}, "/x"),
        ({"rival": ""}, ""),
        ({"rival": None}, ""),
        ({"error": "too many ask the driver at a time; try again"}, None),
        ([], None),
        (None, None),
    ],
)
def test_another_driver_is_where_the_one_that_runs_says(
    running: Newest, tmp_path: Path, answer: object, there: str | None
) -> None:
    told = contextlib.nullcontext()
    if answer is not None:
        told = answering(tmp_path / "s/device-plugin.sock", json.dumps({"dra": answer}).encode() + b"\n")  # type: ignore[assignment]
    with told:
        assert node_state.rival() == there
        assert (spec.RIVAL.format(there) in present().notes) == bool(there)


REFUSED = {"namespace": "d", "name": "c", "why": "no\n"}


@pytest.mark.parametrize(
    ("refusals", "why"), [([REFUSED], r"no\n"), ([{**REFUSED, "name": "x"}], ""), ([5], ""), (None, ""), (5, "")]
)
def test_why_a_claim_is_refused(running: Newest, tmp_path: Path, refusals: object, why: str) -> None:
    with answering(tmp_path / "s/device-plugin.sock", json.dumps({"dra": {"refusals": refusals}}).encode() + b"\n"):
        found = present()
    assert node_state.refusal(found, "d", "c") == why  # without another question


def test_a_driver_that_has_let_go_of_the_gpus_is_asked_once(
    running: Newest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though what it says of others does not count then: it says why it refuses claims, too."""
    asked: list[bytes] = []
    answer = json.dumps({"dra": {"rival": "/x", "refusals": [REFUSED]}}).encode()

    def exchange(_: str, question: bytes, *__: object) -> bytes:
        asked.append(question)
        return answer

    monkeypatch.setattr(plugin_socket, "exchange", exchange)
    Path(release.Release().path).write_text("{}")
    found = present()
    assert release.PROBLEM in found.notes
    assert node_state.refusal(found, "d", "c") == r"no\n"
    assert len(asked) == 1


def test_health_and_holders(running: Newest) -> None:
    health = watch()
    health.heard({"xid": 79, "gpu": uuid(0)}, system.clock())
    health.save(at_once=True)
    given = {f"nvidia.com/gpu {uuid(1)}": rows.allocation(uuid(1), pod="pod d/p")}
    rows.save(rows.record(allocations=given, claims={"u": rows.claim()}, boot=system.boot()))
    found = present()
    assert {key: [one["key"] for one in row] for key, row in taints(found).items()} == {
        uuid(0): ["gpu.nvidia.com/xid"],
        uuid(1): ["gpu.nvidia.com/device-plugin"],
    }
    assert ([*found.why], node_state.describe_pods(found.record)) == ([uuid(0)], {uuid(1): "pod d/p has it"})
    assert found.record
    assert (found.notes, found.watched, [*found.record["claims"]]) == ([], True, ["u"])


def test_what_a_claim_that_is_over_still_owes(running: Newest, tmp_path: Path) -> None:
    """Beside another reason, and without one."""
    watch().heard({"xid": 79, "gpu": uuid(0)}, system.clock())
    place = tmp_path / "s/mps/claim-12345678-1234-4234-8234-123456789012-0"
    place.mkdir(parents=True)
    (place / "compute-modes.json").write_text(json.dumps({uuid(0): 0, uuid(1): 0}))
    found = present()
    for number in (0, 1):
        assert {"key": "gpu.nvidia.com/problem", "effect": "NoSchedule"} in taints(found)[uuid(number)]
        assert "has not ended yet" in found.why[uuid(number)]


def test_what_exclude_leaves_out_is_said() -> None:
    found = node_state.present(settings.resolve({"exclude": ("1,9",)}, {}, {}))
    key = "exclude or on-demand"
    assert {f"left out by {key}: 1", f'{key} has "9", which this host does not have'} <= {*found.notes}


def test_gpus_that_are_let_go(running: Newest) -> None:
    Path(release.Release().path).write_text("{}")
    assert release.PROBLEM in present().notes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "allocations.json is damaged: who has which GPU is not known"),
        (json.dumps(rows.record(claims={"u": {}})), "allocations.json is damaged"),  # type: ignore[typeddict-item]
        (json.dumps({"form": FORM + 1}), "allocations.json is written by a newer version of gpushim"),
        (json.dumps(rows.record(boot="another")), "nobody has written"),
        (json.dumps(rows.record(boot=system.boot(), unknown="it was lost")), "all that was given out: it was lost"),
    ],
)
def test_who_has_what_may_not_be_known(text: str, words: str) -> None:
    watch()
    file = AllocationsFile()
    file.prepare()
    Path(file.path).write_text(text + "\n")
    assert any(words in note for note in present().notes)


def test_who_is_not_root_sees_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    AllocationsFile().prepare()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(GpushimError, match=f"^{allocations_file.folder()} is root's; run this as root$"):
        present()
