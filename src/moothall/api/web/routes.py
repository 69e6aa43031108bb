"""The routes of the web page: the board, stories with their moves, plans and councils. The
search of the palette: stories and runs by their words, for the script.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall import telemetry
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import BearerTokens
from moothall.api.protobuf import http_status_of
from moothall.api.web import councils, story_status
from moothall.api.web.admin import budget_routes, insights_routes, parked_routes, server_routes
from moothall.api.web.board_page import BoardChanges, board_routes
from moothall.api.web.council_actions import ask_routes, council_action_routes
from moothall.api.web.councils import council_routes, runs_routes, step_routes
from moothall.api.web.provenance import provenance_routes
from moothall.api.web.rendering import (
    compile_templates,
    json_document,
    page,
    prepare_lexers,
    redirect,
)
from moothall.api.web.sessions import (
    Session,
    Sessions,
    read_query,
    read_session_form,
    require_session,
)
from moothall.api.web.sign_in import Provider, sign_in_routes
from moothall.api.web.story_form import rewrite_routes, story_form_routes
from moothall.api.web.story_page import story_page
from moothall.domain.budget import BudgetAccount
from moothall.domain.codec import prepare_loading
from moothall.domain.evidence import Evidence
from moothall.domain.identity import LOCAL, Principal
from moothall.domain.ids import ROLES
from moothall.domain.outcome import Outcome
from moothall.domain.proposal import Proposal, Review, SeatOutcome
from moothall.domain.task import Deliberation
from moothall.errors import ConcurrentUpdate, InvalidRequest, MoothallError
from moothall.stories.planner import changeable, may_change
from moothall.stories.plans import Outline, read_outline, to_outlines
from moothall.stories.story_state import StoryState

# The search of the palette: stories and runs by their words, for the script.


_MAX_RESULTS = 8
"""Results of each kind."""
_TITLE_CHARS = 120
Result = dict[str, str]


def search_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the search."""

    async def search(request: Request, session: Session) -> Response:
        query, principal = read_query(request), session.principal
        if not query:
            return json_document([])
        stories = await _find_stories(dependencies, query, principal)
        return json_document([*stories, *await _find_runs(dependencies, query, principal)])

    return [Route("/search", require_session(search, sessions))]


async def _find_stories(
    dependencies: ApiDependencies, query: str, principal: Principal
) -> list[Result]:
    """Return the stories that match, the most recently changed first."""
    cards = sorted(await dependencies.stories.board.cards(principal), key=lambda card: -card.seq)
    found = (card for card in cards if story_status.matches(card, query))
    return [
        _result(card.story.title, f"Story, {card.position.state}", f"/stories/{card.story.id}")
        for card in islice(found, _MAX_RESULTS)
    ]


async def _find_runs(
    dependencies: ApiDependencies, query: str, principal: Principal
) -> list[Result]:
    """Return the runs that match, the latest first."""
    views = await dependencies.records.tasks.list_tasks(principal, "", _MAX_RESULTS, query=query)
    return [
        _result(
            councils.title_of(view),
            f"Run, {view.status.value.lower().replace('_', ' ')}",
            f"/councils/{quote(view.task_id, '')}",
        )
        for view in views
    ]


def _result(title: str, detail: str, url: str) -> Result:
    return {"title": title[:_TITLE_CHARS], "detail": detail, "url": url}


# The routes of the web page: the board, stories with their moves, plans and councils.
#
# A product owner edits the tasks of a story before it is built: the form has a section for each
# task, and an empty one for a new task.


_MAX_FORM_FIELDS = 1_000
_COMPRESSION_LEVEL = 5
"""Higher levels take more time and save little."""
_EMPTY_SECTION = {"role": "dev", "description": "", "criteria": "", "after": ""}
_LOADED = (Deliberation, Outcome, Proposal, Review, SeatOutcome, Evidence, BudgetAccount)
"""What the views read from the log and the budgets."""

_PREPARE_AFTER_SECONDS = 1.0
"""The page is prepared once the server is ready, because that takes half a second of CPU time."""

log = telemetry.get_logger(__name__)

Sections = Sequence[Mapping[str, Any]]


async def prepare_page(dependencies: ApiDependencies) -> None:
    """Prepare what takes long once, so that the first visitor does not wait for it: templates,
    lexers, schemas, and the stories and runs from the log. Do nothing if this process does not
    serve the page.
    """
    if "page" not in dependencies.serving.roles:
        return
    await asyncio.sleep(_PREPARE_AFTER_SECONDS)
    await asyncio.to_thread(compile_templates)
    await asyncio.to_thread(prepare_loading, *_LOADED)
    try:
        await dependencies.stories.board.cards(LOCAL)
        await dependencies.records.tasks.list_tasks(LOCAL, limit=1)
    except MoothallError as error:
        log.warning("the log is read at the first request", reason=error.message)
    await asyncio.to_thread(prepare_lexers)


def plan_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the form to edit a plan."""

    async def plan(request: Request, session: Session) -> Response:
        story_id = request.path_params["id"]
        card = await dependencies.stories.board.card(story_id, session.principal)
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
            await dependencies.stories.plans.change(
                story_id, plan_id, _outlines(sections), session.principal
            )
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
        "may_edit": may_change(card, session.principal),
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
    board_changes = BoardChanges(dependencies.stories.board)
    routes = [
        *sign_in_routes(bearers, sessions, provider),
        *board_routes(dependencies, sessions, board_changes),
        *story_form_routes(dependencies, sessions),
        *_story_routes(dependencies, sessions),
        *rewrite_routes(dependencies, sessions),
        *plan_routes(dependencies, sessions),
        *ask_routes(dependencies, sessions),
        *council_routes(dependencies, sessions, board_changes),
        *step_routes(dependencies, sessions),
        *council_action_routes(dependencies, sessions),
        *runs_routes(dependencies, sessions),
        *search_routes(dependencies, sessions),
        *insights_routes(dependencies, sessions),
        *server_routes(dependencies, sessions),
        *budget_routes(dependencies, sessions),
        *parked_routes(dependencies, sessions),
        *provenance_routes(dependencies, sessions),
    ]
    for route in routes:
        # Not the APIs, whose streams compression would hold back.
        route.app = GZipMiddleware(route.app, compresslevel=_COMPRESSION_LEVEL)
    return routes


def _story_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    async def story(request: Request, session: Session) -> Response:
        return await story_page(dependencies, request.path_params["id"], session)

    async def comment(request: Request, session: Session) -> Response:
        fields, story_id = await read_session_form(request, session), request.path_params["id"]
        await dependencies.stories.board.comment(
            story_id, fields.get("comment", ""), session.principal, key=fields.get("key", "")
        )
        return redirect(f"/stories/{story_id}")

    async def retry(request: Request, session: Session) -> Response:
        await read_session_form(request, session)
        card = await dependencies.stories.plans.retry(request.path_params["id"], session.principal)
        return redirect(f"/stories/{card.story.id}")

    async def merge(request: Request, session: Session) -> Response:
        fields = await read_session_form(request, session)
        seq = fields.get("seq", "")
        card = await dependencies.stories.board.request_merge(
            request.path_params["id"],
            session.principal,
            seen_seq=int(seq) if seq.isascii() and seq.isdecimal() else 0,
        )
        return redirect(f"/stories/{card.story.id}")

    async def move(request: Request, session: Session) -> Response:
        fields = await read_session_form(request, session)
        story_id = request.path_params["id"]
        await dependencies.stories.board.move(
            story_id,
            fields.get("event", ""),
            session.principal,
            comment=fields.get("comment", "").strip(),
        )
        return redirect("/" if fields.get("back") == "board" else f"/stories/{story_id}")

    return [
        Route("/stories/{id}", require_session(story, sessions)),
        Route("/stories/{id}/retry", require_session(retry, sessions), methods=["POST"]),
        Route("/stories/{id}/merge", require_session(merge, sessions), methods=["POST"]),
        Route("/stories/{id}/move", require_session(move, sessions), methods=["POST"]),
        Route("/stories/{id}/comment", require_session(comment, sessions), methods=["POST"]),
    ]
