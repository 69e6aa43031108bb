"""The page to ask one agent. The answer is on the council's page, where the conversation
continues.
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

_MAX_SHOWN, _MAX_LISTED = 20, 100


def ask_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of the page, which also lists recent questions."""

    async def form(session: Session, fields: Mapping[str, str], error: str = "") -> Response:
        latest = await dependencies.tasks.list_tasks(session.who, limit=_MAX_LISTED)
        return page(
            "ask.html",
            400 if error else 200,
            session=session,
            fields=fields,
            error=error,
            roles=ROLES,
            repositories=known_repositories(dependencies, session.who),
            may_ask=comments.may_act(session.who),
            key=new_task_id(),
            questions=[view for view in latest if view.protocol == "ask"][:_MAX_SHOWN],
        )

    async def ask(request: Request, session: Session) -> Response:
        if request.method == "GET":
            return await form(session, {})
        fields = await read_session_form(request, session)
        comments.check_role(session.who)
        try:
            deliberation = await dependencies.deliberations.submit(_request(fields), session.who)
        except (InvalidRequest, NotFound, RepositoryError) as error:
            return await form(session, fields, error.message)
        return redirect(f"/councils/{deliberation.own_id}")

    return [Route("/ask", require_session(ask, sessions), methods=["GET", "POST"])]


def _request(fields: Mapping[str, str]) -> DeliberationRequest:
    """Convert a form. A follow-up question has the subject of the earlier task. `key` makes a form
    that is sent twice one question.
    """
    repository, follows = fields.get("repository", "").strip(), fields.get("follows", "")
    return DeliberationRequest(
        description=fields.get("question", ""),
        role=fields.get("role") or ROLES[0],
        task_id=fields.get("key", ""),
        num_agents=1,
        repository=RepositoryRef.from_name(repository) if repository else None,
        protocol="ask",
        about_text=not (repository or follows),
        follows=follows,
    )


async def earlier_tasks(
    tasks: Overview, deliberation: Deliberation | None, who: Principal
) -> Sequence[TaskView]:
    """Return the earlier tasks of a conversation, oldest first, as far as they are known."""
    if deliberation is None or not deliberation.follows:
        return ()
    try:
        return await tasks.get_conversation(own_id(deliberation.follows, who.tenant), who)
    except NotFound:
        return ()
