"""/health and /tasks: how the house stands, and what is under way in it."""

from __future__ import annotations

from dataclasses import replace

from aiohttp import web

from moothall.domain.codec import dump
from moothall.domain.ids import check_id
from moothall.domain.overview import Condition
from moothall.errors import InvalidRequest, NotFound
from moothall.ports import Checkups, Tasks
from moothall.services.rest.edge import CALLER

OPEN_PATHS = frozenset({"/health"})
_MOST = 500
_USUAL = 50


class StateRoutes:
    """The handlers."""

    def __init__(self, tasks: Tasks | None, checkup: Checkups) -> None:
        self._tasks = tasks
        self._checkup = checkup

    def routes(self) -> list[web.RouteDef]:
        """Return what is served where."""
        found = [web.get("/health", self.health)]
        return [*found, web.get("/tasks", self.tasks), web.get("/tasks/{id}", self.one)]

    async def health(self, request: web.Request) -> web.Response:
        """Say how each part stands: 200, or 503 where one that nothing works without is down. Details only to callers with a token."""
        found = await self._checkup.look()
        if CALLER not in request:
            found = replace(found, parts=tuple(replace(part, detail="") for part in found.parts))
        return web.json_response(dump(found), status=503 if found.status is Condition.DOWN else 200)

    async def tasks(self, request: web.Request) -> web.Response:
        """List the caller's tenant's tasks: those under way, then those that ended, the latest first."""
        state, limit = request.query.get("state", ""), request.query.get("limit", str(_USUAL))
        if state not in {"", "live", "ended", "failed"}:
            raise InvalidRequest(f"state is {state[:40]!r}; it is live, ended or failed, or left out for all")
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MOST):
            raise InvalidRequest(f"limit is {limit[:40]!r}; allowed are 1 to {_MOST}")
        found = await self._known().latest(request[CALLER], state, int(limit))
        return web.json_response({"tasks": [dump(task) for task in found]})

    async def one(self, request: web.Request) -> web.Response:
        """Tell one task."""
        return web.json_response(dump(await self._known().get(check_id(request.match_info["id"], "task_id"), request[CALLER])))

    def _known(self) -> Tasks:
        if self._tasks is None:
            raise NotFound("this server knows nothing of tasks")
        return self._tasks
