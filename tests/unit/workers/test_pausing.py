"""A paused deliberation: it stops between turns, stays paused over a restart, and continues without
repeating a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from pathlib import Path

import pytest

from moothall.authorization.budgets import BUCKET, StoryBudgets
from moothall.collector.decide import decision_deadline, is_ready
from moothall.collector.fold import fold
from moothall.config import LimitSettings
from moothall.domain.budget import Budget
from moothall.domain.codec import dump
from moothall.domain.event import Event, EventType, Recorded, new_event
from moothall.domain.ids import LOCAL
from moothall.domain.task import NEVER, DeliberationRequest, Pauses
from moothall.errors import InvalidRequest
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.stories.board import Board
from moothall.stories.coach import StoryDraft
from moothall.workers.host import Host
from support.council import (
    CouncilEnvironment,
    Thinking,
    answer_with_approaches,
    open_council,
    until,
)
from support.story import DEADLINE, START, Remembering, deliberation

REQUESTED = DeliberationRequest(
    "Say hello", "dev", task_id="task-1", num_agents=1, protocol="single", about_text=True
)


@asynccontextmanager
async def working(
    app: CouncilEnvironment, request: Event
) -> AsyncIterator[tuple[Host, asyncio.Task[None]]]:
    """Run a host with this work in hand that listens for pauses; kill it at the end."""
    host = Host("host", app.bus, Remembering(), app.parts, 4)
    listening = asyncio.create_task(host._listen_for_steering())
    work = asyncio.create_task(host._handle_work(Recorded(1, request, {"deliveries": "1"})))
    try:
        yield host, work
    finally:
        for task in (listening, work):
            task.cancel()
        await asyncio.gather(listening, work, return_exceptions=True)


async def test_a_paused_deliberation_stops_between_turns_survives_a_restart_and_resumes(
    tmp_path: Path,
) -> None:
    model = Thinking()
    async with open_council(tmp_path, answer_with_approaches(model)) as app:
        deliberations = DeliberationService(app.bus, Remembering(), Defaults(LimitSettings()))
        d = await deliberations.submit(REQUESTED, LOCAL)
        (request,) = await app.events()
        async with working(app, request) as (host, work):
            await until(lambda: model.calls == 1)
            assert await deliberations.pause(d.own_id, LOCAL)
            assert not await deliberations.pause(d.own_id, LOCAL), "it is paused already"
            await until(lambda: host._running[d.task_id].pauses.is_paused)
            assert not host._running[d.task_id].suspended, "the running turn ends first"
            model.go_on.set()
            await until(lambda: host._running[d.task_id].suspended)
            assert (model.calls, host.busy, work.done()) == (1, 1, False)
        kinds = [event.type for event in await app.events()]
        assert kinds.count(EventType.SEAT_TURN) == 1, "the turn is recorded"
        assert EventType.SEAT_FINISHED not in kinds
        async with working(app, request) as (host, work):
            await until(lambda: host.busy == 1 and host._running[d.task_id].paused.is_set())
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert model.calls == 1, "the restarted host keeps it waiting"
            assert await deliberations.pause(d.own_id, LOCAL, paused=False)
            async with asyncio.timeout(30):
                await work
        assert model.calls == 2
        events = await app.events()
        calls = [event.data["call_id"] for event in events if event.type is EventType.MODEL_CALLED]
        assert calls == [f"{d.task_id}/{d.seats[0]}/propose/0.{turn}" for turn in (1, 2)]
        (end,) = [
            event.data["outcome"]["status"]
            for event in events
            if event.type is EventType.SEAT_FINISHED
        ]
        assert end == "proposed"


async def test_a_paused_deliberation_can_be_cancelled(tmp_path: Path) -> None:
    model = Thinking()
    async with open_council(tmp_path, answer_with_approaches(model)) as app:
        deliberations = DeliberationService(app.bus, Remembering(), Defaults(LimitSettings()))
        d = await deliberations.submit(REQUESTED, LOCAL)
        (request,) = await app.events()
        await deliberations.pause(d.own_id, LOCAL)
        async with working(app, request) as (host, work):
            await until(lambda: host.busy == 1 and host._running[d.task_id].paused.is_set())
            await deliberations.cancel(d.own_id, "", LOCAL)
            host._stop_deliberation(d.task_id)
            async with asyncio.timeout(30):
                await work
        assert model.calls == 0


async def test_a_paused_deliberation_holds_no_budget_of_its_story(tmp_path: Path) -> None:
    model, budget = Thinking(), Budget(calls=100)
    async with open_council(tmp_path, answer_with_approaches(model)) as app:
        card = await Board(app.bus).create(StoryDraft("Say hello"), LOCAL, key="one", budget=budget)
        accounts = StoryBudgets(app.bus.bucket(BUCKET), app.parts.rules.limits)
        deliberations = DeliberationService(app.bus, Remembering(), Defaults(LimitSettings()))
        d = await deliberations.submit(replace(REQUESTED, story_id=card.story.id), LOCAL)
        async with working(app, (await app.events())[-1]) as (host, work):
            host.story_budgets = accounts
            await until(lambda: model.calls == 1)
            assert (await accounts.of(card.story.id, LOCAL.tenant, budget)).reserved.calls > 0
            await deliberations.pause(d.own_id, LOCAL)
            await until(lambda: host._running[d.task_id].pauses.is_paused)
            model.go_on.set()
            async with asyncio.timeout(30):
                while (
                    book := await accounts.of(card.story.id, LOCAL.tenant, budget)
                ).reserved.calls:
                    await asyncio.sleep(0.01)
            assert book.spent.calls == 1
            await deliberations.cancel(d.own_id, "", LOCAL)
            host._stop_deliberation(d.task_id)
            async with asyncio.timeout(30):
                await work
        assert (await accounts.of(card.story.id, LOCAL.tenant, budget)) == book


async def test_an_ended_deliberation_can_be_neither_paused_nor_resumed(tmp_path: Path) -> None:
    async with open_council(tmp_path, answer_with_approaches(Thinking())) as app:
        deliberations = DeliberationService(app.bus, Remembering(), Defaults(LimitSettings()))
        d = await deliberations.submit(REQUESTED, LOCAL)
        await app.bus.publish(
            new_event(EventType.DELIBERATION_DECIDED, d.task_id, {"task_id": d.task_id})
        )
        with pytest.raises(InvalidRequest, match="has ended and cannot be paused or resumed"):
            await deliberations.pause(d.own_id, LOCAL)


def turn_event(number: int, seconds: float) -> Event:
    kind = EventType.DELIBERATION_RESUMED if number % 2 else EventType.DELIBERATION_PAUSED
    data = {"task_id": "task-a", "number": number}
    return new_event(
        kind, "task-a", data, ordinal=number, time=(START + timedelta(seconds=seconds)).isoformat()
    )


def test_paused_time_does_not_count_against_the_deadline() -> None:
    request = new_event(
        EventType.DELIBERATION_REQUESTED, "task-a", dump(deliberation()), time=START.isoformat()
    )
    turns = [turn_event(0, 10), turn_event(1, 110), turn_event(2, 200), turn_event(3, 250)]
    after_deadline = DEADLINE + timedelta(hours=1)
    state = fold(fold(None, request), turns[0])
    assert not is_ready(state, after_deadline), "no deadline passes while it waits"
    for order in permutations(turns):
        state = fold(None, request)
        for event in (*order, *order):
            state = fold(state, event)
        assert decision_deadline(state, timedelta()) == DEADLINE + timedelta(seconds=150)
        assert is_ready(state, after_deadline)
        assert Pauses.of(order).extend(DEADLINE) == DEADLINE + timedelta(seconds=150)
    assert Pauses.of(turns[:3]).extend(DEADLINE) == NEVER


@pytest.mark.parametrize("data", [{"number": 1}, {"number": "0"}, {}])
def test_a_malformed_event_does_not_pause(data: dict[str, object]) -> None:
    event = new_event(
        EventType.DELIBERATION_PAUSED,
        "task-a",
        {"task_id": "task-a", **data},
        time=START.isoformat(),
    )
    assert not Pauses.of([event]).is_paused


@pytest.mark.parametrize("numbers", [(0,), (0, 1), (0, 1, 2)])
def test_merging_an_older_read_of_the_pauses_changes_nothing(numbers: tuple[int, ...]) -> None:
    all_pauses = Pauses.of(turn_event(number, 10.0 * number) for number in (0, 1, 2))
    older = Pauses.of(turn_event(number, 10.0 * number) for number in numbers)
    assert all_pauses.with_all(older) == older.with_all(all_pauses) == all_pauses
