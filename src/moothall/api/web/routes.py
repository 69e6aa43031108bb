"""The routes of the page: the board, a story with its moves, what a council came to.

A product owner edits the tasks of a story before it is built: the form has a part for each task,
and an empty one for a new task.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from cachetools import LRUCache
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.http.documents import ServerSentEvents
from moothall.api.identity import BearerTokens
from moothall.api.status import http_status_of
from moothall.api.web.admin import house_routes, parked_routes
from moothall.api.web.ask import asking_routes
from moothall.api.web.charts import draw
from moothall.api.web.council_actions import acting_routes
from moothall.api.web.councils import REFRESH_SECONDS, council_routes, follow_board
from moothall.api.web.forms import read_session_form, require_session
from moothall.api.web.oidc import Provider
from moothall.api.web.provenance import known_repositories, tracing_routes
from moothall.api.web.rendering import page, part, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.api.web.sign_in import signing_routes
from moothall.domain.event import EventType
from moothall.domain.identity import Principal
from moothall.domain.ids import ROLES, new_task_id
from moothall.errors import (
    ConcurrentUpdate,
    InvalidRequest,
    MoothallError,
    NotFound,
    Permanent,
    RepositoryError,
)
from moothall.stories.coach import StoryDraft, check, score
from moothall.stories.lifecycle import DEFAULT_RIGOR, Blocked, decide, lifecycle
from moothall.stories.plan_document import Outline, outline_of, outlines_of
from moothall.stories.planner import changeable, may_change
from moothall.stories.story_state import StoryState, by_state
from moothall.stories.task_history import rounds, task_ids

_MOST = 1_000
_EMPTY = {"role": "dev", "description": "", "criteria": "", "after": ""}
Parts = Sequence[Mapping[str, Any]]


def changing_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the form, and what takes it."""

    async def plan(request: Request, session: Session) -> Response:
        story_id = request.path_params["id"]
        card = await dependencies.board.card(story_id, session.who)
        if request.method == "GET":
            known = changeable(card)
            return _form(
                session,
                card,
                known.plan_id,
                [_part(one) for one in outlines_of(known.tasks, card.story)],
            )
        given = await read_session_form(request, session, _MOST)
        parts, plan_id = _parts(given), given.get("plan_id", "")
        try:
            await dependencies.plans.change(story_id, plan_id, _outlines(parts), session.who)
        except (InvalidRequest, ConcurrentUpdate) as error:
            return _form(session, card, plan_id, parts, error)
        return redirect(
            f"/stories/{story_id}/plan" if given.get("do") == "more" else f"/stories/{story_id}"
        )

    return [Route("/stories/{id}/plan", require_session(plan, sessions), methods=["GET", "POST"])]


def _form(
    session: Session,
    card: StoryState,
    plan_id: str,
    parts: Parts,
    wrong: MoothallError | None = None,
) -> Response:
    shown = [*parts, {**_EMPTY, "id": str(max((int(part["id"]) for part in parts), default=0) + 1)}]
    told = {
        "card": card,
        "plan_id": plan_id,
        "parts": shown,
        "roles": ROLES,
        "wrong": wrong.message if wrong else "",
        "may": may_change(card, session.who),
    }
    return page("plan.html", http_status_of(wrong) if wrong else 200, session=session, **told)


def _part(outline: Outline) -> Mapping[str, Any]:
    numbers = {"criteria": ", ".join(map(str, outline.criteria)), "after": ", ".join(outline.after)}
    return {"id": outline.id, "role": outline.role, "description": outline.description, **numbers}


def _parts(given: Mapping[str, str]) -> Parts:
    """Return the parts of a form that say something and are not to be removed, in their order."""
    numbers = sorted(
        {
            int(found[1])
            for name in given
            if (found := re.fullmatch(r"description-(\d{1,4})", name, re.ASCII))
        }
    )
    parts = [
        {"id": str(number)} | {name: given.get(f"{name}-{number}", "").strip() for name in _EMPTY}
        for number in numbers
    ]
    return [part for part in parts if part["description"] and not given.get(f"remove-{part['id']}")]


def _outlines(parts: Parts) -> list[Outline]:
    return [
        outline_of(
            {**part, "criteria": _numbers(part, "criteria"), "after": _numbers(part, "after")}
        )
        for part in parts
    ]


def _numbers(part: Mapping[str, Any], name: str) -> list[str]:
    """Return the numbers that somebody wrote, as text. Raises `InvalidRequest`."""
    words = [word for word in re.split(r"[,;\s]+", part[name]) if word]
    for word in words:
        if not re.fullmatch(r"\d{1,4}", word, re.ASCII):
            what = "criteria" if name == "criteria" else "the tasks that it builds on"
            raise InvalidRequest(
                f"task {part['id']} names {what} by numbers with commas between them, and not "
                f"{word[:40]!r}"
            )
    return [str(int(word)) for word in words]


_SHOWN = 30
"""Cards of a column that are seen at once, those of which something was heard last; the others are
behind a click.
"""
_DRAWN = 16
"""Boards that are kept as they were drawn: a tenant's newest is drawn once for all who have the
same roles.
"""


def page_routes(
    dependencies: ApiDependencies,
    bearers: BearerTokens,
    sessions: Sessions,
    provider: Provider | None = None,
) -> Sequence[Route]:
    """Return what a browser gets; all but signing in and the stylesheet ask for a session."""
    return [
        *signing_routes(bearers, sessions, provider),
        *_board_routes(dependencies, sessions),
        *_story_routes(dependencies, sessions),
        *changing_routes(dependencies, sessions),
        *asking_routes(dependencies, sessions),
        *council_routes(dependencies, sessions),
        *acting_routes(dependencies, sessions),
        *house_routes(dependencies, sessions),
        *parked_routes(dependencies, sessions),
        *tracing_routes(dependencies, sessions),
    ]


def _board_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    drawn: LRUCache[Hashable, Markup] = LRUCache(_DRAWN)

    async def board(_request: Request, session: Session) -> Response:
        cards = await dependencies.board.cards(session.who)
        key = session.who.roles, tuple((card.story.id, card.seq) for card in cards)
        if (shown := drawn.get(key)) is None:  # however many load it anew after a change
            columns = by_state(sorted(cards, key=lambda card: -card.seq))
            told = [(state, columns[state]) for state in lifecycle().order]
            shown = drawn[key] = part(
                "cards.html", columns=told, who=session.who, waits=waits, moves=moves, most=_SHOWN
            )
        return page("board.html", session=session, drawn=shown)

    async def new(request: Request, session: Session) -> Response:
        told: dict[str, Any] = {
            "levels": lifecycle().ready,
            "repositories": known_repositories(dependencies, session.who),
        }
        if request.method == "GET":
            return page(
                "new.html",
                session=session,
                given={},
                scored=None,
                wrong="",
                usual=DEFAULT_RIGOR,
                **told,
            )
        given = await read_session_form(request, session)
        wrong, scored, draft = (
            "",
            None,
            StoryDraft(given.get("title", ""), given.get("brief", ""), _criteria(given)),
        )
        try:
            scored = score(check(draft))
            if given.get("do") == "create":
                repository = given.get("repository", "").strip()
                await dependencies.plans.check_repository(repository, session.who)
                card = await dependencies.board.create(
                    draft,
                    session.who,
                    key=new_task_id(),
                    repository=repository,
                    rigor=given.get("rigor", ""),
                )
                return redirect(f"/stories/{card.story.id}")
        except (InvalidRequest, NotFound, RepositoryError) as error:
            wrong = error.message
        told |= {
            "given": given,
            "scored": scored,
            "wrong": wrong,
            "usual": given.get("rigor", DEFAULT_RIGOR),
        }
        return page("new.html", 400 if wrong else 200, session=session, **told)

    async def changes(_request: Request, session: Session) -> Response:
        """Say that something happened on the board, as server-sent events, from now on."""
        return ServerSentEvents(follow_board(dependencies, session.who))

    return [
        Route("/", require_session(board, sessions)),
        Route("/changes", require_session(changes, sessions)),
        Route("/stories/new", require_session(new, sessions), methods=["GET", "POST"]),
    ]


def _story_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    async def story(request: Request, session: Session) -> Response:
        card = await dependencies.board.card(request.path_params["id"], session.who)
        history = await dependencies.board.moves(card.story.id, session.who)
        said = await dependencies.board.history(card.story.id, session.who)
        made = rounds(
            said, await dependencies.tasks.find_tasks(task_ids(said), session.who), card.stand.state
        )
        book = await dependencies.accounts.of(card.story.id, session.who.tenant, card.story.budget)
        told: dict[str, Any] = {
            "card": card,
            "history": history,
            "rounds": made[::-1],
            "drawing": draw(made[-1].steps) if made else None,
            "budget": book.lines(),
            "moves": moves(card, session.who),
            "waits": waits(card),
            "may_change": may_change(card, session.who),
            "comments": [event for event in said if event.type is EventType.STORY_COMMENTED],
            "key": new_task_id(),
        }
        refresh = REFRESH_SECONDS if at_work(card) else 0
        return page(
            "story.html", session=session, scored=score(card.draft), refresh=refresh, **told
        )

    async def comment(request: Request, session: Session) -> Response:
        given, story_id = await read_session_form(request, session), request.path_params["id"]
        await dependencies.board.comment(
            story_id, given.get("comment", ""), session.who, key=given.get("key", "")
        )
        return redirect(f"/stories/{story_id}")

    async def move(request: Request, session: Session) -> Response:
        given = await read_session_form(request, session)
        story_id = request.path_params["id"]
        await dependencies.board.move(
            story_id, given.get("event", ""), session.who, comment=given.get("comment", "").strip()
        )
        return redirect("/" if given.get("back") == "board" else f"/stories/{story_id}")

    return [
        Route("/stories/{id}", require_session(story, sessions)),
        Route("/stories/{id}/move", require_session(move, sessions), methods=["POST"]),
        Route("/stories/{id}/comment", require_session(comment, sessions), methods=["POST"]),
    ]


def moves(card: StoryState, who: Principal) -> list[tuple[str, str, str]]:
    """Return what this principal may do with a story now: event, state that it leads to, why it is
    blocked (empty: it is not).
    """
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


def waits(card: StoryState) -> str:
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


def at_work(card: StoryState) -> bool:
    """Whether the server is doing something for a story now."""
    state, facts = card.stand.state, card.stand.facts
    if state == "test":
        return card.check is None or card.check.data.get("moved") != card.moved
    return (state == "design" and "planned" not in facts) or (
        state == "build" and card.ended is None
    )


def _criteria(given: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(line.strip() for line in given.get("criteria", "").splitlines() if line.strip())
