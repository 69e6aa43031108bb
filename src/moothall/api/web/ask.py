"""Asking one agent from the page: a question, its answer on the page of its council, and the next
one from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.forms import read_session_form, require_session
from moothall.api.web.provenance import known_repositories
from moothall.api.web.rendering import page, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.collector.overview import Overview
from moothall.domain.identity import Principal
from moothall.domain.ids import ROLES, new_task_id, own_id
from moothall.domain.status import TaskView
from moothall.domain.task import Deliberation, DeliberationRequest, RepositoryRef
from moothall.errors import InvalidRequest, NotFound, RepositoryError
from moothall.stories import comments

_SHOWN, _LOOKED_AT = 20, 100


def asking_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the place to ask, where what was asked lately stands too."""

    async def form(session: Session, given: Mapping[str, str], wrong: str = "") -> Response:
        latest = await dependencies.tasks.list_tasks(session.who, limit=_LOOKED_AT)
        return page(
            "ask.html",
            400 if wrong else 200,
            session=session,
            given=given,
            wrong=wrong,
            roles=ROLES,
            repositories=known_repositories(dependencies, session.who),
            may=comments.may_act(session.who),
            key=new_task_id(),
            asked=[view for view in latest if view.protocol == "ask"][:_SHOWN],
        )

    async def ask(request: Request, session: Session) -> Response:
        if request.method == "GET":
            return await form(session, {})
        given = await read_session_form(request, session)
        comments.check_role(session.who)
        try:
            made = await dependencies.deliberations.submit(_request(given), session.who)
        except (InvalidRequest, NotFound, RepositoryError) as error:
            return await form(session, given, error.message)
        return redirect(f"/councils/{made.task_id}")

    return [Route("/ask", require_session(ask, sessions), methods=["GET", "POST"])]


def _request(given: Mapping[str, str]) -> DeliberationRequest:
    """Return what a form asks. What goes on from a task is about what that was about; `key` makes a
    form that is sent twice one question.
    """
    repository, follows = given.get("repository", "").strip(), given.get("follows", "")
    return DeliberationRequest(
        description=given.get("question", ""),
        role=given.get("role") or ROLES[0],
        task_id=given.get("key", ""),
        num_agents=1,
        repository=RepositoryRef.from_name(repository) if repository else None,
        protocol="ask",
        about_text=not (repository or follows),
        follows=follows,
    )


async def earlier_tasks(
    tasks: Overview, asked: Deliberation | None, who: Principal
) -> Sequence[TaskView]:
    """Return what was asked before in a conversation, the first first, as far as it is known."""
    if asked is None or not asked.follows:
        return ()
    try:
        return await tasks.get_conversation(own_id(asked.follows, who.tenant), who)
    except NotFound:
        return ()
