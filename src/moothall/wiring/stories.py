"""The board of a data directory, for commands: of the process that serves or of no running one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from moothall.config import Settings
from moothall.council.request import Defaults
from moothall.domain.identity import LOCAL
from moothall.domain.ids import is_id
from moothall.guard.accounts import BUCKET, Accounts
from moothall.planning.board import Board
from moothall.planning.planner import Planner
from moothall.wiring.bus import Tell, is_served, open_log
from moothall.wiring.tasks import Tasks
from moothall.wiring.trusted import trusted_repositories


@dataclass(frozen=True, slots=True)
class Stories:
    """The board, the plans and tasks of its stories, and whether another process works on them."""

    board: Board
    accounts: Accounts
    plans: Planner
    tasks: Tasks
    served: bool


@asynccontextmanager
async def open_stories(settings: Settings, tell: Tell) -> AsyncIterator[Stories]:
    """The stories of this data directory. Needs no Ray and no model."""
    async with open_log(settings, tell) as bus:
        served = await is_served(settings, bus)
        tasks = Tasks(bus, trusted_repositories(settings), Defaults(settings.limits), served=served)
        accounts = Accounts(bus.bucket(BUCKET), settings.limits)
        yield Stories(Board(bus), accounts, Planner(bus, settings.limits), tasks, served)


async def registered(settings: Settings, named: str) -> str:
    """Return the id of a repository that is named by its id, a path or a URL; a path or URL is registered. Raises what `register` does,
    and `NotFound` for an id that nobody registered.
    """
    repositories = trusted_repositories(settings)
    if is_id(named):
        return (await asyncio.to_thread(repositories.registry.get, named, LOCAL.tenant)).id
    return (await repositories.register(named)).id
