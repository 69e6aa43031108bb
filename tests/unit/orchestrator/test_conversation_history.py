"""Conversations: the questions and answers before a question, and the files that it starts with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moothall.config import LimitSettings, LlmSettings, Models
from moothall.deliberation.prompts.prompts import shared_text
from moothall.domain.codec import dump
from moothall.domain.event import EventType, new_event
from moothall.domain.ids import LOCAL, Principal, TaskId, TaskKey, key_of
from moothall.domain.outcome import DeliberationStatus, Outcome, Result
from moothall.domain.task import DeliberationRequest, RepositoryRef
from moothall.domain.text import tokens
from moothall.errors import InvalidRequest, NotFound
from moothall.orchestrator.fork import EndedTask, conversation_text
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.testing.bus import MemoryBus
from support.story import Remembering, deliberation

DIFF = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -0,0 +1 @@\n+new = 1\n"
NEXT = DeliberationRequest("And now?", "dev", num_agents=1, protocol="ask", follows="first")


def answered_outcome(
    d: Any, content: str = "It adds.", diff: str = "", commit_sha: str = ""
) -> Outcome:
    result = Result(
        1,
        d.seats[0],
        "dev",
        1.0,
        (),
        passed_gates=True,
        proven=False,
        content=content,
        diff=diff,
        commit_sha=commit_sha,
    )
    return Outcome(
        d.task_id,
        DeliberationStatus.COMPLETED,
        tenant=d.tenant,
        winner_id=d.seats[0],
        results=(result,),
        commit_sha=commit_sha,
    )


async def record(
    bus: MemoryBus, name: str, question: str, outcome: Outcome | None = None, **fields: Any
) -> None:
    d = replace(
        deliberation(name, text=bool(fields.pop("text", False))),
        task_id=TaskKey(name),
        description=question,
        **fields,
    )
    await bus.publish(new_event(EventType.DELIBERATION_REQUESTED, name, dump(d), tenant=d.tenant))
    if outcome is not None:
        await bus.publish(
            new_event(EventType.DELIBERATION_DECIDED, name, dump(outcome), tenant=d.tenant)
        )


def deliberation_service(bus: MemoryBus, window: int = 8192) -> DeliberationService:
    return DeliberationService(
        bus,
        Remembering(),
        Defaults(LimitSettings(), models=Models(LlmSettings(context_tokens=window))),
    )


async def test_a_follow_up_question_has_the_earlier_conversation_and_its_files() -> None:
    bus = MemoryBus()
    await record(bus, "zero", "What does add do?", answered_outcome(deliberation("zero")))
    await record(
        bus,
        "first",
        "Make it subtract",
        answered_outcome(deliberation("first"), "Done.", DIFF, "c" * 40),
        follows="zero",
    )
    d = await deliberation_service(bus).submit(NEXT, LOCAL)
    assert (d.follows, d.repository and d.repository.id) == ("first", "sample")
    assert d.repository == RepositoryRef(id="sample", ref="c" * 40)
    context = d.context
    places = [
        context.index(word)
        for word in ("What does add do?", "It adds.", "Make it subtract", "Done.", "+new = 1")
    ]
    assert places == sorted(places)
    assert "asked and answered before in this conversation" in shared_text(d, None)


async def test_an_answer_without_a_change_keeps_the_files() -> None:
    bus = MemoryBus()
    await record(bus, "first", "What?", answered_outcome(deliberation("first")))
    assert (await deliberation_service(bus).submit(NEXT, LOCAL)).repository == RepositoryRef(
        id="sample", ref="b" * 40
    )


async def test_a_named_repository_takes_precedence_over_the_conversations() -> None:
    bus = MemoryBus()
    await record(
        bus,
        "first",
        "What?",
        answered_outcome(deliberation("first"), diff=DIFF, commit_sha="c" * 40),
    )
    d = await deliberation_service(bus).submit(
        replace(NEXT, repository=RepositoryRef(id="sample", ref="main")), LOCAL
    )
    assert d.repository is not None
    assert d.repository.ref == "main"
    assert "What?" in d.context


async def test_a_text_conversation_stays_a_text_conversation() -> None:
    bus = MemoryBus()
    await record(
        bus, "first", "Hello", answered_outcome(deliberation("first", text=True)), text=True
    )
    deliberations = DeliberationService(
        bus, Remembering(), Defaults(LimitSettings(), repository="sample")
    )
    d = await deliberations.submit(NEXT, LOCAL)
    assert (d.repository, d.base_sha) == (None, None)


async def test_older_turns_are_condensed_and_the_oldest_omitted() -> None:
    first_task = deliberation("one")
    earlier_tasks = [
        EndedTask(
            replace(first_task, description=f"question {n}"),
            answered_outcome(first_task, f"answer {n} " + "word " * 400),
        )
        for n in range(30, 0, -1)
    ]
    text = conversation_text(earlier_tasks, 2000)
    assert tokens(text) <= 2000
    assert all(excerpt in text for excerpt in ("question 30", "answer 30", "question 29"))
    assert "question 1\n" not in text
    full_text = conversation_text(earlier_tasks[:2], 100_000)
    assert full_text.count("word") == 2 * 400
    assert text.index("question 29") < text.index("question 30")


async def test_an_unanswered_question_gives_the_reason() -> None:
    unanswered = deliberation("one")
    text = conversation_text(
        [
            EndedTask(
                unanswered, Outcome("one", DeliberationStatus.FAILED, error_message="out of turns")
            )
        ],
        1000,
    )
    assert "(no answer: out of turns)" in text


async def test_a_repeated_question_is_the_same_task_despite_later_ones() -> None:
    bus = MemoryBus()
    await record(bus, "first", "What?", answered_outcome(deliberation("first")))
    request = replace(NEXT, task_id="second")
    submitted = await deliberation_service(bus).submit(request, LOCAL)
    assert await deliberation_service(bus).submit(request, LOCAL) == submitted


@pytest.mark.parametrize(
    ("follows", "error", "message"),
    [
        ("nowhere", NotFound, "no deliberation 'nowhere' whose conversation"),
        ("running", InvalidRequest, "has not ended: send it"),
        ("No id", InvalidRequest, "is not an id"),
    ],
)
async def test_an_invalid_follow_up_is_reported(
    follows: str, error: type[Exception], message: str
) -> None:
    bus = MemoryBus()
    await record(bus, "running", "What?")
    with pytest.raises(error, match=message):
        await deliberation_service(bus).submit(replace(NEXT, follows=follows), LOCAL)


async def test_a_conversation_is_visible_only_to_its_tenant() -> None:
    bus, alice = MemoryBus(), Principal("alice", "acme")
    await record(bus, "first", "A secret", answered_outcome(deliberation("first")))
    with pytest.raises(NotFound):
        await deliberation_service(bus).submit(NEXT, alice)
    key = key_of("first", "acme")
    await record(
        bus,
        key,
        "Theirs",
        answered_outcome(replace(deliberation(key), tenant="acme")),
        tenant="acme",
    )
    deliberations = deliberation_service(bus)
    d = await deliberations.submit(replace(NEXT, task_id="second"), alice)
    assert (d.follows, "Theirs" in d.context) == (key, True)
    async for recorded in deliberations.watch(TaskId("second"), 0, alice):
        assert recorded.event.data["follows"] == "first"
        break
