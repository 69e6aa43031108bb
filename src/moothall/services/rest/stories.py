"""Stories as `/api/v1` has them: what the services of the protos do, under names that a page can ask for."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.domain.codec import dump
from moothall.domain.identity import Principal
from moothall.domain.ids import digest, new_task_id
from moothall.errors import InvalidRequest, Permanent
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as orchestrator
from moothall.pb.planning.v1 import planning_pb2 as pb
from moothall.pb.storycoach.v1 import storycoach_pb2 as coach
from moothall.planning.board import Card
from moothall.planning.lifecycle import SYSTEM, decide, lifecycle
from moothall.services.doors import Doors
from moothall.services.identity import caller
from moothall.services.orchestrator import OrchestratorService
from moothall.services.rest.documents import JSON, Body, ServerSentEvents, document, message, read, told
from moothall.services.stories import Planning
from moothall.services.storycoach import StoryCoach

_KEY, _SEQ_DIGITS = 200, 18
_FACTS = ("id", "type", "time", "data")


class _Comment(Body):
    comment: str = Field(min_length=1)


def story_routes(doors: Doors) -> Sequence[Route]:
    """Return the board, the coach and what came of deliberations."""
    board, planning, scorer = doors.board, Planning(doors.board), StoryCoach(doors.author)
    councils = OrchestratorService(doors)

    async def listing(_request: Request) -> Response:
        return _answer(await planning.ListStories(pb.ListStoriesRequest(), None))

    async def create(request: Request) -> Response:
        """The same `Idempotency-Key` and story again is the same story."""
        made = await planning.create(await message(request, pb.CreateStoryRequest), _key(request))
        return _answer(made, 201, {"Location": f"/api/v1/stories/{made.story_id}"})

    async def story(request: Request) -> Response:
        """All of one: what GetStory says, its history, and each move from where it stands with what the caller lacks for it."""
        who, name = caller(), request.path_params["id"]
        card = await board.card(name, who)  # first: a seq that is too old is refused later, one too new would hide what came
        found = json.loads(told(await planning.GetStory(pb.GetStoryRequest(story_id=name), None)))
        history = [dump(event) for event in await board.history(name, who)]
        more = {
            "seq": str(card.seq),
            "history": [{fact: event[fact] for fact in _FACTS} for event in history],
            "moves": _moves(card, who),
        }
        return document(found | more, headers={"ETag": f'"{card.seq}"'})

    async def comment(request: Request) -> Response:
        said = await read(request, _Comment)
        await board.comment(request.path_params["id"], said.comment, caller(), key=_key(request))
        return Response(status_code=204)

    async def move(request: Request) -> Response:
        """With `If-Match`, only from what its caller saw; a move for which evidence is missing is `blocked` and moves nothing."""
        asked, name = await message(request, pb.TransitionRequest), request.path_params["id"]
        if asked.story_id not in {"", name}:
            raise InvalidRequest(f"story_id is {asked.story_id[:80]!r}, and the path names another; leave it out")
        asked.story_id = name
        return _answer(await planning.move(asked, _seen(request)))

    async def score(request: Request) -> Response:
        return _answer(await scorer.ScoreStory(await message(request, coach.ScoreStoryRequest), None))

    async def result(request: Request) -> Response:
        """The ranking with its reasons and the winner's diff."""
        asked = orchestrator.GetDeliberationResultRequest(task_id=request.path_params["id"])
        return _answer(await councils.GetDeliberationResult(asked, None))

    async def events(request: Request) -> Response:
        """What happens on the board, as server-sent events, after `Last-Event-ID`."""
        after = request.headers.get("last-event-id", "0")
        return ServerSentEvents(_follow(planning, _number(after, "Last-Event-ID")))

    return [
        Route("/api/v1/stories", listing),
        Route("/api/v1/stories", create, methods=["POST"]),
        Route("/api/v1/stories/{id}", story),
        Route("/api/v1/stories/{id}/comments", comment, methods=["POST"]),
        Route("/api/v1/stories/{id}/transitions", move, methods=["POST"]),
        Route("/api/v1/coach/score", score, methods=["POST"]),
        Route("/api/v1/deliberations/{id}", result),
        Route("/api/v1/events", events),
    ]


async def _follow(planning: Planning, after: int) -> AsyncGenerator[str, None]:
    yield ": the board\n"  # a line by which a client knows that it is connected
    async with aclosing(planning.WatchStories(pb.WatchStoriesRequest(after_seq=after), None)) as moments:
        async for moment in moments:
            yield f"id: {moment.seq}\nevent: {moment.event}\ndata: {told(moment)}\n"


def _moves(card: Card, who: Principal) -> list[dict[str, Any]]:
    found = []
    for line in lifecycle().leaving(card.stand.state):
        if SYSTEM in line.by:
            continue
        try:
            decide(card.stand, line.event, who.roles)
        except Permanent as lacking:
            missing = lacking.message
        else:
            missing = ""
        found.append({"event": line.event, "to": line.target, "missing": missing})
    return found


def _answer(answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(told(answer), status, headers, JSON)


def _key(request: Request) -> str:
    """Return what names a request among its tenant's: one of its caller's choice is that caller's own."""
    given = request.headers.get("idempotency-key")
    if given is None:
        return new_task_id()
    if not 0 < len(given) <= _KEY:
        raise InvalidRequest(f"the Idempotency-Key has {len(given)} characters; it has 1 to {_KEY}")
    return digest(caller().name, given)


def _seen(request: Request) -> int | None:
    given = request.headers.get("if-match")
    return None if given is None else _number(given.removeprefix('"').removesuffix('"'), "If-Match")


def _number(given: str, header: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= _SEQ_DIGITS):
        raise InvalidRequest(f"{header} is {given[:40]!r}; it is a seq, as the last answer told it")
    return int(given)
