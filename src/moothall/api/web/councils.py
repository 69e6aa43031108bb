"""The page of a council: what each seat is at while it runs, what it came to after."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import ServerSentEvents
from moothall.api.web.ask import earlier_tasks
from moothall.api.web.council_actions import remarks_on
from moothall.api.web.forms import require_session
from moothall.api.web.rendering import make_visible, page
from moothall.api.web.sessions import Session, Sessions
from moothall.collector.overview import seat_view
from moothall.collector.progress import Progress
from moothall.collector.seat_progress import ENDED, SeatProgress
from moothall.concurrency import Broadcast
from moothall.domain.budget import Usage
from moothall.domain.chat import Writing
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, key_of, new_task_id, own_id
from moothall.domain.outcome import Outcome
from moothall.domain.task import Deliberation
from moothall.errors import NotFound
from moothall.stories.comments import may_act

REFRESH_SECONDS = 3
_TITLE = 120
_PACE_SECONDS = 0.25
"""Between two words that something happened: what came meanwhile is in the second."""
_LOAD_SECONDS = 0.003
"""For each that listens: what loading a page anew takes, and as much again for the rest of the
server.
"""
_FIGURES = ("turns", "tool_calls", "checks", "checks_passed", "cpu_ms", "max_rss_bytes")


def council_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return what a browser gets of one deliberation."""

    async def council(request: Request, session: Session) -> Response:
        task_id = check_id(request.path_params["id"], "task_id")
        try:
            outcome = await dependencies.deliberations.result(task_id, session.who)
        except NotFound as error:
            raise NotFound(
                f"no council has begun task {task_id!r}; a story's tasks begin when its design is "
                "accepted"
            ) from error
        progress = await dependencies.tasks.get_progress(task_id, session.who)
        asked = (
            progress.state.requested.value if progress.state and progress.state.requested else None
        )
        told: dict[str, Any] = {
            "outcome": outcome,
            "progress": progress,
            "lanes": [_seat_view(progress, outcome, lane) for lane in progress.seats.values()],
            "asked": asked,
            "about": _about(asked) or f"Task {task_id}",
            "talks": asked is not None and asked.protocol == "ask",
            "before": await earlier_tasks(dependencies.tasks, asked, session.who),
            "forked": own_id(asked.fork.task_id, session.who.tenant)
            if asked and asked.fork
            else "",
            "used": outcome.usage if outcome.status.ended else _usage(progress),
            "elapsed": _elapsed_seconds(progress, outcome),
            "words": _words(progress),
            "question": question(outcome),
            "remarks": await remarks_on(dependencies, outcome, session.who),
            "on": request.query_params.get("on", ""),
            "may": may_act(session.who),
            "key": new_task_id(),
            "metrics": {name: progress.metrics.get(name, 0) for name in _FIGURES}
            if progress.metrics
            else {},
            "agent": _agent(progress),
            "paused": bool(progress.state and progress.state.pauses.held),
            "refresh": 0 if outcome.status.ended else REFRESH_SECONDS,
        }
        told["changes"] = f"/councils/{task_id}/changes"
        told["growing"] = "" if outcome.status.ended else f"/councils/{task_id}/text"
        return page("deliberation.html", session=session, **told)

    return [
        Route("/councils/{id}", require_session(council, sessions)),
        _changes(dependencies, sessions),
        _text(dependencies, sessions),
    ]


def _changes(dependencies: ApiDependencies, sessions: Sessions) -> Route:
    shared: WeakValueDictionary[str, Broadcast[int]] = (
        WeakValueDictionary()
    )  # however many look, it is read once

    async def changes(request: Request, session: Session) -> Response:
        """Say that something happened in the council, as server-sent events, from now on; after its
        end, on the board.
        """
        task_id, who = check_id(request.path_params["id"], "task_id"), session.who
        seen = (await dependencies.tasks.get_progress(task_id, who)).seq

        async def follow_events() -> AsyncGenerator[int, None]:
            async with aclosing(dependencies.deliberations.watch(task_id, seen, who)) as moments:
                async for recorded in moments:
                    yield recorded.seq

        fan = shared.setdefault(key_of(task_id, who.tenant), Broadcast(follow_events))

        async def stream() -> AsyncGenerator[str, None]:
            yield ": the council\n"
            async with aclosing(fan.listen()) as moments:
                async for seqs in moments:
                    await asyncio.sleep(turn(fan.listening))
                    yield f"data: {seqs[-1]}\n"
                    await asyncio.sleep(_PACE_SECONDS)
            async with aclosing(follow_board(dependencies, who)) as lines:
                async for line in lines:
                    yield line

        return ServerSentEvents(stream())

    return Route("/councils/{id}/changes", require_session(changes, sessions))


def _text(dependencies: ApiDependencies, sessions: Sessions) -> Route:
    shared: WeakValueDictionary[str, Broadcast[Writing]] = WeakValueDictionary()

    async def text(request: Request, session: Session) -> Response:
        """Tell what seats are writing, as server-sent events of JSON; at once empty where the
        council is over.
        """
        task_id, who = check_id(request.path_params["id"], "task_id"), session.who
        over = (await dependencies.deliberations.result(task_id, who)).status.ended
        fan = shared.setdefault(
            key_of(task_id, who.tenant),
            Broadcast(lambda: dependencies.deliberations.watch_text(task_id, who)),
        )

        async def stream() -> AsyncGenerator[str, None]:
            yield ": what seats write\n"
            if over:
                return
            async with aclosing(fan.listen()) as moments:
                async for said in moments:
                    for seat, words in {
                        one.seat: one.text for one in said
                    }.items():  # of each seat the latest
                        yield f"data: {json.dumps({'seat': seat, 'text': make_visible(words)})}\n"

        return ServerSentEvents(stream())

    return Route("/councils/{id}/text", require_session(text, sessions))


async def follow_board(dependencies: ApiDependencies, who: Principal) -> AsyncGenerator[str, None]:
    """Yield a line for whatever happens on a tenant's board from now on; what happens at once is
    one.
    """
    async with aclosing(dependencies.board.watch(None, who)) as told:
        async for moments in told:
            if moments:
                await asyncio.sleep(turn(dependencies.board.watching))
            yield f"data: {moments[-1].seq}\n" if moments else ": the board\n"
            if moments:
                await asyncio.sleep(_PACE_SECONDS)


def turn(listening: int) -> float:
    """Return after how many seconds one of so many is told: who hears of a change loads the page
    anew, and not all at the same moment.
    """
    return random.random() * listening * _LOAD_SECONDS  # noqa: S311 - no secret


def _seat_view(progress: Progress, outcome: Outcome, lane: SeatProgress) -> Mapping[str, Any]:
    """Return a seat: its lane, how it stands, what it used and for how long it has been at it."""
    state = progress.state
    stand = None if state is None else seat_view(state, lane.seat)
    over = outcome.status.ended or lane.activity == ENDED
    until = (
        _at(lane.ended_at) if lane.ended_at else None if outcome.status.ended else datetime.now(UTC)
    )
    began = _at(lane.started_at)
    return {
        "lane": lane,
        "stand": stand,
        "used": _usage(progress, lane.seat),
        "over": over,
        "seconds": (until - began).total_seconds() if until and began else 0,
    }


def _about(asked: Deliberation | None) -> str:
    """Return in a line what a council is about."""
    first = (
        next((line.strip() for line in asked.description.splitlines() if line.strip()), "")
        if asked
        else ""
    )
    return first if len(first) <= _TITLE else f"{first[: _TITLE - 1]}…"


def _agent(progress: Progress) -> str:
    """Return the name of the agent of a file of which this is a run."""
    asked = progress.state.requested.value if progress.state and progress.state.requested else None
    return asked.agent.name if asked and asked.agent else ""


def _words(progress: Progress) -> Sequence[tuple[str, str, str]]:
    """Return what was said to the seats: by whom, what, and which of them have heard it."""
    return [
        (
            by,
            message,
            ", ".join(lane.seat for lane in progress.seats.values() if name in lane.steering_ids),
        )
        for name, (by, message) in progress.steering.items()
    ]


def _usage(progress: Progress, by: str = "") -> Usage:
    """Return what a seat used, or all of them and the council itself."""
    calls = [fact.value for fact in progress.state.calls.values()] if progress.state else []
    return sum((usage for seat, usage in calls if by in {"", seat}), Usage())


def _elapsed_seconds(progress: Progress, outcome: Outcome) -> float:
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


def question(outcome: Outcome) -> list[tuple[str, list[str]]]:
    """Return the answers between which no test or review decides, each with its summary and seats.
    It is for a person to decide.
    """
    ways: dict[str, tuple[str, list[str]]] = {}
    for result in outcome.results:
        if result.undecided:
            ways.setdefault(result.diff, (result.content, []))[1].append(result.seat)
    return (
        [(why, list(dict.fromkeys(seats))) for why, seats in ways.values()] if len(ways) > 1 else []
    )
