"""The routes of the web page: the board, stories with their moves, plans and councils.

A product owner edits the tasks of a story before it is built: the form has a section for each task,
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
from moothall.api.web.admin import parked_routes, server_routes
from moothall.api.web.ask import ask_routes
from moothall.api.web.charts import draw
from moothall.api.web.council_actions import council_action_routes
from moothall.api.web.councils import REFRESH_SECONDS, council_routes, follow_board
from moothall.api.web.forms import read_session_form, require_session
from moothall.api.web.oidc import Provider
from moothall.api.web.provenance import known_repositories, provenance_routes
from moothall.api.web.rendering import page, part, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.api.web.sign_in import sign_in_routes
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
from moothall.stories.plan_document import Outline, read_outline, to_outlines
from moothall.stories.planner import changeable, may_change
from moothall.stories.story_state import StoryState, group_by_state
from moothall.stories.task_history import rounds, task_ids

_MAX_FORM_FIELDS = 1_000
_EMPTY_SECTION = {"role": "dev", "description": "", "criteria": "", "after": ""}
Sections = Sequence[Mapping[str, Any]]
_MAX_SHOWN_CARDS = 30
"""Cards of a column that are visible, the most recently changed; the others need a click."""
_MAX_CACHED_BOARDS = 16
"""Rendered boards in the cache: a tenant's board is rendered once for all users with the same
roles.
"""


def plan_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the form to edit a plan."""

    async def plan(request: Request, session: Session) -> Response:
        story_id = request.path_params["id"]
        card = await dependencies.board.card(story_id, session.who)
        if request.method == "GET":
            editable_plan = changeable(card)
            return _plan_page(
                session,
                card,
                editable_plan.plan_id,
                [_section(outline) for outline in to_outlines(editable_plan.tasks, card.story)],
            )
        fields = await read_session_form(request, session, _MAX_FORM_FIELDS)
        sections, plan_id = _read_sections(fields), fields.get("plan_id", "")
        try:
            await dependencies.plans.change(story_id, plan_id, _outlines(sections), session.who)
        except (InvalidRequest, ConcurrentUpdate) as error:
            return _plan_page(session, card, plan_id, sections, error)
        return redirect(
            f"/stories/{story_id}/plan" if fields.get("do") == "more" else f"/stories/{story_id}"
        )

    return [Route("/stories/{id}/plan", require_session(plan, sessions), methods=["GET", "POST"])]


def _plan_page(
    session: Session,
    card: StoryState,
    plan_id: str,
    sections: Sections,
    error: MoothallError | None = None,
) -> Response:
    all_sections = [
        *sections,
        {
            **_EMPTY_SECTION,
            "id": str(max((int(section["id"]) for section in sections), default=0) + 1),
        },
    ]
    context = {
        "card": card,
        "plan_id": plan_id,
        "sections": all_sections,
        "roles": ROLES,
        "error": error.message if error else "",
        "may_edit": may_change(card, session.who),
    }
    return page("plan.html", http_status_of(error) if error else 200, session=session, **context)


def _section(outline: Outline) -> Mapping[str, Any]:
    number_lists = {
        "criteria": ", ".join(map(str, outline.criteria)),
        "after": ", ".join(outline.after),
    }
    return {
        "id": outline.id,
        "role": outline.role,
        "description": outline.description,
        **number_lists,
    }


def _read_sections(fields: Mapping[str, str]) -> Sections:
    """Return the sections of a form that have a description and are not to be removed, in order."""
    numbers = sorted(
        {
            int(match[1])
            for name in fields
            if (match := re.fullmatch(r"description-(\d{1,4})", name, re.ASCII))
        }
    )
    sections = [
        {"id": str(number)}
        | {name: fields.get(f"{name}-{number}", "").strip() for name in _EMPTY_SECTION}
        for number in numbers
    ]
    return [
        section
        for section in sections
        if section["description"] and not fields.get(f"remove-{section['id']}")
    ]


def _outlines(sections: Sections) -> list[Outline]:
    return [
        read_outline(
            {
                **section,
                "criteria": _numbers(section, "criteria"),
                "after": _numbers(section, "after"),
            }
        )
        for section in sections
    ]


def _numbers(section: Mapping[str, Any], name: str) -> list[str]:
    """Return the numbers of a field, as text. Raises `InvalidRequest`."""
    entries = [entry for entry in re.split(r"[,;\s]+", section[name]) if entry]
    for entry in entries:
        if not re.fullmatch(r"\d{1,4}", entry, re.ASCII):
            field_name = "criteria" if name == "criteria" else "the tasks that it builds on"
            raise InvalidRequest(
                f"task {section['id']} must list {field_name} as numbers separated by commas, "
                f"not {entry[:40]!r}"
            )
    return [str(int(entry)) for entry in entries]


def page_routes(
    dependencies: ApiDependencies,
    bearers: BearerTokens,
    sessions: Sessions,
    provider: Provider | None = None,
) -> Sequence[Route]:
    """Return all routes of the web page. All but sign-in and the static files need a session."""
    return [
        *sign_in_routes(bearers, sessions, provider),
        *_board_routes(dependencies, sessions),
        *_new_story_routes(dependencies, sessions),
        *_story_routes(dependencies, sessions),
        *plan_routes(dependencies, sessions),
        *ask_routes(dependencies, sessions),
        *council_routes(dependencies, sessions),
        *council_action_routes(dependencies, sessions),
        *server_routes(dependencies, sessions),
        *parked_routes(dependencies, sessions),
        *provenance_routes(dependencies, sessions),
    ]


def _board_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    rendered_boards: LRUCache[Hashable, Markup] = LRUCache(_MAX_CACHED_BOARDS)

    async def board(_request: Request, session: Session) -> Response:
        cards = await dependencies.board.cards(session.who)
        key = session.who.roles, tuple((card.story.id, card.seq) for card in cards)
        if (
            rendered := rendered_boards.get(key)
        ) is None:  # rendered once, however many reload after a change
            columns = group_by_state(sorted(cards, key=lambda card: -card.seq))
            columns_in_order = [(state, columns[state]) for state in lifecycle().order]
            rendered = rendered_boards[key] = part(
                "cards.html",
                columns=columns_in_order,
                who=session.who,
                next_step=next_step,
                moves=moves,
                max_cards=_MAX_SHOWN_CARDS,
            )
        return page("board.html", session=session, board=rendered)

    async def changes(_request: Request, session: Session) -> Response:
        """Notify of changes on the board, as server-sent events."""
        return ServerSentEvents(follow_board(dependencies, session.who))

    return [
        Route("/", require_session(board, sessions)),
        Route("/changes", require_session(changes, sessions)),
    ]


def _new_story_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    async def new(request: Request, session: Session) -> Response:
        context: dict[str, Any] = {
            "levels": lifecycle().ready,
            "repositories": known_repositories(dependencies, session.who),
        }
        if request.method == "GET":
            return page(
                "new.html",
                session=session,
                fields={},
                score=None,
                error="",
                default_rigor=DEFAULT_RIGOR,
                **context,
            )
        fields = await read_session_form(request, session)
        problem, draft_score, draft = (
            "",
            None,
            StoryDraft(fields.get("title", ""), fields.get("brief", ""), _criteria(fields)),
        )
        try:
            draft_score = score(check(draft))
            if fields.get("do") == "create":
                repository = fields.get("repository", "").strip()
                await dependencies.plans.check_repository(repository, session.who)
                card = await dependencies.board.create(
                    draft,
                    session.who,
                    key=new_task_id(),
                    repository=repository,
                    rigor=fields.get("rigor", ""),
                )
                return redirect(f"/stories/{card.story.id}")
        except (InvalidRequest, NotFound, RepositoryError) as error:
            problem = error.message
        context |= {
            "fields": fields,
            "score": draft_score,
            "error": problem,
            "default_rigor": fields.get("rigor", DEFAULT_RIGOR),
        }
        return page("new.html", 400 if problem else 200, session=session, **context)

    return [Route("/stories/new", require_session(new, sessions), methods=["GET", "POST"])]


def _story_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    async def story(request: Request, session: Session) -> Response:
        card = await dependencies.board.card(request.path_params["id"], session.who)
        story_moves = await dependencies.board.moves(card.story.id, session.who)
        events = await dependencies.board.history(card.story.id, session.who)
        story_rounds = rounds(
            events,
            await dependencies.tasks.find_tasks(task_ids(events), session.who),
            card.position.state,
        )
        account = await dependencies.story_budgets.of(
            card.story.id, session.who.tenant, card.story.budget
        )
        context: dict[str, Any] = {
            "card": card,
            "history": story_moves,
            "rounds": story_rounds[::-1],
            "chart": draw(story_rounds[-1].steps) if story_rounds else None,
            "budget": account.lines(),
            "moves": moves(card, session.who),
            "next_step": next_step(card, session.who),
            "may_change": may_change(card, session.who),
            "comments": [event for event in events if event.type is EventType.STORY_COMMENTED],
            "key": new_task_id(),
        }
        refresh = REFRESH_SECONDS if is_working(card) else 0
        return page(
            "story.html", session=session, score=score(card.draft), refresh=refresh, **context
        )

    async def comment(request: Request, session: Session) -> Response:
        fields, story_id = await read_session_form(request, session), request.path_params["id"]
        await dependencies.board.comment(
            story_id, fields.get("comment", ""), session.who, key=fields.get("key", "")
        )
        return redirect(f"/stories/{story_id}")

    async def move(request: Request, session: Session) -> Response:
        fields = await read_session_form(request, session)
        story_id = request.path_params["id"]
        await dependencies.board.move(
            story_id,
            fields.get("event", ""),
            session.who,
            comment=fields.get("comment", "").strip(),
        )
        return redirect("/" if fields.get("back") == "board" else f"/stories/{story_id}")

    return [
        Route("/stories/{id}", require_session(story, sessions)),
        Route("/stories/{id}/move", require_session(move, sessions), methods=["POST"]),
        Route("/stories/{id}/comment", require_session(comment, sessions), methods=["POST"]),
    ]


def moves(card: StoryState, who: Principal) -> list[tuple[str, str, str]]:
    """Return the moves that a user may make: the event, the new state, and why it is blocked (empty
    if it is not).
    """
    possible = []
    for transition in lifecycle().transitions:
        if transition.source != card.position.state or not set(transition.by) & who.roles:
            continue
        try:
            decide(card.position, transition.event, who.roles)
        except Blocked as blocked:
            possible.append((transition.event, transition.target, blocked.message))
        else:
            possible.append((transition.event, transition.target, ""))
    return possible


def next_step(card: StoryState, who: Principal) -> str:
    """Return the next step of a story and who can take it, in words."""
    transitions = [
        transition
        for transition in lifecycle().transitions
        if transition.source == card.position.state
    ]
    if not transitions:
        return "none: the story has ended"
    next_transition = max(
        transitions, key=lambda transition: lifecycle().order.index(transition.target)
    )
    try:
        decide(card.position, next_transition.event, next_transition.by)
    except Permanent as missing:
        return missing.message
    actor = "you" if set(next_transition.by) & who.roles else " or ".join(next_transition.by)
    return f"{next_transition.event.replace('_', ' ')} ({actor})"


def is_working(card: StoryState) -> bool:
    """Return whether the server is currently working on a story."""
    state, facts = card.position.state, card.position.facts
    if state == "test":
        return card.check is None or card.check.data.get("moved") != card.moved
    return (state == "design" and "planned" not in facts) or (
        state == "build" and card.ended is None
    )


def _criteria(fields: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(line.strip() for line in fields.get("criteria", "").splitlines() if line.strip())
