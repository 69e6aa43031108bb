"""Several processes work on the same stories: each step is done once, and another process continues
after one has ended.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

import pytest

from moothall.domain.event import Channel, Event, EventType
from support.working import A, App, B, open_app, proven_outcome

ONCE = (
    EventType.PLAN_DERIVED,
    EventType.PLAN_FINISHED,
    EventType.STORY_CHECKED,
    EventType.STORY_DELIVERED,
)


@pytest.fixture
async def app() -> App:
    return await open_app()


async def recorded_events(app: App) -> list[Event]:
    return [item.event async for item in app.bus.replay((Channel.STORIES.all,))]


async def to_done(app: App) -> None:
    """Bring the story from backlog to its delivery."""
    await app.to_test()
    await app.wait_for_request(2)
    await app.deliberations.decide(proven_outcome(app.story_id, B))
    await app.wait_until("test", "checked")
    await app.move("accept_test", "accept")
    await app.wait_until("done")

    async def is_delivered() -> bool:
        return (await app.card()).delivery is not None

    await app.until(is_delivered)


async def test_each_step_of_a_story_is_done_by_one_of_three_processes(app: App) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(app.working())
        await to_done(app)
    counts = Counter(event.type for event in await recorded_events(app))
    assert [counts[kind] for kind in ONCE] == [1] * len(ONCE)
    assert len(app.deliberations.task_ids()) == 2
    assert len(app.lands.deliveries) == 1, "a commit is delivered once"


async def test_a_plan_interrupted_in_one_process_is_finished_by_another(
    app: App,
) -> None:
    async with app.working():
        async with app.working():
            await app.move("refine", "submit")
            await app.wait_until("design", "planned")
            await app.move("accept_design")
            task = await app.wait_for_request(1)
        await app.deliberations.decide(
            proven_outcome(task.task_id, A)
        )  # either of the two has ended
        await app.wait_until("test")
        await app.wait_for_request(2)
    assert len(app.deliberations.task_ids()) == 2
