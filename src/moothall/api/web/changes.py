"""The stream of changes on the board, which pages follow to stay current."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Hashable, Sequence
from contextlib import aclosing

from cachetools import LRUCache
from starlette.requests import Request

from moothall.api.web.board import count_needed
from moothall.domain.identity import Principal
from moothall.errors import InvalidRequest
from moothall.stories.board import Board
from moothall.stories.story_state import StoryState

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
    seen = request.headers.get("last-event-id") or request.query_params.get("after")
    return None if seen is None else read_seq("after", seen)


class BoardChanges:
    """The changes of the boards of all tenants, and how many stories need a user."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._needed: LRUCache[Hashable, int] = LRUCache(_MAX_CACHED_COUNTS)

    async def follow(self, who: Principal, after: int | None = None) -> AsyncGenerator[str, None]:
        """Yield a server-sent event for each change of a tenant's board: its id is the number of
        the last event in the log, its data the ids of the stories that changed.

        Simultaneous changes are one event. With `after`, the first one has what changed since. An
        event "needed" says how many stories need the user, at first (with `after`) and when that
        changes.
        """
        needed = None
        async with aclosing(self._board.watch(None, who)) as batches:
            async for batch in batches:
                if batch:
                    await asyncio.sleep(reload_delay(self._board.watching))
                    changed: Sequence[StoryState] = [moment.card for moment in batch if moment.card]
                else:
                    yield ": the board\n"
                    changed = await self._changed_since(after, who)
                if changed:
                    yield _change(changed)
                if batch or after is not None:
                    count = await self._count_needed(batch[-1].seq if batch else None, who)
                    if count != needed:
                        needed = count
                        yield f"event: needed\ndata: {needed}\n"
                if batch:
                    await asyncio.sleep(NOTIFY_SECONDS)

    async def _changed_since(self, after: int | None, who: Principal) -> Sequence[StoryState]:
        if after is None:
            return ()
        return [card for card in await self._board.cards(who) if card.seq > after]

    async def _count_needed(self, seq: int | None, who: Principal) -> int:
        """Return how many stories need a user. `seq` is that of the last event, if it is known: the
        stories are counted once for all users of a tenant with the same roles.
        """
        key = who.tenant, who.all_roles, seq
        if seq is None or (count := self._needed.get(key)) is None:
            cards = await self._board.cards(who)
            # In a thread, because there may be many stories.
            count = self._needed[key] = await asyncio.to_thread(count_needed, cards, who)
        return count


def _change(cards: Sequence[StoryState]) -> str:
    story_ids = dict.fromkeys(card.story.id for card in cards)
    return f"id: {max(card.seq for card in cards)}\ndata: {' '.join(story_ids)}\n"


def reload_delay(listening: int) -> float:
    """Return a random delay in seconds for one of so many listeners, because each of them reloads
    its page after a change.
    """
    return random.random() * listening * _RELOAD_SECONDS  # noqa: S311 - no secret
