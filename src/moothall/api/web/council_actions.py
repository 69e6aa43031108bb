"""The actions on a council's page: cancel, pause, steer, and comment on a line of a diff."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.forms import read_session_form, require_session
from moothall.api.web.rendering import redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.domain.identity import Principal
from moothall.domain.ids import check_task_id
from moothall.domain.outcome import Outcome
from moothall.domain.plan import LineComment
from moothall.errors import InvalidRequest
from moothall.stories import comments
from moothall.stories.diffs import DiffLine, read_diff, read_files
from moothall.stories.story_state import remark as remark_of


def council_action_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the forms on a council's page."""

    async def cancel(request: Request, session: Session) -> Response:
        form, task_id = await read_session_form(request, session), request.path_params["id"]
        comments.check_role(session.who)
        await dependencies.deliberations.cancel(
            check_task_id(task_id),
            form.get("reason", "").strip() or "cancelled on the page",
            session.who,
        )
        return redirect(f"/councils/{task_id}")

    async def steer(request: Request, session: Session) -> Response:
        form, task_id = await read_session_form(request, session), request.path_params["id"]
        await comments.steer(
            dependencies.deliberations,
            task_id,
            form.get("message", ""),
            session.who,
            key=form.get("key", ""),
        )
        return redirect(f"/councils/{task_id}")

    async def pause(request: Request, session: Session) -> Response:
        form, task_id = await read_session_form(request, session), request.path_params["id"]
        await comments.pause(
            dependencies.deliberations, task_id, session.who, paused=form.get("paused") == "true"
        )
        return redirect(f"/councils/{task_id}")

    async def remark(request: Request, session: Session) -> Response:
        """Comment on a line of a candidate's diff. The position must exist in the diff."""
        form, task_id = (
            await read_session_form(request, session),
            check_task_id(request.path_params["id"]),
        )
        outcome = await dependencies.deliberations.result(task_id, session.who)
        position = _parse_position(form.get("on", ""))
        line = _line(outcome, *position) if position else None
        if line is None or not outcome.story_id:
            raise InvalidRequest(
                "the diffs of this task have no such line; go back and click the number of a line"
            )
        await comments.remark_on(
            dependencies.board,
            outcome,
            line,
            form.get("comment", ""),
            session.who,
            key=form.get("key", ""),
        )
        rank, file = file_of(outcome, form["on"])
        return redirect(f"/councils/{task_id}?rank={rank}&file={file}#line-{form['on']}")

    return [
        Route("/councils/{id}/cancel", require_session(cancel, sessions), methods=["POST"]),
        Route("/councils/{id}/steer", require_session(steer, sessions), methods=["POST"]),
        Route("/councils/{id}/pause", require_session(pause, sessions), methods=["POST"]),
        Route("/councils/{id}/remark", require_session(remark, sessions), methods=["POST"]),
    ]


async def line_comments(
    dependencies: ApiDependencies, outcome: Outcome, who: Principal
) -> Mapping[tuple[str, int, str], Sequence[LineComment]]:
    """Return the comments on lines of this task's diffs, by path, line number and text."""
    remarks: dict[tuple[str, int, str], list[LineComment]] = {}
    if outcome.story_id and await dependencies.board.find(outcome.story_id, who):
        for comment in map(remark_of, await dependencies.board.history(outcome.story_id, who)):
            if comment is not None and comment.task_id == outcome.task_id:
                remarks.setdefault((comment.path, comment.line, comment.quoted), []).append(comment)
    return remarks


def file_of(outcome: Outcome, position: str) -> tuple[int, int]:
    """Return the rank of the candidate and the number of the file, from 1, in which a position of
    its diff is; zeros for a position that does not exist.
    """
    rank, number = _parse_position(position) or (0, 0)
    for index, file in enumerate(read_files(_diff_of(outcome, rank)), 1):
        if any(line_number == number for line_number, _ in file.lines):
            return rank, index
    return 0, 0


def _diff_of(outcome: Outcome, rank: int) -> str:
    return next((result.diff for result in outcome.results if result.rank == rank), "")


def _parse_position(position: str) -> tuple[int, int] | None:
    """Parse `RANK.LINE`: a candidate's rank and the number of a line in its diff, from 1."""
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,6})", position, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def _line(outcome: Outcome, rank: int, number: int) -> DiffLine | None:
    lines = read_diff(_diff_of(outcome, rank), sys.maxsize)
    line = lines[number - 1] if 0 < number <= len(lines) else None
    return line if line is not None and line.kind != "place" else None
