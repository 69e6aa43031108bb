"""The tasks of a story as its product owner changes them before it is built: a form with a part for
each task, and one for another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.status import http_status_of
from moothall.api.web.forms import read_session_form, require_session
from moothall.api.web.rendering import page, redirect
from moothall.api.web.sessions import Session, Sessions
from moothall.domain.ids import ROLES
from moothall.errors import ConcurrentUpdate, InvalidRequest, MoothallError
from moothall.stories.plan_document import Outline, outline_of, outlines_of
from moothall.stories.planner import changeable, may_change
from moothall.stories.story_state import StoryState

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
