"""Admission of queries: limits of length, rate and time, a circuit breaker, and the sessions of
callers with their context.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from time import monotonic

from cachetools import LRUCache

from moothall.agents.queries import Query, SessionContext
from moothall.concurrency import CircuitBreaker, CircuitCall, CircuitOpenError
from moothall.config import AgentSettings
from moothall.domain.codec import dump, load
from moothall.domain.ids import Principal, digest
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import Action
from moothall.errors import (
    AlreadyExists,
    BudgetExceeded,
    DeadlineExceeded,
    InvalidRequest,
    MoothallError,
    NotFound,
    RateLimited,
    Temporary,
)
from moothall.ports import Bucket
from moothall.tool_sessions.manager import OpenedSession, ToolSessions
from moothall.tools.spec import ToolSpec

# Admission of queries: limits of length, rate and time, and a circuit breaker.


_CHARS_PER_TOKEN = 4
_MAX_TOKENS = 100_000
"""The approximate size of a query with its history and context; larger ones are refused."""
MAX_QUERY_SECONDS = 900.0
"""The maximum duration of a query, whatever its caller requests."""
_MAX_USERS = 10_000
_MAX_TENANTS = 10_000
_FAILED_SHARE = 0.5
BREAKER_CALLS = 20
_BREAKER_SECONDS = 30.0
"""The window of the last calls, and how long an open circuit breaker refuses queries."""
"""The share of failed queries that opens the breaker."""


class TokenLimit(BudgetExceeded):
    """The query is too long."""

    code = "token_limit"


class TooOften(RateLimited):
    """The caller exceeds its rate limit."""

    code = "rate_limited"


class CircuitOpen(Temporary):
    """Most recent queries failed, so none is accepted for a while."""

    code = "circuit_open"


class TimedOut(DeadlineExceeded):
    """The query took longer than its limit."""

    code = "timeout"


def query_breaker(
    calls: int, rest_seconds: float, clock: Callable[[], float] = monotonic
) -> CircuitBreaker:
    """Return a circuit breaker that opens if half of the last `calls` queries failed within
    `rest_seconds`.
    """
    return CircuitBreaker(
        calls, rest_seconds, failed_share=_FAILED_SHARE, window_seconds=rest_seconds, clock=clock
    )


class CallAdmission:
    """Admits calls, unary and streamed alike. One per process; belongs to one event loop.

    Limits and breakers are per tenant: nothing that one tenant does refuses the calls of another.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._breakers: LRUCache[str, CircuitBreaker] = LRUCache(_MAX_TENANTS)
        self._buckets: LRUCache[tuple[str, str], tuple[float, float]] = LRUCache(_MAX_USERS)
        self._active: Counter[str] = Counter()

    def count_active(self, tenant: str) -> int:
        """Return how many calls of a tenant are running."""
        return self._active[tenant]

    @asynccontextmanager
    async def admit(
        self, principal: Principal, text: int, seconds: int = 0, *, uses_model: bool = True
    ) -> AsyncIterator[Callable[[], None]]:
        """Admit a call of `text` characters for at most `seconds` (0: the default).

        Yields a function that marks the call as failed by the service. Only calls that use a model
        pass the breaker. A time limit that the caller chose is not a failure of the service.
        Raises `TokenLimit`, `TooOften`, `CircuitOpen`, `TimedOut`, `InvalidRequest`.
        """
        self._check_limits(principal, text, seconds)
        call = self._enter_circuit(principal.tenant) if uses_model else None
        limit_seconds = min(seconds or MAX_QUERY_SECONDS, MAX_QUERY_SECONDS)
        failed: bool | None = False

        def mark_failed() -> None:
            nonlocal failed
            failed = True

        try:
            with self._count_call(principal.tenant):
                async with asyncio.timeout(limit_seconds):
                    yield mark_failed
        except TimeoutError as error:
            failed = None if seconds == limit_seconds else True
            raise TimedOut(f"timeout: it took longer than {limit_seconds:g} seconds") from error
        except MoothallError as error:
            failed = (
                True
                if isinstance(error, Temporary) and not isinstance(error, RateLimited)
                else None
            )
            raise
        except BaseException as error:
            failed = (
                True if isinstance(error, Exception) else None
            )  # a caller that disconnects says nothing about the service
            raise
        finally:
            if call is not None:
                call.end(failed=failed)

    def _enter_circuit(self, tenant: str) -> CircuitCall:
        breaker = self._breakers.setdefault(tenant, query_breaker(BREAKER_CALLS, _BREAKER_SECONDS))
        try:
            return breaker.enter()
        except CircuitOpenError as error:
            raise CircuitOpen(
                "circuit_open: most of the last queries failed; ask again later",
                max(error.seconds, 1.0),
            ) from None

    def _check_limits(self, principal: Principal, text: int, seconds: int) -> None:
        if seconds < 0:
            raise InvalidRequest(
                f"timeout_seconds is {seconds}; give a number of seconds, or 0 for the maximum"
            )
        tokens = text // _CHARS_PER_TOKEN
        if tokens > _MAX_TOKENS:
            raise TokenLimit(
                f"token_limit: the query has about {tokens:,} tokens; at most "
                f"{_MAX_TOKENS:,} are taken"
            )
        self._take_from_bucket(principal)
        if self._active[principal.tenant] >= self._settings.tasks:
            raise TooOften(
                f"rate_limited: {self._settings.tasks} queries are running; ask again later"
            )

    @contextmanager
    def _count_call(self, tenant: str) -> Iterator[None]:
        """Count a running call of a tenant."""
        self._active[tenant] += 1
        try:
            yield
        finally:
            self._active[tenant] -= 1
            if not self._active[tenant]:
                del self._active[tenant]

    def _take_from_bucket(self, principal: Principal) -> None:
        """Take a token from the caller's bucket, which is refilled with `calls_a_second` up to one
        second's worth. Raises `TooOften`.
        """
        rate, now = self._settings.calls_a_second, monotonic()
        capacity = max(rate, 1.0)
        tokens, updated_at = self._buckets.get((principal.tenant, principal.name), (capacity, now))
        tokens = min(capacity, tokens + (now - updated_at) * rate)
        if tokens < 1:
            raise TooOften(
                f"rate_limited: {principal.name} may send {rate:g} queries a second",
                (1 - tokens) / rate,
            )
        self._buckets[(principal.tenant, principal.name)] = (tokens - 1, now)


# Sessions: successive queries of one caller. Their context is stored on the bus; each has a
# workspace while it is in use.


BUCKET = "sessions"
_MAX_TRIES = 20
_ANSWER_CHARS = 4_000
_SESSION_SECONDS = 1800
"""The lifetime of a session's workspace since it was opened; then a new one is opened."""
_MAX_HISTORY_LINES = 20
"""The newest queries and answers of a session that are stored and sent with the next query."""
"""The part of each answer that a session stores."""

Blank = Callable[[str], Awaitable[RepositoryRef]]
"""Returns an empty repository of a tenant."""


class AgentSessions:
    """The sessions that this process serves. Belongs to one event loop."""

    def __init__(self, bucket: Bucket, tool_sessions: ToolSessions, blank: Blank) -> None:
        self._bucket = bucket
        self._tool_sessions = tool_sessions
        self.blank = blank
        self._open: dict[tuple[str, ...], OpenedSession] = {}
        self._opening: defaultdict[tuple[str, ...], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def with_session(self, query: Query, principal: Principal) -> Query:
        """Return the query with the stored context of its session. Fields that the query sets take
        precedence.
        """
        session = query.session
        if not session.session_id:
            return query
        stored = (
            load(SessionContext, document)
            if (
                document := await self._bucket.get(self._session_key(principal, session.session_id))
            )
            else SessionContext()
        )
        merged_session = SessionContext(
            session_id=session.session_id,
            history=session.history or stored.history,
            persistent_context={**stored.persistent_context, **session.persistent_context},
            files_created=tuple(dict.fromkeys((*stored.files_created, *session.files_created))),
            tools_used=tuple(dict.fromkeys((*stored.tools_used, *session.tools_used))),
            total_tokens_used=max(stored.total_tokens_used, session.total_tokens_used),
            total_cost_usd=max(stored.total_cost_usd, session.total_cost_usd),
        )
        return replace(query, session=merged_session)

    async def record_turn(
        self,
        query: Query,
        principal: Principal,
        turn: Sequence[str],
        context_changes: SessionContext,
    ) -> None:
        """Add a question and its answer to a session, and the changes of its context.

        Raises `Temporary` if other writers keep interfering.
        """
        if not query.session.session_id:
            return
        key = self._session_key(principal, query.session.session_id)
        lines = tuple(line[:_ANSWER_CHARS] for line in turn if line)
        for _ in range(_MAX_TRIES):
            document, revision = await self._bucket.get_with_revision(key)
            stored = (
                load(SessionContext, document)
                if document
                else replace(query.session, total_tokens_used=0, total_cost_usd=0.0)
            )
            updated = replace(
                stored,
                history=(*stored.history, *lines)[-_MAX_HISTORY_LINES:],
                persistent_context={
                    **stored.persistent_context,
                    **query.session.persistent_context,
                },
                files_created=tuple(
                    dict.fromkeys((*stored.files_created, *context_changes.files_created))
                ),
                tools_used=tuple(dict.fromkeys((*stored.tools_used, *context_changes.tools_used))),
                total_tokens_used=stored.total_tokens_used + context_changes.total_tokens_used,
                total_cost_usd=stored.total_cost_usd + context_changes.total_cost_usd,
            )
            with suppress(AlreadyExists):
                await self._bucket.replace(key, dump(updated), revision)
                return
        raise Temporary(f"session {query.session.session_id} has too many concurrent writers")

    @asynccontextmanager
    async def workspace(self, query: Query, principal: Principal) -> AsyncIterator[OpenedSession]:
        """Yield a workspace on the query's repository, or on an empty one. A session's workspace
        stays open; without a session, it is closed at the end of the block.
        """
        repository = query.repository()
        if not query.session.session_id:
            opened = await self._open_workspace(query, principal, repository)
            try:
                yield opened
            finally:
                with suppress(NotFound):  # its time was over
                    await self._tool_sessions.close(principal, opened.workspace)
            return
        key = (
            principal.tenant,
            principal.name,
            query.session.session_id,
            query.role,
            repr(repository),
        )
        async with self._opening[key]:
            opened_session = self._open.get(key)
            if opened_session is None or not self._tool_sessions.is_open(opened_session.workspace):
                self._drop_closed()
                self._open[key] = opened_session = await self._open_workspace(
                    query, principal, repository
                )
        yield opened_session

    async def _open_workspace(
        self, query: Query, principal: Principal, repository: RepositoryRef | None
    ) -> OpenedSession:
        repository_or_blank = repository or await self.blank(principal.tenant)
        return await self._tool_sessions.open(
            principal, repository_or_blank, query.role, _SESSION_SECONDS
        )

    def _drop_closed(self) -> None:
        """Drop the workspaces that are closed."""
        for key, opened_session in tuple(self._open.items()):
            if not self._tool_sessions.is_open(opened_session.workspace):
                del self._open[key]
                if not self._opening[key].locked():
                    del self._opening[key]

    def _session_key(self, principal: Principal, session_id: str) -> str:
        return f"{principal.tenant}.{digest(principal.name, session_id)[:40]}"


def written_paths(specs: Mapping[str, ToolSpec], calls: Sequence[Action]) -> tuple[str, ...]:
    """Return the paths that calls have written, by the arguments that the catalogue marks as
    written.
    """
    paths = []
    for call in calls:
        spec = specs.get(call.tool)
        paths += [
            value
            for name in (spec.writes if spec else ())
            if isinstance(value := call.arguments.get(name), str)
        ]
    return tuple(dict.fromkeys(paths))
