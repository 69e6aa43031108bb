"""The stream of changes on the board, which pages follow to stay current."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request

from moothall.api.dependencies import ApiDependencies
from moothall.domain.identity import Principal
from moothall.errors import InvalidRequest

NOTIFY_SECONDS = 0.25
"""The minimum time between two notifications; the second covers everything in between."""
_RELOAD_SECONDS = 0.003
"""Time for each listener to reload its page, with as much again for the rest of the server."""
_MAX_SEQ_DIGITS = 19


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


async def follow_board(
    dependencies: ApiDependencies, who: Principal, after: int | None = None
) -> AsyncGenerator[str, None]:
    """Yield a server-sent event for each change of a tenant's board: its id is the number of the
    last event in the log, its data the ids of the stories that changed.

    Simultaneous changes are one event. With `after`, the first one has what changed since.
    """
    board = dependencies.board
    async with aclosing(board.watch(None, who)) as batches:
        async for batch in batches:
            if batch:
                await asyncio.sleep(reload_delay(board.watching))
                yield _change(
                    batch[-1].seq, [moment.card.story.id for moment in batch if moment.card]
                )
                await asyncio.sleep(NOTIFY_SECONDS)
                continue
            yield ": the board\n"
            cards = await board.cards(who) if after is not None else []
            missed = [card for card in cards if card.seq > (after or 0)]
            if missed:
                yield _change(max(card.seq for card in missed), [card.story.id for card in missed])


def _change(seq: int, story_ids: list[str]) -> str:
    return f"id: {seq}\ndata: {' '.join(dict.fromkeys(story_ids))}\n"


def reload_delay(listening: int) -> float:
    """Return a random delay in seconds for one of so many listeners, because each of them reloads
    its page after a change.
    """
    return random.random() * listening * _RELOAD_SECONDS  # noqa: S311 - no secret
