"""Where a line of a file comes from, and the context graph, a node at a time. Both know of the
caller's own tenant alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.charts import Neighbour, draw_around
from moothall.api.web.forms import require_session
from moothall.api.web.rendering import page
from moothall.api.web.sessions import Session, Sessions
from moothall.domain.identity import Principal
from moothall.domain.ids import own_id
from moothall.errors import GraphUnavailable, InvalidRequest, NotFound
from moothall.repositories.service import RepositoryService

Row = Mapping[str, Any]
_FILES, _BEFORE, _LINES, _NEAR, _WORDS = 500, 40, 400, 100, 80
_SAYS = (
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
"""Properties of which the first that a node has says best what it is."""


def tracing_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the views that go back: from a line to who approved it, and from a node of the graph
    to the next.
    """

    async def origins(request: Request, session: Session) -> Response:
        given = {
            name: request.query_params.get(name, "").strip()
            for name in ("repository", "ref", "path", "line")
        }
        told: dict[str, Any] = {
            "given": given,
            "files": (),
            "more": 0,
            "lines": (),
            "first": 1,
            "last": True,
            "origin": None,
        }
        told |= {"rows": (), "unknown": "", "commit": "", "repositories": ()}
        if dependencies.repositories is None:
            raise NotFound("this server shows no repositories")
        told["repositories"] = known_repositories(dependencies, session.who)
        if given["repository"]:
            told |= await _file(dependencies.repositories, given, session.who)
        if given["repository"] and given["path"] and given["line"]:
            told |= await _origin(dependencies, dependencies.repositories, given, session.who)
        return page(
            "origins.html",
            session=session,
            own=lambda name: own_id(name, session.who.tenant),
            **told,
        )

    async def graph(request: Request, session: Session) -> Response:
        label, name = (request.query_params.get(key, "").strip() for key in ("label", "id"))
        if not label or not name:
            return page(
                "graph.html",
                session=session,
                node=None,
                cards=await dependencies.board.cards(session.who),
            )
        rows = await dependencies.ask(
            "neighbours", tenant=session.who.tenant, label=label, id=name, depth=1, limit=_NEAR
        )
        if not rows:
            raise NotFound(
                f"the graph knows no {label[:40]} {name[:200]!r}; it follows the log by a moment, "
                "and forgets nothing"
            )
        near = _near(rows[0])
        told = {
            "node": rows[0]["node"],
            "near": near,
            "star": draw_around(near),
            "words": _words(rows[0]["node"]),
            "most": _NEAR,
        }
        council = own_id(name, session.who.tenant) if label == "Deliberation" else ""
        return page("graph.html", session=session, council=council, **told)

    return [
        Route("/origins", require_session(origins, sessions)),
        Route("/graph", require_session(graph, sessions)),
    ]


def known_repositories(dependencies: ApiDependencies, who: Principal) -> Sequence[str]:
    """Return the ids of the repositories that a tenant registered."""
    return (
        [entry.id for entry in dependencies.repositories.registry.list(who.tenant)]
        if dependencies.repositories
        else []
    )


async def _file(
    repositories: RepositoryService, given: Mapping[str, str], who: Principal
) -> dict[str, Any]:
    """Return the files of a commit, or the lines of one from where they are looked at."""
    sha, paths = await repositories.paths(given["repository"], given["ref"], tenant=who.tenant)
    if not given["path"]:
        return {"commit": sha, "files": paths[:_FILES], "more": max(0, len(paths) - _FILES)}
    text = await repositories.text(given["repository"], sha, given["path"], tenant=who.tenant)
    lines = text.removesuffix("\n").split("\n")
    first = max(1, _number(given["line"]) - _BEFORE) if given["line"] else 1
    shown = list(enumerate(lines[first - 1 : first - 1 + _LINES], first))
    return {"commit": sha, "lines": shown, "first": first, "last": first - 1 + _LINES >= len(lines)}


async def _origin(
    dependencies: ApiDependencies,
    repositories: RepositoryService,
    given: Mapping[str, str],
    who: Principal,
) -> dict[str, Any]:
    """Return which commit a line comes from and what the graph knows of that, or why it knows
    nothing.
    """
    place = (given["repository"], given["ref"], given["path"], _number(given["line"]))
    origin = await repositories.origin(*place, tenant=who.tenant)
    try:
        rows = await dependencies.ask(
            "provenance", tenant=who.tenant, commit_sha=origin.commit, path=origin.path
        )
    except GraphUnavailable as error:
        return {"origin": origin, "unknown": f"The graph cannot be asked now: {error.message}"}
    said = "" if rows else "No council of this server made it, or the log of it was pruned."
    return {"origin": origin, "rows": rows, "unknown": said}


def _number(line: str) -> int:
    if not (line.isascii() and line.isdecimal() and int(line[:9]) > 0 and len(line) <= 9):  # noqa: PLR2004 - more than any file has
        raise InvalidRequest(f"line is {line[:40]!r}; lines are counted from 1")
    return int(line)


def _near(row: Row) -> list[Neighbour]:
    """Return what is related to a node, by relation."""
    here = (row["node"]["label"], row["node"]["id"])
    words = {(node["label"], node["id"]): _words(node) for node in row["neighbours"]}
    found = []
    for relation in row["relationships"]:
        start, end = ((relation[side]["label"], relation[side]["id"]) for side in ("from", "to"))
        if here not in {start, end} or start == end:
            continue
        leads = end == here
        other = start if leads else end
        found.append(Neighbour(*other, words.get(other, ""), relation["type"], leads))
    return sorted(found, key=lambda item: (not item.leads, item.relation, item.label, item.id))


def _words(node: Row) -> str:
    said = next((str(value) for name in _SAYS if (value := node["properties"].get(name))), "")
    return " ".join(said.strip().partition("\n\n")[0].split())[:_WORDS]
