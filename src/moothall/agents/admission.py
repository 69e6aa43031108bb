"""Admission of queries: limits of length, rate and time, and a circuit breaker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

from cachetools import LRUCache

from moothall.circuit_breaker import CircuitBreaker, CircuitCall, CircuitOpenError
from moothall.config import AgentSettings
from moothall.domain.identity import Principal
from moothall.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    InvalidRequest,
    MoothallError,
    RateLimited,
    Temporary,
)

_CHARS_PER_TOKEN = 4
_MAX_TOKENS = 100_000
"""The approximate size of a query with its history and context; larger ones are refused."""
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
    """Admits calls, unary and streamed alike. One a process; belongs to one event loop.

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
        self, who: Principal, text: int, seconds: int = 0, *, uses_model: bool = True
    ) -> AsyncIterator[Callable[[], None]]:
        """Admit a call of `text` characters for at most `seconds` (0: the default).

        Yields a function that marks the call as failed by the service. Only calls that use a model
        pass the breaker. A time limit that the caller chose is not a failure of the service.
        Raises `TokenLimit`, `TooOften`, `CircuitOpen`, `TimedOut`, `InvalidRequest`.
        """
        self._check_limits(who, text, seconds)
        call = self._enter_circuit(who.tenant) if uses_model else None
        limit_seconds = min(
            seconds or self._settings.timeout_seconds, self._settings.timeout_seconds
        )
        failed: bool | None = False

        def mark_failed() -> None:
            nonlocal failed
            failed = True

        try:
            with self._counted(who.tenant):
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

    def _check_limits(self, who: Principal, text: int, seconds: int) -> None:
        if seconds < 0:
            raise InvalidRequest(
                f"timeout_seconds is {seconds}; give the seconds that it may take, or 0 for the "
                "most"
            )
        tokens = text // _CHARS_PER_TOKEN
        if tokens > _MAX_TOKENS:
            raise TokenLimit(
                f"token_limit: the query has about {tokens:,} tokens; at most "
                f"{_MAX_TOKENS:,} are taken"
            )
        self._take_from_bucket(who)
        if self._active[who.tenant] >= self._settings.tasks:
            raise TooOften(
                f"rate_limited: {self._settings.tasks} queries are under way; ask again later"
            )

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        """Count a running call of a tenant."""
        self._active[tenant] += 1
        try:
            yield
        finally:
            self._active[tenant] -= 1
            if not self._active[tenant]:
                del self._active[tenant]

    def _take_from_bucket(self, who: Principal) -> None:
        """Take a token from the caller's bucket, which is refilled with `calls_a_second` up to one
        second's worth. Raises `TooOften`.
        """
        rate, now = self._settings.calls_a_second, monotonic()
        capacity = max(rate, 1.0)
        tokens, updated_at = self._buckets.get((who.tenant, who.name), (capacity, now))
        tokens = min(capacity, tokens + (now - updated_at) * rate)
        if tokens < 1:
            raise TooOften(
                f"rate_limited: {who.name} may ask {rate:g} times a second", (1 - tokens) / rate
            )
        self._buckets[(who.tenant, who.name)] = (tokens - 1, now)
