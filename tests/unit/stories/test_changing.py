"""Tasks that their product owner changes before they are begun: of two changes one wins, and what
is built is what was left.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from moothall.config import LimitSettings
from moothall.domain.event import EventType
from moothall.domain.ids import LOCAL, Principal
from moothall.domain.plan import Plan
from moothall.errors import ConcurrentUpdate, InvalidRequest, NotFound, Refused
from moothall.stories.board import Board
from moothall.stories.planner import Planner, changeable, may_change
from moothall.stories.plans import Outline, to_outlines
from moothall.stories.story_state import StoryState
from moothall.stories.task_history import rounds
from moothall.testing.bus import MemoryBus
from support.deliberation_service import MemoryDeliberations
from support.working import DRAFT, App

FIRST = Outline(id="1", role="dev", description="Write CSV.", criteria=(1,))
SECOND = Outline(id="2", role="qa", description="Test it.", criteria=(2,), after=("1",))


@pytest.fixture
async def app() -> App:
    """A story whose tasks are derived by its roles, and not begun."""
    bus = MemoryBus()
    made = App(bus, MemoryDeliberations(), Board(bus))
    made.story_id = (await made.board.create(DRAFT, LOCAL, key="1", repository="repo")).story.id
    async with made.working():
        await made.move("refine", "submit")
        await made.stands("design", "planned")
    return made


async def change(
    app: App, seen: Plan, *outlines: Outline, principal: Principal = LOCAL
) -> StoryState:
    return await Planner(app.bus, LimitSettings()).change(
        app.story_id, seen.plan_id, outlines, principal
    )


async def test_the_tasks_edited_by_the_product_owner_are_built(app: App) -> None:
    before = changeable(await app.card())
    card = await change(app, before, FIRST, SECOND)
    after = changeable(card)
    assert (after.by, after.actor, after.publish, card.position.state) == (
        "people",
        LOCAL.name,
        True,
        "design",
    )
    assert to_outlines(after.tasks, card.story)[0].description == "Write CSV."
    (shown,) = rounds(await app.board.history(app.story_id, LOCAL), {}, "design")
    assert (shown.by, shown.actor, [step.after for step in shown.steps]) == (
        "people",
        LOCAL.name,
        [(), (1,)],
    )
    async with app.working():
        await app.move("accept_design")
        requested = await app.requested(1)
    assert (requested.task_id, requested.role) == (after.tasks[0].task_id, "dev")


async def test_one_of_two_simultaneous_changes_wins_and_the_other_learns_by_whom(app: App) -> None:
    seen = changeable(await app.card())
    ann, bob = (replace(LOCAL, name=name) for name in ("ann", "bob"))
    whole = FIRST.model_copy(update={"criteria": (1, 2)})
    ends = await asyncio.gather(
        change(app, seen, FIRST, SECOND, principal=ann),
        change(app, seen, whole, principal=bob),
        return_exceptions=True,
    )
    won, lost = (
        next(end for end in ends if isinstance(end, kind))
        for kind in (StoryState, ConcurrentUpdate)
    )
    assert isinstance(won, StoryState)
    assert isinstance(lost, ConcurrentUpdate)
    winner = changeable(await app.card())
    assert changeable(won) == winner
    assert f"changed by {winner.actor} since" in lost.message
    again = await change(
        app,
        seen,
        *((FIRST, SECOND) if winner.actor == "ann" else (whole,)),
        principal=replace(LOCAL, name=winner.actor),
    )
    assert changeable(again) == winner, "the same sent twice changes nothing"


async def test_a_comment_in_between_does_not_invalidate_an_edit(app: App) -> None:
    seen = changeable(await app.card())
    await app.board.comment(app.story_id, "Hurry.", LOCAL, key="1")
    assert changeable(await change(app, seen, FIRST, SECOND)).by == "people"


async def test_only_a_product_owner_can_edit_tasks_and_only_before_they_start(app: App) -> None:
    seen = changeable(await app.card())
    qa = replace(LOCAL, name="quinn", roles=frozenset({"qa", "architect"}))
    with pytest.raises(Refused, match="one of the roles po"):
        await change(app, seen, FIRST, SECOND, principal=qa)
    assert not may_change(await app.card(), qa)
    with pytest.raises(NotFound):
        await change(app, seen, FIRST, SECOND, principal=replace(LOCAL, tenant="elsewhere"))
    async with app.working():
        await app.move("accept_design")
        with pytest.raises(
            InvalidRequest,
            match=r"is in \w+: tasks can be changed once they are derived in design, until",
        ):
            await change(app, seen, FIRST, SECOND)


@pytest.mark.parametrize(
    ("outlines", "output_text"),
    [
        ((), "no task is left"),
        ((FIRST,), "no task fulfils criterion 2"),
        (
            (FIRST, SECOND.model_copy(update={"description": " \n"})),
            "task 2 does not say what is to be done",
        ),
        (
            (FIRST, SECOND.model_copy(update={"description": "x" * 10_001})),
            "the words of task 2 are longer than 10000",
        ),
        (
            tuple(FIRST.model_copy(update={"id": str(n), "criteria": (1, 2)}) for n in range(65)),
            "there are 65 tasks; at most 64",
        ),
    ],
)
async def test_an_invalid_plan_changes_nothing(
    app: App, outlines: tuple[Outline, ...], output_text: str
) -> None:
    seen = changeable(await app.card())
    with pytest.raises(InvalidRequest, match=output_text):
        await change(app, seen, *outlines)
    assert changeable(await app.card()) == seen


async def test_the_decision_on_an_edited_plan_refers_to_the_architects_original_deliberation(
    app: App,
) -> None:
    seen = changeable(await app.card())
    planner = Planner(app.bus, LimitSettings())
    await planner.record_plan(
        await app.card(), replace(seen, plan_id="plan-a", by="architects"), LOCAL
    )
    once = changeable(await change(app, changeable(await app.card()), FIRST, SECOND))
    twice = changeable(await change(app, once, SECOND.model_copy(update={"after": ()}), FIRST))
    assert (once.design, twice.design) == ("design-a", "design-a")
    await app.move("accept_design")
    (output_text,) = [
        event
        for event in await app.board.history(app.story_id, LOCAL)
        if event.type is EventType.DECISION_MADE
    ]
    assert output_text.data["task_id"] == "design-a"
