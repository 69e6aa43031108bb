"""The board: columns of cards, what needs the user, and filters in the URL. The stream of
changes on the board, which pages follow to stay current.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Any

from cachetools import LRUCache
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import ServerSentEvents
from moothall.api.web.rendering import fragment, page, part
from moothall.api.web.sessions import Session, Sessions, read_query, require_session
from moothall.api.web.story_page import (
    count_needed,
    first_steps,
    is_working,
    matches,
    moves,
    needs_user,
    next_step,
    status_of,
)
from moothall.domain.ids import Principal, TaskId
from moothall.domain.status import TaskView
from moothall.errors import InvalidRequest
from moothall.stories.board import Board
from moothall.stories.lifecycle import lifecycle
from moothall.stories.story_state import StoryState, group_by_state
from moothall.stories.task_history import task_ids

# The stream of changes on the board, which pages follow to stay current.


NOTIFY_SECONDS = 0.25
"""The minimum time between two notifications; the second covers everything in between."""
_RELOAD_SECONDS = 0.003
"""Time for each listener to reload its page, with as much again for the rest of the server."""
_MAX_SEQ_DIGITS = 19
_MAX_CACHED_COUNTS = 64


def read_seq(name: str, text: str) -> int:
    """Return the number of an event in the log. Raises `InvalidRequest`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_SEQ_DIGITS):
        raise InvalidRequest(f"{name} is {text[:40]!r}; it must be the number of an event")
    return int(text)


def last_seen(request: Request) -> int | None:
    """Return the number of the last event that a browser has seen, None if it does not say.

    Browsers that connect again send it as a header. Raises `InvalidRequest`.
    """
    last_id = request.headers.get("last-event-id") or request.query_params.get("after")
    return None if last_id is None else read_seq("after", last_id)


class BoardChanges:
    """The changes of the boards of all tenants, and how many stories need a user."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._needed_counts: LRUCache[Hashable, int] = LRUCache(_MAX_CACHED_COUNTS)

    async def follow(
        self, principal: Principal, after: int | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield a server-sent event for each change of a tenant's board: its id is the number of
        the last event in the log, its data the ids of the stories that changed.

        Simultaneous changes are one event. With `after`, the first one has what changed since. An
        event "needed" says how many stories need the user, at first (with `after`) and when that
        changes.
        """
        needed_count = None
        async with aclosing(self._board.watch(None, principal)) as batches:
            async for batch in batches:
                if batch:
                    await asyncio.sleep(reload_delay(self._board.watching))
                    changed: Sequence[StoryState] = [moment.card for moment in batch if moment.card]
                else:
                    yield ": the board\n"
                    changed = await self._changed_since(after, principal)
                if changed:
                    yield _change(changed)
                if batch or after is not None:
                    count = await self._count_needed(batch[-1].seq if batch else None, principal)
                    if count != needed_count:
                        needed_count = count
                        yield f"event: needed\ndata: {needed_count}\n"
                if batch:
                    await asyncio.sleep(NOTIFY_SECONDS)

    async def _changed_since(self, after: int | None, principal: Principal) -> Sequence[StoryState]:
        if after is None:
            return ()
        return [card for card in await self._board.cards(principal) if card.seq > after]

    async def _count_needed(self, seq: int | None, principal: Principal) -> int:
        """Return how many stories need a user. `seq` is that of the last event, if it is known: the
        stories are counted once for all users of a tenant with the same roles.
        """
        key = principal.tenant, principal.all_roles, seq
        if seq is None or (count := self._needed_counts.get(key)) is None:
            cards = await self._board.cards(principal)
            # In a thread, because there may be many stories.
            count = self._needed_counts[key] = await asyncio.to_thread(
                count_needed, cards, principal
            )
        return count


def _change(cards: Sequence[StoryState]) -> str:
    story_ids = dict.fromkeys(card.story.id for card in cards)
    return f"id: {max(card.seq for card in cards)}\ndata: {' '.join(story_ids)}\n"


def reload_delay(listening: int) -> float:
    """Return a random delay in seconds for one of so many listeners, because each of them reloads
    its page after a change.
    """
    return random.random() * listening * _RELOAD_SECONDS  # noqa: S311 - no secret


# The board: columns of cards, what needs the user, and filters in the URL.
#
# A page shows the first cards of each column. The script fetches the others, and the cards that
# changed, as fragments of the page.


_MAX_SHOWN_CARDS = 30
"""Cards of a column that are sent at once, the most recently changed first."""
_MAX_CACHED = 64
"""Rendered boards and fragments in the cache: each is rendered once for all users of a tenant with
the same roles.
"""
_MAX_CACHED_CARDS = 4_096
"""Rendered cards in the cache, of about 1 KB each."""
_REFRESH_SECONDS = 10
"""The interval in which the page fetches the progress of running stories."""
Cards = Sequence[StoryState]


@dataclass(frozen=True, slots=True)
class _Filter:
    """The filter of the board in a URL. `show` is needs-you, archived, or empty for all."""

    show: str = ""
    query: str = ""
    repository: str = ""

    @classmethod
    def of(cls, request: Request) -> _Filter:
        """Read the filter of a URL."""
        return cls(*(read_query(request, name) for name in ("show", "q", "repository")))

    def matches(self, card: StoryState, principal: Principal) -> bool:
        """Return whether to show a card."""
        story = card.story
        is_archived = card.position.state in lifecycle().off_board
        if is_archived != (self.show == "archived"):
            return False
        if self.show == "needs-you" and not needs_user(card, principal):
            return False
        if self.repository and story.repository_name != self.repository:
            return False
        return matches(card, self.query)


@dataclass(frozen=True, slots=True)
class _CardRange:
    """The cards to render: those of `column` whose last event is before `before`, or those that
    changed after the event `after`. By default the first cards of each column.
    """

    column: str = ""
    before: int = 0
    after: int | None = None

    @classmethod
    def of(cls, request: Request) -> _CardRange:
        """Read the range of a URL. Raises `InvalidRequest`."""
        column = request.query_params.get("column", "")
        if column not in {"", *lifecycle().columns, *lifecycle().off_board}:
            raise InvalidRequest(
                f"column is {column[:40]!r}; allowed are {', '.join(lifecycle().columns)}"
            )
        after = request.query_params.get("after")
        return cls(
            column,
            read_seq("before", request.query_params.get("before", "0")),
            None if after is None else read_seq("after", after),
        )

    def cards(self, state: str, cards: Cards) -> Cards:
        """Return the cards of a column that are in the range, without a limit on their number."""
        if self.after is not None:
            return [card for card in cards if card.seq > self.after or is_working(card)]
        if state == self.column and self.before:
            return [card for card in cards if card.seq < self.before]
        return cards


@dataclass(frozen=True, slots=True)
class _Progress:
    """The progress of a story's councils in percent, the number of their seats at work, and whether
    all running councils are paused.
    """

    percent: int
    seats: int
    paused: bool


@dataclass(frozen=True, slots=True)
class _Summary:
    """The cards of a tenant, the number of the last event, and the cards at work."""

    cards: Cards
    seq: int
    at_work: Cards


def _summarize(cards: Cards) -> _Summary:
    seq = max((card.seq for card in cards), default=0)
    return _Summary(cards, seq, [card for card in cards if is_working(card)])


class _Boards:
    """Rendered boards, fragments and cards."""

    def __init__(self, dependencies: ApiDependencies) -> None:
        self._dependencies = dependencies
        self._rendered: LRUCache[Hashable, tuple[Markup, int, int]] = LRUCache(_MAX_CACHED)
        self._summaries: LRUCache[str, _Summary] = LRUCache(_MAX_CACHED)
        self._cards: LRUCache[Hashable, Markup] = LRUCache(_MAX_CACHED_CARDS)
        self._cards_lock = Lock()  # boards are rendered in threads

    async def render(
        self,
        board_filter: _Filter,
        card_range: _CardRange,
        principal: Principal,
        *,
        is_fragment: bool,
    ) -> tuple[Markup, int, int]:
        """Return the HTML, the number of the last event on the board, and the seconds after which
        the page fetches the progress again, 0 for never.
        """
        # A later event that is not read yet will be announced to the page.
        cards = await self._dependencies.stories.board.cards(principal, card_range.after)
        summary = self._summaries.get(principal.tenant)
        if summary is None or summary.cards is not cards:
            summary = self._summaries[principal.tenant] = await asyncio.to_thread(_summarize, cards)
        seq = summary.seq
        progress = await self._progress(summary.at_work, principal)
        key = (
            principal.tenant,
            principal.all_roles,
            board_filter,
            card_range,
            is_fragment,
            seq,
            *progress.items(),
        )
        if (rendered := self._rendered.get(key)) is None:
            refresh = _REFRESH_SECONDS if progress else 0
            context = {
                "progress": progress,
                "refresh": refresh,
                "seq": seq,
                "is_fragment": is_fragment,
            }
            # In a thread, because a board may be large.
            content = await asyncio.to_thread(
                self._render, cards, board_filter, card_range, principal, context
            )
            rendered = self._rendered[key] = content, seq, refresh
        return rendered

    def _render(
        self,
        cards: Cards,
        board_filter: _Filter,
        card_range: _CardRange,
        principal: Principal,
        context: Mapping[str, Any],
    ) -> Markup:
        matching = [card for card in cards if board_filter.matches(card, principal)]
        columns = group_by_state(sorted(matching, key=lambda card: -card.seq))
        table = lifecycle()
        states = table.off_board if board_filter.show == "archived" else table.columns
        if context["is_fragment"] and card_range.column:
            states = (card_range.column,)
        on_board = [card for card in cards if card.position.state in table.columns]
        after = card_range.after
        return part(
            "cards.html",
            columns=[
                (state, len(columns[state]), card_range.cards(state, columns[state]))
                for state in states
            ],
            is_change=after is not None,
            changed=[card.story.id for card in cards if after is not None and card.seq > after],
            card_range=card_range,
            board_filter=board_filter,
            needed=count_needed(on_board, principal),
            total=len(on_board),
            archived=len(cards) - len(on_board),
            first_steps=first_steps(cards),
            repositories=sorted({card.story.repository_name for card in on_board} - {""}),
            show=lambda card: self._card(card, principal, context["progress"].get(card.story.id)),
            max_cards=_MAX_SHOWN_CARDS,
            **context,
        )

    def _card(self, card: StoryState, principal: Principal, progress: _Progress | None) -> Markup:
        """Return a card. A change renders only the changed card."""
        key = principal.tenant, principal.all_roles, card.story.id, card.seq, progress
        with self._cards_lock:
            content = self._cards.get(key)
        if content is None:
            content = part(
                "card.html",
                card=card,
                progress=progress,
                moves=moves(card, principal),
                status=status_of(card, principal),
                next_step=next_step(card, principal),
            )
            with self._cards_lock:
                self._cards[key] = content
        return content

    async def _progress(self, cards: Cards, principal: Principal) -> Mapping[str, _Progress | None]:
        """Return the progress of each story that the server works on, None where it is unknown."""
        tasks = {
            card.story.id: task_ids([card.plan])
            if card.plan and card.position.state == "build"
            else ()
            for card in cards
        }
        if not any(tasks.values()):
            return dict.fromkeys(tasks)
        views = await self._dependencies.records.tasks.find_tasks(chain(*tasks.values()), principal)
        return {story_id: _progress_of(names, views) for story_id, names in tasks.items()}


def _progress_of(
    tasks: Sequence[TaskId], views_by_id: Mapping[TaskId, TaskView]
) -> _Progress | None:
    views = [views_by_id[task_id] for task_id in tasks if task_id in views_by_id]
    if not tasks:
        return None
    running = [view for view in views if not view.status.ended]
    return _Progress(
        sum(view.progress for view in views) // len(tasks),
        sum(len(view.seats) for view in running),
        bool(running) and all(view.paused for view in running),
    )


def board_routes(
    dependencies: ApiDependencies, sessions: Sessions, board_changes: BoardChanges
) -> Sequence[Route]:
    """Return the routes of the board, its fragments and its changes."""
    boards = _Boards(dependencies)

    async def board(request: Request, session: Session) -> Response:
        board_filter, card_range = _Filter.of(request), _CardRange.of(request)
        content, seq, refresh = await boards.render(
            board_filter, card_range, session.principal, is_fragment=False
        )
        return page(
            "board.html",
            session=session,
            board=content,
            board_filter=board_filter,
            seq=seq,
            refresh=refresh,
        )

    async def cards(request: Request, session: Session) -> Response:
        board_filter, card_range = _Filter.of(request), _CardRange.of(request)
        content, _, _ = await boards.render(
            board_filter, card_range, session.principal, is_fragment=True
        )
        return fragment(content)

    async def changes(request: Request, session: Session) -> Response:
        """Notify of changes on the board, as server-sent events."""
        return ServerSentEvents(board_changes.follow(session.principal, last_seen(request)))

    return [
        Route("/", require_session(board, sessions)),
        Route("/cards", require_session(cards, sessions)),
        Route("/changes", require_session(changes, sessions)),
    ]
