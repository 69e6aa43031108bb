"""The board: the state of a story is folded from its log, and one of two concurrent moves wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from moothall.domain.event import Channel, Event, EventType, Recorded, Topic
from moothall.domain.ids import LOCAL, Principal
from moothall.errors import AlreadyExists, ConcurrentUpdate, InvalidRequest, NotFound, Refused
from moothall.events.nats.maintenance import prune
from moothall.stories.board import Board
from moothall.stories.coach import StoryDraft
from moothall.stories.lifecycle import Blocked, lifecycle
from moothall.stories.story_state import group_by_state
from moothall.telemetry.tracing import write
from moothall.testing.bus import MemoryBus

DRAFT = StoryDraft(
    "Export invoices as CSV",
    "As an accountant, I want the invoices of a month as a CSV file, so that I can book them.",
    (
        "Given two invoices, when May is exported, then the file has two lines",
        "Given none, when June is exported, then the answer is 404",
    ),
)
EVE = Principal("eve", "elsewhere", roles=frozenset({"po"}))
CLERK = Principal("clerk", "local")


class Meeting(MemoryBus):
    """A bus on which moves wait until `expected` of them have been decided."""

    expected = 1
    lose = False

    def __init__(self) -> None:
        super().__init__()
        self._met = asyncio.Condition()
        self._there = 0

    @property
    def waiting(self) -> bool:
        return 1 < self._there < self.expected

    async def arrive(self) -> None:
        async with self._met:
            self._there += 1
            self._met.notify_all()

    async def create(self, event: Event, after_seq: int = 0) -> int:
        await self.arrive()
        async with self._met:
            await self._met.wait_for(lambda: self._there >= self.expected)
        created = await super().create(event, after_seq)
        if self.lose:
            raise AlreadyExists("it was sent again")
        return created


@pytest.fixture
def bus() -> Meeting:
    return Meeting()


@pytest.fixture
def board(bus: MemoryBus) -> Board:
    return Board(bus)


async def test_a_story_is_created_once(board: Board) -> None:
    card = await board.create(DRAFT, LOCAL, key="1", rigor="l3")
    assert (card.position.state, card.position.rigor, card.position.points, card.draft) == (
        "backlog",
        "L3",
        100,
        DRAFT,
    )
    assert await board.create(DRAFT, LOCAL, key="1") == card
    with pytest.raises(AlreadyExists):
        await board.create(StoryDraft("Another title"), LOCAL, key="1")
    assert await board.cards(LOCAL) == [card]
    assert group_by_state([card])["backlog"] == [card]


@pytest.mark.parametrize(
    ("draft", "rigor", "message"),
    [(StoryDraft(), "", "has no title"), (DRAFT, "L9", "allowed are L0, L1, L2, L3")],
)
async def test_errors_are_reported(
    board: Board, draft: StoryDraft, rigor: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await board.create(draft, LOCAL, key="1", rigor=rigor)


async def test_transitions_follow_the_table_and_the_roles(board: Board) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    with pytest.raises(Refused, match="needs one of the roles po"):
        await board.move(story_id, "refine", CLERK)
    await board.move(story_id, "refine", LOCAL)
    card = await board.move(story_id, "submit", LOCAL, comment="please")
    assert card.position.state == "design"
    with pytest.raises(Blocked, match="its tasks are not derived yet"):
        await board.move(story_id, "accept_design", LOCAL)
    assert await board.card(story_id, LOCAL) == card


async def test_an_operator_without_other_roles_can_stop_a_story(
    board: Board, bus: MemoryBus
) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    for event in ("refine", "submit"):
        await board.move(story_id, event, LOCAL)
    operator = Principal("olga", "local", operator=True)
    with pytest.raises(Refused, match="needs one of the roles po, architect"):
        await board.move(story_id, "reject_design", operator)
    assert (await board.move(story_id, "stop", operator)).position.state == "draft"
    assert (await Board(bus).card(story_id, LOCAL)).position.state == "draft", "from the log"


async def test_another_tenant_can_neither_see_nor_move_a_story(board: Board) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    for foreign_call in (board.card(story_id, EVE), board.move(story_id, "refine", EVE)):
        with pytest.raises(NotFound):
            await foreign_call
    assert await board.cards(EVE) == []


class Reading(MemoryBus):
    """A bus that counts reads of the stories, and blocks them until `let` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0
        self.let = asyncio.Event()
        self.let.set()

    async def replay(
        self, topics: Sequence[Topic] = (), after_seq: int = 0
    ) -> AsyncGenerator[Recorded, None]:
        every = tuple(topics) == (Channel.STORIES.all,)
        async for recorded in super().replay(topics, after_seq):
            if every:
                self.given += 1
                await asyncio.sleep(0)
                await self.let.wait()
            yield recorded


async def test_the_board_is_cached_and_new_events_are_read_once_for_all_callers() -> None:
    bus = Reading()
    board = Board(bus)
    cards = [await board.create(DRAFT, LOCAL, key=str(number)) for number in range(5)]
    await board.create(DRAFT, EVE, key="theirs")
    assert await board.cards(LOCAL) == sorted(cards, key=lambda card: card.story.id)
    assert [card.story.id for card in await board.cards(EVE)] not in [
        [card.story.id] for card in cards
    ]
    read = bus.given
    await board.move(cards[0].story.id, "refine", LOCAL)
    boards = await asyncio.gather(*(board.cards(LOCAL) for _ in range(20)))
    assert bus.given - read == 3  # the first event twice, and the move
    assert boards == [await Board(bus).cards(LOCAL)] * 20
    assert group_by_state(boards[0])["draft"][0].story.id == cards[0].story.id


async def test_a_caller_during_a_read_sees_everything_recorded_before_the_call() -> None:
    bus = Reading()
    board = Board(bus)
    await board.create(DRAFT, LOCAL, key="1")
    bus.let.clear()
    first, cancelled = (
        asyncio.create_task(board.cards(LOCAL)),
        asyncio.create_task(board.cards(LOCAL)),
    )
    await asyncio.sleep(0)
    late = await Board(bus).create(DRAFT, LOCAL, key="2")
    reading = asyncio.create_task(board.cards(LOCAL))
    await asyncio.sleep(0)
    first.cancel()  # its read served both callers
    cancelled.cancel()
    bus.let.set()
    assert late.story.id in {card.story.id for card in await reading}


async def test_a_pruned_log_rebuilds_the_board() -> None:
    bus = MemoryBus()
    board = Board(bus)
    old = await board.create(DRAFT, LOCAL, key="old")
    new = await board.create(DRAFT, LOCAL, key="new")
    assert len(await board.cards(LOCAL)) == 2
    await prune(bus, 1)
    assert await board.cards(LOCAL) == [new] != [old]
    await prune(bus, 0)
    assert await board.cards(LOCAL) == []


async def test_one_of_two_simultaneous_transitions_wins_and_the_other_gets_the_new_state(
    board: Board, bus: Meeting
) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    await board.move(story_id, "refine", LOCAL)
    bus.expected = 4
    ends = await asyncio.gather(
        board.move(story_id, "submit", LOCAL),
        board.move(story_id, "shelve", LOCAL),
        return_exceptions=True,
    )
    (conflict,) = [end for end in ends if isinstance(end, ConcurrentUpdate)]
    stands = (await board.card(story_id, LOCAL)).position.state
    assert stands in {"design", "backlog"}
    assert f"is in {stands} now" in conflict.message


async def test_a_transition_whose_ack_was_lost_is_recorded(board: Board, bus: Meeting) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    bus.lose = True
    assert (await board.move(story_id, "refine", LOCAL)).position.state == "draft"


async def test_a_concurrent_comment_does_not_stop_a_transition(board: Board, bus: Meeting) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    bus.expected = 3
    moving = asyncio.create_task(board.move(story_id, "refine", LOCAL))
    while not bus.waiting:
        await asyncio.sleep(0)
    comment = {"story_id": story_id, "comment": "well", "actor": "local"}
    await bus.publish(write(EventType.STORY_COMMENTED, story_id, comment))
    await bus.arrive()
    assert (await moving).position.state == "draft"


@pytest.mark.parametrize(
    "forged",
    [
        {"event": "accept", "from_state": "docs", "to_state": "done", "roles": ["po"]},
        {"event": "submit", "to_state": "done", "roles": []},
        {"event": "refine", "roles": "po"},
        {"event": ["refine"], "roles": None},
        {"to_state": "done"},
    ],
)
async def test_a_forged_transition_event_has_no_effect(
    board: Board, bus: MemoryBus, forged: dict[str, object]
) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    await bus.publish(
        write(EventType.STORY_TRANSITIONED, story_id, {"story_id": story_id, **forged}, ordinal="x")
    )
    assert (await board.card(story_id, LOCAL)).position.state == "backlog"


async def test_a_plan_event_counts_as_evidence(board: Board, bus: MemoryBus) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    for event in ("refine", "submit"):
        await board.move(story_id, event, LOCAL)
    plan = {"story_id": story_id, "plan_id": "plan-1", "tasks": []}
    await bus.publish(write(EventType.PLAN_DERIVED, "plan-1", plan, tenant="elsewhere", ordinal=1))
    with pytest.raises(Blocked, match="not derived"):
        await board.move(story_id, "accept_design", LOCAL)
    derived = write(EventType.PLAN_DERIVED, "plan-1", plan)
    await bus.publish(derived)
    plan |= {"derivation_id": derived.id}
    await board.move(story_id, "accept_design", LOCAL)
    await bus.publish(
        write(EventType.PLAN_FINISHED, "plan-1", {**plan, "status": "failed"}, ordinal=1)
    )
    with pytest.raises(Blocked, match="not all done with a winner"):
        await board.move(story_id, "build", LOCAL, system=True)
    await bus.publish(
        write(EventType.PLAN_FINISHED, "plan-1", {**plan, "status": "completed"}, ordinal=2)
    )
    card = await board.move(story_id, "build", LOCAL, system=True)
    assert (card.position.state, card.plan and card.plan.data["plan_id"]) == ("test", "plan-1")


async def test_comments_on_a_story_are_stored_and_shown_in_order(board: Board) -> None:
    story_id = (await board.create(DRAFT, LOCAL, key="1")).story.id
    await board.comment(story_id, "soon, please", LOCAL, key="a")
    await board.comment(story_id, "soon, please", LOCAL, key="a")
    await board.move(story_id, "refine", LOCAL, comment="now")
    history = await board.history(story_id, LOCAL)
    assert [event.data.get("comment") for event in history] == [None, "soon, please", "now"]
    with pytest.raises(NotFound):
        await board.history(story_id, Principal("eve", "elsewhere"))
    with pytest.raises(NotFound):
        await board.comment(story_id, "hers", Principal("eve", "elsewhere"), key="b")
    with pytest.raises(InvalidRequest, match="is empty"):
        await board.comment(story_id, " ", LOCAL, key="c")
    with pytest.raises(InvalidRequest, match="allowed are 4000"):
        await board.comment(story_id, "x" * 4001, LOCAL, key="d")


async def test_a_story_can_be_edited_in_backlog_and_draft(board: Board) -> None:
    card = await board.create(DRAFT, LOCAL, key="1", repository="repo", rigor="L2")
    shorter = StoryDraft("Export", "", ())
    edited = await board.update(card.story.id, shorter, LOCAL, rigor="L0", seen_seq=card.seq)
    assert (edited.draft, edited.position.rigor, edited.story.repository) == (shorter, "L0", None)
    assert edited.position.points < card.position.points
    await board.move(card.story.id, "refine", LOCAL)
    redrafted = await board.update(card.story.id, DRAFT, LOCAL, repository="repo")
    assert (redrafted.draft, redrafted.position.state) == (DRAFT, "draft")
    assert redrafted == next(iter(await board.cards(LOCAL)))


async def test_an_edit_of_an_older_version_is_refused(board: Board, bus: Meeting) -> None:
    card = await board.create(DRAFT, LOCAL, key="1")
    await board.comment(card.story.id, "Soon, please.", LOCAL, key="2")
    with pytest.raises(ConcurrentUpdate, match="was changed since you opened it"):
        await board.update(card.story.id, DRAFT, LOCAL, seen_seq=card.seq)
    bus.expected, bus._there = 2, 0
    results = await asyncio.gather(
        *(board.update(card.story.id, StoryDraft(title), LOCAL) for title in ("one", "other")),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["ConcurrentUpdate", "StoryState"]


async def test_edits_without_the_role_or_in_another_state_are_refused(board: Board) -> None:
    card = await board.create(DRAFT, LOCAL, key="1")
    with pytest.raises(Refused, match="roles po"):
        await board.update(card.story.id, DRAFT, CLERK)
    with pytest.raises(NotFound):
        await board.update(card.story.id, DRAFT, EVE)
    with pytest.raises(InvalidRequest, match="no title"):
        await board.update(card.story.id, StoryDraft(""), LOCAL)
    with pytest.raises(InvalidRequest, match="rigor_level"):
        await board.update(card.story.id, DRAFT, LOCAL, rigor="L9")
    await board.move(card.story.id, "refine", LOCAL)
    await board.move(card.story.id, "submit", LOCAL)
    with pytest.raises(InvalidRequest, match="is in design; it can be edited in backlog and draft"):
        await board.update(card.story.id, StoryDraft("Something else"), LOCAL)


async def test_an_edit_in_a_wrong_state_has_no_effect(board: Board, bus: MemoryBus) -> None:
    card = await board.create(DRAFT, LOCAL, key="1")
    await board.move(card.story.id, "refine", LOCAL)
    await board.move(card.story.id, "submit", LOCAL)
    data = {"story_id": card.story.id, "title": "Mine", "edited": True}
    await bus.publish(write(EventType.STORY_CHANGED, card.story.id, data, tenant="local"))
    assert (await board.card(card.story.id, LOCAL)).draft == DRAFT


async def test_an_archived_story_leaves_the_columns_and_can_be_restored(board: Board) -> None:
    card = await board.create(DRAFT, LOCAL, key="1")
    archived = await board.move(card.story.id, "archive", LOCAL)
    assert archived.position.state == "archived"
    assert "archived" not in lifecycle().columns
    with pytest.raises(InvalidRequest, match="possible are restore"):
        await board.move(card.story.id, "refine", LOCAL)
    assert (await board.move(card.story.id, "restore", LOCAL)).position.state == "backlog"
