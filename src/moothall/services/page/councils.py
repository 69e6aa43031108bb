"""The page of a council: what each seat is at while it runs, what it came to after."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.collector.lanes import ENDED, Lane
from moothall.collector.overview import seat_of
from moothall.collector.progress import Progress
from moothall.domain.budget import Usage
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, new_task_id
from moothall.domain.outcome import Outcome
from moothall.errors import NotFound
from moothall.planning.saying import may_act
from moothall.services.doors import Doors
from moothall.services.page.acting import remarks_on
from moothall.services.page.forms import signed_in
from moothall.services.page.sessions import Session, Sessions
from moothall.services.page.shown import page, seen
from moothall.services.rest.documents import ServerSentEvents

REFRESH_SECONDS = 3
_FIGURES = ("turns", "tool_calls", "checks", "checks_passed", "cpu_ms", "max_rss_bytes")


def council_routes(doors: Doors, sessions: Sessions) -> Sequence[Route]:
    """Return what a browser gets of one deliberation."""

    async def council(request: Request, session: Session) -> Response:
        task_id = check_id(request.path_params["id"], "task_id")
        try:
            outcome = await doors.desk.result(task_id, session.who)
        except NotFound as error:
            raise NotFound(f"no council has begun task {task_id!r}; a story's tasks begin when its design is accepted") from error
        progress = await doors.tasks.progress(task_id, session.who)
        told: dict[str, Any] = {
            "outcome": outcome,
            "progress": progress,
            "lanes": [_told(progress, outcome, lane) for lane in progress.lanes.values()],
            "asked": progress.state.requested.value if progress.state and progress.state.requested else None,
            "used": outcome.usage if outcome.status.ended else _used(progress),
            "elapsed": _elapsed(progress, outcome),
            "words": _words(progress),
            "remarks": await remarks_on(doors, outcome, session.who),
            "on": request.query_params.get("on", ""),
            "may": may_act(session.who),
            "key": new_task_id(),
            "metrics": {name: progress.metrics.get(name, 0) for name in _FIGURES} if progress.metrics else {},
            "agent": _agent(progress),
            "paused": bool(progress.state and progress.state.pauses.held),
            "refresh": 0 if outcome.status.ended else REFRESH_SECONDS,
        }
        told["changes"] = f"/councils/{task_id}/changes"
        told["growing"] = "" if outcome.status.ended else f"/councils/{task_id}/text"
        return page("deliberation.html", session=session, **told)

    return [
        Route("/councils/{id}", signed_in(council, sessions)),
        *_live_routes(doors, sessions),
    ]


def _live_routes(doors: Doors, sessions: Sessions) -> Sequence[Route]:
    async def changes(request: Request, session: Session) -> Response:
        """Say that something happened in the council, as server-sent events, from now on; after its end, on the board."""
        task_id = check_id(request.path_params["id"], "task_id")
        seen = (await doors.tasks.progress(task_id, session.who)).seq

        async def told() -> AsyncGenerator[str, None]:
            yield ": the council\n"
            async with aclosing(doors.desk.watch(task_id, seen, session.who)) as moments:
                async for recorded in moments:
                    yield f"data: {recorded.seq}\n"
            async with aclosing(follow_board(doors, session.who)) as lines:
                async for line in lines:
                    yield line

        return ServerSentEvents(told())

    async def text(request: Request, session: Session) -> Response:
        """Tell what seats are writing, as server-sent events of JSON; at once empty where the council is over."""
        task_id = check_id(request.path_params["id"], "task_id")
        over = (await doors.desk.result(task_id, session.who)).status.ended

        async def told() -> AsyncGenerator[str, None]:
            yield ": what seats write\n"
            if over:
                return
            async with aclosing(doors.desk.growing(task_id, session.who)) as moments:
                async for seat, words in moments:
                    yield f"data: {json.dumps({'seat': seat, 'text': seen(words)})}\n"

        return ServerSentEvents(told())

    return [
        Route("/councils/{id}/text", signed_in(text, sessions)),
        Route("/councils/{id}/changes", signed_in(changes, sessions)),
    ]


async def follow_board(doors: Doors, who: Principal) -> AsyncGenerator[str, None]:
    """Yield a line for whatever happens on a tenant's board from now on."""
    seen = max((card.seq for card in await doors.board.cards(who)), default=0)
    yield ": the board\n"
    async with aclosing(doors.board.watch(seen, who)) as moments:
        async for seq, _, _ in moments:
            yield f"data: {seq}\n"


def _told(progress: Progress, outcome: Outcome, lane: Lane) -> Mapping[str, Any]:
    """Return a seat: its lane, how it stands, what it used and for how long it has been at it."""
    state = progress.state
    stand = None if state is None else seat_of(state, lane.seat)
    over = outcome.status.ended or lane.waits == ENDED
    until = _at(lane.ended) if lane.ended else None if outcome.status.ended else datetime.now(UTC)
    began = _at(lane.began)
    return {
        "lane": lane,
        "stand": stand,
        "used": _used(progress, lane.seat),
        "over": over,
        "seconds": (until - began).total_seconds() if until and began else 0,
    }


def _agent(progress: Progress) -> str:
    """Return the name of the agent of a file of which this is a run."""
    asked = progress.state.requested.value if progress.state and progress.state.requested else None
    return asked.agent.name if asked and asked.agent else ""


def _words(progress: Progress) -> Sequence[tuple[str, str, str]]:
    """Return what was said to the seats: by whom, what, and which of them have heard it."""
    return [
        (by, message, ", ".join(lane.seat for lane in progress.lanes.values() if name in lane.told))
        for name, (by, message) in progress.words.items()
    ]


def _used(progress: Progress, by: str = "") -> Usage:
    """Return what a seat used, or all of them and the council itself."""
    calls = [fact.value for fact in progress.state.calls.values()] if progress.state else []
    return sum((usage for seat, usage in calls if by in {"", seat}), Usage())


def _elapsed(progress: Progress, outcome: Outcome) -> float:
    """Return the seconds from a request to its decision, or until now."""
    requested = progress.state.requested if progress.state else None
    if outcome.status.ended or requested is None:
        return outcome.duration_ms / 1000
    return (datetime.now(UTC) - requested.time).total_seconds()


def _at(time: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
