"""The routes of the page: signing in, the board, a story with its moves, what a council came to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.domain.event import EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import check_id, new_task_id
from moothall.errors import InvalidRequest, MoothallError, NotFound, Permanent, Refused
from moothall.planning.board import Card, by_state
from moothall.planning.coach import Draft, check, score
from moothall.planning.lifecycle import DEFAULT_RIGOR, Blocked, decide, lifecycle
from moothall.services.doors import Doors
from moothall.services.identity import Bearers, call_as
from moothall.services.page.sessions import Session, Sessions
from moothall.services.page.shown import asset, page, redirect
from moothall.services.rest.documents import ServerSentEvents, Turned
from moothall.services.status import http_status_of

_COOKIE, _FIELDS = "moothall-session", 20
_FORM = "application/x-www-form-urlencoded"
_REFRESH_SECONDS = 3

Answer = Callable[[Request, Session], Awaitable[Response]]


def page_routes(doors: Doors, bearers: Bearers, sessions: Sessions) -> Sequence[Route]:
    """Return what a browser gets; all but signing in and the stylesheet ask for a session."""
    return [*_sign_in_routes(bearers, sessions), *_board_routes(doors, sessions), *_story_routes(doors, sessions)]


def _sign_in_routes(bearers: Bearers, sessions: Sessions) -> Sequence[Route]:
    async def sign_in(request: Request) -> Response:
        if request.method == "GET":
            if not (secret := request.query_params.get("link", "")):
                return page("sign_in.html", said="")
            session = sessions.follow(secret)
            return _begin(request, session, sessions) if session else page("sign_in.html", 403, said="used")
        if "origin" not in request.headers:  # the door has compared it with its own name
            raise Turned(403, "WRONG_ORIGIN", "this form was not sent by the page")
        who = bearers.find([f"Bearer {(await _form(request)).get('token', '')}"])
        return _begin(request, sessions.open(who), sessions) if who else page("sign_in.html", 403, said="unknown")

    async def stylesheet(_request: Request) -> Response:
        return asset("page.css", "text/css")

    async def script(_request: Request) -> Response:
        return asset("page.js", "text/javascript")

    async def sign_out(request: Request, session: Session) -> Response:
        await _sent(request, session)
        sessions.close(session)
        answer = redirect("/sign-in")
        answer.delete_cookie(_COOKIE, httponly=True, samesite="strict")
        return answer

    return [
        Route("/sign-in", _told(sign_in), methods=["GET", "POST"]),
        Route("/page.css", stylesheet),
        Route("/page.js", script),
        Route("/sign-out", _signed_in(sign_out, sessions), methods=["POST"]),
    ]


def _board_routes(doors: Doors, sessions: Sessions) -> Sequence[Route]:
    async def board(_request: Request, session: Session) -> Response:
        columns = by_state(await doors.board.cards(session.who))
        return page("board.html", session=session, columns=[(state, columns[state]) for state in lifecycle().order], waits=waits)

    async def new(request: Request, session: Session) -> Response:
        if request.method == "GET":
            return page(
                "new.html", session=session, given={}, scored=None, wrong="", levels=lifecycle().ready, usual=DEFAULT_RIGOR
            )
        given = await _sent(request, session)
        wrong, scored, draft = "", None, Draft(given.get("title", ""), given.get("brief", ""), _criteria(given))
        try:
            scored = score(check(draft))
            if given.get("do") == "create":
                card = await doors.board.create(
                    draft,
                    session.who,
                    key=new_task_id(),
                    repository=given.get("repository", "").strip(),
                    rigor=given.get("rigor", ""),
                )
                return redirect(f"/stories/{card.story.id}")
        except InvalidRequest as error:
            wrong = error.message
        levels = lifecycle().ready
        told: dict[str, Any] = {
            "given": given,
            "scored": scored,
            "wrong": wrong,
            "levels": levels,
            "usual": given.get("rigor", DEFAULT_RIGOR),
        }
        return page("new.html", 400 if wrong else 200, session=session, **told)

    async def changes(_request: Request, session: Session) -> Response:
        """Say that something happened on the board, as server-sent events, from now on."""
        seen = max((card.seq for card in await doors.board.cards(session.who)), default=0)

        async def told() -> AsyncGenerator[str, None]:
            yield ": the board\n"
            async with aclosing(doors.board.watch(seen, session.who)) as moments:
                async for seq, _, _ in moments:
                    yield f"id: {seq}\ndata: {seq}\n"

        return ServerSentEvents(told())

    return [
        Route("/", _signed_in(board, sessions)),
        Route("/changes", _signed_in(changes, sessions)),
        Route("/stories/new", _signed_in(new, sessions), methods=["GET", "POST"]),
    ]


def _story_routes(doors: Doors, sessions: Sessions) -> Sequence[Route]:
    async def story(request: Request, session: Session) -> Response:
        card = await doors.board.card(request.path_params["id"], session.who)
        history = await doors.board.moves(card.story.id, session.who)
        tasks = card.plan.data.get("tasks", ()) if card.plan else ()
        said = await doors.board.history(card.story.id, session.who)
        told: dict[str, Any] = {
            "card": card,
            "history": history,
            "tasks": tasks,
            "moves": moves(card, session.who),
            "waits": waits(card),
            "comments": [event for event in said if event.type is EventType.STORY_COMMENTED],
            "key": new_task_id(),
        }
        refresh = _REFRESH_SECONDS if at_work(card) else 0
        return page("story.html", session=session, scored=score(card.draft), refresh=refresh, **told)

    async def comment(request: Request, session: Session) -> Response:
        given, story_id = await _sent(request, session), request.path_params["id"]
        await doors.board.comment(story_id, given.get("comment", ""), session.who, key=given.get("key", ""))
        return redirect(f"/stories/{story_id}")

    async def move(request: Request, session: Session) -> Response:
        given = await _sent(request, session)
        story_id = request.path_params["id"]
        await doors.board.move(story_id, given.get("event", ""), session.who, comment=given.get("comment", "").strip())
        return redirect(f"/stories/{story_id}")

    async def council(request: Request, session: Session) -> Response:
        task_id = check_id(request.path_params["id"], "task_id")
        try:
            outcome = await doors.desk.result(task_id, session.who)
        except NotFound as error:
            raise NotFound(f"no council has begun task {task_id!r}; a story's tasks begin when its design is accepted") from error
        return page("outcome.html", session=session, outcome=outcome, refresh=0 if outcome.status.ended else _REFRESH_SECONDS)

    return [
        Route("/stories/{id}", _signed_in(story, sessions)),
        Route("/stories/{id}/move", _signed_in(move, sessions), methods=["POST"]),
        Route("/stories/{id}/comment", _signed_in(comment, sessions), methods=["POST"]),
        Route("/councils/{id}", _signed_in(council, sessions)),
    ]


def moves(card: Card, who: Principal) -> list[tuple[str, str, str]]:
    """Return what this principal may do with a story now: event, state that it leads to, why it is blocked (empty: it is not)."""
    found = []
    for item in lifecycle().transitions:
        if item.source != card.stand.state or not set(item.by) & who.roles:
            continue
        try:
            decide(card.stand, item.event, who.roles)
        except Blocked as blocked:
            found.append((item.event, item.target, blocked.message))
        else:
            found.append((item.event, item.target, ""))
    return found


def waits(card: Card) -> str:
    """Return what a story waits for, in words."""
    leaving = [item for item in lifecycle().transitions if item.source == card.stand.state]
    if not leaving:
        return "nothing: it has ended"
    onward = max(leaving, key=lambda item: lifecycle().order.index(item.target))
    try:
        decide(card.stand, onward.event, onward.by)
    except Permanent as missing:
        return missing.message
    return f"{onward.event.replace('_', ' ')} by {' or '.join(onward.by)}"


def at_work(card: Card) -> bool:
    """Whether the house is doing something for a story now."""
    state, facts = card.stand.state, card.stand.facts
    if state == "test":
        return card.check is None or card.check.data.get("moved") != card.moved
    return (state == "design" and "planned" not in facts) or (state == "build" and card.ended is None)


def _criteria(given: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(line.strip() for line in given.get("criteria", "").splitlines() if line.strip())


def _begin(request: Request, session: Session, sessions: Sessions) -> Response:
    answer = redirect("/")
    secure = request.url.scheme == "https"
    answer.set_cookie(_COOKIE, session.id, round(sessions.seconds), httponly=True, samesite="strict", secure=secure)
    return answer


async def _sent(request: Request, session: Session) -> Mapping[str, str]:
    """Return the fields of a form of this session. Raises `Refused` for any other."""
    given = await _form(request)
    if not session.sent(given.get("form", "")):
        raise Refused("this form is not of your session; go back, load the page again and send it once more")
    return given


async def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form. Raises `Turned` for what is none, is too large or comes too slowly."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Turned(415, "NOT_A_FORM", f"this takes a form ({_FORM})")
    settings, raw = request.app.state.settings, bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > settings.body_bytes:
                    raise Turned(413, "BODY_TOO_LARGE", f"the form is larger than {settings.body_bytes} bytes (web.body_bytes)")
        fields = parse_qs(raw.decode(), keep_blank_values=True, max_num_fields=_FIELDS)
    except TimeoutError as error:
        raise Turned(408, "BODY_TOO_SLOW", f"the form did not come within {settings.body_seconds:g} seconds") from error
    except ValueError as error:
        raise InvalidRequest("the form cannot be read: it has too many fields, or is no text") from error
    return {name: values[-1] for name, values in fields.items()}


def _signed_in(answer: Answer, sessions: Sessions) -> Callable[[Request], Awaitable[Response]]:
    async def check_session(request: Request) -> Response:
        session = sessions.find(request.cookies.get(_COOKIE, ""))
        if session is None:
            return redirect("/sign-in") if request.method == "GET" else page("sign_in.html", 403, said="ended")
        call_as(session.who)
        return await _told(lambda asked: answer(asked, session), session)(request)

    return check_session


def _told(
    answer: Callable[[Request], Awaitable[Response]], session: Session | None = None
) -> Callable[[Request], Awaitable[Response]]:
    """Answer an error as a page in plain words."""

    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except Turned as error:
            status, said = error.status, error.message
        except MoothallError as error:
            status, said = http_status_of(error), error.message
        return page("wrong.html", status, session=session, title=HTTPStatus(status).phrase, said=said)

    return answered
