"""Helpers for asyncio: background tasks, time limits, broadcasts, and a circuit breaker."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from math import inf
from time import monotonic, perf_counter
from typing import Any, Generic, Protocol, Self, TypeVar

from moothall.errors import MoothallError

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
SLOW_SECONDS = 2.0
"""Seconds after which a wait is reported."""


_MAX_HOLD_SECONDS = 0.002


class Pace:
    """Lets the event loop run other tasks during a long series of steps without an await."""

    def __init__(self, max_seconds: float = _MAX_HOLD_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._resumed_at = perf_counter()

    async def step(self) -> None:
        """Yield to the event loop if the series has blocked it for `max_seconds`."""
        if perf_counter() - self._resumed_at > self._max_seconds:
            await asyncio.sleep(0)
            self._resumed_at = perf_counter()


def seconds_until(moment: datetime) -> float:
    """Return the seconds until a moment; negative if it has passed."""
    return (moment - datetime.now(UTC)).total_seconds()


def leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    """Yield the errors of a group and of its nested groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


class TimeLimit:
    """A timeout of `seconds` that does not count time spent in `off_the_clock`.

    It cancels its body after `max_seconds` in any case. `waited` is the time that was not counted.
    """

    def __init__(self, seconds: float, max_seconds: float) -> None:
        self.waited = 0.0
        self._timeout = asyncio.timeout(seconds)
        self._latest_end = asyncio.get_running_loop().time() + max_seconds
        self._pauses = 0
        self._paused_at = 0.0

    @property
    def expired(self) -> bool:
        """True if this limit has cancelled the body."""
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._token = _limits.set((*_limits.get(), self))
        return self

    async def __aexit__(self, *details: object) -> None:
        _limits.reset(self._token)
        await self._timeout.__aexit__(*details)  # type: ignore[arg-type]  # passed on unchanged

    def pause(self) -> None:
        """Pause the clock."""
        self._pauses += 1
        if self._pauses == 1 and not self.expired:
            self._paused_at, self._paused_end = (
                asyncio.get_running_loop().time(),
                self._timeout.when() or self._latest_end,
            )
            self._timeout.reschedule(self._latest_end)

    def resume(self) -> None:
        """Resume the clock if each `pause` has been matched."""
        self._pauses -= 1
        if not self._pauses and not self.expired:
            waited = asyncio.get_running_loop().time() - self._paused_at
            self.waited += waited
            self._timeout.reschedule(min(self._latest_end, self._paused_end + waited))


class Capacity:
    """A limit on work in progress, shared by several consumers.

    `held` includes work that is still queued.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.held = 0
        self.users = 0
        self.turns = asyncio.Semaphore(count)
        self._freed = asyncio.Event()
        self._full_callbacks: set[Callable[[], None]] = set()

    @property
    def free(self) -> int:
        """The number of items that can be added before the next one must wait."""
        return max(0, self.count - self.held)

    def hold(self) -> None:
        """Count one more item."""
        self.held += 1
        if self.held == self.count:
            for callback in tuple(self._full_callbacks):
                callback()

    def release(self, count: int = 1) -> None:
        """Count `count` items less."""
        self.held -= count
        self._freed.set()

    @contextmanager
    def calls_when_full(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` whenever no more items can be added."""
        self._full_callbacks.add(callback)
        try:
            yield
        finally:
            self._full_callbacks.discard(callback)

    async def wait_free(self) -> None:
        """Wait until one more item can be added."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()


class Clock(Protocol):
    """A clock that is paused during `off_the_clock`."""

    def pause(self) -> None:
        """Pause."""

    def resume(self) -> None:
        """Resume."""


_limits: ContextVar[tuple[Clock, ...]] = ContextVar("limits", default=())


@contextmanager
def linked_clock(clock: Clock) -> Iterator[None]:
    """Pause and resume `clock` together with the enclosing time limits."""
    token = _limits.set((*_limits.get(), clock))
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def off_the_clock() -> Iterator[None]:
    """Pause the enclosing time limits during a wait that does not count."""
    limits = _limits.get()
    for limit in limits:
        limit.pause()
    try:
        yield
    finally:
        for limit in limits:
            limit.resume()


@asynccontextmanager
async def run_in_background(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` until the block ends. A single error is raised as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work, name=name)
            try:
                yield
            finally:
                task.cancel()
    except BaseExceptionGroup as group_error:
        if len(group_error.exceptions) == 1:
            raise group_error.exceptions[0] from group_error.exceptions[0].__cause__
        raise


@asynccontextmanager
async def run_in_background_if_slow(
    work: Callable[[], Coroutine[Any, Any, None]], seconds: float, name: str
) -> AsyncIterator[None]:
    """Start `work` after `seconds`, and cancel it when the block ends. No task is created if the
    block ends earlier. An error of `work` is raised at the end of the block.
    """
    tasks: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, lambda: tasks.append(loop.create_task(work(), name=name)))
    try:
        yield
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()


async def run_in_daemon(work: Callable[[], object], seconds: float, name: str) -> bool:
    """Run blocking work in a daemon thread, which does not delay the end of the process. Return
    True if it ended within `seconds`.
    """
    finished = asyncio.Event()
    loop = asyncio.get_running_loop()

    def run() -> None:
        work()
        if not loop.is_closed():
            loop.call_soon_threadsafe(finished.set)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            await finished.wait()
    except TimeoutError:
        return False
    return True


@contextmanager
def report_if_slow(report_progress: Callable[[str], None], subject: str) -> Iterator[None]:
    """Report that the body waits for `subject` if it takes longer than `SLOW_SECONDS`."""
    timer = asyncio.get_running_loop().call_later(
        SLOW_SECONDS, report_progress, f"waiting for {subject}"
    )
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def start_in_own_task(
    part: AbstractAsyncContextManager[T],
) -> AsyncIterator[asyncio.Future[T]]:
    """Enter `part` in its own task and yield a future of its value, so that several parts can start
    at the same time.

    The same task exits it, as task groups require.
    """
    loop = asyncio.get_running_loop()
    value: asyncio.Future[T] = loop.create_future()
    body_ended = asyncio.Event()

    async def hold() -> None:
        try:
            async with part as entered:
                value.set_result(entered)
                await body_ended.wait()
        except MoothallError as error:
            if value.done():
                raise
            value.set_exception(error)

    async with asyncio.TaskGroup() as group:
        holder = group.create_task(hold())
        try:
            yield value
        finally:
            body_ended.set()
            if not value.done():
                holder.cancel()
            elif not value.cancelled():
                value.exception()  # if nobody awaited it, another part has failed first


async def enter_in_own_task(stack: AsyncExitStack, part: AbstractAsyncContextManager[T]) -> T:
    """Enter `part` in its own task until `stack` is closed, and return its value."""
    return await (await stack.enter_async_context(start_in_own_task(part)))


async def merge(
    lead: AsyncGenerator[T, None], *followers: AsyncGenerator[T, None], max_queued: int
) -> AsyncGenerator[T, None]:
    """Yield the items of all generators in the order of their arrival, until `lead` ends. At most
    `max_queued` items wait in a queue. Raise the first error of a generator.
    """
    queue: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue(max_queued)

    async def pump(source: AsyncGenerator[T, None]) -> None:
        failure: BaseException | None = None
        try:
            async with aclosing(source) as items:
                async for item in items:
                    await queue.put((item,))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised by the reader of the queue
            failure = error
        if not closed and (source is lead or failure is not None):
            await queue.put(failure)

    closed = False
    pumps = [asyncio.create_task(pump(source)) for source in (lead, *followers)]
    try:
        while isinstance(item := await queue.get(), tuple):
            yield item[0]
        if item is not None:
            raise item
    finally:
        closed = True
        for task in pumps:
            task.cancel()
        await asyncio.wait(pumps)


async def read_body(readexactly: Callable[[int], Awaitable[bytes]], max_bytes: int) -> bytes | None:
    """Read a stream to its end and return its bytes; None if it has more than `max_bytes`."""
    try:
        await readexactly(max_bytes + 1)
    except asyncio.IncompleteReadError as ended:
        return bytes(ended.partial)
    return None


class _Subscriber(Generic[T]):
    """A subscriber of a broadcast. `items`: the items that it has not received yet."""

    def __init__(self, items: list[T]) -> None:
        self.items = items
        self.changed = asyncio.Event()
        self.ended = False
        self.error: BaseException | None = None


class Broadcast(Generic[T]):
    """One source for several subscribers. It runs while there are subscribers. A slow subscriber
    gets larger batches, and does not delay the others.
    """

    def __init__(self, source: Callable[[], AsyncGenerator[T, None]]) -> None:
        self._source = source
        self._subscribers: set[_Subscriber[T]] = set()
        self._latest: list[T] = []
        self._running: asyncio.Task[None] | None = None

    @property
    def subscriber_count(self) -> int:
        """The number of subscribers."""
        return len(self._subscribers)

    async def subscribe(self) -> AsyncGenerator[list[T], None]:
        """Yield batches of new items until the source ends. The first batch starts with the latest
        earlier item, if any. Raise the errors of the source.
        """
        subscriber = _Subscriber(list(self._latest))
        self._subscribers.add(subscriber)
        if self._running is None:
            # An empty context, because the task belongs to no single subscriber.
            self._running = asyncio.create_task(self._run(), context=Context())
        try:
            while True:
                items, subscriber.items = subscriber.items, []
                if items:
                    yield items
                elif subscriber.error is not None:
                    raise subscriber.error
                elif subscriber.ended:
                    return
                else:
                    subscriber.changed.clear()
                    await subscriber.changed.wait()
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers and self._running is not None:
                self._running.cancel()
                self._running, self._latest = None, []

    async def _run(self) -> None:
        error = None
        try:
            async with aclosing(self._source()) as items:
                async for item in items:
                    self._latest = [item]
                    for subscriber in self._subscribers:
                        subscriber.items.append(item)
                        subscriber.changed.set()
        except Exception as source_error:  # noqa: BLE001 - raised by the subscribers
            error = source_error
        finally:
            if self._running is asyncio.current_task():  # else the last subscriber has left
                self._running, self._latest = None, []
                subscribers, self._subscribers = self._subscribers, set()
                for subscriber in subscribers:
                    subscriber.error, subscriber.ended = error, True
                    subscriber.changed.set()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of event loops: uvloop's if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:  # it is in the extras `server`, `ray` and `local`
        return asyncio.new_event_loop
    return uvloop.new_event_loop


# A circuit breaker: an operation that keeps failing is not called for a while.


class CircuitOpenError(Exception):
    """The circuit is open. seconds: the time until the next call; 0 if a probe is running."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"all calls are refused for {seconds:g} seconds")
        self.seconds = seconds


class CircuitBreaker:
    """A circuit breaker over the last `calls` results.

    It opens if all these results are from the last `window_seconds` and the share `failed_share` of
    them failed. After `rest_seconds` it lets one call through. If that call fails, the rest time
    doubles, up to `max_rest_seconds`. If it succeeds, the circuit closes.
    """

    def __init__(
        self,
        calls: int,
        rest_seconds: float,
        *,
        failed_share: float = 1.0,
        window_seconds: float = inf,
        max_rest_seconds: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._failed_share = failed_share
        self._window_seconds = window_seconds
        self._rest_seconds = self._first_rest_seconds = rest_seconds
        self._max_rest_seconds = max(max_rest_seconds, rest_seconds)
        self._clock = clock
        self._results: deque[tuple[float, bool]] = deque(maxlen=calls)
        self._open_until: float | None = None
        self._probing = False

    def enter(self) -> CircuitCall:
        """Let a call through, or raise `CircuitOpenError`."""
        if self._open_until is None:
            return CircuitCall(self, probe=False)
        seconds_left = max(0.0, self._open_until - self._clock())
        if seconds_left or self._probing:
            raise CircuitOpenError(seconds_left)
        self._probing = True
        return CircuitCall(self, probe=True)

    def record(self, *, failed: bool | None, probe: bool) -> None:
        """Record the result of a call that was let through; use `CircuitCall.end`."""
        if probe:
            self._probing = False
            if failed:
                self._rest_seconds = min(self._rest_seconds * 2, self._max_rest_seconds)
                self._open_until = self._clock() + self._rest_seconds
            elif failed is False:
                self._open_until = None
                self._rest_seconds = self._first_rest_seconds
                self._results.clear()
            return
        if failed is None or self._open_until is not None:
            return
        now = self._clock()
        self._results.append((now, failed))
        failures = sum(call_failed for _, call_failed in self._results)
        if (
            len(self._results) == self._results.maxlen
            and self._results[0][0] >= now - self._window_seconds
            and failures >= self._failed_share * len(self._results)
        ):
            self._open_until = now + self._rest_seconds


class CircuitCall:
    """A call that a circuit breaker let through. It must be ended."""

    def __init__(self, breaker: CircuitBreaker, *, probe: bool) -> None:
        self._breaker = breaker
        self._probe = probe

    def end(self, *, failed: bool | None) -> None:
        """Record the result; None if it says nothing about the called operation."""
        self._breaker.record(failed=failed, probe=self._probe)
