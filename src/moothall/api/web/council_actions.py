"""The actions on a council's page: cancel, pause, steer, comment on a line; and the view Ask, where
a user asks one agent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.operations import known_repositories
from moothall.api.web.rendering import MAX_DIFF_LINES, page, redirect
from moothall.api.web.sessions import Session, Sessions, read_session_form, require_session
from moothall.api.web.story_page import moves
from moothall.collector.overview import Overview
from moothall.domain.ids import ROLES, Principal, check_task_id, new_task_id, own_id
from moothall.domain.outcome import Outcome
from moothall.domain.plan import LineComment
from moothall.domain.status import TaskView
from moothall.domain.task import Deliberation, DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, NotFound, RepositoryError
from moothall.stories import council_actions
from moothall.stories.diff_lines import DiffLine, read_files
from moothall.stories.lifecycle import lifecycle
from moothall.stories.story_state import StoryState
from moothall.stories.story_state import remark as remark_of

# The actions on a council's page: cancel, pause, steer, and comment on a line of a diff.


_REVIEWED_STATES = ("test", "docs")


def council_action_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the forms on a council's page."""
    deliberations = dependencies.deliberations

    async def cancel(request: Request, session: Session) -> Response:
        form, task_id = await read_session_form(request, session), request.path_params["id"]
        council_actions.check_role(session.principal)
        await deliberations.cancel(
            check_task_id(task_id),
            form.get("reason", "").strip() or f"by {session.principal.name}, on the page",
            session.principal,
        )
        return redirect(f"/councils/{task_id}")

    async def steer(request: Request, session: Session) -> Response:
        form, task_id = await read_session_form(request, session), request.path_params["id"]
        await council_actions.steer(
            deliberations,
            task_id,
            form.get("message", ""),
            session.principal,
            key=form.get("key", ""),
        )
        return redirect(f"/councils/{task_id}")

    async def pause(request: Request, session: Session) -> Response:
        form, task_id = await read_session_form(request, session), request.path_params["id"]
        paused = form.get("paused") == "true"
        await council_actions.pause(deliberations, task_id, session.principal, paused=paused)
        return redirect(f"/councils/{task_id}")

    async def comment_on_line(request: Request, session: Session) -> Response:
        """Comment on a line of a candidate's diff. The position must exist in the diff."""
        form = await read_session_form(request, session)
        task_id = check_task_id(request.path_params["id"])
        outcome = await deliberations.result(task_id, session.principal)
        found_line = await asyncio.to_thread(find_line, outcome, form.get("on", ""))
        if found_line is None or found_line.line.kind == "place" or not outcome.story_id:
            raise InvalidRequest(
                "the diffs of this task have no such line; go back and click the number of a line"
            )
        await council_actions.remark_on(
            dependencies.stories.board,
            outcome,
            found_line.line,
            form.get("comment", ""),
            session.principal,
            key=form.get("key", ""),
        )
        place = OpenFile.of_line(found_line)
        return redirect(f"/councils/{task_id}?{place.query}#line-{form['on']}")

    return [
        Route("/councils/{id}/cancel", require_session(cancel, sessions), methods=["POST"]),
        Route("/councils/{id}/steer", require_session(steer, sessions), methods=["POST"]),
        Route("/councils/{id}/pause", require_session(pause, sessions), methods=["POST"]),
        Route(
            "/councils/{id}/remark", require_session(comment_on_line, sessions), methods=["POST"]
        ),
    ]


async def find_story(
    dependencies: ApiDependencies, outcome: Outcome, principal: Principal
) -> StoryState | None:
    """Return the story that an outcome belongs to, or None if the board has no such story."""
    return (
        await dependencies.stories.board.find(outcome.story_id, principal)
        if outcome.story_id
        else None
    )


async def line_comments(
    dependencies: ApiDependencies, outcome: Outcome, principal: Principal
) -> Mapping[tuple[str, int, str], Sequence[LineComment]]:
    """Return the comments on lines of this task's diffs, by path, line number and text. Its story
    must exist.
    """
    remarks: dict[tuple[str, int, str], list[LineComment]] = {}
    for comment in map(
        remark_of, await dependencies.stories.board.history(outcome.story_id, principal)
    ):
        if comment is not None and comment.task_id == outcome.task_id:
            remarks.setdefault((comment.path, comment.line, comment.quoted), []).append(comment)
    return remarks


@dataclass(frozen=True, slots=True)
class StoryDecision:
    """The decision that a story waits for. `moves` are those that the user may make: the event,
    whether it accepts the result, and why it is blocked (empty if it is not). `comment_count`: the
    comments on lines that go with a story that is sent back.
    """

    moves: tuple[tuple[str, bool, str], ...]
    comment_count: int


def story_decision(card: StoryState, principal: Principal) -> StoryDecision | None:
    """Return the decision that the story of a council waits for. Return None if its result is not
    reviewed now, or not by this user.
    """
    if card.position.state not in _REVIEWED_STATES:
        return None
    reasons = {event: reason for event, _, reason in moves(card, principal)}
    possible = tuple(
        (transition.event, is_accept, reasons[transition.event])
        for is_accept in (True, False)
        if (transition := lifecycle().next_transition(card.position.state, back=not is_accept))
        and transition.event in reasons
    )
    return StoryDecision(possible, len(card.remarks)) if possible else None


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line of a candidate's diff, with the rank of the candidate, the number of the file, from 1,
    and the index of the line in the file.
    """

    rank: int
    file: int
    index: int
    line: DiffLine


@dataclass(frozen=True, slots=True)
class OpenFile:
    """The file of a diff whose lines the URL asks for, from the index `start`: the rank of its
    candidate and its number, from 1. Zeros for none.
    """

    rank: int = 0
    file: int = 0
    start: int = 0

    @classmethod
    def of_line(cls, found_line: FoundLine) -> OpenFile:
        """Return the part of a file that contains a line."""
        return cls(
            found_line.rank, found_line.file, found_line.index // MAX_DIFF_LINES * MAX_DIFF_LINES
        )

    @classmethod
    def of(cls, request: Request) -> OpenFile:
        """Read the file from a URL; other values than numbers count as 0."""
        texts = (request.query_params.get(name, "") for name in ("rank", "file", "from"))
        return cls(*(int(text) if re.fullmatch(r"[0-9]{1,7}", text) else 0 for text in texts))

    @property
    def query(self) -> str:
        """The file in a URL."""
        start = f"&from={self.start}" if self.start else ""
        return f"rank={self.rank}&file={self.file}{start}"


def find_line(outcome: Outcome, position: str) -> FoundLine | None:
    """Return the line at the position `RANK.LINE`: a candidate's rank and the number of a line in
    its diff, from 1. Return None if it does not exist.
    """
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,6})", position, re.ASCII)
    if match is None:
        return None
    rank, number = int(match[1]), int(match[2])
    diff = next((result.diff for result in outcome.results if result.rank == rank), "")
    files = read_files(diff)
    file_number = sum(file.first_number <= number for file in files)
    lines = files[file_number - 1].lines if file_number else ()
    return next(
        (
            FoundLine(rank, file_number, index, line)
            for index, (line_number, line) in enumerate(lines)
            if line_number == number
        ),
        None,
    )


# The view Ask: a question to one agent. The answer is on the council's page, where the conversation
# continues.


_MAX_SHOWN, _MAX_LISTED = 20, 100


def ask_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the page, which also lists recent questions."""

    async def form(session: Session, fields: Mapping[str, str], error: str = "") -> Response:
        latest = await dependencies.records.tasks.list_tasks(session.principal, limit=_MAX_LISTED)
        return page(
            "ask.html",
            400 if error else 200,
            session=session,
            fields=fields,
            error=error,
            roles=ROLES,
            repositories=known_repositories(dependencies, session.principal),
            may_ask=session.principal.may_act,
            key=new_task_id(),
            questions=[view for view in latest if view.protocol == "ask"][:_MAX_SHOWN],
        )

    async def submit_question(request: Request, session: Session) -> Response:
        if request.method == "GET":
            return await form(session, {})
        fields = await read_session_form(request, session)
        council_actions.check_role(session.principal)
        try:
            deliberation = await dependencies.deliberations.submit(
                _request(fields), session.principal
            )
        except (InvalidRequest, NotFound, RepositoryError) as error:
            return await form(session, fields, error.message)
        return redirect(f"/councils/{deliberation.own_id}")

    return [Route("/ask", require_session(submit_question, sessions), methods=["GET", "POST"])]


def _request(fields: Mapping[str, str]) -> DeliberationRequest:
    """Convert a form. A follow-up question has the subject of the earlier task. `key` makes a form
    that is sent twice one question.
    """
    repository, follows = fields.get("repository", "").strip(), fields.get("follows", "")
    return DeliberationRequest(
        description=fields.get("question", ""),
        role=fields.get("role") or ROLES[0],
        task_id=fields.get("key", ""),
        num_agents=1,
        repository=RepositoryRef.from_name(repository) if repository else None,
        protocol="ask",
        about_text=not (repository or follows),
        follows=follows,
    )


async def earlier_tasks(
    tasks: Overview, deliberation: Deliberation | None, principal: Principal
) -> Sequence[TaskView]:
    """Return the earlier tasks of a conversation, oldest first, as far as they are known."""
    if deliberation is None or not deliberation.follows:
        return ()
    try:
        return await tasks.get_conversation(
            own_id(deliberation.follows, principal.tenant), principal
        )
    except NotFound:
        return ()
