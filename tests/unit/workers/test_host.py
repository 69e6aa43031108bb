"""A host with a council about text: its work is lost, cancelled or delivered twice."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moothall.authorization.budgets import BUCKET, Quotas, StoryBudgets
from moothall.config.limits import Quota, QuotaSettings
from moothall.deliberation.context import Dependencies
from moothall.domain.budget import Amount, Budget
from moothall.domain.codec import dump, load
from moothall.domain.event import Channel, Event, EventType, Recorded, new_event
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.ids import LOCAL, TaskKey
from moothall.domain.status import FLEET, HostState
from moothall.domain.task import Deliberation
from moothall.errors import Superseded, WorkspaceFailed
from moothall.ports import Bus
from moothall.stories.board import Board
from moothall.stories.coach import StoryDraft
from moothall.telemetry import metrics
from moothall.testing.bus import MemoryBus
from moothall.workers.host import Host
from support.council import (
    CouncilEnvironment,
    answer_with_approaches,
    finish,
    forever,
    open_council,
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Answering:
    """A model that hangs until a signal."""

    def __init__(self) -> None:
        self.hangs = True

    def __call__(self, body: dict[str, Any], headers: Mapping[str, str]) -> Any:
        return forever() if self.hangs else finish("An old silent pond")


@asynccontextmanager
async def council(folder: Path, model: Answering) -> AsyncIterator[CouncilEnvironment]:
    async with open_council(folder, answer_with_approaches(model)) as app:
        yield app


def request(d: Deliberation) -> Event:
    return new_event(EventType.DELIBERATION_REQUESTED, d.task_id, dump(d))


def host_of(app: CouncilEnvironment, parts: Dependencies | None = None) -> Host:
    return Host("host", app.bus, Unsteady(app, 0), parts or app.parts, 4)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def finished_count(events: list[Event]) -> int:
    return sum(event.type is EventType.SEAT_FINISHED for event in events)


async def test_a_host_that_lost_its_work_stops_silently_and_another_finishes_it(
    tmp_path: Path,
) -> None:
    model = Answering()
    async with council(tmp_path, model) as app, asyncio.TaskGroup() as group:
        slow, quick = host_of(app), host_of(app)
        d = app.deliberation(repository=None, base_sha=None)
        listening = group.create_task(slow._listen_for_takeovers())
        first = group.create_task(
            run_until_superseded(slow._handle_work(Recorded(1, request(d), {"deliveries": "1"})))
        )
        await until(lambda: len(app.server.requests) >= 3)  # the seats have called the model
        model.hangs = False
        await quick._handle_work(Recorded(1, request(d), {"deliveries": "2"}))
        assert await first == "SUPERSEDED"
        assert slow.busy == quick.busy == 0
        assert finished_count(await app.events()) == 3
        assert (
            await run_until_superseded(
                slow._handle_work(Recorded(1, request(d), {"deliveries": "1"}))
            )
            == "SUPERSEDED"
        )  # an old delivery
        listening.cancel()


async def run_until_superseded(work: Any) -> str:
    try:
        await work
    except Superseded as error:
        return error.code
    return "done"


async def test_redelivered_work_is_done_and_not_acked_if_the_first_run_is_lost(
    tmp_path: Path,
) -> None:
    model = Answering()
    async with council(tmp_path, model) as app, asyncio.TaskGroup() as group:
        host = host_of(app)
        d = app.deliberation(repository=None, base_sha=None)
        first = group.create_task(host._handle_work(Recorded(1, request(d), {"deliveries": "1"})))
        await until(lambda: len(app.server.requests) >= 3)
        second = group.create_task(host._handle_work(Recorded(1, request(d), {"deliveries": "2"})))
        await asyncio.sleep(0)
        model.hangs = False
        first.cancel()  # like the bus after a host has lost its work
        await second
        assert finished_count(await app.events()) == 3


async def test_a_cancel_whose_signal_was_lost_is_read_from_the_log(tmp_path: Path) -> None:
    async with council(tmp_path, Answering()) as app, asyncio.TaskGroup() as group:
        host = replace(host_of(app), poll_seconds=0.05)
        d = app.deliberation(repository=None, base_sha=None)
        looking = group.create_task(host._poll_for_ends())
        work = group.create_task(host._handle_work(Recorded(1, request(d))))
        await until(lambda: len(app.server.requests) >= 3)
        await app.bus.publish(
            new_event(
                EventType.DELIBERATION_CANCELLED, d.task_id, {"task_id": d.task_id, "reason": ""}
            )
        )
        async with asyncio.timeout(30):
            await work
        outcomes = [
            event.data["outcome"]["status"]
            for event in await app.events()
            if event.type is EventType.SEAT_FINISHED
        ]
        assert outcomes == ["cancelled"] * 3
        looking.cancel()


async def test_a_cancel_signal_alone_ends_calls_in_progress(tmp_path: Path) -> None:
    """Fail: the log must not be read."""
    async with council(tmp_path, Answering()) as app, asyncio.TaskGroup() as group:
        host = host_of(app)
        d = app.deliberation(repository=None, base_sha=None)
        listening = group.create_task(host._listen_for_cancels())
        work = group.create_task(host._handle_work(Recorded(1, request(d))))
        await until(lambda: app.server.in_flight == 3)
        await app.bus.signal(Channel.CANCEL.of(d.task_id), {"task_id": d.task_id, "reason": ""})
        await work
        await until(lambda: app.server.in_flight == 0)
        listening.cancel()


async def test_new_work_is_not_looked_up_in_the_log_and_started_work_is(tmp_path: Path) -> None:
    model = Answering()
    model.hangs = False
    async with council(tmp_path, model) as app:
        counting_bus = Looked(app.bus)
        host = replace(host_of(app), bus=counting_bus)
        d = app.deliberation(repository=None, base_sha=None)
        await host._handle_work(Recorded(1, request(d), {"deliveries": "1", "fresh": "1"}))
        assert counting_bus.replays == 0
        calls = len(app.server.requests)
        # A bus that was killed may deliver it again as if it were new.
        await host._handle_work(Recorded(2, request(d), {"deliveries": "1", "fresh": "1"}))
        assert counting_bus.replays > 0
        assert len(app.server.requests) == calls


async def test_a_cancel_before_new_work_started_is_noticed_within_a_second(
    tmp_path: Path,
) -> None:
    async with council(tmp_path, Answering()) as app, asyncio.TaskGroup() as group:
        host = replace(host_of(app), poll_seconds=60)
        d = app.deliberation(repository=None, base_sha=None)
        looking = group.create_task(host._poll_for_ends())
        await app.bus.publish(
            new_event(
                EventType.DELIBERATION_CANCELLED, d.task_id, {"task_id": d.task_id, "reason": ""}
            )
        )
        async with asyncio.timeout(30):
            await host._handle_work(Recorded(1, request(d), {"deliveries": "1", "fresh": "1"}))
        outcomes = [
            event.data["outcome"]["status"]
            for event in await app.events()
            if event.type is EventType.SEAT_FINISHED
        ]
        assert outcomes == ["cancelled"] * 3
        looking.cancel()


class Looked:
    """A bus that counts reads of its log."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.replays = 0

    def __getattr__(self, name: str) -> Any:
        self.replays += name == "replay"
        return getattr(self._bus, name)


class Unsteady:
    """Repositories whose executor dies during the first preparations."""

    def __init__(self, app: CouncilEnvironment, deaths: int) -> None:
        self._app = app
        self.deaths = deaths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app.workspaces, name)

    async def resolve(self, ref: Any, *, tenant: str = "local") -> Any:
        return self._app.prepared.base

    async def prepare(self, base: Any, on_progress: Any = None) -> Any:
        if self.deaths:
            self.deaths -= 1
            raise WorkspaceFailed("the executor is gone")
        return self._app.prepared


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("deaths", "end_of_seat"), [(2, "proposed"), (3, "failed WORKSPACE_FAILED")]
)
async def test_an_executor_that_dies_during_the_preparation_is_retried(
    tmp_path: Path, deaths: int, end_of_seat: str
) -> None:
    def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        from support.council import append

        return append()

    async with open_council(tmp_path, answer_with_approaches(answer)) as app:
        host = Host("host", app.bus, Unsteady(app, deaths), app.parts, 4)
        d = app.deliberation("single", 1)
        await host._handle_work(Recorded(1, request(d)))
        ends = [
            event.data["outcome"]
            for event in await app.events()
            if event.type is EventType.SEAT_FINISHED
        ]
        assert [f"{end['status']} {end['error_code']}".strip() for end in ends] == [end_of_seat]


async def test_a_host_reports_its_address_and_its_deliberations(tmp_path: Path) -> None:
    async with council(tmp_path, Answering()) as app, asyncio.TaskGroup() as group:
        host, began = host_of(app), time.time()
        running = group.create_task(host.run())
        d = app.deliberation(repository=None, base_sha=None)
        await until(lambda: any(topic == FLEET for topic, _ in app.bus._answerers))
        reply, _ = await app.bus.ask(FLEET, {"ask": "state"}, 20)
        idle = load(HostState, reply)
        assert (idle.name, idle.pid, idle.holds) == ("host", os.getpid(), ())
        assert metrics.HOST_OLDEST.values["host",] == 0
        work = group.create_task(run_until_superseded(host._handle_work(Recorded(1, request(d)))))
        await until(lambda: bool(app.server.requests))
        reply, _ = await app.bus.ask(FLEET, {"ask": "state"}, 20)
        [held_work] = load(HostState, reply).holds
        assert held_work.task_id == d.task_id
        assert held_work.since >= began - 1
        assert metrics.HOST_OLDEST.values["host",] == held_work.since
        running.cancel()
        work.cancel()
    assert metrics.HOST_OLDEST.values["host",] == 0


def test_a_memory_bus_satisfies_the_bus_protocol() -> None:
    bus: Bus = MemoryBus()
    assert bus


async def test_a_host_that_was_suspended_makes_no_more_model_calls(tmp_path: Path) -> None:
    model = Answering()
    async with council(tmp_path, model) as app, asyncio.TaskGroup() as group:
        host = host_of(app)
        d = app.deliberation(repository=None, base_sha=None)
        work = group.create_task(run_until_superseded(host._handle_work(Recorded(1, request(d)))))
        await until(lambda: len(app.server.requests) >= 3)
        host._beat -= 60  # as if the process had been stopped for a minute
        assert not host._owns_task(d.task_id)
        assert await work == "SUPERSEDED"
        assert finished_count(await app.events()) == 0


async def test_tenants_share_the_cores_and_a_long_wait_is_published(tmp_path: Path) -> None:
    async with council(tmp_path, Answering()) as app, asyncio.TaskGroup() as group:
        host = host_of(app)
        waits = group.create_task(host._poll_for_waits(0.01, 0.0))
        keys = {"first": "acme", "second": "acme", "third": "blue"}
        works = []
        for second, (name, tenant) in enumerate(keys.items()):
            d = replace(
                app.deliberation(repository=None, base_sha=None),
                task_id=TaskKey(f"{tenant}_{name}"),
                tenant=tenant,
            )
            event = replace(request(d), time=f"2026-11-29T07:00:0{second}+00:00")
            works.append(
                group.create_task(run_until_superseded(host._handle_work(Recorded(1, event))))
            )
            await asyncio.sleep(0)
        places = [running.place for running in host._running.values()]
        assert [place.queued_at - place.since for place in places] == [0.0, 600.0, 0.0]
        with places[1].wait():
            await asyncio.sleep(0.2)
        for task in (waits, *works):
            task.cancel()
    assert places[1].queued_at == places[1].since, (
        "a late command of an ended deliberation is still queued"
    )
    log = [recorded.event async for recorded in app.bus.replay()]
    [published] = [event for event in log if event.data.get("workstream") == "waiting"]
    assert published.data["task_id"] == "acme_second"
    assert published.data["current_task"] == "waits for a free core; older work goes first"


async def test_a_base_whose_checks_cannot_judge_fails_before_any_model_call(
    tmp_path: Path,
) -> None:
    def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        return finish("never asked")

    async with open_council(tmp_path, answer_with_approaches(answer)) as app:
        run = CheckRun("tests", Verdict.MISSING, output="no tests ran in 0.01s", exit_code=5)
        app.prepared = replace(app.prepared, runs={"tests": run})
        host = Host("host", app.bus, Unsteady(app, 0), app.parts, 4)
        await host._handle_work(Recorded(1, request(app.deliberation("vote", 3))))
        events = await app.events()
        ends = [event.data["outcome"] for event in events if event.type is EventType.SEAT_FINISHED]
        assert {end["error_code"] for end in ends} == {"REPOSITORY_UNUSABLE"}
        assert "no test was collected" in ends[0]["error_message"]
        assert "no tests ran in 0.01s" in ends[0]["error_message"]
        steps = [
            item.event.data["current_task"]
            async for item in app.bus.replay((Channel.PROGRESS.all,))
        ]
        assert "base: tests no test was collected" in steps
        assert app.server.requests == []


@pytest.mark.e2e
async def test_the_results_of_the_base_are_shown(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        from support.council import append

        return append()

    async with open_council(tmp_path, answer_with_approaches(answer)) as app:
        host = Host("host", app.bus, Unsteady(app, 0), app.parts, 4)
        await host._handle_work(Recorded(1, request(app.deliberation("single", 1))))
        steps = [
            item.event.data["current_task"]
            async for item in app.bus.replay((Channel.PROGRESS.all,))
        ]
        assert [
            step for step in steps if step.startswith("base: tests ") and "test_hello_world" in step
        ]


async def _with_story(
    app: CouncilEnvironment, budget: Budget
) -> tuple[Host, Deliberation, StoryBudgets]:
    """Open a host, a deliberation of a story with a budget, and the budget."""
    card = await Board(app.bus).create(StoryDraft("Write a haiku"), LOCAL, key="one", budget=budget)
    accounts = StoryBudgets(app.bus.bucket(BUCKET), app.parts.rules.limits)
    host = Host("host", app.bus, Unsteady(app, 0), app.parts, 4, accounts)
    return (
        host,
        app.deliberation("vote", 3, repository=None, base_sha=None, story_id=card.story.id),
        accounts,
    )


async def test_a_storys_budget_limits_the_calls_of_its_seats(tmp_path: Path) -> None:
    model = Answering()
    model.hangs = False
    async with council(tmp_path, model) as app:
        host, d, accounts = await _with_story(app, Budget(calls=3))
        await host._handle_work(Recorded(1, request(d)))
        ends = [
            event.data["outcome"]
            for event in await app.events()
            if event.type is EventType.SEAT_FINISHED
        ]
        refused = [end for end in ends if end["error_code"] == "BUDGET_EXCEEDED"]
        assert len(app.server.requests) == 3
        assert refused
        assert "the story's budget of 3 calls" in refused[0]["error_message"]
        book = await accounts.of(d.story_id, d.tenant, Budget(calls=3))
        assert (book.spent.calls, book.reserved, book.left.calls) == (3, Amount(), 0)
        assert book.spent.tokens > 0


async def test_a_tenants_quota_limits_the_calls_of_its_seats(tmp_path: Path) -> None:
    model = Answering()
    model.hangs = False
    async with council(tmp_path, model) as app:
        settings = QuotaSettings(default=Quota(tokens_per_day=1))
        now = datetime(2026, 11, 28, 23, 30, tzinfo=UTC)
        quotas = Quotas(app.bus.bucket(BUCKET), settings, lambda: now)
        host = Host("host", app.bus, Unsteady(app, 0), app.parts, 4, quotas=quotas)
        d = app.deliberation("vote", 3, repository=None, base_sha=None)
        await host._handle_work(Recorded(1, replace(request(d), time=now.isoformat())))
        ends = [
            event.data["outcome"]
            for event in await app.events()
            if event.type is EventType.SEAT_FINISHED
        ]
        assert [end["error_code"] for end in ends] == ["BUDGET_EXCEEDED"] * 3
        assert (
            "the quota of tenant local is used up: 0 of 1 tokens per day are spent or reserved; it "
            "resets at 2026-11-29 00:00 UTC; the next call does not fit"
        ) in ends[0]["error_message"]
        assert app.server.requests == []


async def test_reservations_of_a_killed_host_are_released_by_the_next_host(
    tmp_path: Path,
) -> None:
    model = Answering()
    async with council(tmp_path, model) as app:
        host, d, accounts = await _with_story(app, Budget(calls=100))
        await app.bus.create(request(d))
        work = asyncio.create_task(run_until_superseded(host._handle_work(Recorded(1, request(d)))))
        await until(lambda: len(app.server.requests) >= 3)
        work.cancel()
        await asyncio.wait({work})
        book = await accounts.of(d.story_id, d.tenant, Budget(calls=100))
        assert book.reserved.calls >= 3
        over = new_event(
            EventType.DELIBERATION_CANCELLED, d.task_id, {"task_id": d.task_id, "reason": "enough"}
        )
        await app.bus.publish(over)
        next_host = Host("other", app.bus, Unsteady(app, 0), app.parts, 4, accounts)
        await next_host._handle_work(Recorded(1, request(d), {"deliveries": "2"}))
        book = await accounts.of(d.story_id, d.tenant, Budget(calls=100))
        assert book.reserved == Amount()
        assert book.spent.calls < 3, "unanswered calls are not recorded and not counted"


async def test_a_merge_and_work_without_a_story_reserve_no_budget(tmp_path: Path) -> None:
    model = Answering()
    model.hangs = False
    async with council(tmp_path, model) as app:
        host, d, accounts = await _with_story(app, Budget(calls=1))
        assert await host._reserve_budget(replace(d, merge=("a" * 40,)), 0.0) is None
        assert await host._reserve_budget(replace(d, story_id=""), 0.0) is None
        assert (await accounts.of(d.story_id, d.tenant, Budget(calls=1))).draws == {}


async def test_a_host_runs_a_limited_number_of_deliberations_across_all_roles(
    tmp_path: Path,
) -> None:
    running = max_running = 0

    async def think(body: dict[str, Any], headers: Mapping[str, str]) -> str:
        nonlocal running, max_running
        del body, headers
        running += 1
        max_running = max(max_running, running)
        await asyncio.sleep(0.05)
        running -= 1
        return finish("An old silent pond")

    async with (
        open_council(tmp_path, answer_with_approaches(think)) as app,
        asyncio.TaskGroup() as group,
    ):
        hosting = group.create_task(replace(host_of(app), concurrency=2).run())
        for number in range(9):
            role = ("dev", "qa", "architect")[number % 3]
            d = replace(
                app.deliberation("single", 1, repository=None, base_sha=None),
                task_id=TaskKey(f"task-{number}"),
                role=role,
            )
            await app.bus.enqueue(Channel.WORK.of(role), request(d))
        async with asyncio.timeout(30):
            while finished_count(await app.events()) < 9:
                await asyncio.sleep(0.01)
        hosting.cancel()
    assert max_running == 2
