"""What people do about a council from its page: cancel it, let it wait, tell its seats something,
say something of a line of a diff.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.forms import read_session_form, require_session
from moothall.api.web.rendering import redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id
from moothall.domain.outcome import Outcome
from moothall.domain.plan import LineComment
from moothall.errors import InvalidRequest
from moothall.stories import comments
from moothall.stories.diffs import DiffLine, read_diff
from moothall.stories.story_state import remark as remark_of


def acting_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the forms of a council's page."""

    async def cancel(request: Request, session: Session) -> Response:
        given, task_id = await read_session_form(request, session), request.path_params["id"]
        comments.check_role(session.who)
        await dependencies.deliberations.cancel(
            check_id(task_id, "task_id"),
            given.get("reason", "").strip() or "cancelled on the page",
            session.who,
        )
        return redirect(f"/councils/{task_id}")

    async def steer(request: Request, session: Session) -> Response:
        given, task_id = await read_session_form(request, session), request.path_params["id"]
        await comments.steer(
            dependencies.deliberations,
            task_id,
            given.get("message", ""),
            session.who,
            key=given.get("key", ""),
        )
        return redirect(f"/councils/{task_id}")

    async def pause(request: Request, session: Session) -> Response:
        given, task_id = await read_session_form(request, session), request.path_params["id"]
        await comments.pause(
            dependencies.deliberations, task_id, session.who, paused=given.get("paused") == "true"
        )
        return redirect(f"/councils/{task_id}")

    async def remark(request: Request, session: Session) -> Response:
        """Say something of a line of a candidate's diff; which it is follows from the diff
        alone.
        """
        given, task_id = (
            await read_session_form(request, session),
            check_id(request.path_params["id"], "task_id"),
        )
        outcome = await dependencies.deliberations.result(task_id, session.who)
        place = _place(given.get("on", ""))
        line = _line(outcome, *place) if place else None
        if line is None or not outcome.story_id:
            raise InvalidRequest(
                "there is no such line in a diff of this task; go back and choose one of its lines "
                "by its number"
            )
        await comments.remark_on(
            dependencies.board,
            outcome,
            line,
            given.get("comment", ""),
            session.who,
            key=given.get("key", ""),
        )
        return redirect(f"/councils/{task_id}#line-{given['on']}")

    return [
        Route("/councils/{id}/cancel", require_session(cancel, sessions), methods=["POST"]),
        Route("/councils/{id}/steer", require_session(steer, sessions), methods=["POST"]),
        Route("/councils/{id}/pause", require_session(pause, sessions), methods=["POST"]),
        Route("/councils/{id}/remark", require_session(remark, sessions), methods=["POST"]),
    ]


async def remarks_on(
    dependencies: ApiDependencies, outcome: Outcome, who: Principal
) -> Mapping[tuple[str, int, str], Sequence[LineComment]]:
    """Return what was said of lines of this task's diffs, by path, number and text."""
    found: dict[tuple[str, int, str], list[LineComment]] = {}
    if outcome.story_id and await dependencies.board.find(outcome.story_id, who):
        for said in map(remark_of, await dependencies.board.history(outcome.story_id, who)):
            if said is not None and said.task_id == outcome.task_id:
                found.setdefault((said.path, said.line, said.quoted), []).append(said)
    return found


def _place(on: str) -> tuple[int, int] | None:
    """Return the rank and the number of a line in its diff, from 1, of `RANK.LINE`."""
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,6})", on, re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


def _line(outcome: Outcome, rank: int, number: int) -> DiffLine | None:
    lines = next((read_diff(result.diff) for result in outcome.results if result.rank == rank), ())
    line = lines[number - 1] if 0 < number <= len(lines) else None
    return line if line is not None and line.kind != "place" else None
