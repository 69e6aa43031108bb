"""The routes of the web page, and the search of the palette: stories and runs by their words, for
the script.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from urllib.parse import quote

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall import telemetry
from moothall.api.dependencies import ApiDependencies
from moothall.api.identity import BearerTokens
from moothall.api.web import councils
from moothall.api.web.board_page import BoardChanges, board_routes
from moothall.api.web.council_actions import ask_routes, council_action_routes
from moothall.api.web.councils import council_routes, runs_routes, step_routes
from moothall.api.web.insights import insights_routes
from moothall.api.web.operations import (
    budget_routes,
    parked_routes,
    provenance_routes,
    server_routes,
)
from moothall.api.web.rendering import (
    compile_templates,
    json_document,
    prepare_lexers,
)
from moothall.api.web.sessions import (
    Session,
    Sessions,
    read_query,
    require_session,
)
from moothall.api.web.sign_in import Provider, sign_in_routes
from moothall.api.web.story_form import rewrite_routes, story_form_routes
from moothall.api.web.story_page import matches, plan_routes, story_routes
from moothall.domain.budget import BudgetAccount
from moothall.domain.codec import prepare_loading
from moothall.domain.evidence import Evidence
from moothall.domain.ids import LOCAL, Principal
from moothall.domain.outcome import Outcome
from moothall.domain.proposal import Proposal, Review, SeatOutcome
from moothall.domain.task import Deliberation
from moothall.errors import MoothallError

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
    matching_cards = (card for card in cards if matches(card, query))
    return [
        _result(card.story.title, f"Story, {card.position.state}", f"/stories/{card.story.id}")
        for card in islice(matching_cards, _MAX_RESULTS)
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


# All routes of the web page, and what is prepared for the first request.


_COMPRESSION_LEVEL = 5
"""Higher levels take more time and save little."""
_LOADED = (Deliberation, Outcome, Proposal, Review, SeatOutcome, Evidence, BudgetAccount)
"""What the views read from the log and the budgets."""

_PREPARE_AFTER_SECONDS = 1.0
"""The page is prepared once the server is ready, because that takes half a second of CPU time."""

log = telemetry.get_logger(__name__)


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
        *story_routes(dependencies, sessions),
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
