"""The view Operations: health, tools, quotas of tenants and budgets of stories, the context graph,
and the origin of a line; for operators also parked requests, and decisions of the tool gateway.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.tools import Tools
from moothall.api.web.charts import Neighbour, draw_around
from moothall.api.web.rendering import REFRESH_SECONDS, page, redirect
from moothall.api.web.sessions import (
    Session,
    Sessions,
    read_query,
    read_session_form,
    require_session,
)
from moothall.authorization.approvals import refuse_unless_operator
from moothall.authorization.budgets import TenantQuotas
from moothall.config.limits import Quota
from moothall.domain.ids import Principal, TaskId, own_id
from moothall.errors import GraphUnavailable, InvalidRequest, NotFound, Refused
from moothall.repositories.service import RepositoryService
from moothall.tools.catalogue import CATALOGUE
from moothall.tools.spec import Filters, discover

# The pages about the server: health, decisions of the tool gateway, parked requests, and tools.


def server_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the pages about the server."""

    async def health(_request: Request, session: Session) -> Response:
        return page("health.html", session=session, health=await dependencies.health_check.check())

    async def audit(request: Request, session: Session) -> Response:
        if not session.principal.operator:
            raise Refused("only operators can see the decisions of the tool gateway")
        only = request.query_params.get("only", "")
        if only not in {"", "refused"}:
            raise InvalidRequest(f"only is {only[:40]!r}; allowed is refused, or omit it for all")
        decisions = await dependencies.records.decisions.last(session.principal)
        return page(
            "decisions.html",
            session=session,
            only=only,
            decisions=[item for item in decisions if item.refused or not only],
        )

    async def tools(request: Request, session: Session) -> Response:
        query = read_query(request, "query")
        specs = (
            dependencies.tools.sessions.list_tools(session.principal)
            if dependencies.tools.sessions
            else CATALOGUE.values()
        )
        return page(
            "tools.html", session=session, query=query, tools=discover(specs, Filters(query))
        )

    return [
        Route("/system", require_session(health, sessions)),
        Route("/system/audit", require_session(audit, sessions)),
        Route("/system/tools", require_session(tools, sessions)),
    ]


def parked_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes to list and to decide parked requests."""
    service = (
        Tools(dependencies.tools.sessions, dependencies.tools.approvals)
        if dependencies.tools.sessions
        else None
    )

    async def list_parked(_request: Request, session: Session) -> Response:
        refuse_unless_operator(session.principal)
        waiting = service.list_parked() if service else ()
        return page("parked.html", session=session, parked=waiting, refresh=REFRESH_SECONDS)

    async def resolve(request: Request, session: Session) -> Response:
        form, request_id = await read_session_form(request, session), request.path_params["id"]
        if form.get("do") not in {"allow", "refuse"}:
            raise InvalidRequest("do must be allow or refuse")
        if service is None:
            raise NotFound(f"no parked request {request_id[:80]!r}")
        await service.resolve(
            request_id, allow=form["do"] == "allow", reason=form.get("reason", "").strip()
        )
        return redirect("/system/parked")

    return [
        Route("/system/parked", require_session(list_parked, sessions)),
        Route("/system/parked/{id}", require_session(resolve, sessions), methods=["POST"]),
    ]


# Quotas of tenants and budgets of stories.


_MAX_BUDGET_STORIES = 50
_MAX_DIGITS = 15
_FIELDS = {
    "tokens_per_day": "Tokens per day",
    "tokens_per_month": "Tokens per month",
    "cost_usd_per_day": "US dollars per day",
    "cost_usd_per_month": "US dollars per month",
    "deliberations": "Deliberations at once",
}
"""The fields of a quota, with their labels."""


def budget_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the page and its form."""

    async def budgets(request: Request, session: Session) -> Response:
        tenant = read_query(request, "tenant") or session.principal.tenant
        if tenant != session.principal.tenant:
            refuse_unless_operator(session.principal)
        if request.method == "GET":
            quotas = await dependencies.quotas.read(tenant)
            return await show(session, tenant, quotas, _texts(quotas.values))
        refuse_unless_operator(session.principal)
        form = await read_session_form(request, session)
        tenant = form.get("tenant", "") or session.principal.tenant
        try:
            values = _read_values(form)
            await dependencies.quotas.change(tenant, values, session.principal)
        except InvalidRequest as error:
            quotas = await dependencies.quotas.read(tenant)
            return await show(session, tenant, quotas, form, error.message)
        is_own_tenant = tenant == session.principal.tenant
        return redirect("/system/budgets" if is_own_tenant else f"/system/budgets?tenant={tenant}")

    async def show(
        session: Session,
        tenant: str,
        quotas: TenantQuotas,
        texts: Mapping[str, str],
        error: str = "",
    ) -> Response:
        cards = await dependencies.stories.board.cards(session.principal)
        latest = sorted(cards, key=lambda card: -card.seq)[:_MAX_BUDGET_STORIES]
        accounts = await asyncio.gather(
            *(
                dependencies.stories.budgets.of(
                    card.story.id, session.principal.tenant, card.story.budget
                )
                for card in latest
            )
        )
        return page(
            "budgets.html",
            400 if error else 200,
            session=session,
            tenant=tenant,
            quotas=quotas,
            uses=await dependencies.quotas.list_uses(tenant),
            fields=_FIELDS,
            texts=texts,
            error=error,
            default=dependencies.quotas.of_settings(tenant),
            budgets=[
                (card, account.lines()) for card, account in zip(latest, accounts, strict=True)
            ],
            count=len(cards),
        )

    handler = require_session(budgets, sessions)
    return [Route("/system/budgets", handler, methods=["GET", "POST"])]


def _texts(values: Mapping[str, float]) -> Mapping[str, str]:
    return {name: str(value) for name, value in values.items()}


def _read_values(form: Mapping[str, str]) -> Mapping[str, float]:
    """Return the values of the form; empty fields are left out. Raises `InvalidRequest`."""
    values: dict[str, float] = {}
    for name, label in _FIELDS.items():
        text = form.get(name, "").strip()
        if not text:
            continue
        is_whole = Quota.model_fields[name].annotation is int
        digits = text if is_whole else text.replace(".", "", 1)
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
            raise InvalidRequest(
                f"{label}: {text[:40]!r} is not a {'whole ' if is_whole else ''}number; 0 is no "
                "limit, and an empty field is the server's setting"
            )
        values[name] = int(text) if is_whole else float(text)
    return values


# The origin of a line of a file, and the context graph, one node at a time. Both show only the
# caller's own tenant.


Row = Mapping[str, Any]
_MAX_FILES, _LINES_BEFORE, _MAX_LINES, _MAX_NEIGHBOURS, _TEXT_CHARS = 500, 40, 400, 100, 80
_TEXT_PROPERTIES = (
    "headline",
    "summary",
    "description",
    "comment",
    "decision",
    "check",
    "tool",
    "phase",
    "seat",
    "url",
    "event",
    "status",
    "approver",
    "reviewer",
    "role",
)
"""The properties that describe a node, the best one first."""
_COUNCIL_LABELS = frozenset({"Task", "Deliberation"})
"""The kinds of nodes whose ids are those of a council."""


def provenance_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the routes of the pages: the origin of a line, and the context graph."""
    return [*_origin_routes(dependencies, sessions), *_graph_routes(dependencies, sessions)]


def _origin_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    async def origins(request: Request, session: Session) -> Response:
        parameters = {
            name: request.query_params.get(name, "").strip()
            for name in ("repository", "ref", "path", "line")
        }
        context: dict[str, Any] = {
            "parameters": parameters,
            "files": (),
            "more_files": 0,
            "lines": (),
            "first": 1,
            "last": True,
            "origin": None,
        }
        context |= {"rows": (), "note": "", "commit": "", "repositories": ()}
        if dependencies.repositories is None:
            raise NotFound("this server does not show repositories")
        context["repositories"] = known_repositories(dependencies, session.principal)
        if parameters["repository"]:
            context |= await _file(dependencies.repositories, parameters, session.principal)
        if parameters["repository"] and parameters["path"] and parameters["line"]:
            context |= await _origin(
                dependencies, dependencies.repositories, parameters, session.principal
            )
        return page(
            "origins.html",
            session=session,
            local_id=lambda name: own_id(name, session.principal.tenant),
            **context,
        )

    return [Route("/origins", require_session(origins, sessions))]


def _graph_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    async def graph(request: Request, session: Session) -> Response:
        label, name = (request.query_params.get(key, "").strip() for key in ("label", "id"))
        if not label or not name:
            return page(
                "graph.html",
                session=session,
                node=None,
                cards=await dependencies.stories.board.cards(session.principal),
            )
        rows = await dependencies.context.query(
            "neighbours",
            tenant=session.principal.tenant,
            label=label,
            id=name,
            depth=1,
            limit=_MAX_NEIGHBOURS,
        )
        if not rows:
            raise NotFound(
                f"the graph has no {label[:40]} {name[:200]!r}; recent events appear after a moment"
            )
        neighbours = await _with_titles(dependencies, _neighbours(rows[0]), session.principal)
        kind = read_query(request, "kind")
        visible = [item for item in neighbours if kind in {"", item.label}]
        context = {
            "node": rows[0]["node"],
            "neighbours": visible,
            "kind": kind,
            "kinds": sorted(Counter(item.label for item in neighbours).items()),
            "chart": draw_around(visible),
            "node_text": _node_text(rows[0]["node"]),
            "is_cut": len(neighbours) >= _MAX_NEIGHBOURS,
            "limit": _MAX_NEIGHBOURS,
        }
        council = own_id(name, session.principal.tenant) if label == "Deliberation" else ""
        return page("graph.html", session=session, council=council, **context)

    return [Route("/graph", require_session(graph, sessions))]


def known_repositories(dependencies: ApiDependencies, principal: Principal) -> Sequence[str]:
    """Return the ids of a tenant's registered repositories."""
    return (
        [entry.id for entry in dependencies.repositories.registry.list(principal.tenant)]
        if dependencies.repositories
        else []
    )


async def _file(
    repositories: RepositoryService, parameters: Mapping[str, str], principal: Principal
) -> dict[str, Any]:
    """Return the files of a commit, or the lines of a file around the requested one."""
    sha, paths = await repositories.paths(
        parameters["repository"], parameters["ref"], tenant=principal.tenant
    )
    if not parameters["path"]:
        return {
            "commit": sha,
            "files": paths[:_MAX_FILES],
            "more_files": max(0, len(paths) - _MAX_FILES),
        }
    text = await repositories.text(
        parameters["repository"], sha, parameters["path"], tenant=principal.tenant
    )
    lines = text.removesuffix("\n").split("\n")
    first_line = (
        max(1, _parse_line_number(parameters["line"]) - _LINES_BEFORE) if parameters["line"] else 1
    )
    numbered_lines = list(
        enumerate(lines[first_line - 1 : first_line - 1 + _MAX_LINES], first_line)
    )
    return {
        "commit": sha,
        "lines": numbered_lines,
        "first": first_line,
        "last": first_line - 1 + _MAX_LINES >= len(lines),
    }


async def _origin(
    dependencies: ApiDependencies,
    repositories: RepositoryService,
    parameters: Mapping[str, str],
    principal: Principal,
) -> dict[str, Any]:
    """Return the commit of a line and the graph's rows about it, or why there are none."""
    position = (
        parameters["repository"],
        parameters["ref"],
        parameters["path"],
        _parse_line_number(parameters["line"]),
    )
    origin = await repositories.origin(*position, tenant=principal.tenant)
    try:
        rows = await dependencies.context.query(
            "provenance", tenant=principal.tenant, commit_sha=origin.commit, path=origin.path
        )
    except GraphUnavailable as error:
        return {"origin": origin, "note": f"The graph cannot be queried now: {error.message}"}
    reason = "" if rows else "No council of this server created it, or its log was pruned."
    return {"origin": origin, "rows": rows, "note": reason}


def _parse_line_number(line: str) -> int:
    if not (line.isascii() and line.isdecimal() and int(line[:9]) > 0 and len(line) <= 9):  # noqa: PLR2004 - more than any file has
        raise InvalidRequest(f"line is {line[:40]!r}; lines are counted from 1")
    return int(line)


def _neighbours(row: Row) -> list[Neighbour]:
    """Return a node's neighbours, sorted by relation."""
    center = (row["node"]["label"], row["node"]["id"])
    texts = {(node["label"], node["id"]): _node_text(node) for node in row["neighbours"]}
    neighbours = []
    for relation in row["relationships"]:
        source, target = (
            (relation[side]["label"], relation[side]["id"]) for side in ("from", "to")
        )
        if center not in {source, target} or source == target:
            continue
        leads = target == center
        neighbour = source if leads else target
        neighbours.append(Neighbour(*neighbour, texts.get(neighbour, ""), relation["type"], leads))
    return sorted(neighbours, key=lambda item: (not item.leads, item.relation, item.label, item.id))


async def _with_titles(
    dependencies: ApiDependencies, neighbours: Sequence[Neighbour], principal: Principal
) -> list[Neighbour]:
    """Return neighbours with titles. The title of a council that the graph knows only by its id is
    the first line of its task.
    """
    titles: dict[str, str] = {}
    for item in neighbours:
        if item.label in _COUNCIL_LABELS and not item.text:
            with suppress(NotFound):
                task_id = TaskId(own_id(item.id, principal.tenant))
                task = await dependencies.records.tasks.get_task(task_id, principal)
                titles[item.id] = _first_line(task.description)
    return [replace(item, text=item.text or titles.get(item.id, "")) for item in neighbours]


def _node_text(node: Row) -> str:
    text = next(
        (str(value) for name in _TEXT_PROPERTIES if (value := node["properties"].get(name))), ""
    )
    return _first_line(text)


def _first_line(text: str) -> str:
    return " ".join(text.strip().partition("\n\n")[0].split())[:_TEXT_CHARS]
