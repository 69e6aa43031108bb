"""The board: stories, their states, and moving them. The decision of a person that a move of a
story implies, as an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from moothall.concurrency import Broadcast
from moothall.domain.budget import NO_BUDGET, Budget, check_budget
from moothall.domain.codec import dump
from moothall.domain.event import Channel, Event, EventType, Recorded
from moothall.domain.ids import Principal, check_id, digest, key_of
from moothall.domain.plan import LineComment, Story
from moothall.errors import AlreadyExists, ConcurrentUpdate, InvalidRequest, NotFound, Refused
from moothall.ports import Log
from moothall.stories import coach
from moothall.stories.lifecycle import DEFAULT_RIGOR, SYSTEM, decide, lifecycle
from moothall.stories.plans import design_task
from moothall.stories.story_state import EDITABLE_STATES, MERGE_ROLES, StoryState, enter, fold
from moothall.telemetry.tracing import write

# The decision of a person that a move of a story implies, as an event.


_DECISION_PREFIXES = ("accept", "reject")
"""The prefixes of events by which people decide."""


def decision_event(card: StoryState) -> Event | None:
    """Return the decision that the last move of a story implies, None if it implies none."""
    move = card.entered
    if move is None or not str(move.data.get("event")).startswith(_DECISION_PREFIXES):
        return None
    move_event = str(move.data.get("event"))
    comment = str(move.data.get("comment") or "")
    plan = (
        card.plan.data if card.plan is not None and move.data.get("from_state") == "design" else {}
    )
    designed = (
        design_task(str(plan.get("plan_id")))
        if plan.get("by") == "architects"
        else str(plan.get("design") or "")
    )
    checked = (
        str(card.check.data.get("task_id") or "")
        if card.check and move.data.get("from_state") != "design"
        else ""
    )
    data = {
        "story_id": card.story.id,
        "task_id": designed or checked,
        "approver": move.data.get("actor"),
        "decision": "approved"
        if move_event.startswith("accept")
        else "changes"
        if comment or card.remarks
        else "rejected",
        "comment": comment,
    }
    origin = {"ordinal": move.id, "causationid": move.id, "tenant": move.tenant}
    return write(EventType.DECISION_MADE, card.story.id, data, **origin, time=move.time)


# The board: stories, their states, and moving them. Its only source is the log; of two concurrent
# moves, one wins.


_MAX_COMMENT_CHARS, _MAX_PATH_CHARS, _MAX_QUOTED_CHARS = 4_000, 400, 400
EDITOR_ROLES = ("po",)
"""Roles that may edit a story and its tasks."""


@dataclass(frozen=True, slots=True)
class BoardEvent:
    """Something that happened to a story; `card` is the story's state after it. Without a card,
    `seq` is the position up to which the board was read.
    """

    seq: int
    type: str = ""
    card: StoryState | None = None
    tenant: str = ""


class Board:
    """The stories of all tenants. Each caller sees and moves those of its own tenant."""

    def __init__(self, bus: Log) -> None:
        self._bus = bus
        self._board_events = Broadcast(self._watch_events)
        self._cards: dict[tuple[str, str], StoryState] = {}
        self._listed: dict[str, tuple[list[StoryState], int]] = {}
        """By tenant, the stories by id, and the seq of their last event. Dropped at a new event."""
        self._last_seq, self._first_id = 0, ""
        self._read_lock, self._reads_begun, self._reads_ended = asyncio.Lock(), 0, 0

    async def create(
        self,
        draft: coach.StoryDraft,
        principal: Principal,
        *,
        key: str,
        repository: str = "",
        rigor: str = "",
        budget: Budget = NO_BUDGET,
    ) -> StoryState:
        """Put a story on the board. `key` identifies the request: a repeated request returns the
        same story. Raises `InvalidRequest`, `AlreadyExists`.
        """
        draft = coach.check(draft)
        data = {
            "story_id": f"story-{digest(principal.tenant, key)[:16]}",
            **_event_fields(draft, repository, rigor, budget),
            "actor": principal.name,
        }
        event = write(EventType.STORY_CREATED, str(data["story_id"]), data, tenant=principal.tenant)
        try:
            await self._bus.create(event)
        except AlreadyExists:
            card = await self.card(str(data["story_id"]), principal)
            if card.draft != draft:
                raise
            return card
        return await self.card(str(data["story_id"]), principal)

    async def update(
        self,
        story_id: str,
        draft: coach.StoryDraft,
        principal: Principal,
        *,
        repository: str = "",
        rigor: str = "",
        budget: Budget = NO_BUDGET,
        seen_seq: int | None = None,
    ) -> StoryState:
        """Replace the text, repository, rigor level and budget of a story in backlog or draft.

        Raises `NotFound`, `Refused` without the role, `InvalidRequest`, and `ConcurrentUpdate` if
        something happened to the story after `seen_seq`, or during the call.
        """
        if not set(EDITOR_ROLES) & principal.roles:
            raise Refused(f"a story can be edited by the roles {', '.join(EDITOR_ROLES)}")
        card = await self.card(story_id, principal)
        if seen_seq is not None and card.seq != seen_seq:
            raise ConcurrentUpdate(
                f"story {story_id} was changed since you opened it (seq {card.seq}, you saw "
                f"{seen_seq}); reload it and edit it again"
            )
        if card.position.state not in EDITABLE_STATES:
            raise InvalidRequest(
                f"story {story_id} is in {card.position.state}; it can be edited in "
                f"{' and '.join(EDITABLE_STATES)}. Stop it or reject it first"
            )
        data = {
            "story_id": story_id,
            **_event_fields(coach.check(draft), repository, rigor, budget),
            "edited": True,
            "actor": principal.name,
        }
        event = write(
            EventType.STORY_CHANGED,
            story_id,
            data,
            ordinal=digest(str(card.seq), principal.name, str(data)),
            tenant=principal.tenant,
        )
        try:
            await self._bus.create(event, card.seq)
        except AlreadyExists:
            raise ConcurrentUpdate(
                f"story {story_id} was changed at the same time; reload it and edit it again"
            ) from None
        return await self.card(story_id, principal)

    async def card(self, story_id: str, principal: Principal) -> StoryState:
        """Return the state of a story. Raises `NotFound`, also for a story of another tenant."""
        card = StoryState(Story(check_id(story_id, "story_id")))
        async for recorded in self._bus.replay(
            (Channel.STORIES.of(key_of(story_id, principal.tenant)),)
        ):
            card = fold(card, recorded, principal.tenant)
        if not card.story.has_content:
            raise NotFound(f"no story {story_id!r}")
        return card

    async def moves(self, story_id: str, principal: Principal) -> list[Event]:
        """Return the moves of a story that counted, oldest first."""
        card, moves = StoryState(Story(check_id(story_id, "story_id"))), []
        async for recorded in self._bus.replay(
            (Channel.STORIES.of(key_of(story_id, principal.tenant)),)
        ):
            last_moved, card = card.moved, fold(card, recorded, principal.tenant)
            if card.entered is not None and card.moved != last_moved:
                moves.append(card.entered)
        return moves

    async def find(self, story_id: str, principal: Principal) -> StoryState | None:
        """Return the state of a story on the board, None for any other."""
        try:
            card = await self.card(story_id, principal)
        except (NotFound, InvalidRequest):
            return None
        return card if card.created else None

    async def cards(self, principal: Principal, after: int | None = None) -> Sequence[StoryState]:
        """Return the stories of a tenant, by id. The log is cached: only new events are read, once
        for all concurrent callers. Without new events, the result is the same object. With `after`,
        nothing is read if the cached stories have an event after that one.
        """
        if after is not None and principal.tenant in self._listed:
            cards, seq = self._listed[principal.tenant]
            if seq > after:
                return cards
        await self._read_cards()
        if principal.tenant not in self._listed:
            visible = {
                story_id: card
                for (tenant, story_id), card in self._cards.items()
                if tenant == principal.tenant and card.created
            }
            cards = [card for _, card in sorted(visible.items())]
            self._listed[principal.tenant] = cards, max((card.seq for card in cards), default=0)
        return self._listed[principal.tenant][0]

    async def list_all(self) -> Mapping[tuple[str, str], StoryState]:
        """Return the stories of all tenants, by tenant and id."""
        await self._read_cards()
        return {key: card for key, card in self._cards.items() if card.created}

    async def _read_cards(self) -> None:
        """Read new events, once for all concurrent callers."""
        begun = self._reads_begun
        async with self._read_lock:
            if self._reads_ended <= begun:  # no read that began since has succeeded
                self._reads_begun += 1
                await self._read_new_events()
                self._reads_ended = self._reads_begun

    async def _read_new_events(self) -> None:
        """Read new events. Start from the beginning if the first event of the log has changed: the
        log was pruned or replaced.
        """
        first = await self._bus.first(Channel.STORIES.all)
        if (first_id := first.event.id if first else "") != self._first_id:
            self._cards, self._last_seq, self._first_id = {}, 0, first_id
            self._listed.clear()
        async for recorded in self._bus.replay((Channel.STORIES.all,), self._last_seq):
            _apply_event(self._cards, recorded)
            self._listed.pop(recorded.event.tenant, None)
            self._last_seq = recorded.seq

    async def history(self, story_id: str, principal: Principal) -> list[Event]:
        """Return the events of a story, in order. Raises `NotFound`."""
        await self.card(story_id, principal)
        replayed = self._bus.replay((Channel.STORIES.of(key_of(story_id, principal.tenant)),))
        return [
            recorded.event
            async for recorded in replayed
            if recorded.event.tenant == principal.tenant
        ]

    async def comment(
        self,
        story_id: str,
        text: str,
        principal: Principal,
        *,
        key: str,
        line_comment: LineComment | None = None,
    ) -> None:
        """Comment on a story, or on a line of its result (`line_comment`, whose own text is
        ignored). `key` identifies the request. Raises `NotFound`, `InvalidRequest`.
        """
        if not text.strip():
            raise InvalidRequest("the comment is empty")
        _check_comment(text)
        await self.card(story_id, principal)
        data: dict[str, object] = {"story_id": story_id, "comment": text, "actor": principal.name}
        if line_comment is not None:
            data |= {
                "task_id": line_comment.task_id,
                "path": line_comment.path[:_MAX_PATH_CHARS],
                "line": line_comment.line,
                "quoted": line_comment.quoted[:_MAX_QUOTED_CHARS],
            }
        await self._bus.publish(
            write(
                EventType.STORY_COMMENTED,
                story_id,
                data,
                ordinal=digest(principal.name, key),
                tenant=principal.tenant,
            )
        )

    async def watch(
        self, after_seq: int | None, principal: Principal
    ) -> AsyncGenerator[list[BoardEvent], None]:
        """Yield the events of a tenant's stories after `after_seq` until closed, with simultaneous
        events in one list. With None, begin with the next event, after a first empty list. The bus
        is read once for all watchers.
        """
        async with aclosing(self._board_events.subscribe()) as moments:
            batch = await anext(moments)
            last_seq, board_seq = after_seq, batch[0].seq
            if last_seq is None:
                yield []
            elif last_seq < board_seq and (
                missed := [
                    moment
                    async for moment in self._replay_events()
                    if last_seq < moment.seq <= board_seq and _is_visible(moment, principal)
                ]
            ):
                yield missed
            last_seq = max(board_seq, last_seq or 0)
            while batch:
                if visible := [
                    moment
                    for moment in batch
                    if moment.seq > last_seq and _is_visible(moment, principal)
                ]:
                    yield visible
                batch = await anext(moments, [])

    @property
    def watching(self) -> int:
        """The number of watchers, of all tenants."""
        return self._board_events.subscriber_count

    async def _watch_events(self) -> AsyncGenerator[BoardEvent, None]:
        """Yield the position of the board, then its events as they come."""
        await self._read_cards()
        cards, seq = dict(self._cards), self._last_seq
        yield BoardEvent(seq)
        async with aclosing(self._bus.follow((Channel.STORIES.all,), seq)) as events:
            async for recorded in events:
                yield _apply_event(cards, recorded)

    async def _replay_events(self) -> AsyncGenerator[BoardEvent, None]:
        cards: dict[tuple[str, str], StoryState] = {}
        async for recorded in self._bus.replay((Channel.STORIES.all,)):
            yield _apply_event(cards, recorded)

    async def move(
        self,
        story_id: str,
        event: str,
        principal: Principal,
        *,
        comment: str = "",
        system: bool = False,
        seen_seq: int | None = None,
    ) -> StoryState:
        """Move a story. `system` is true if the server itself moves it because of recorded facts.
        With `seen_seq`, move it only if no event came after this seq.

        Raises `NotFound`, what `decide` raises, and `ConcurrentUpdate` if another move came first.
        """
        _check_comment(comment)
        card = await self.settle(await self.card(story_id, principal))
        old_state = card.position.state
        roles = {SYSTEM} if system else principal.all_roles
        while True:
            if seen_seq is not None and card.seq != seen_seq:
                raise ConcurrentUpdate(
                    f"story {story_id} is in {card.position.state} now, at seq {card.seq}; you saw "
                    f"it at {seen_seq}"
                )
            new_position = decide(card.position, event, roles)
            data = {
                "story_id": story_id,
                "from_state": card.position.state,
                "to_state": new_position.state,
                "event": event,
                "actor": principal.name,
                "roles": sorted(roles),
                "comment": comment,
            }
            transition = write(
                EventType.STORY_TRANSITIONED,
                story_id,
                data,
                ordinal=digest(event, principal.name, comment, card.moved),
                tenant=principal.tenant,
            )
            try:
                seq = await self._bus.create(transition, card.seq)
            except AlreadyExists:
                card = await self.card(story_id, principal)
                if card.moved == transition.id:  # ours: the ack was lost
                    return card
                if card.position.state != old_state:
                    raise ConcurrentUpdate(
                        f"story {story_id} is in {card.position.state} now: another move came first"
                    ) from None
            else:
                return await self.settle(enter(replace(card, seq=seq), new_position, transition))

    async def request_merge(
        self, story_id: str, principal: Principal, *, seen_seq: int | None = None
    ) -> StoryState:
        """Request that the commit of an accepted story is merged into the base branch, whatever the
        repository's policy. With `seen_seq`, only if no event came after this seq. A request that
        is open already is not repeated.

        Raises `NotFound`, `Refused` without the role, `InvalidRequest` if there is nothing to
        merge, and `ConcurrentUpdate`.
        """
        if not set(MERGE_ROLES) & principal.all_roles:
            raise Refused(f"a story can be merged by the roles {', '.join(MERGE_ROLES)}")
        card = await self.card(story_id, principal)
        if card.merge_request is not None:
            return card
        if not card.is_unmerged or card.delivery is None:
            status = card.delivery.data.get("status") if card.delivery else ""
            raise InvalidRequest(
                f"story {story_id} is in {card.position.state}"
                f"{f' and was {status}' if status else ''}; a story can be merged once it is "
                "accepted, if its commit was left on a branch"
            )
        if seen_seq is not None and card.seq != seen_seq:
            raise ConcurrentUpdate(
                f"story {story_id} was changed since you opened it (seq {card.seq}, you saw "
                f"{seen_seq}); look at it again"
            )
        data = {
            "story_id": story_id,
            "delivery": card.delivery.id,
            "actor": principal.name,
            "roles": sorted(principal.all_roles),
        }
        request = write(
            EventType.STORY_MERGE_REQUESTED,
            story_id,
            data,
            ordinal=card.delivery.id,
            causationid=card.delivery.id,
            tenant=principal.tenant,
        )
        try:
            await self._bus.create(request, card.seq)
        except AlreadyExists:
            card = await self.card(story_id, principal)
            if card.merge_request is None:
                raise ConcurrentUpdate(
                    f"story {story_id} changed at the same time; look at it again"
                ) from None
            return card
        return await self.card(story_id, principal)

    async def check_move(self, story_id: str, event: Event) -> None:
        """Raise what `decide` raises if a recorded move of a story on the board did not count.

        Moves of stories that are not on the board are only recorded.
        """
        card = StoryState(Story(check_id(story_id, "story_id")))
        async for recorded in self._bus.replay(
            (Channel.STORIES.of(key_of(story_id, event.tenant)),)
        ):
            if recorded.event.id == event.id:
                break
            card = fold(card, recorded, event.tenant)
        if card.created:
            roles = event.data.get("roles")
            decide(
                card.position,
                str(event.data.get("event")),
                [str(role) for role in roles] if isinstance(roles, list) else (),
            )

    async def settle(self, card: StoryState) -> StoryState:
        """Record the decision that the last move of a story implies, if that is not done yet.
        Return the story's state after it.
        """
        if card.decided == card.moved or (decision := decision_event(card)) is None:
            return card
        return replace(card, seq=await self._bus.publish(decision), decided=card.moved)


def _event_fields(
    draft: coach.StoryDraft, repository: str, rigor: str, budget: Budget
) -> dict[str, object]:
    """Return the fields of a story's event. Raises `InvalidRequest`."""
    check_budget(budget)
    if not draft.title:
        raise InvalidRequest(
            "the story has no title: say what is possible afterwards, such as 'Export invoices "
            "as CSV'"
        )
    rigor = rigor.strip().upper() or DEFAULT_RIGOR
    if rigor not in lifecycle().ready:
        raise InvalidRequest(
            f"rigor_level is {rigor[:40]!r}; allowed are {', '.join(lifecycle().ready)}"
        )
    return {
        "title": draft.title,
        "brief": draft.description,
        "ac": list(draft.ac),
        "repository": repository,
        "rigor_level": rigor,
        **({"budget": dump(budget)} if budget != NO_BUDGET else {}),
    }


def _apply_event(cards: dict[tuple[str, str], StoryState], recorded: Recorded) -> BoardEvent:
    """Apply an event to the cards and return it as a board event."""
    event, story_id = recorded.event, recorded.event.data.get("story_id")
    if not isinstance(story_id, str):
        return BoardEvent(recorded.seq)
    key = (event.tenant, story_id)
    card = cards[key] = fold(cards.get(key, StoryState(Story(story_id))), recorded, event.tenant)
    return BoardEvent(recorded.seq, event.type, card, event.tenant)


def _is_visible(moment: BoardEvent, principal: Principal) -> bool:
    return moment.card is not None and moment.card.created and moment.tenant == principal.tenant


def _check_comment(text: str) -> None:
    if len(text) > _MAX_COMMENT_CHARS:
        raise InvalidRequest(
            f"the comment has {len(text)} characters; allowed are {_MAX_COMMENT_CHARS}"
        )
