"""The page of a council, the steps of its timeline, and the list of runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import ServerSentEvents
from moothall.api.web.board_page import NOTIFY_SECONDS, BoardChanges, last_seen, reload_delay
from moothall.api.web.charts import draw_timeline
from moothall.api.web.council_actions import (
    OpenFile,
    earlier_tasks,
    find_line,
    find_story,
    line_comments,
    story_decision,
)
from moothall.api.web.rendering import REFRESH_SECONDS, fragment, make_visible, page, part
from moothall.api.web.results import Comparison, compare
from moothall.api.web.sessions import Session, Sessions, read_query, require_session
from moothall.collector.overview import seat_view
from moothall.collector.progress import ENDED, Progress, SeatProgress
from moothall.collector.timeline import Block, Timeline
from moothall.concurrency import Broadcast
from moothall.domain.budget import Usage
from moothall.domain.chat import Writing
from moothall.domain.event import parse_time
from moothall.domain.ids import check_task_id, key_of, new_task_id, own_id
from moothall.domain.outcome import Outcome
from moothall.domain.status import TaskView
from moothall.domain.task import Deliberation
from moothall.errors import InvalidRequest, NotFound
from moothall.stories.diff_lines import read_files
from moothall.stories.story_state import StoryState

# The page of a council: the seats' progress while it runs, and its results.


_TITLE_CHARS = 120
_METRICS = ("turns", "tool_calls", "checks", "checks_passed", "cpu_ms", "max_rss_bytes")


def council_routes(
    dependencies: ApiDependencies, sessions: Sessions, board_changes: BoardChanges
) -> Sequence[Route]:
    """Return the routes of a deliberation's page."""

    async def council(request: Request, session: Session) -> Response:
        task_id = check_task_id(request.path_params["id"])
        try:
            outcome = await dependencies.deliberations.result(task_id, session.principal)
        except NotFound as error:
            raise NotFound(
                f"no council has started task {task_id!r}; a story's tasks start when its design "
                "is accepted"
            ) from error
        (progress, timeline), story = await asyncio.gather(
            dependencies.records.tasks.get_details(task_id, session.principal),
            find_story(dependencies, outcome, session.principal),
        )
        context = await _council_context(dependencies, session, outcome, progress, story)
        context |= {"chart": draw_timeline(timeline), "on": request.query_params.get("on", "")}
        context["title"] = context["title"] or f"Task {task_id}"
        context["changes"] = f"/councils/{task_id}/changes"
        context["growing"] = "" if outcome.status.ended else f"/councils/{task_id}/text"

        def read_diffs() -> tuple[Comparison, OpenFile]:
            return compare(outcome, progress), _open_file(request, outcome)

        # In a thread, because a diff may be large.
        context["compared"], context["open_file"] = await asyncio.to_thread(read_diffs)
        return page("deliberation.html", session=session, **context)

    return [
        Route("/councils/{id}", require_session(council, sessions)),
        _lines(dependencies, sessions),
        _changes(dependencies, sessions, board_changes),
        _text(dependencies, sessions),
    ]


async def _council_context(
    dependencies: ApiDependencies,
    session: Session,
    outcome: Outcome,
    progress: Progress,
    story: StoryState | None,
) -> dict[str, Any]:
    """Return what the template of the page shows of a council, except its timeline and diffs."""
    deliberation = (
        progress.state.requested.value if progress.state and progress.state.requested else None
    )
    return {
        "outcome": outcome,
        "progress": progress,
        "lanes": [_seat_view(progress, outcome, lane) for lane in progress.seats.values()],
        "deliberation": deliberation,
        "title": council_title(deliberation),
        "is_conversation": deliberation is not None and deliberation.protocol == "ask",
        "earlier_tasks": await earlier_tasks(
            dependencies.records.tasks, deliberation, session.principal
        ),
        "forked": own_id(deliberation.fork.task_id, session.principal.tenant)
        if deliberation and deliberation.fork
        else "",
        "usage": outcome.usage if outcome.status.ended else _usage(progress),
        "elapsed": _elapsed_seconds(progress, outcome),
        "steps": "closed" if outcome.status.ended else "",
        "messages": _steering_messages(progress),
        "refused": _refused_calls(progress),
        "undecided": undecided_answers(outcome),
        "story": story,
        "remarks": await line_comments(dependencies, outcome, session.principal) if story else {},
        "may_act": session.principal.may_act,
        "decision": story_decision(story, session.principal) if story else None,
        "key": new_task_id(),
        "metrics": {name: progress.metrics.get(name, 0) for name in _METRICS}
        if progress.metrics
        else {},
        "agent": _agent_name(progress),
        "paused": bool(progress.state and progress.state.pauses.is_paused),
        "refresh": 0 if outcome.status.ended else REFRESH_SECONDS,
        "seq": progress.seq,
    }


def _open_file(request: Request, outcome: Outcome) -> OpenFile:
    """Return the file that the URL asks for, by number or by a line."""
    found_line = find_line(outcome, request.query_params.get("on", ""))
    return OpenFile.of_line(found_line) if found_line else OpenFile.of(request)


def _lines(dependencies: ApiDependencies, sessions: Sessions) -> Route:
    async def lines(request: Request, session: Session) -> Response:
        """Return lines of a file of a diff, for the script to put into the page."""
        task_id, place = check_task_id(request.path_params["id"]), OpenFile.of(request)
        outcome = await dependencies.deliberations.result(task_id, session.principal)
        story = await find_story(dependencies, outcome, session.principal)
        remarks = await line_comments(dependencies, outcome, session.principal) if story else {}

        def render() -> Markup:
            result = next((item for item in outcome.results if item.rank == place.rank), None)
            files = read_files(result.diff) if result else ()
            if not 0 < place.file <= len(files):
                raise NotFound(f"task {task_id!r} has no such file")
            return part(
                "diff_file.html",
                file=files[place.file - 1],
                number=place.file,
                start=place.start,
                result=result,
                outcome=outcome,
                story=story,
                remarks=remarks,
                on="",
            )

        return fragment(await asyncio.to_thread(render))

    return Route("/councils/{id}/lines", require_session(lines, sessions))


def _changes(
    dependencies: ApiDependencies, sessions: Sessions, board_changes: BoardChanges
) -> Route:
    shared: WeakValueDictionary[str, Broadcast[int]] = (
        WeakValueDictionary()
    )  # the events are read once for all readers

    async def changes(request: Request, session: Session) -> Response:
        """Notify of events in the council, and of events on the board after its end, as server-sent
        events.
        """
        task_id, principal, seen_seq = (
            check_task_id(request.path_params["id"]),
            session.principal,
            last_seen(request),
        )
        last_seq = (await dependencies.records.tasks.get_progress(task_id, principal)).seq

        async def follow_events() -> AsyncGenerator[int, None]:
            async with aclosing(
                dependencies.deliberations.watch(task_id, last_seq, principal)
            ) as batches:
                async for recorded in batches:
                    yield recorded.seq

        broadcast = shared.setdefault(key_of(task_id, principal.tenant), Broadcast(follow_events))

        async def stream() -> AsyncGenerator[str, None]:
            yield ": the council\n"
            if seen_seq is not None and seen_seq < last_seq:
                yield f"id: {last_seq}\ndata:\n"
            async with aclosing(broadcast.subscribe()) as batches:
                async for seqs in batches:
                    await asyncio.sleep(reload_delay(broadcast.subscriber_count))
                    yield f"id: {seqs[-1]}\ndata:\n"
                    await asyncio.sleep(NOTIFY_SECONDS)
            async with aclosing(board_changes.follow(principal, seen_seq)) as lines:
                async for line in lines:
                    yield line

        return ServerSentEvents(stream())

    return Route("/councils/{id}/changes", require_session(changes, sessions))


def _text(dependencies: ApiDependencies, sessions: Sessions) -> Route:
    shared: WeakValueDictionary[str, Broadcast[Writing]] = WeakValueDictionary()

    async def text(request: Request, session: Session) -> Response:
        """Stream what the seats write, as server-sent events of JSON. The stream is empty if the
        council has ended.
        """
        task_id, principal = check_task_id(request.path_params["id"]), session.principal
        has_ended = (await dependencies.deliberations.result(task_id, principal)).status.ended
        broadcast = shared.setdefault(
            key_of(task_id, principal.tenant),
            Broadcast(lambda: dependencies.deliberations.watch_text(task_id, principal)),
        )

        async def stream() -> AsyncGenerator[str, None]:
            yield ": what seats write\n"
            if has_ended:
                return
            async with aclosing(broadcast.subscribe()) as batches:
                async for batch in batches:
                    latest = {writing.seat: writing.text for writing in batch}
                    for seat, text in latest.items():
                        yield f"data: {json.dumps({'seat': seat, 'text': make_visible(text)})}\n"

        return ServerSentEvents(stream())

    return Route("/councils/{id}/text", require_session(text, sessions))


def _refused_calls(progress: Progress) -> Sequence[tuple[str, str, str, str]]:
    """Return the latest tool calls of each seat that were refused: seat, tool, status, reason."""
    return [(lane.seat, *call) for lane in progress.seats.values() for call in lane.refused]


def _seat_view(progress: Progress, outcome: Outcome, lane: SeatProgress) -> Mapping[str, Any]:
    """Return a seat's view: its lane, state, usage and duration."""
    state = progress.state
    view = None if state is None else seat_view(state, lane.seat, outcome)
    has_ended = outcome.status.ended or lane.activity == ENDED
    end_time = (
        parse_time(lane.ended_at)
        if lane.ended_at
        else None
        if outcome.status.ended
        else datetime.now(UTC)
    )
    start_time = parse_time(lane.started_at)
    return {
        "lane": lane,
        "view": view,
        "usage": _usage(progress, lane.seat),
        "has_ended": has_ended,
        "seconds": (end_time - start_time).total_seconds() if end_time and start_time else 0,
    }


def council_title(deliberation: Deliberation | None) -> str:
    """Return the first line of a council's task, shortened."""
    first_line = (
        next((line.strip() for line in deliberation.description.splitlines() if line.strip()), "")
        if deliberation
        else ""
    )
    return first_line if len(first_line) <= _TITLE_CHARS else f"{first_line[: _TITLE_CHARS - 1]}…"


def _agent_name(progress: Progress) -> str:
    """Return the name of the agent file that this is a run of, '' for none."""
    deliberation = (
        progress.state.requested.value if progress.state and progress.state.requested else None
    )
    return deliberation.agent.name if deliberation and deliberation.agent else ""


def _steering_messages(progress: Progress) -> Sequence[tuple[str, str, str]]:
    """Return the steering messages: the sender, the text, and the seats that have received it."""
    return [
        (
            sender,
            message,
            ", ".join(lane.seat for lane in progress.seats.values() if name in lane.steering_ids),
        )
        for name, (sender, message) in progress.steering.items()
    ]


def _usage(progress: Progress, seat: str = "") -> Usage:
    """Return the usage of a seat; without a seat, that of all seats and the council itself."""
    calls = [fact.value for fact in progress.state.calls.values()] if progress.state else []
    return sum((usage for caller, usage in calls if seat in {"", caller}), Usage())


def _elapsed_seconds(progress: Progress, outcome: Outcome) -> float:
    """Return the seconds from a request to its decision, or until now."""
    request_event = progress.state.requested if progress.state else None
    if outcome.status.ended or request_event is None:
        return outcome.duration_ms / 1000
    return (datetime.now(UTC) - request_event.time).total_seconds()


def undecided_answers(outcome: Outcome) -> list[tuple[str, list[str]]]:
    """Return the answers that no test or review decides between, each with its summary and seats. A
    person decides between them.
    """
    answers: dict[str, tuple[str, list[str]]] = {}
    for result in outcome.results:
        if result.undecided:
            answers.setdefault(result.diff, (result.content, []))[1].append(result.seat)
    return (
        [(summary, list(dict.fromkeys(seats))) for summary, seats in answers.values()]
        if len(answers) > 1
        else []
    )


# The steps of a council's timeline: a page for each with its prompt, reply and tool output. The
# council's page loads them into its list of steps.


_MAX_DIGITS = 9


def step_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of a step, named by its lane and its place in the lane, from 0. With the
    parameter `part`, the answer is a fragment for the council's page.
    """

    async def step(request: Request, session: Session) -> Response:
        task_id = check_task_id(request.path_params["id"])
        progress, timeline = await dependencies.records.tasks.get_details(
            task_id, session.principal
        )
        lane, place = request.path_params["lane"], request.path_params["place"]
        blocks = _find_lane(timeline, lane)
        is_number = place.isascii() and place.isdecimal() and len(place) <= _MAX_DIGITS
        index = int(place) if is_number else len(blocks)
        if index >= len(blocks):
            raise NotFound("this council has no such step")
        block = blocks[index]
        calls = (
            await dependencies.records.tasks.get_model_calls(task_id, session.principal)
            if block.call
            else {}
        )
        context: dict[str, Any] = {"block": block, "call": calls.get(block.call), "full": True}
        if "part" in request.query_params:
            return fragment(await asyncio.to_thread(part, "step.html", **context))
        request_event = progress.state.requested if progress.state else None
        return page(
            "step_page.html",
            session=session,
            task_id=task_id,
            title=council_title(request_event.value if request_event else None)
            or f"Task {task_id}",
            lane=lane,
            index=index,
            count=len(blocks),
            **context,
        )

    path = "/councils/{id}/steps/{lane}/{place}"
    return [Route(path, require_session(step, sessions))]


def _find_lane(timeline: Timeline, name: str) -> Sequence[Block]:
    """Return the steps of a lane; none if there is no such lane."""
    return next((lane.blocks for lane in timeline.lanes if lane.name == name), ())


# The list of runs: every deliberation of the tenant, from the page, the command line and the APIs.


_PAGE_SIZE = 50
_MAX_PAGE = 20
"""The overview keeps the latest thousand runs."""
_STATES = {"": "All", "live": "Running", "ended": "Ended", "failed": "Failed"}


_SORT_KEYS: Mapping[str, Callable[[TaskView], Any]] = {
    "status": lambda view: (view.status.ended, bool(view.winner_id), view.status.value),
    "evidence": lambda view: (not view.winner_id, view.level),
    "repository": lambda view: view.repository,
    "by": lambda view: (view.principal, view.agent),
    "time": lambda view: -view.duration_ms,
}
"""The columns by which runs can be sorted; within equal ones, the latest is first."""


def runs_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the list of runs."""

    async def runs(request: Request, session: Session) -> Response:
        state, number = request.query_params.get("state", ""), _page_number(request)
        if state not in _STATES:
            raise InvalidRequest(f"state is {state[:40]!r}; allowed are live, ended and failed")
        query, sort_key = read_query(request), request.query_params.get("sort", "")
        if sort_key and sort_key not in _SORT_KEYS:
            raise InvalidRequest(f"sort is {sort_key[:40]!r}; allowed are {', '.join(_SORT_KEYS)}")
        first = (number - 1) * _PAGE_SIZE
        # One more than are shown tells whether there is a next page.
        views = (
            await _list_sorted(dependencies, session, state, query, sort_key)
            if sort_key
            else await dependencies.records.tasks.list_tasks(
                session.principal, state, first + _PAGE_SIZE + 1, query=query
            )
        )[first : first + _PAGE_SIZE + 1]
        page_runs = views[:_PAGE_SIZE]
        return page(
            "runs.html",
            session=session,
            runs=page_runs,
            states=_STATES,
            state=state,
            query=query,
            sort=sort_key,
            title_of=title_of,
            number=number,
            has_next=len(views) > _PAGE_SIZE and number < _MAX_PAGE,
            refresh=REFRESH_SECONDS if any(not view.status.ended for view in page_runs) else 0,
        )

    return [Route("/runs", require_session(runs, sessions))]


async def _list_sorted(
    dependencies: ApiDependencies, session: Session, state: str, query: str, sort_key: str
) -> Sequence[TaskView]:
    views = await dependencies.records.tasks.list_tasks(
        session.principal, state, _MAX_PAGE * _PAGE_SIZE, query=query
    )
    return sorted(views, key=_SORT_KEYS[sort_key])


def _page_number(request: Request) -> int:
    """Return the number of the page, from 1. Raises `InvalidRequest`."""
    text = request.query_params.get("page", "1")
    number = (
        int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_PAGE)) else 0
    )
    if not 1 <= number <= _MAX_PAGE:
        raise InvalidRequest(f"page is {text[:40]!r}; allowed are 1 to {_MAX_PAGE}")
    return number


def title_of(view: TaskView) -> str:
    """Return the first line of a run's task, or its id."""
    return view.description.split("\n")[0] or view.task_id
