"""Tasks that a product owner edits before they start: one of two concurrent edits wins and is
built.
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
    """A story with tasks derived by its roles, none of them started."""
    bus = MemoryBus()
    new_app = App(bus, MemoryDeliberations(), Board(bus))
    new_app.story_id = (
        await new_app.board.create(DRAFT, LOCAL, key="1", repository="repo")
    ).story.id
    async with new_app.working():
        await new_app.move("refine", "submit")
        await new_app.wait_until("design", "planned")
    return new_app


async def change(
    app: App, plan: Plan, *outlines: Outline, principal: Principal = LOCAL
) -> StoryState:
    return await Planner(app.bus, LimitSettings()).change(
        app.story_id, plan.plan_id, outlines, principal
    )


async def test_the_tasks_edited_by_the_product_owner_are_built(app: App) -> None:
    plan_before = changeable(await app.card())
    card = await change(app, plan_before, FIRST, SECOND)
    plan_after = changeable(card)
    assert (plan_after.by, plan_after.actor, plan_after.publish, card.position.state) == (
        "people",
        LOCAL.name,
        True,
        "design",
    )
    assert to_outlines(plan_after.tasks, card.story)[0].description == "Write CSV."
    (planning_round,) = rounds(await app.board.history(app.story_id, LOCAL), {}, "design")
    assert (
        planning_round.by,
        planning_round.actor,
        [step.after for step in planning_round.steps],
    ) == (
        "people",
        LOCAL.name,
        [(), (1,)],
    )
    async with app.working():
        await app.move("accept_design")
        request = await app.wait_for_request(1)
    assert (request.task_id, request.role) == (plan_after.tasks[0].task_id, "dev")


async def test_one_of_two_simultaneous_changes_wins_and_the_other_learns_by_whom(app: App) -> None:
    plan = changeable(await app.card())
    ann, bob = (replace(LOCAL, name=name) for name in ("ann", "bob"))
    full_outline = FIRST.model_copy(update={"criteria": (1, 2)})
    ends = await asyncio.gather(
        change(app, plan, FIRST, SECOND, principal=ann),
        change(app, plan, full_outline, principal=bob),
        return_exceptions=True,
    )
    won, conflict = (
        next(end for end in ends if isinstance(end, kind))
        for kind in (StoryState, ConcurrentUpdate)
    )
    assert isinstance(won, StoryState)
    assert isinstance(conflict, ConcurrentUpdate)
    winner = changeable(await app.card())
    assert changeable(won) == winner
    assert f"changed by {winner.actor} since" in conflict.message
    repeated = await change(
        app,
        plan,
        *((FIRST, SECOND) if winner.actor == "ann" else (full_outline,)),
        principal=replace(LOCAL, name=winner.actor),
    )
    assert changeable(repeated) == winner, "a repeated edit changes nothing"


async def test_a_comment_in_between_does_not_invalidate_an_edit(app: App) -> None:
    plan = changeable(await app.card())
    await app.board.comment(app.story_id, "Hurry.", LOCAL, key="1")
    assert changeable(await change(app, plan, FIRST, SECOND)).by == "people"


async def test_only_a_product_owner_can_edit_tasks_and_only_before_they_start(app: App) -> None:
    plan = changeable(await app.card())
    qa = replace(LOCAL, name="quinn", roles=frozenset({"qa", "architect"}))
    with pytest.raises(Refused, match="one of the roles po"):
        await change(app, plan, FIRST, SECOND, principal=qa)
    assert not may_change(await app.card(), qa)
    with pytest.raises(NotFound):
        await change(app, plan, FIRST, SECOND, principal=replace(LOCAL, tenant="elsewhere"))
    async with app.working():
        await app.move("accept_design")
        with pytest.raises(
            InvalidRequest,
            match=r"is in \w+: tasks can be changed once they are derived in design, until",
        ):
            await change(app, plan, FIRST, SECOND)


@pytest.mark.parametrize(
    ("outlines", "message"),
    [
        ((), "no task is left"),
        ((FIRST,), "no task fulfils criterion 2"),
        (
            (FIRST, SECOND.model_copy(update={"description": " \n"})),
            "task 2 has no description",
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
    app: App, outlines: tuple[Outline, ...], message: str
) -> None:
    plan = changeable(await app.card())
    with pytest.raises(InvalidRequest, match=message):
        await change(app, plan, *outlines)
    assert changeable(await app.card()) == plan


async def test_the_decision_on_an_edited_plan_refers_to_the_architects_original_deliberation(
    app: App,
) -> None:
    plan = changeable(await app.card())
    planner = Planner(app.bus, LimitSettings())
    await planner.record_plan(
        await app.card(), replace(plan, plan_id="plan-a", by="architects"), LOCAL
    )
    edited_once = changeable(await change(app, changeable(await app.card()), FIRST, SECOND))
    edited_twice = changeable(
        await change(app, edited_once, SECOND.model_copy(update={"after": ()}), FIRST)
    )
    assert (edited_once.design, edited_twice.design) == ("design-a", "design-a")
    await app.move("accept_design")
    (decision,) = [
        event
        for event in await app.board.history(app.story_id, LOCAL)
        if event.type is EventType.DECISION_MADE
    ]
    assert decision.data["task_id"] == "design-a"
