"""Forks: the recorded turns are replayed without a model call, and then the fork continues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from moothall.app.preflight import defaults
from moothall.config import LimitSettings
from moothall.deliberation.recorded_model import Recording
from moothall.domain.chat import Prompts
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, deliberation_topics, new_event
from moothall.domain.ids import LOCAL, TaskKey, key_of
from moothall.domain.task import Deliberation, DeliberationRequest, Fork
from moothall.errors import AlreadyExists, InvalidRequest, NotFound
from moothall.orchestrator.fork import inherit_turns
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.settings import AllSettings
from moothall.testing.bus import MemoryBus
from moothall.testing.model import step_of
from support.council import ONE, TWO, act, append, finish, of, outcomes
from support.story import Remembering, deliberation

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

LOOK = act(("files.read", {"path": "src/utils.py"}))
NOTE = act(("files.write", {"path": "NOTES.md", "content": "first\n"}))
INSTEAD = "Write hello_world() after all."


def deliberation_service(bus: MemoryBus) -> DeliberationService:
    return DeliberationService(bus, Remembering(), Defaults(LimitSettings()))


async def publish_request(bus: MemoryBus, d: Deliberation) -> None:
    await bus.publish(new_event(EventType.DELIBERATION_REQUESTED, d.task_id, dump(d)))


async def events_of(bus: MemoryBus, task_id: str) -> Sequence[Event]:
    return [recorded.event async for recorded in bus.replay(deliberation_topics(TaskKey(task_id)))]


async def fork(
    app: Any, turn: int, words: str = "", seat: str = "", of_: str = "task-1"
) -> Deliberation:
    request = DeliberationRequest("", "", fork=Fork(of_, turn, seat, words))
    d: Deliberation = await deliberation_service(app.bus).submit(request, LOCAL)
    return d


async def run(app: Any, d: Deliberation) -> list[Event]:
    recording = Recording.of(await inherit_turns(app.bus, d, await events_of(app.bus, d.task_id)))
    return [
        event for event in await app.run(d, recording) if event.data.get("task_id") == d.task_id
    ]


def script(_body: Any, headers: Any) -> str:
    """Look, write a note and finish; when forked from the second turn, do the task."""
    turn = int(step_of(headers).split(".")[1])
    prompt = str(_body["messages"][-1]["content"])
    if INSTEAD in prompt:
        return append()
    return (LOOK, NOTE, finish("Noted."))[min(turn, 3) - 1]


async def test_recorded_turns_are_not_asked_again_and_the_fork_continues_with_the_message(
    council: Any,
) -> None:
    async with council(script) as app:
        source = app.deliberation("single", 1)
        await publish_request(app.bus, source)
        assert outcomes(await app.run(source)) == {ONE: "proposed"}
        call_count = len(app.server.requests)
        d = await fork(app, 2, INSTEAD)
        assert (d.task_id, d.seats, d.fork and d.fork.step, d.seed != source.seed) == (
            "task-1-f1",
            (ONE,),
            "propose/0.2",
            True,
        )
        events = await run(app, d)
        live = app.server.requests[call_count:]
        assert [call.call_id for call in live] == [f"task-1-f1/{ONE}/propose/0.3"]
        assert "files.read: success" in live[0].prompt
        assert INSTEAD in live[0].prompt
    calls = of(events, EventType.MODEL_CALLED)
    assert [(data["call_id"], data.get("inherited"), data["usage"]["calls"]) for data in calls] == [
        (f"task-1-f1/{ONE}/propose/0.1", True, 0),
        (f"task-1-f1/{ONE}/propose/0.2", True, 0),
        (f"task-1-f1/{ONE}/propose/0.3", None, 1),
    ]
    prompts = Prompts()
    for data, request in zip(calls, (*app.server.requests[:2], live[0]), strict=True):
        prompt = prompts.read(str(data["call_id"]).partition("/")[2], data["prompt"])
        assert prompt is not None
        messages_sent = [(item["role"], item["content"]) for item in request.body["messages"]]
        assert [(item.role, item.content) for item in prompt.messages] == messages_sent
    assert [data["turn"] for data in of(events, EventType.SEAT_TURN)] == [1, 2, 3]
    (proposed,) = of(events, EventType.SEAT_PROPOSED)
    assert "+def hello_world" in proposed["proposal"]["diff"]
    assert "NOTES.md" in proposed["proposal"]["diff"]  # the effect of a recorded turn is there


async def test_a_fork_continues_after_the_last_turn(council: Any) -> None:
    async with council(script) as app:
        await publish_request(app.bus, app.deliberation("single", 1))
        turns = len(of(await app.run(app.deliberation("single", 1)), EventType.SEAT_TURN))
        calls = len(app.server.requests)
        events = await run(app, await fork(app, turns, INSTEAD))
        assert [call.call_id for call in app.server.requests[calls:]] == [
            f"task-1-f1/{ONE}/propose/0.{turns + 1}"
        ]
    (proposed,) = of(events, EventType.SEAT_PROPOSED)
    assert "+def hello_world" in proposed["proposal"]["diff"]


async def test_a_fork_of_a_text_deliberation_continues_after_its_answer(council: Any) -> None:
    def answer(body: Any, _headers: Any) -> str:
        return (
            finish("Bonjour")
            if "in French" in str(body["messages"][-1]["content"])
            else finish("Hello")
        )

    async with council(answer) as app:
        source = app.deliberation("single", 1, repository=None, base_sha=None)
        await publish_request(app.bus, source)
        await app.run(source)
        events = await run(app, await fork(app, 1, "Say it in French."))
    (proposed,) = of(events, EventType.SEAT_PROPOSED)
    assert proposed["proposal"]["content"] == "Bonjour"


async def test_a_restarted_fork_continues_from_its_inherited_turns(council: Any) -> None:
    async with council(script) as app:
        source = app.deliberation("single", 1)
        await publish_request(app.bus, source)
        await app.run(source)
        d = await fork(app, 2, INSTEAD)
        first = await run(app, d)
        calls = len(app.server.requests)
        for topic in deliberation_topics(source.task_id):  # `moothall rm`
            await app.bus.forget(topic)
        continued = await run(app, d)
        assert len(app.server.requests) == calls
    assert [event.id for event in continued if event.type is EventType.MODEL_CALLED] == [
        event.id for event in first if event.type is EventType.MODEL_CALLED
    ]


async def test_a_fork_of_a_fork_has_the_turns_of_both(council: Any) -> None:
    async with council(script) as app:
        await publish_request(app.bus, app.deliberation("single", 1))
        await app.run(app.deliberation("single", 1))
        first = await fork(app, 1)
        await run(app, first)
        calls = len(app.server.requests)
        second = await fork(app, 2, INSTEAD, of_=first.task_id)
        events = await run(app, second)
        assert len(app.server.requests) == calls + 1
    assert second.task_id == "task-1-f1-f1"
    assert len(of(events, EventType.SEAT_TURN)) == 3


async def test_a_fork_of_a_fork_continues_after_both_last_turns(council: Any) -> None:
    def answer(_body: Any, headers: Any) -> str:
        turn = int(step_of(headers).split(".")[1])
        return (append(), NOTE, act(("files.write", {"path": "MORE.md", "content": "second\n"})))[
            min(turn, 3) - 1
        ]

    async with council(answer) as app:
        await publish_request(app.bus, app.deliberation("single", 1))
        await app.run(app.deliberation("single", 1))
        first = await fork(app, 1, "Note it.")
        await run(app, first)
        events = await run(app, await fork(app, 2, "Note more.", of_=first.task_id))
    assert [data["turn"] for data in of(events, EventType.SEAT_TURN)] == [1, 2, 3]
    assert "MORE.md" in of(events, EventType.SEAT_PROPOSED)[0]["proposal"]["diff"]


async def test_a_removed_source_of_a_fork_is_reported(council: Any) -> None:
    async with council(script) as app:
        await publish_request(app.bus, app.deliberation("single", 1))
        await app.run(app.deliberation("single", 1))
        d = await fork(app, 2)
        for topic in deliberation_topics(TaskKey("task-1")):
            await app.bus.forget(topic)
        with pytest.raises(NotFound, match="task-1 was removed"):
            await inherit_turns(app.bus, d, await events_of(app.bus, d.task_id))


async def test_each_fork_has_its_own_id_and_the_same_id_is_the_same_fork(
    council: Any,
) -> None:
    async with council(script) as app:
        await publish_request(app.bus, app.deliberation("single", 1))
        await app.run(app.deliberation("single", 1))
        assert [(await fork(app, 1)).task_id for _ in range(3)] == [
            "task-1-f1",
            "task-1-f2",
            "task-1-f3",
        ]
        request = DeliberationRequest("", "", task_id="mine", fork=Fork("task-1", 1), seed=7)
        deliberations = deliberation_service(app.bus)
        first_fork, second_fork = [await deliberations.submit(request, LOCAL) for _ in range(2)]
        assert first_fork == second_fork
        assert (first_fork.task_id, first_fork.seed) == ("mine", 7)


@pytest.mark.parametrize(
    ("fork_request", "message"),
    [
        (Fork("task-9", 1), "no deliberation 'task-9' to fork"),
        (Fork("task-1", 1, "9"), f"no seat '9' in task-1; the seats are {ONE}, {TWO}"),
        (Fork("task-1", 0), "has no turn 0 to fork from; its turns: 1 to 4"),
        (Fork("task-1", 5, "1"), f"{ONE} of task-1 has no turn 5"),
        (Fork("task-1", 1, words="x" * 9000), "at most 4000"),
        (Fork("Task", 1), "is not an id"),
    ],
)
async def test_an_invalid_fork_is_reported_with_the_valid_values(
    council: Any, fork_request: Fork, message: str
) -> None:
    async with council(script) as app:
        source = app.deliberation("vote", 2)
        await publish_request(app.bus, source)
        await app.run(source)
        with pytest.raises((InvalidRequest, NotFound), match=message):
            await deliberation_service(app.bus).submit(
                DeliberationRequest("", "", fork=fork_request), LOCAL
            )


async def publish_turn(bus: MemoryBus, d: Deliberation, number: int, **data: Any) -> None:
    payload = {
        "task_id": d.task_id,
        "seat": ONE,
        "phase": "propose",
        "round": 0,
        "turn": number,
        "operations": [],
        **data,
    }
    await bus.publish(
        new_event(EventType.SEAT_TURN, d.task_id, payload, ordinal=str((data.get("phase"), number)))
    )


async def test_a_turn_with_outside_effects_is_not_repeated(council: Any) -> None:
    async with council(script) as app:
        d = app.deliberation("debate", 1)
        await publish_request(app.bus, d)
        await publish_turn(app.bus, d, 1)
        await publish_turn(app.bus, d, 2, operations=[{"tool": "git.push"}])
        await publish_turn(app.bus, d, 1, phase="revise", round=1)
        assert (await fork(app, 1)).max_turns == d.max_turns + 1
        with pytest.raises(
            InvalidRequest,
            match=r"acted outside with git\.push, which must not be done again; fork from "
            r"turn 1 or",
        ):
            await fork(app, 2)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"tool": "http.post", "status": "success"}, r"acted outside with http\.post"),
        (
            {"tool": "mcp.gone.pay", "status": "success"},
            r"acted with mcp\.gone\.pay, which is unknown here",
        ),
        ({"tool": "files.rewrite", "status": "invalid"}, ""),
    ],
)
async def test_a_tool_of_any_family_may_have_outside_effects(
    council: Any, operation: dict[str, str], message: str
) -> None:
    async with council(script) as app:
        d = app.deliberation("single", 1)
        await publish_request(app.bus, d)
        await publish_turn(app.bus, d, 1, operations=[operation])
        deliberations = DeliberationService(app.bus, Remembering(), defaults(AllSettings()))
        request = DeliberationRequest("", "", fork=Fork("task-1", 1))
        if message:
            with pytest.raises(InvalidRequest, match=message):
                await deliberations.submit(request, LOCAL)
        else:
            assert (await deliberations.submit(request, LOCAL)).fork


class Slow(MemoryBus):
    """A bus on which others come in between before anything is recorded."""

    async def create(self, event: Event, after_seq: int = 0) -> int:
        """Record the event after a while."""
        await asyncio.sleep(0.02)
        return await super().create(event, after_seq)


async def test_concurrent_forks_have_different_ids() -> None:
    bus, d = Slow(), deliberation()
    await publish_request(bus, d)
    payload = {
        "task_id": d.task_id,
        "seat": d.seats[0],
        "phase": "propose",
        "round": 0,
        "turn": 1,
        "operations": [],
    }
    await bus.publish(new_event(EventType.SEAT_TURN, d.task_id, payload))
    deliberations = deliberation_service(bus)
    requests = [
        DeliberationRequest("", "", fork=Fork(d.task_id, 1, words=words))
        for words in ("a", "b", "c")
    ]
    forks = await asyncio.gather(*(deliberations.submit(fork, LOCAL) for fork in requests))
    assert {fork.task_id for fork in forks} == {f"{d.task_id}-f{number}" for number in (1, 2, 3)}
    with pytest.raises(AlreadyExists):
        await deliberations.submit(replace(requests[0], task_id=forks[1].task_id), LOCAL)


class Noting(MemoryBus):
    """A bus that records whether queued work is marked as fresh."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: list[object] = []

    async def enqueue(self, *args: Any, **kwargs: Any) -> None:
        """Record the mark."""
        self.fresh.append(kwargs.get("fresh"))
        await super().enqueue(*args, **kwargs)


async def test_a_host_reads_the_message_of_a_fork_before_starting() -> None:
    bus, d = Noting(), deliberation()
    await publish_request(bus, d)
    payload = {
        "task_id": d.task_id,
        "seat": d.seats[0],
        "phase": "propose",
        "round": 0,
        "turn": 1,
        "operations": [],
    }
    await bus.publish(new_event(EventType.SEAT_TURN, d.task_id, payload))
    await deliberation_service(bus).submit(
        DeliberationRequest("", "", fork=Fork(d.task_id, 1, words="a")), LOCAL
    )
    await deliberation_service(bus).submit(
        DeliberationRequest("Say hello", "dev", about_text=True), LOCAL
    )
    assert bus.fresh == [False, True]


async def test_a_fork_of_a_fork_gets_no_more_extra_turns_than_the_first(council: Any) -> None:
    async with council(script) as app:
        d = app.deliberation("single", 1)
        await publish_request(app.bus, d)
        for number in (1, 2):
            await publish_turn(app.bus, d, number)
        first = await fork(app, 2)
        await publish_turn(app.bus, first, 1)
        assert (await fork(app, 1, of_=first.task_id)).max_turns == d.max_turns + 1


async def test_a_revision_based_on_reviews_cannot_be_forked(council: Any) -> None:
    async with council(script) as app:
        d = app.deliberation("debate", 1)
        await publish_request(app.bus, d)
        await publish_turn(app.bus, d, 1)
        await publish_turn(app.bus, d, 1, phase="revise", round=1)
        with pytest.raises(InvalidRequest, match=r"turn 2 of .* answers reviews of other seats"):
            await fork(app, 2)


async def test_another_tenants_task_cannot_be_forked(council: Any) -> None:
    async with council(script) as app:
        d = replace(app.deliberation("single", 1), task_id=key_of("task-1", "acme"), tenant="acme")
        await app.bus.publish(
            new_event(EventType.DELIBERATION_REQUESTED, d.task_id, dump(d), tenant="acme")
        )
        with pytest.raises(NotFound, match="no deliberation"):
            await fork(app, 1)
