"""The list of runs: every deliberation of the tenant, from the page, the command line and the
APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.councils import REFRESH_SECONDS
from moothall.api.web.forms import read_query, require_session
from moothall.api.web.rendering import page
from moothall.api.web.sessions import Session, Sessions
from moothall.domain.status import TaskView
from moothall.errors import InvalidRequest

_PAGE_SIZE = 50
_MAX_PAGE = 20
"""The overview keeps the latest thousand runs."""
_STATES = {"": "All", "live": "Running", "ended": "Ended", "failed": "Failed"}


_SORT_KEYS: Mapping[str, Callable[[TaskView], Any]] = {
    "status": lambda view: (view.status.ended, bool(view.winner_id), view.status.value),
    "evidence": lambda view: (not view.winner_id, view.level),
    "repository": lambda view: view.repository,
    "by": lambda view: (view.principal, view.agent),
    "time": lambda view: -view.duration_ms,
}
"""The columns by which runs can be sorted; within equal ones, the latest is first."""


def runs_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the list of runs."""

    async def runs(request: Request, session: Session) -> Response:
        state, number = request.query_params.get("state", ""), _page_number(request)
        if state not in _STATES:
            raise InvalidRequest(f"state is {state[:40]!r}; allowed are live, ended and failed")
        query, sort = read_query(request), request.query_params.get("sort", "")
        if sort and sort not in _SORT_KEYS:
            raise InvalidRequest(f"sort is {sort[:40]!r}; allowed are {', '.join(_SORT_KEYS)}")
        first = (number - 1) * _PAGE_SIZE
        # One more than are shown tells whether there is a next page.
        found = (
            await _list_sorted(dependencies, session, state, query, sort)
            if sort
            else await dependencies.tasks.list_tasks(
                session.who, state, first + _PAGE_SIZE + 1, query=query
            )
        )[first : first + _PAGE_SIZE + 1]
        shown = found[:_PAGE_SIZE]
        return page(
            "runs.html",
            session=session,
            runs=shown,
            states=_STATES,
            state=state,
            query=query,
            sort=sort,
            title_of=title_of,
            number=number,
            has_next=len(found) > _PAGE_SIZE and number < _MAX_PAGE,
            refresh=REFRESH_SECONDS if any(not view.status.ended for view in shown) else 0,
        )

    return [Route("/runs", require_session(runs, sessions))]


async def _list_sorted(
    dependencies: ApiDependencies, session: Session, state: str, query: str, sort: str
) -> Sequence[TaskView]:
    views = await dependencies.tasks.list_tasks(
        session.who, state, _MAX_PAGE * _PAGE_SIZE, query=query
    )
    return sorted(views, key=_SORT_KEYS[sort])


def _page_number(request: Request) -> int:
    """Return the number of the page, from 1. Raises `InvalidRequest`."""
    text = request.query_params.get("page", "1")
    number = (
        int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_PAGE)) else 0
    )
    if not 1 <= number <= _MAX_PAGE:
        raise InvalidRequest(f"page is {text[:40]!r}; allowed are 1 to {_MAX_PAGE}")
    return number


def title_of(view: TaskView) -> str:
    """Return the first line of a run's task, or its id."""
    return view.description.split("\n")[0] or view.task_id
