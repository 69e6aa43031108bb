"""Stories, plans and deliberations under `/api/v1`: the methods of the proto services under paths
for web clients.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import (
    JSON,
    KEY_CHARS,
    SEQ_DIGITS,
    Body,
    HttpOperation,
    ServerSentEvents,
    document,
    message,
    to_json,
)
from moothall.api.identity import caller
from moothall.api.orchestrator import OrchestratorService
from moothall.api.stories import Planning, StoryCoach
from moothall.domain.codec import dump
from moothall.domain.ids import Principal, digest, new_task_id
from moothall.errors import InvalidRequest, Permanent
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as orchestrator
from moothall.pb.planning.v1 import planning_pb2 as pb
from moothall.pb.storycoach.v1 import storycoach_pb2 as coach
from moothall.stories.board import Board
from moothall.stories.lifecycle import SYSTEM, decide, lifecycle
from moothall.stories.story_state import StoryState


class _Moment(Body):
    """An event of a story."""

    id: str
    type: str
    time: str
    data: dict[str, Any]


class _Move(Body):
    """A move from a story's current state; `missing` is what the caller lacks for it."""

    event: str
    to: str
    missing: str


class _StoryDetails(Body):
    """The fields of the response that GetStory does not have."""

    history: tuple[_Moment, ...]
    moves: tuple[_Move, ...]


def story_operations(dependencies: ApiDependencies) -> Sequence[HttpOperation]:
    """Return the operations on the board, plans, the coach and deliberations."""
    planning = Planning(dependencies)
    return (
        *_board_operations(planning),
        *_story_operations(dependencies.stories.board, planning),
        *_move_operations(planning),
        *_coach_operations(dependencies),
        *_event_operations(planning),
        *_plan_operations(planning),
        *_deliberation_operations(dependencies),
    )


def _board_operations(planning: Planning) -> Sequence[HttpOperation]:
    async def list_stories(_request: Request) -> Response:
        """The stories of the caller's tenant."""
        return _respond(await planning.ListStories(pb.ListStoriesRequest(), None))

    async def create(request: Request) -> Response:
        """The same `Idempotency-Key` and story again return the same story."""
        response = await planning.create(
            await message(request, pb.CreateStoryRequest), _request_key(request)
        )
        return _respond(response, 201, {"Location": f"/api/v1/stories/{response.story_id}"})

    return (
        HttpOperation("GET", "/api/v1/stories", list_stories, response_type=pb.ListStoriesResponse),
        HttpOperation(
            "POST",
            "/api/v1/stories",
            create,
            pb.CreateStoryRequest,
            pb.CreateStoryResponse,
            status=201,
            headers=("Idempotency-Key",),
        ),
    )


def _story_operations(board: Board, planning: Planning) -> Sequence[HttpOperation]:
    async def story(request: Request) -> Response:
        """A story: GetStory, its history, and each move from its state with what the caller lacks
        for it.
        """
        story_id = request.path_params["id"]
        # Read first: an old seq is refused later, while a newer one would hide events.
        card = await board.card(story_id, caller())
        story_data = json.loads(
            to_json(await planning.GetStory(pb.GetStoryRequest(story_id=story_id), None))
        )
        details = await _story_details(board, card)
        return document(
            story_data | details.model_dump(mode="json") | {"seq": str(card.seq)},
            headers={"ETag": f'"{card.seq}"'},
        )

    async def update(request: Request) -> Response:
        """Replace the text of a story in backlog or draft. With `If-Match`, only if nothing
        happened since.
        """
        update_request = await message(request, pb.UpdateStoryRequest)
        update_request.story_id = _check_path_id("story_id", update_request.story_id, request)
        if (seen_seq := _read_if_match(request)) is None:
            seen_seq = update_request.seq or None
        response = await planning.update(update_request, seen_seq)
        return _respond(response, headers={"ETag": f'"{response.seq}"'})

    async def comment(request: Request) -> Response:
        """Comment on a story, or on a line of its result."""
        comment_request = await message(request, pb.CommentRequest)
        comment_request.story_id = _check_path_id("story_id", comment_request.story_id, request)
        await planning.comment(comment_request, _request_key(request, comment_request.request_id))
        return Response(status_code=204)

    return (
        HttpOperation(
            "GET",
            "/api/v1/stories/{id}",
            story,
            response_type=pb.GetStoryResponse,
            extra_fields=_StoryDetails,
        ),
        HttpOperation(
            "POST",
            "/api/v1/stories/{id}/comments",
            comment,
            pb.CommentRequest,
            status=204,
            headers=("Idempotency-Key",),
        ),
        HttpOperation(
            "PUT",
            "/api/v1/stories/{id}",
            update,
            pb.UpdateStoryRequest,
            pb.UpdateStoryResponse,
            headers=("If-Match",),
        ),
    )


def _move_operations(planning: Planning) -> Sequence[HttpOperation]:
    async def move(request: Request) -> Response:
        """Move a story. With `If-Match`, only if nothing happened since; a move for which evidence
        is missing is `blocked` and has no effect.
        """
        transition = await message(request, pb.TransitionRequest)
        transition.story_id = _check_path_id("story_id", transition.story_id, request)
        return _respond(await planning.move(transition, _read_if_match(request)))

    async def retry(request: Request) -> Response:
        """Start the tasks of a build again that ended without a winner."""
        retry_request = pb.RetryTasksRequest(story_id=request.path_params["id"])
        return _respond(await planning.RetryTasks(retry_request, None))

    async def merge(request: Request) -> Response:
        """Merge the commit of an accepted story that was left on a branch. With `If-Match`, only if
        nothing happened since.
        """
        merge_request = pb.MergeStoryRequest(story_id=request.path_params["id"])
        response = await planning.merge(merge_request, _read_if_match(request))
        return _respond(response, headers={"ETag": f'"{response.seq}"'})

    return (
        HttpOperation(
            "POST",
            "/api/v1/stories/{id}/transitions",
            move,
            pb.TransitionRequest,
            pb.TransitionResponse,
            headers=("If-Match",),
        ),
        HttpOperation(
            "POST", "/api/v1/stories/{id}/retry", retry, response_type=pb.RetryTasksResponse
        ),
        HttpOperation(
            "POST",
            "/api/v1/stories/{id}/merge",
            merge,
            response_type=pb.MergeStoryResponse,
            headers=("If-Match",),
        ),
    )


def _coach_operations(dependencies: ApiDependencies) -> Sequence[HttpOperation]:
    scorer = StoryCoach(dependencies.stories.author)

    async def score(request: Request) -> Response:
        """The story coach's score of a draft."""
        return _respond(
            await scorer.ScoreStory(await message(request, coach.ScoreStoryRequest), None)
        )

    return (
        HttpOperation(
            "POST", "/api/v1/coach/score", score, coach.ScoreStoryRequest, coach.ScoreStoryResponse
        ),
    )


def _event_operations(planning: Planning) -> Sequence[HttpOperation]:
    async def events(request: Request) -> Response:
        """The events of the board after `Last-Event-ID`, as server-sent events."""
        last_event_id = request.headers.get("last-event-id", "0")
        return ServerSentEvents(_follow_board(planning, _parse_seq(last_event_id, "Last-Event-ID")))

    return (
        HttpOperation(
            "GET",
            "/api/v1/events",
            events,
            response_type="text/event-stream",
            headers=("Last-Event-ID",),
        ),
    )


def _plan_operations(planning: Planning) -> Sequence[HttpOperation]:
    async def plan(request: Request) -> Response:
        """The tasks of a story, as they can be changed before its design is accepted."""
        return _respond(
            await planning.GetPlan(pb.GetPlanRequest(story_id=request.path_params["id"]), None)
        )

    async def change(request: Request) -> Response:
        """Replace the tasks of a story. `plan_id` is the plan that you saw; 409 if it changed."""
        change_request = await message(request, pb.ChangePlanRequest)
        change_request.story_id = _check_path_id("story_id", change_request.story_id, request)
        return _respond(await planning.ChangePlan(change_request, None))

    return (
        HttpOperation("GET", "/api/v1/stories/{id}/plan", plan, response_type=pb.GetPlanResponse),
        HttpOperation(
            "PUT", "/api/v1/stories/{id}/plan", change, pb.ChangePlanRequest, pb.ChangePlanResponse
        ),
    )


def _deliberation_operations(dependencies: ApiDependencies) -> Sequence[HttpOperation]:
    councils = OrchestratorService(dependencies)

    async def result(request: Request) -> Response:
        """The ranking with its reasons and the winner's diff."""
        result_request = orchestrator.GetDeliberationResultRequest(
            task_id=request.path_params["id"]
        )
        return _respond(await councils.GetDeliberationResult(result_request, None))

    async def steer(request: Request) -> Response:
        """Send a message to the seats of a running council; each reads it at its next turn."""
        steer_request = await message(request, orchestrator.SteerDeliberationRequest)
        steer_request.task_id = _check_path_id("task_id", steer_request.task_id, request)
        await councils.steer(steer_request, _request_key(request, steer_request.request_id))
        return Response(status_code=204)

    async def pause(request: Request) -> Response:
        """Pause a council: running turns finish, and no new one starts. The pause does not count
        against the deadline.
        """
        pause_request = orchestrator.PauseDeliberationRequest(task_id=request.path_params["id"])
        return _respond(await councils.PauseDeliberation(pause_request, None))

    async def resume(request: Request) -> Response:
        """Resume a paused council."""
        resume_request = orchestrator.ResumeDeliberationRequest(task_id=request.path_params["id"])
        return _respond(await councils.ResumeDeliberation(resume_request, None))

    return (
        HttpOperation(
            "GET",
            "/api/v1/deliberations/{id}",
            result,
            response_type=orchestrator.GetDeliberationResultResponse,
        ),
        HttpOperation(
            "POST",
            "/api/v1/deliberations/{id}/steer",
            steer,
            orchestrator.SteerDeliberationRequest,
            status=204,
            headers=("Idempotency-Key",),
        ),
        HttpOperation(
            "POST",
            "/api/v1/deliberations/{id}/pause",
            pause,
            response_type=orchestrator.PauseDeliberationResponse,
        ),
        HttpOperation(
            "POST",
            "/api/v1/deliberations/{id}/resume",
            resume,
            response_type=orchestrator.ResumeDeliberationResponse,
        ),
    )


async def _story_details(board: Board, card: StoryState) -> _StoryDetails:
    principal = caller()
    history = [dump(event) for event in await board.history(card.story.id, principal)]
    moments = tuple(
        _Moment(**{field_name: event[field_name] for field_name in _Moment.model_fields})
        for event in history
    )
    return _StoryDetails(history=moments, moves=_moves(card, principal))


async def _follow_board(planning: Planning, after_seq: int) -> AsyncGenerator[str, None]:
    yield ": the board\n"  # tells the client that it is connected
    async with aclosing(
        planning.WatchStories(pb.WatchStoriesRequest(after_seq=after_seq), None)
    ) as events:
        async for event in events:
            yield f"id: {event.seq}\nevent: {event.event}\ndata: {to_json(event)}\n"


def _moves(card: StoryState, principal: Principal) -> tuple[_Move, ...]:
    moves = []
    for transition in lifecycle().transitions_from(card.position.state):
        if SYSTEM in transition.by:
            continue
        try:
            decide(card.position, transition.event, principal.all_roles)
        except Permanent as error:
            missing = error.message
        else:
            missing = ""
        moves.append(_Move(event=transition.event, to=transition.target, missing=missing))
    return tuple(moves)


def _respond(message: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(message), status, headers, JSON)


def _check_path_id(name: str, document_id: str, request: Request) -> str:
    """Return the id of the path, which the document may repeat. Raises `InvalidRequest`."""
    path_id: str = request.path_params["id"]
    if document_id not in {"", path_id}:
        raise InvalidRequest(
            f"{name} is {document_id[:80]!r}, but the path has another id; leave it out"
        )
    return path_id


def _request_key(request: Request, document_id: str = "") -> str:
    """Return the key that identifies a request within its tenant. A key from a header is the
    caller's own; `document_id` is the id from the document.
    """
    header = request.headers.get("idempotency-key")
    if header is None:
        return document_id or new_task_id()
    if not 0 < len(header) <= KEY_CHARS:
        raise InvalidRequest(
            f"the Idempotency-Key has {len(header)} characters; allowed are 1 to {KEY_CHARS}"
        )
    return digest(caller().name, header)


def _read_if_match(request: Request) -> int | None:
    header = request.headers.get("if-match")
    return (
        None
        if header is None
        else _parse_seq(header.removeprefix('"').removesuffix('"'), "If-Match")
    )


def _parse_seq(text: str, header: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= SEQ_DIGITS):
        raise InvalidRequest(f"{header} is {text[:40]!r}; send a seq from an earlier response")
    return int(text)
