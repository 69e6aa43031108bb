"""The search of the palette: stories and runs by their words, for the script."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web import board, runs
from moothall.api.web.forms import read_query, require_session
from moothall.api.web.rendering import json_document
from moothall.api.web.sessions import Session, Sessions
from moothall.domain.identity import Principal

_MAX_RESULTS = 8
"""Results of each kind."""
_TITLE_CHARS = 120
Result = dict[str, str]


def search_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the search."""

    async def search(request: Request, session: Session) -> Response:
        query, who = read_query(request), session.who
        if not query:
            return json_document([])
        stories = await _find_stories(dependencies, query, who)
        return json_document([*stories, *await _find_runs(dependencies, query, who)])

    return [Route("/search", require_session(search, sessions))]


async def _find_stories(dependencies: ApiDependencies, query: str, who: Principal) -> list[Result]:
    """Return the stories that match, the most recently changed first."""
    cards = sorted(await dependencies.board.cards(who), key=lambda card: -card.seq)
    found = (card for card in cards if board.matches(card, query))
    return [
        _result(card.story.title, f"Story, {card.position.state}", f"/stories/{card.story.id}")
        for card in islice(found, _MAX_RESULTS)
    ]


async def _find_runs(dependencies: ApiDependencies, query: str, who: Principal) -> list[Result]:
    """Return the runs that match, the latest first."""
    views = await dependencies.tasks.list_tasks(who, "", _MAX_RESULTS, query=query)
    return [
        _result(
            runs.title_of(view),
            f"Run, {view.status.value.lower().replace('_', ' ')}",
            f"/councils/{quote(view.task_id, '')}",
        )
        for view in views
    ]


def _result(title: str, detail: str, url: str) -> Result:
    return {"title": title[:_TITLE_CHARS], "detail": detail, "url": url}
