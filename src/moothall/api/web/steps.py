"""The steps of a council's timeline: a page for each with its prompt, reply and tool output. The
council's page loads them into its list of steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moothall.api.dependencies import ApiDependencies
from moothall.api.web.councils import council_title
from moothall.api.web.forms import require_session
from moothall.api.web.rendering import fragment, page, part
from moothall.api.web.sessions import Session, Sessions
from moothall.collector.timeline import Block, Timeline
from moothall.domain.ids import check_task_id
from moothall.errors import NotFound

_MAX_DIGITS = 9


def step_routes(dependencies: ApiDependencies, sessions: Sessions) -> Sequence[Route]:
    """Return the route of a step, named by its lane and its place in the lane, from 0. With the
    parameter `part`, the answer is a fragment for the council's page.
    """

    async def step(request: Request, session: Session) -> Response:
        task_id = check_task_id(request.path_params["id"])
        progress, timeline = await dependencies.tasks.get_details(task_id, session.who)
        lane, place = request.path_params["lane"], request.path_params["place"]
        blocks = _find_lane(timeline, lane)
        is_number = place.isascii() and place.isdecimal() and len(place) <= _MAX_DIGITS
        index = int(place) if is_number else len(blocks)
        if index >= len(blocks):
            raise NotFound("this council has no such step")
        block = blocks[index]
        calls = await dependencies.tasks.get_model_calls(task_id, session.who) if block.call else {}
        context: dict[str, Any] = {"block": block, "call": calls.get(block.call), "full": True}
        if "part" in request.query_params:
            return fragment(await asyncio.to_thread(part, "step.html", **context))
        requested = progress.state.requested if progress.state else None
        return page(
            "step_page.html",
            session=session,
            task_id=task_id,
            title=council_title(requested.value if requested else None) or f"Task {task_id}",
            lane=lane,
            index=index,
            count=len(blocks),
            **context,
        )

    path = "/councils/{id}/steps/{lane}/{place}"
    return [Route(path, require_session(step, sessions))]


def _find_lane(timeline: Timeline, name: str) -> Sequence[Block]:
    """Return the steps of a lane; none if there is no such lane."""
    return next((lane.blocks for lane in timeline.lanes if lane.name == name), ())
