"""The visible part of a partial reply: whole words, no secret, and nothing that stops the work."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moothall.concurrency import run_in_background
from moothall.deliberation.event_writer import EventWriter, StreamedReply
from moothall.deliberation.recorded_model import RecordedModel, Recording
from moothall.domain.budget import Ledger, Usage
from moothall.domain.chat import (
    ChatReply,
    ChatRequest,
    Message,
    ModelDescription,
    ReplyMode,
    Writing,
)
from moothall.domain.text import scrub
from moothall.errors import BusUnavailable
from support.council import open_council

KEY = "ghp_" + "a1" * 18


class Heard:
    """A publisher that records partial replies."""

    def __init__(self, *, down: bool = False) -> None:
        self.partial_replies: list[Writing] = []
        self.came, self.down = asyncio.Event(), down

    async def publish_partial(self, writing: Writing) -> None:
        self.partial_replies.append(writing)
        self.came.set()
        if self.down:
            raise BusUnavailable("it is away")


def text_of(*pieces: str) -> str:
    growing = StreamedReply("s", Heard().publish_partial, scrub)
    for piece in pieces:
        growing.add(piece)
    return growing.writing.text


@pytest.mark.parametrize("cut", range(1, len(KEY)))
def test_no_prefix_of_a_secret_is_published_wherever_the_answer_is_cut(cut: int) -> None:
    assert text_of("the key is ", KEY[:cut]) == "the key is "
    assert text_of("the key is ", KEY[:cut], KEY[cut:], " so") == "the key is [redacted] "


def test_a_multi_line_key_is_held_back_until_it_is_complete() -> None:
    begin, end = "-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY----- \n"
    assert text_of("see ", begin, "QUJD\nREVG\n") == "see "
    assert text_of("see ", begin, "QUJD\nREVG\n", end) == "see [redacted] \n"


def test_the_end_of_a_long_answer_is_shown() -> None:
    assert text_of("word " * 1_000) == ("word " * 1_000)[-2_000:]
    assert text_of() == ""


async def test_a_partial_reply_is_published_and_withdrawn_at_its_end() -> None:
    publisher = Heard()
    growing = StreamedReply(
        "agent-dev-001", publisher.publish_partial, scrub, interval_seconds=0.001
    )
    async with asyncio.timeout(10), run_in_background(growing.publish_periodically(), "growing"):
        growing.add("one two")
        await publisher.came.wait()
    await growing.publish_end()
    assert publisher.partial_replies == [
        Writing("agent-dev-001", "one "),
        Writing("agent-dev-001", ""),
    ]


async def test_unchanged_text_is_repeated_for_new_observers() -> None:
    publisher = Heard()
    growing = StreamedReply("s", publisher.publish_partial, scrub, interval_seconds=0.001)
    async with asyncio.timeout(10), run_in_background(growing.publish_periodically(), "growing"):
        growing.add("one two")
        for _ in range(3):
            await publisher.came.wait()
            publisher.came.clear()
    assert publisher.partial_replies == [Writing("s", "one ")] * 3


async def test_an_answer_is_shown_while_it_is_written(tmp_path: Path) -> None:
    publisher = Heard()

    class Slow:
        async def reply_mode(self) -> ReplyMode:
            return "blocks"

        async def describe(self) -> ModelDescription:
            return ModelDescription()

        async def chat(
            self, request: ChatRequest, on_text: Any = None, *, owns_work: Any = None
        ) -> ChatReply:
            del request, owns_work
            on_text("one two")
            await publisher.came.wait()
            return ChatReply("one two three", "stop", Usage())

    async with open_council(tmp_path, lambda *_: "") as app:
        d = app.deliberation()
        model = RecordedModel(
            Slow(),
            ledger=Ledger(d.budget),
            events=EventWriter(app.bus, d),
            recording=Recording(),
            settings=app.parts.answerers.llm,
            publish_partial=publisher.publish_partial,
        )
        deadline = datetime.now(UTC) + timedelta(seconds=20)
        reply = await model.request_reply(
            ChatRequest(
                f"{d.task_id}/agent-dev-001/propose/0.0", (Message("user", "go on"),), 100, deadline
            )
        )
    assert reply.text == "one two three"
    assert publisher.partial_replies == [
        Writing("agent-dev-001", "one "),
        Writing("agent-dev-001", ""),
    ]


async def test_a_call_requested_twice_concurrently_is_sent_and_charged_once(tmp_path: Path) -> None:
    calls: list[str] = []

    class Counting:
        async def reply_mode(self) -> ReplyMode:
            return "blocks"

        async def describe(self) -> ModelDescription:
            return ModelDescription()

        async def chat(
            self, request: ChatRequest, on_text: Any = None, *, owns_work: Any = None
        ) -> ChatReply:
            del on_text, owns_work
            calls.append(request.call_id)
            await asyncio.sleep(0)
            return ChatReply(f"answer {len(calls)}", "stop", Usage(prompt_tokens=7))

    async with open_council(tmp_path, lambda *_: "") as app:
        d = app.deliberation()
        ledger, facts = Ledger(d.budget), EventWriter(app.bus, d)
        model = RecordedModel(
            Counting(),
            ledger=ledger,
            events=facts,
            recording=Recording(),
            settings=app.parts.answerers.llm,
        )
        deadline = datetime.now(UTC) + timedelta(seconds=20)
        request = ChatRequest(
            f"{d.task_id}/-/verify/1.tests.x", (Message("user", "read"),), 100, deadline
        )
        first_reply, second_reply = await asyncio.gather(
            model.request_reply(request), model.request_reply(request)
        )
    assert (first_reply.text, second_reply.text, calls) == (
        "answer 1",
        "answer 1",
        [request.call_id],
    )
    assert model.usage_of("-").prompt_tokens == ledger.spent.prompt_tokens == 7


async def test_a_quick_reply_is_not_published_in_parts() -> None:
    publisher = Heard()
    growing = StreamedReply("s", publisher.publish_partial, scrub, interval_seconds=60)
    async with run_in_background(growing.publish_periodically(), "growing"):
        growing.add("one two")
    await growing.publish_end()
    assert publisher.partial_replies == []


async def test_the_work_goes_on_if_nobody_can_be_notified() -> None:
    publisher = Heard(down=True)
    growing = StreamedReply("s", publisher.publish_partial, scrub, interval_seconds=0.001)
    async with asyncio.timeout(10), run_in_background(growing.publish_periodically(), "growing"):
        growing.add("one two")
        await publisher.came.wait()
        await asyncio.sleep(0)
    await growing.publish_end()
    assert len(publisher.partial_replies) == 2
