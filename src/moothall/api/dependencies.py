"""The services that the API servers call. The health of the server's parts, checked on request.
Stored bundles: the briefings of several roles, so that a session can start again with the
same text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from google.protobuf import json_format

import moothall
from moothall.agents.service import AgentTasks
from moothall.authorization.approvals import ApprovalQueue
from moothall.authorization.audit import Decisions
from moothall.authorization.budgets import Quotas, StoryBudgets
from moothall.collector.overview import Overview
from moothall.collector.statistics import Statistics
from moothall.config import Models
from moothall.deliberation.prompts.briefing import AskGraph, Briefings
from moothall.domain.ids import Principal, digest
from moothall.domain.status import Condition, Health, Part
from moothall.errors import InvalidRequest, MoothallError
from moothall.orchestrator.council_registry import CouncilRegistry
from moothall.orchestrator.story_writer import StoryWriter
from moothall.pb.context.v1 import context_pb2 as pb
from moothall.ports import Bucket, Deliberations
from moothall.repositories.service import RepositoryService
from moothall.stories.board import Board
from moothall.stories.notes import Notes, scopes
from moothall.stories.planner import Planner
from moothall.tool_sessions.executions import Executions
from moothall.tool_sessions.manager import ToolSessions
from moothall.workflows.runner import Workflows

# The health of the server's parts, checked on request.


_DETAIL_CHARS = 500


@dataclass(frozen=True, slots=True)
class Probe:
    """The health check of one part. `check` returns its condition and a detail, and raises a
    `MoothallError` if the part is down. `needed`: nothing works without the part.
    """

    check: Callable[[], Awaitable[tuple[Condition, str]]]
    needed: bool = True


class HealthCheck:
    """The health of all parts. A result is cached for `cache_seconds`; a part that does not answer
    within `patience_seconds` is down.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        *,
        patience_seconds: float = 3.0,
        cache_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probes = probes
        self._patience = patience_seconds
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._started_at = clock()
        self._health: Health | None = None
        self._checked_at = -cache_seconds
        self._lock = asyncio.Lock()

    async def check(self) -> Health:
        """Return the health of all parts."""
        async with self._lock:
            if self._health is None or self._clock() - self._checked_at >= self._cache_seconds:
                parts = await asyncio.gather(
                    *(self._check_part(name, probe) for name, probe in self._probes.items())
                )
                self._health = Health(
                    _combine(parts),
                    tuple(parts),
                    moothall.__version__,
                    int(self._clock() - self._started_at),
                )
                self._checked_at = self._clock()
            return self._health

    async def _check_part(self, name: str, probe: Probe) -> Part:
        try:
            async with asyncio.timeout(self._patience):
                status, detail = await probe.check()
        except MoothallError as error:
            status, detail = Condition.DOWN, f"{error.message} [{error.code}]"
        except TimeoutError:
            status, detail = Condition.DOWN, f"no answer within {self._patience:g} seconds"
        return Part(name, status, detail[:_DETAIL_CHARS], probe.needed)


def _combine(parts: list[Part]) -> Condition:
    if any(part.needed and part.status is Condition.DOWN for part in parts):
        return Condition.DOWN
    return (
        Condition.HEALTHY
        if all(part.status is Condition.HEALTHY for part in parts)
        else Condition.DEGRADED
    )


# Stored bundles: the briefings of several roles, so that a session can start again with the same
# text.


BUCKET = "bundles"
_DEFAULT_SECONDS, _MAX_SECONDS = 3600, 7 * 86_400


class Bundles:
    """The stored bundles of all callers, in the bucket BUCKET. `clock` returns seconds
    since 1970.
    """

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._clock = clock

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return int(self._clock() * 1000)

    async def store(
        self,
        request: pb.RehydrateSessionRequest,
        bundle: pb.RehydrateSessionResponse,
        principal: Principal,
    ) -> None:
        """Store a bundle in place of an earlier one, and set its expiry. Raises `InvalidRequest`,
        `BusUnavailable`.
        """
        seconds = request.ttl_seconds or _DEFAULT_SECONDS
        if not 0 < seconds <= _MAX_SECONDS:
            raise InvalidRequest(
                f"ttl_seconds is {seconds}; allowed are 0 (the default, {_DEFAULT_SECONDS}) to "
                f"{_MAX_SECONDS}"
            )
        bundle.expires_at_ms = bundle.generated_at_ms + seconds * 1000
        await self._bucket.put(_key(request, principal), json_format.MessageToDict(bundle))

    async def find(
        self, request: pb.RehydrateSessionRequest, principal: Principal
    ) -> pb.RehydrateSessionResponse | None:
        """Return the caller's bundle for the same request; None if it is missing or expired."""
        document = await self._bucket.get(_key(request, principal))
        bundle = (
            json_format.ParseDict(dict(document), pb.RehydrateSessionResponse())
            if document
            else None
        )
        return bundle if bundle is not None and bundle.expires_at_ms > self.now_ms() else None


def _key(request: pb.RehydrateSessionRequest, principal: Principal) -> str:
    """Return the key of a request. It includes the table of scopes: after a change, nobody gets a
    bundle with more than they may see now.
    """
    flags = (request.include_timeline, request.include_summaries, request.timeline_events)
    roles = sorted({role.strip().lower() for role in request.roles})
    parts = (principal.name, request.case_id, *roles, *map(str, flags), scopes().model_dump_json())
    return f"{principal.tenant}.{digest(*parts)[:40]}"


# The services that the API servers call.


@dataclass(frozen=True, slots=True)
class StoryServices:
    """The services that change stories: board, plans, drafts and budgets."""

    board: Board
    plans: Planner
    author: StoryWriter
    budgets: StoryBudgets


@dataclass(frozen=True, slots=True)
class Records:
    """Services that read the log: tasks, statistics, and decisions of the tool gateway."""

    tasks: Overview
    statistics: Statistics
    decisions: Decisions


@dataclass(frozen=True, slots=True)
class ContextServices:
    """The context of tasks: briefings, queries of the graph, notes and stored bundles."""

    briefings: Briefings
    query: AskGraph
    notes: Notes
    bundles: Bundles


@dataclass(frozen=True, slots=True)
class ToolServices:
    """The services that run tools for callers. All but `approvals` are None if another process
    serves tools.
    """

    sessions: ToolSessions | None = None
    approvals: ApprovalQueue | None = None
    executions: Executions | None = None
    workflows: Workflows | None = None
    agents: AgentTasks | None = None


@dataclass(frozen=True, slots=True)
class ServingState:
    """The parts that this process serves, and whether it accepts calls.

    roles: which of "api" and "page" it serves. accepting_calls: set while a server accepts calls
    and is not stopping. stopping: set once it accepts none; a call that ends early was then ended
    by the server, not by its caller.
    """

    roles: frozenset[str]
    accepting_calls: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class ApiDependencies:
    """The services behind the API. `models` are those of the settings. `repositories` provides
    files for the web page.
    """

    deliberations: Deliberations
    councils: CouncilRegistry
    stories: StoryServices
    records: Records
    context: ContextServices
    tools: ToolServices
    quotas: Quotas
    health_check: HealthCheck
    models: Models
    serving: ServingState
    repositories: RepositoryService | None = None
