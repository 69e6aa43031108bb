"""Stories as `/api/v1` has them: what the services of the protos do, under names that a page can
ask for.
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
    Body,
    ServerSentEvents,
    document,
    message,
    to_json,
)
from moothall.api.http.openapi import KEY_CHARS, SEQ_DIGITS, HttpOperation
from moothall.api.identity import caller
from moothall.api.orchestrator import OrchestratorService
from moothall.api.stories import Planning
from moothall.api.storycoach import StoryCoach
from moothall.domain.codec import dump
from moothall.domain.identity import Principal
from moothall.domain.ids import digest, new_task_id
from moothall.errors import InvalidRequest, Permanent
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as orchestrator
from moothall.pb.planning.v1 import planning_pb2 as pb
from moothall.pb.storycoach.v1 import storycoach_pb2 as coach
from moothall.stories.lifecycle import SYSTEM, decide, lifecycle
from moothall.stories.story_state import StoryState


class _Moment(Body):
    """What happened to a story."""

    id: str
    type: str
    time: str
    data: dict[str, Any]


class _Move(Body):
    """A move from where a story stands; `missing` says what its caller lacks for it."""

    event: str
    to: str
    missing: str


class _Told(Body):
    """What is told of a story besides what GetStory says."""

    seq: str
    history: tuple[_Moment, ...]
    moves: tuple[_Move, ...]


def story_operations(dependencies: ApiDependencies) -> Sequence[HttpOperation]:
    """Return the board, plans, the coach and what came of deliberations."""
    planning = Planning(dependencies)
    return *_of_board(dependencies, planning), *_of_plans(planning), *_of_councils(dependencies)


def _of_board(dependencies: ApiDependencies, planning: Planning) -> Sequence[HttpOperation]:
    board, scorer = dependencies.board, StoryCoach(dependencies.author)

    async def list_stories(_request: Request) -> Response:
        """The stories of the caller's tenant."""
        return _answer(await planning.ListStories(pb.ListStoriesRequest(), None))

    async def create(request: Request) -> Response:
        """The same `Idempotency-Key` and story again is the same story."""
        made = await planning.create(await message(request, pb.CreateStoryRequest), _key(request))
        return _answer(made, 201, {"Location": f"/api/v1/stories/{made.story_id}"})

    async def story(request: Request) -> Response:
        """All of one: what GetStory says, its history, and each move from where it stands with what
        the caller lacks for it.
        """
        who, name = caller(), request.path_params["id"]
        card = await board.card(
            name, who
        )  # first: a seq that is too old is refused later, one too new would hide what came
        found = json.loads(
            to_json(await planning.GetStory(pb.GetStoryRequest(story_id=name), None))
        )
        history = [dump(event) for event in await board.history(name, who)]
        moments = tuple(
            _Moment(**{fact: event[fact] for fact in _Moment.model_fields}) for event in history
        )
        more = _Told(seq=str(card.seq), history=moments, moves=_moves(card, who))
        return document(found | more.model_dump(mode="json"), headers={"ETag": f'"{card.seq}"'})

    async def comment(request: Request) -> Response:
        """Say something of a story, or of a line of what was built for it."""
        said = await message(request, pb.CommentRequest)
        said.story_id = _same("story_id", said.story_id, request)
        await planning.comment(said, _key(request, said.request_id))
        return Response(status_code=204)

    async def move(request: Request) -> Response:
        """With `If-Match`, only from what its caller saw; a move for which evidence is missing is
        `blocked` and moves nothing.
        """
        asked = await message(request, pb.TransitionRequest)
        asked.story_id = _same("story_id", asked.story_id, request)
        return _answer(await planning.move(asked, _read_if_match(request)))

    async def score(request: Request) -> Response:
        """What the story coach says of a draft."""
        return _answer(
            await scorer.ScoreStory(await message(request, coach.ScoreStoryRequest), None)
        )

    async def events(request: Request) -> Response:
        """What happens on the board, as server-sent events, after `Last-Event-ID`."""
        after = request.headers.get("last-event-id", "0")
        return ServerSentEvents(_follow(planning, _number(after, "Last-Event-ID")))

    return (
        HttpOperation("GET", "/api/v1/stories", list_stories, gives=pb.ListStoriesResponse),
        HttpOperation(
            "POST",
            "/api/v1/stories",
            create,
            pb.CreateStoryRequest,
            pb.CreateStoryResponse,
            status=201,
            headers=("Idempotency-Key",),
        ),
        HttpOperation("GET", "/api/v1/stories/{id}", story, gives=pb.GetStoryResponse, more=_Told),
        HttpOperation(
            "POST",
            "/api/v1/stories/{id}/comments",
            comment,
            pb.CommentRequest,
            status=204,
            headers=("Idempotency-Key",),
        ),
        HttpOperation(
            "POST",
            "/api/v1/stories/{id}/transitions",
            move,
            pb.TransitionRequest,
            pb.TransitionResponse,
            headers=("If-Match",),
        ),
        HttpOperation(
            "POST", "/api/v1/coach/score", score, coach.ScoreStoryRequest, coach.ScoreStoryResponse
        ),
        HttpOperation(
            "GET", "/api/v1/events", events, gives="text/event-stream", headers=("Last-Event-ID",)
        ),
    )


def _of_plans(planning: Planning) -> Sequence[HttpOperation]:
    async def plan(request: Request) -> Response:
        """The tasks of a story, as they can be changed before its design is accepted."""
        return _answer(
            await planning.GetPlan(pb.GetPlanRequest(story_id=request.path_params["id"]), None)
        )

    async def change(request: Request) -> Response:
        """Put other tasks in their place; `plan_id` is the plan that you saw, and 409 says that it
        is another by now.
        """
        asked = await message(request, pb.ChangePlanRequest)
        asked.story_id = _same("story_id", asked.story_id, request)
        return _answer(await planning.ChangePlan(asked, None))

    return (
        HttpOperation("GET", "/api/v1/stories/{id}/plan", plan, gives=pb.GetPlanResponse),
        HttpOperation(
            "PUT", "/api/v1/stories/{id}/plan", change, pb.ChangePlanRequest, pb.ChangePlanResponse
        ),
    )


def _of_councils(dependencies: ApiDependencies) -> Sequence[HttpOperation]:
    councils = OrchestratorService(dependencies)

    async def result(request: Request) -> Response:
        """The ranking with its reasons and the winner's diff."""
        asked = orchestrator.GetDeliberationResultRequest(task_id=request.path_params["id"])
        return _answer(await councils.GetDeliberationResult(asked, None))

    async def steer(request: Request) -> Response:
        """Tell the seats of a council that is at work something; each hears it at its next turn."""
        said = await message(request, orchestrator.SteerDeliberationRequest)
        said.task_id = _same("task_id", said.task_id, request)
        await councils.steer(said, _key(request, said.request_id))
        return Response(status_code=204)

    async def pause(request: Request) -> Response:
        """Let it wait: turns under way end, and no other begins. Waiting is not counted against its
        deadline.
        """
        asked = orchestrator.PauseDeliberationRequest(task_id=request.path_params["id"])
        return _answer(await councils.PauseDeliberation(asked, None))

    async def resume(request: Request) -> Response:
        """Let it go on where it was."""
        asked = orchestrator.ResumeDeliberationRequest(task_id=request.path_params["id"])
        return _answer(await councils.ResumeDeliberation(asked, None))

    return (
        HttpOperation(
            "GET",
            "/api/v1/deliberations/{id}",
            result,
            gives=orchestrator.GetDeliberationResultResponse,
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
            gives=orchestrator.PauseDeliberationResponse,
        ),
        HttpOperation(
            "POST",
            "/api/v1/deliberations/{id}/resume",
            resume,
            gives=orchestrator.ResumeDeliberationResponse,
        ),
    )


async def _follow(planning: Planning, after: int) -> AsyncGenerator[str, None]:
    yield ": the board\n"  # a line by which a client knows that it is connected
    async with aclosing(
        planning.WatchStories(pb.WatchStoriesRequest(after_seq=after), None)
    ) as moments:
        async for moment in moments:
            yield f"id: {moment.seq}\nevent: {moment.event}\ndata: {to_json(moment)}\n"


def _moves(card: StoryState, who: Principal) -> tuple[_Move, ...]:
    found = []
    for line in lifecycle().transitions_from(card.stand.state):
        if SYSTEM in line.by:
            continue
        try:
            decide(card.stand, line.event, who.roles)
        except Permanent as lacking:
            missing = lacking.message
        else:
            missing = ""
        found.append(_Move(event=line.event, to=line.target, missing=missing))
    return tuple(found)


def _answer(answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(answer), status, headers, JSON)


def _same(name: str, given: str, request: Request) -> str:
    """Return the id of the path, which a document may repeat. Raises `InvalidRequest`."""
    meant: str = request.path_params["id"]
    if given not in {"", meant}:
        raise InvalidRequest(f"{name} is {given[:80]!r}, and the path names another; leave it out")
    return meant


def _key(request: Request, named: str = "") -> str:
    """Return what names a request among its tenant's: one of its caller's choice is that caller's
    own. `named` is what its document says.
    """
    given = request.headers.get("idempotency-key")
    if given is None:
        return named or new_task_id()
    if not 0 < len(given) <= KEY_CHARS:
        raise InvalidRequest(
            f"the Idempotency-Key has {len(given)} characters; it has 1 to {KEY_CHARS}"
        )
    return digest(caller().name, given)


def _read_if_match(request: Request) -> int | None:
    given = request.headers.get("if-match")
    return None if given is None else _number(given.removeprefix('"').removesuffix('"'), "If-Match")


def _number(given: str, header: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= SEQ_DIGITS):
        raise InvalidRequest(f"{header} is {given[:40]!r}; it is a seq, as the last answer told it")
    return int(given)
