"""The socket between the halves: whoever comes, goes, hangs or lies, kubelet gets an answer."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuplugin.dra import link
from gpuplugin.dra.link import Link, LinkSocket
from gpushim.ground.bounds import CLAIM_DEPTH, CLAIM_LINE
from gpushim.ground.errors import GpushimError

CLAIM = {"namespace": "d", "name": "c", "uid": "u"}


class Other:
    """The other half, as a test has it speak."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def heard(self) -> Any:
        return json.loads(await self.reader.readline())

    def say(self, said: Any) -> None:
        self.writer.write((said if isinstance(said, str) else json.dumps(said)).encode() + b"\n")


Story = Callable[[Link, Callable[[], Awaitable[Other]]], Awaitable[None]]


def run(folder: Path, story: Story, unit: str = "") -> None:
    async def begin() -> None:
        one, came = Link(LinkSocket(f"{folder}/s", 12345, unit), asyncio.ensure_future, lambda: None), []

        async def come() -> Other:
            came.append(Other(*await asyncio.open_unix_connection(one.path, limit=CLAIM_LINE)))
            return came[-1]

        try:
            await one.attend()
            await asyncio.wait_for(story(one, come), 20)
        finally:
            one.stop()
            for each in came:
                each.writer.close()
            while len(asyncio.all_tasks()) > 1:  # those of clients
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)

    asyncio.run(begin())


def test_what_is_to_be_published_is_told_who_comes(folder: Path) -> None:
    async def story(one: Link, come: Any) -> None:
        one.tell([[{"name": "gpu-0"}]])
        for _ in range(2):
            assert await (await come()).heard() == {"pool": {"slices": [[{"name": "gpu-0"}]]}}
        last = await come()
        await last.heard()
        one.tell(None)
        assert await last.heard() == {"pool": None}

    run(folder, story)


@pytest.mark.parametrize(
    ("said", "answer"), [({"object": {"metadata": {}}}, {"metadata": {}}), ({"absent": True}, None)]
)
def test_a_claim_is_fetched(folder: Path, said: dict[str, Any], answer: Any) -> None:
    async def story(one: Link, come: Any) -> None:
        other = await come()
        await other.heard()
        asking = asyncio.ensure_future(one.claim(CLAIM))
        asked = await other.heard()
        assert {key: asked[key] for key in CLAIM} == CLAIM
        other.say({"claim": asked["claim"] + 1, "absent": True})  # nobody has asked that
        other.say({"claim": asked["claim"], **said})
        assert await asking == answer

    run(folder, story)


def test_a_question_outlives_who_was_asked(folder: Path) -> None:
    async def story(one: Link, come: Any) -> None:
        first = await come()
        await first.heard()
        asking = asyncio.ensure_future(one.claim(CLAIM))
        await first.heard()
        first.writer.close()
        second = await come()
        await second.heard()
        second.say({"claim": (await second.heard())["claim"], "error": "the API server does not answer"})
        with pytest.raises(GpushimError, match=r"^the API server does not answer$"):
            await asking

    run(folder, story)


@pytest.mark.parametrize("there", [False, True])
def test_who_does_not_answer_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(link, "ANSWER", 0.1)

    async def story(one: Link, come: Any) -> None:
        if there:
            await (await come()).heard()
        with pytest.raises(GpushimError, match="does not answer$" if there else "is not there$"):
            await one.claim(CLAIM)

    run(folder, story)


UTF_16 = "\0".join('["\\"",' + "[" * 9999 + '"]')  # json takes bytes with zeros for that


@pytest.mark.parametrize(
    "said",
    ["{", "[]", "3", '{"claim": {}}', '{"published": []}', "x" * (CLAIM_LINE + 2), "[" * CLAIM_LINE, UTF_16],
    ids=lambda said: said[:20],
)
def test_who_talks_nonsense_is_let_go_or_ignored(folder: Path, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(one: Link, come: Any) -> None:
        other = await come()
        await other.heard()
        other.say(said)
        other.writer.write_eof()
        assert await other.reader.read() == b""
        again = await come()
        assert await again.heard() == {"pool": None}
        again.say({"published": {"generation": 3}})
        while not one.published:
            await asyncio.sleep(0)
        assert one.published == {"generation": 3, "problem": ""}

    run(folder, story)
    gc.collect()
    assert {*caplog.messages} <= {"the container beside this one sends a line that is not understood"}


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


DEEP = nested(20)


@pytest.mark.parametrize(
    ("generation", "problem", "known", "sentence"),
    [
        ("3", '"no \\u001b[31m"', 3, r"no \x1b[31m"),
        ("3", '"no \\ud800"', 3, r"no \ud800"),
        ("9" * 4000, "null", 0, ""),
        ("1e999", '""', 0, ""),
        ("true", DEEP, 0, "what the other container says is not understood"),
        (DEEP, f'"{"x" * 60_000}"', 0, "x" * link.ERROR),
    ],
)
def test_what_is_said_of_slices_is_a_number_and_a_sentence(
    folder: Path, generation: str, problem: str, known: int, sentence: str
) -> None:
    """So it can be written as metrics, on a terminal, and to who asks."""

    async def story(one: Link, come: Any) -> None:
        other = await come()
        await other.heard()
        other.say(f'{{"published": {{"generation": {generation}, "problem": {problem}, "more": 1}}}}')
        while not one.published:
            await asyncio.sleep(0)
        assert one.published == {"generation": known, "problem": sentence}
        assert one.connected

    run(folder, story)


def test_an_error_that_is_no_text_ends_nothing(folder: Path) -> None:
    async def story(one: Link, come: Any) -> None:
        other = await come()
        await other.heard()
        asking = asyncio.ensure_future(one.claim(CLAIM))
        number = (await other.heard())["claim"]
        other.say(f'{{"claim": {number}, "error": {DEEP}}}')
        with pytest.raises(GpushimError, match=r"is not understood$"):
            await asking
        assert one.connected

    run(folder, story)


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        (nested(CLAIM_DEPTH - 1), True),
        (nested(CLAIM_DEPTH), False),
        (nested(976), False),  # where json begins to fail, here and there
        (nested(100_000), False),
        ("{]", False),
        ("9" * 5000 + "}", False),
        ('"\\udc00"', True),
    ],
    ids=lambda said: str(said)[:20],
)
def test_what_a_claim_contains_fails_that_claim_alone(folder: Path, said: str, understood: bool) -> None:
    async def story(one: Link, come: Any) -> None:
        other = await come()
        await other.heard()
        asking = [asyncio.ensure_future(one.claim(CLAIM)) for _ in range(2)]
        numbers = [(await other.heard())["claim"] for _ in asking]
        other.say(f'{{"claim": {numbers[0]}, "object": {said}}}')
        other.say({"claim": numbers[1], "object": {}})
        found, beside = await asyncio.gather(*asking, return_exceptions=True)
        assert beside == {}
        assert isinstance(found, GpushimError) is not understood
        assert understood or str(found) == "what the other container says is not understood"

    run(folder, story)


@pytest.mark.parametrize(("of_user", "unit"), [(False, ""), (True, "a.service")])
def test_a_stranger_is_not_let_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, of_user: bool, unit: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gpuplugin.kubelet.sockets.is_user", lambda *_: of_user)

    async def story(one: Link, come: Any) -> None:
        for _ in range(3):
            assert await (await come()).reader.read() == b""
            assert not one.connected
        (line,) = caplog.messages  # however often it comes
        assert line.endswith(f"connects to {one.path}, and is sent away")

    run(folder, story, unit)


@pytest.mark.parametrize(("stays", "lines"), [(-1.0, 2), (60.0, 1)])
def test_a_stranger_is_logged_again_after_a_client_that_has_stayed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stays: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    admitted = iter([False, True, False])
    monkeypatch.setattr("gpuplugin.kubelet.sockets.is_user", lambda *_: next(admitted))
    monkeypatch.setattr(link, "STAYS", stays)

    async def story(one: Link, come: Any) -> None:
        assert await (await come()).reader.read() == b""
        other = await come()
        await other.heard()
        other.writer.close()
        while one.connected:
            await asyncio.sleep(0)
        assert await (await come()).reader.read() == b""
        assert len(caplog.messages) == lines

    run(folder, story)


def test_who_comes_again_and_again_costs_little(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(one: Link, come: Any) -> None:
        begun = time.monotonic()
        for _ in range(4):
            other = await come()
            other.say("no sense")
            await other.reader.read()
        assert time.monotonic() - begun > 0.2
        assert len(caplog.messages) == 1

    run(folder, story)


def test_a_socket_that_is_gone_is_made_again(folder: Path) -> None:
    async def story(one: Link, come: Any) -> None:
        os.unlink(one.path)
        await one.attend()
        assert await (await come()).heard() == {"pool": None}
        assert os.stat(one.path).st_mode & 0o777 == 0o666

    run(folder, story)


def test_a_link_in_the_sockets_place_changes_no_other_files_mode(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other half may have the directory: what the socket was is a link to a file of root's a moment later."""
    kept = folder / "root's"
    kept.write_text("")
    kept.chmod(0o600)
    rename = os.rename

    def renamed(old: str, new: str) -> None:
        rename(old, new)
        os.unlink(new)
        os.symlink(kept, new)

    async def story(one: Link, come: Any) -> None:
        os.unlink(one.path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", renamed)
            await one.attend()
        assert kept.stat().st_mode & 0o777 == 0o600
        await one.attend()  # which sees that it is another file
        assert os.stat(one.path).st_mode & 0o777 == 0o666

    run(folder, story)


def test_a_link_in_the_place_of_a_socket_that_is_being_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = folder / "root's"
    kept.write_text("")
    kept.chmod(0o640)
    opened = os.open

    def swapped(path: str, *more: Any) -> int:
        if path.startswith(f"{folder}/s."):
            os.unlink(path)
            os.symlink(kept, path)
        return opened(path, *more)

    async def story(one: Link, come: Any) -> None:
        os.unlink(one.path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", swapped)
            with pytest.raises(GpushimError, match="cannot be made"):
                await one.attend()
        assert kept.stat().st_mode & 0o777 == 0o640
        await one.attend()

    run(folder, story)


def test_who_says_much_keeps_nobody_waiting(folder: Path) -> None:
    """Lines that are there already are not all read before anybody else has a turn."""

    async def story(one: Link, come: Any) -> None:
        other, turns = await come(), 0
        await other.heard()
        heard, one._heard = [], lambda *_: heard.append(turns)  # type: ignore[method-assign]
        other.writer.write(b"{}\n" * 1000)
        while len(heard) < 1000:
            turns += 1
            await asyncio.sleep(0)
        assert len({*heard}) > 100

    run(folder, story)


def test_who_does_not_read_has_to_come_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on without what it has missed."""
    monkeypatch.setattr(link, "CLAIM_LINE", 1 << 16)

    async def story(one: Link, come: Any) -> None:
        other = await come()
        await other.heard()
        for number in range(1000):
            one.tell([[{"name": f"{number}-{'x' * 10_000}"}]])
            await asyncio.sleep(0)
            if not one.connected:
                break
        assert not one.connected
        one.tell([[{"name": "last"}]])
        assert await (await come()).heard() == {"pool": {"slices": [[{"name": "last"}]]}}

    run(folder, story)
