"""Several processes work on the same stories: each step is done once, and what one leaves another
goes on with.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

import pytest

from moothall.domain.event import Event, EventType
from moothall.domain.topic import Channel
from support.working import A, B, House, open_house, won

ONCE = (
    EventType.PLAN_DERIVED,
    EventType.PLAN_FINISHED,
    EventType.STORY_CHECKED,
    EventType.STORY_DELIVERED,
)


@pytest.fixture
async def house() -> House:
    return await open_house()


async def recorded(house: House) -> list[Event]:
    return [one.event async for one in house.bus.replay((Channel.STORIES.all,))]


async def to_done(house: House) -> None:
    """Bring the story from backlog to its delivery."""
    await house.to_test()
    await house.asked(2)
    await house.desk.decide(won(house.story_id, B))
    await house.stands("test", "checked")
    await house.move("accept_test", "accept")
    await house.stands("done")

    async def is_delivered() -> bool:
        return (await house.card()).delivery is not None

    await house.until(is_delivered)


async def test_of_three_that_work_on_a_story_one_does_each_step(house: House) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(house.working())
        await to_done(house)
    done = Counter(event.type for event in await recorded(house))
    assert [done[kind] for kind in ONCE] == [1] * len(ONCE)
    assert len(house.desk.known()) == 2
    assert len(house.lands.asked) == 1, "what is delivered outside is delivered once"


async def test_what_one_leaves_in_the_middle_of_a_plan_another_sees_to_its_end(
    house: House,
) -> None:
    async with house.working():
        async with house.working():
            await house.move("refine", "submit")
            await house.stands("design", "planned")
            await house.move("accept_design")
            task = await house.asked(1)
        await house.desk.decide(won(task.task_id, A))  # one of the two is gone, whichever had it
        await house.stands("test")
        await house.asked(2)
    assert len(house.desk.known()) == 2
