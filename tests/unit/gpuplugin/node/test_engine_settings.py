"""In which order a node's engines are configured and given back, and what of that is still known after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplugin.node import engine, engine_settings, record
from gpushim.ground.errors import GpushimError

OLD, NEW, MORE = ["crio", "--runtime-name=old"], ["crio", "--runtime-name=new"], ["crio", "--config=/etc/x"]
CONTAINERD = ["containerd", "--runtime-name=nvidia", "--cdi"]
WRONG = ["containerd", "--config=/tmp/x"]  # which --remove refuses as well
NEEDED, REMOVE = "--only-needed", "--remove"


class Node:
    """What is asked of the node's gpushim, in that order, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.stays: list[str] = []
        self.refuses: list[str] = []  # what is configured so, once for each

    def configure(self, words: list[str], restart: bool) -> list[str]:
        self.asked.append(" ".join(words))
        if self.asked[-1] in self.refuses:
            self.refuses.remove(self.asked[-1])
            raise GpushimError("refused")
        return self.stays if NEEDED in words else []

    def check(self, words: list[str]) -> None:
        if words == WRONG:
            raise GpushimError("not touched")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    there = Node()
    monkeypatch.setattr(engine, "configure", there.configure)
    monkeypatch.setattr(engine, "check_settings", there.check)
    monkeypatch.setattr(record, "PATH", str(tmp_path / "node.json"))
    monkeypatch.setattr(engine_settings, "POLL", 0.001)
    return there


@pytest.mark.parametrize(
    ("before", "words", "asked"),
    [
        ([], NEW, [NEW]),  # what somebody else has configured is left alone
        (NEW, NEW, [NEW]),
        (OLD, NEW, [[*NEW, NEEDED]]),  # in one step: the old one is in the same settings
        (MORE, NEW, [NEW, [*MORE, REMOVE, NEEDED]]),
        (OLD, [], [[*OLD, REMOVE, NEEDED]]),
        (OLD, CONTAINERD, [CONTAINERD, [*OLD, REMOVE, NEEDED]]),
        (CONTAINERD, NEW, [[*CONTAINERD[:2], REMOVE], NEW]),
        (CONTAINERD, CONTAINERD[:2], [[*CONTAINERD[:2], REMOVE], CONTAINERD[:2]]),
        (CONTAINERD, CONTAINERD, [CONTAINERD]),
    ],
)
def test_the_new_comes_before_the_old_goes_that_containers_may_need(
    node: Node, before: list[str], words: list[str], asked: list[list[str]]
) -> None:
    engine_settings.change_engine(record.Record(engine=before), words, restart=True)
    assert node.asked == [" ".join(each) for each in asked]
    assert (record.load().engine, record.load().former) == (words, [])


@pytest.mark.parametrize("words", [[], NEW, CONTAINERD])
def test_what_stays_is_asked_again_until_it_goes(node: Node, words: list[str]) -> None:
    """No run fails for it, and none forgets it."""
    node.stays = ["old"]
    engine_settings.change_engine(record.Record(engine=MORE), words, restart=True)
    engine_settings.change_engine(record.load(), words, restart=True)
    assert (record.load().engine, record.load().former) == (words, [MORE])
    node.stays = []
    engine_settings.change_engine(record.load(), words, restart=True)
    assert node.asked.count(" ".join([*MORE, REMOVE, NEEDED])) == 3
    assert record.load().former == []


def test_what_stays_in_the_same_settings_is_asked_again_too(node: Node) -> None:
    node.stays = ["old"]
    engine_settings.change_engine(record.Record(engine=OLD), NEW, restart=True)
    assert (record.load().engine, record.load().former) == (NEW, [OLD])
    node.stays = []
    for _ in range(2):
        engine_settings.change_engine(record.load(), NEW, restart=True)
    assert node.asked == [" ".join(each) for each in ([*NEW, NEEDED], [*NEW, NEEDED], NEW)]


@pytest.mark.parametrize("failing", [NEW, [*MORE, REMOVE, NEEDED]])
def test_what_fails_is_known_to_the_next_run(node: Node, failing: list[str]) -> None:
    node.refuses = [" ".join(failing)]
    with pytest.raises(GpushimError):
        engine_settings.change_engine(record.Record(engine=MORE), NEW, restart=True)
    assert (record.load().engine, record.load().former) == (NEW, [MORE])
    engine_settings.take_back(record.load(), restart=True)
    assert node.asked[-2:] == [" ".join([*each, REMOVE]) for each in (MORE, NEW)]
    assert (record.load().engine, record.load().former) == ([], [])


def test_options_that_are_put_back_undo_a_change_that_was_refused(node: Node) -> None:
    """Else what cannot be taken back would end each start of gpushim-node."""
    node.refuses = [" ".join([*CONTAINERD[:2], REMOVE])] * 9
    with pytest.raises(GpushimError):
        engine_settings.change_engine(record.Record(engine=CONTAINERD), NEW, restart=True)
    engine_settings.change_engine(record.load(), CONTAINERD, restart=True)
    assert node.asked[-2:] == [" ".join(CONTAINERD), " ".join([*NEW, REMOVE, NEEDED])]
    assert (record.load().engine, record.load().former) == (CONTAINERD, [])


@pytest.mark.parametrize("before", [[], CONTAINERD])
def test_what_cannot_be_configured_is_not_noted(node: Node, before: list[str]) -> None:
    record.Record(engine=before, folders=["/x"]).save()
    with pytest.raises(GpushimError, match="not touched"):
        engine_settings.change_engine(record.load(), WRONG, restart=True)
    assert (node.asked, record.load().engine, record.load().former) == ([], before, [])


def test_what_is_taken_back_is_asked_and_waited_for_once(node: Node) -> None:
    former = [[*OLD, "--cdi"], [*OLD, "--set-as-default"], NEW]
    engine_settings.take_back(record.Record(engine=OLD, former=former), restart=True)
    assert node.asked == [" ".join([*each, REMOVE]) for each in (OLD, NEW)]


@pytest.mark.parametrize(("words", "tries"), [(OLD, 3), (CONTAINERD, 1)])
def test_containers_that_end_just_then_may_do_so(node: Node, words: list[str], tries: int) -> None:
    """CRI-O keeps its handler for them; who stays does not keep this waiting for ever."""
    removal = " ".join([*engine_settings.identify_settings(words), REMOVE])
    node.refuses = [removal] * (tries - 1)
    engine_settings.take_back(record.Record(engine=words), restart=True)
    assert node.asked == [removal] * tries


def test_who_stays_ends_the_removal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_settings, "LET_END", 0.01)
    node.refuses = [" ".join([*OLD, REMOVE])] * 1000
    with pytest.raises(GpushimError):
        engine_settings.take_back(record.Record(engine=OLD), restart=True)
