"""Running something beside a block of code, one source for all who listen to it, the time that
is left, and what groups of errors hold. A circuit breaker: what keeps failing is not called
for a while.
"""

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

# Running something beside a block of code, one source for all who listen to it, the time that is
# left, and what groups of errors hold.


T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
PATIENCE = 2.0
"""Seconds that nothing is said of a wait."""


_MAX_HOLD_SECONDS = 0.002


class Pace:
    """Lets the event loop serve others during a long series of steps that wait for nothing."""

    def __init__(self, max_seconds: float = _MAX_HOLD_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._resumed = perf_counter()

    async def step(self) -> None:
        """Give others a turn, if the series has held the event loop for `max_seconds`."""
        if perf_counter() - self._resumed > self._max_seconds:
            await asyncio.sleep(0)
            self._resumed = perf_counter()


def seconds_until(moment: datetime) -> float:
    """Return how many seconds are left; fewer than none once the moment is past."""
    return (moment - datetime.now(UTC)).total_seconds()


def leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    """Yield the errors of a group and of the groups in it."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


class TimeLimit:
    """A timeout of `seconds` that does not count time spent in `off_the_clock`.

    It cancels its body after `most` seconds in any case. `waited` is the time that was not counted.
    """

    def __init__(self, seconds: float, most: float) -> None:
        self.waited = 0.0
        self._timeout = asyncio.timeout(seconds)
        self._last = asyncio.get_running_loop().time() + most
        self._waiting = 0
        self._since = 0.0

    @property
    def expired(self) -> bool:
        """Whether the body was cancelled by this."""
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._outer = _limits.set((*_limits.get(), self))
        return self

    async def __aexit__(self, *details: object) -> None:
        _limits.reset(self._outer)
        await self._timeout.__aexit__(*details)  # type: ignore[arg-type]  # as they came

    def stop(self) -> None:
        """Pause the clock."""
        self._waiting += 1
        if self._waiting == 1 and not self.expired:
            self._since, self._when = (
                asyncio.get_running_loop().time(),
                self._timeout.when() or self._last,
            )
            self._timeout.reschedule(self._last)

    def go_on(self) -> None:
        """Resume the clock once every `stop` has been matched."""
        self._waiting -= 1
        if not self._waiting and not self.expired:
            waited = asyncio.get_running_loop().time() - self._since
            self.waited += waited
            self._timeout.reschedule(min(self._last, self._when + waited))


class Capacity:
    """A limit on work in progress, shared by several consumers.

    `held` includes work that waits for its turn.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.held = 0
        self.users = 0
        self.turns = asyncio.Semaphore(count)
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more can be held before one has to wait."""
        return max(0, self.count - self.held)

    def hold(self) -> None:
        """Count one more."""
        self.held += 1

    def release(self, held: int = 1) -> None:
        """Count some less."""
        self.held -= held
        self._freed.set()

    async def wait_free(self) -> None:
        """Wait until one more can be held."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()


class Clock(Protocol):
    """Something that pauses during `off_the_clock`."""

    def stop(self) -> None:
        """Pause."""

    def go_on(self) -> None:
        """Resume."""


_limits: ContextVar[tuple[Clock, ...]] = ContextVar("limits", default=())


@contextmanager
def clock_watched(clock: Clock) -> Iterator[None]:
    """Let `clock` pause and resume as the enclosing time limits do."""
    token = _limits.set((*_limits.get(), clock))
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def off_the_clock() -> Iterator[None]:
    """Pause the enclosing time limits, for a wait that is not to count."""
    limits = _limits.get()
    for limit in limits:
        limit.stop()
    try:
        yield
    finally:
        for limit in limits:
            limit.go_on()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` until the block ends. The block's own error comes out as it is, not in a group."""
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
async def beside_if_slow(
    work: Callable[[], Coroutine[Any, Any, None]], seconds: float, name: str
) -> AsyncIterator[None]:
    """Run `work` from `seconds` after the begin of the block until its end. Most blocks end earlier
    and then cost no task. An error of `work` comes out at the end of the block.
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
    whether it ended within `seconds`.
    """
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def run() -> None:
        work()
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            await done.wait()
    except TimeoutError:
        return False
    return True


@contextmanager
def say_if_slow(report_progress: Callable[[str], None], what: str) -> Iterator[None]:
    """Report what the body is waiting for if it takes longer than `PATIENCE` seconds."""
    timer = asyncio.get_running_loop().call_later(PATIENCE, report_progress, f"waiting for {what}")
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def start_beside(part: AbstractAsyncContextManager[T]) -> AsyncIterator[asyncio.Future[T]]:
    """Enter `part` in a task of its own and yield a future of its value, so that several can start
    at once.

    The task is also the one that leaves it, as task groups inside demand.
    """
    loop = asyncio.get_running_loop()
    value: asyncio.Future[T] = loop.create_future()
    over = asyncio.Event()

    async def hold() -> None:
        try:
            async with part as entered:
                value.set_result(entered)
                await over.wait()
        except MoothallError as error:
            if value.done():
                raise
            value.set_exception(error)

    async with asyncio.TaskGroup() as group:
        holder = group.create_task(hold())
        try:
            yield value
        finally:
            over.set()
            if not value.done():
                holder.cancel()
            elif not value.cancelled():
                # whoever awaited it has heard; where nobody did, another part failed first
                value.exception()


async def enter_beside(stack: AsyncExitStack, part: AbstractAsyncContextManager[T]) -> T:
    """Enter `part` in a task of its own, for as long as `stack` is open, and return its value."""
    return await (await stack.enter_async_context(start_beside(part)))


async def merge(
    lead: AsyncGenerator[T, None], *others: AsyncGenerator[T, None], most: int
) -> AsyncGenerator[T, None]:
    """Yield what all of them bring, as it comes, until `lead` ends; at most so many items wait to
    be taken. Raises what any raises.
    """
    queue: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue(most)

    async def pump(source: AsyncGenerator[T, None]) -> None:
        end: BaseException | None = None
        try:
            async with aclosing(source) as items:
                async for item in items:
                    await queue.put((item,))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised where it is taken, unless it is from there
            end = error
        if not over and (source is lead or end is not None):
            await queue.put(end)

    over = False
    pumps = [asyncio.create_task(pump(source)) for source in (lead, *others)]
    try:
        while isinstance(item := await queue.get(), tuple):
            yield item[0]
        if item is not None:
            raise item
    finally:
        over = True
        for task in pumps:
            task.cancel()
        await asyncio.wait(pumps)


async def whole_body(readexactly: Callable[[int], Awaitable[bytes]], most: int) -> bytes | None:
    """Return all that a stream has until its end, in however many pieces it comes; None where that
    is more than `most` bytes.
    """
    try:
        await readexactly(most + 1)
    except asyncio.IncompleteReadError as ended:
        return bytes(ended.partial)
    return None


class _Ear(Generic[T]):
    """What somebody who listens has not taken yet."""

    def __init__(self, items: list[T]) -> None:
        self.items = items
        self.there = asyncio.Event()
        self.over = False
        self.error: BaseException | None = None


class Broadcast(Generic[T]):
    """One source for all who listen to the same. It runs while anybody does; who is slow gets more
    at a time, and holds nobody up.
    """

    def __init__(self, source: Callable[[], AsyncGenerator[T, None]]) -> None:
        self._source = source
        self._ears: set[_Ear[T]] = set()
        self._latest: list[T] = []
        self._running: asyncio.Task[None] | None = None

    @property
    def listening(self) -> int:
        """How many listen now."""
        return len(self._ears)

    async def listen(self) -> AsyncGenerator[list[T], None]:
        """Yield what came since the last step, the latest that there was before first of all, until
        the source ends. Raises what it does.
        """
        ear = _Ear(list(self._latest))
        self._ears.add(ear)
        if self._running is None:
            self._running = asyncio.create_task(
                self._run(), context=Context()
            )  # it is nobody's of those who listen
        try:
            while True:
                items, ear.items = ear.items, []
                if items:
                    yield items
                elif ear.error is not None:
                    raise ear.error
                elif ear.over:
                    return
                else:
                    ear.there.clear()
                    await ear.there.wait()
        finally:
            self._ears.discard(ear)
            if not self._ears and self._running is not None:
                self._running.cancel()
                self._running, self._latest = None, []

    async def _run(self) -> None:
        error = None
        try:
            async with aclosing(self._source()) as items:
                async for item in items:
                    self._latest = [item]
                    for ear in self._ears:
                        ear.items.append(item)
                        ear.there.set()
        except Exception as failed:  # noqa: BLE001 - whoever listens hears of it
            error = failed
        finally:
            if self._running is asyncio.current_task():  # else nobody listened any more
                self._running, self._latest = None, []
                ears, self._ears = self._ears, set()
                for ear in ears:
                    ear.error, ear.over = error, True
                    ear.there.set()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the event loop of a process."""
    try:
        import uvloop
    except ImportError:  # it is in the extras `server`, `ray` and `local`
        return asyncio.new_event_loop
    return uvloop.new_event_loop


# A circuit breaker: what keeps failing is not called for a while.


class CircuitOpenError(Exception):
    """No call is let through. seconds: until one may try, 0 if one is trying now."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no call is let through for {seconds:g} seconds")
        self.seconds = seconds


class CircuitBreaker:
    """A circuit breaker over the last `calls` results.

    It opens if all of them are from the last `window_seconds`, and the share `failed_share` of them
    failed. After `rest_seconds` it lets one call through. If that fails, the rest doubles, up to
    `max_rest_seconds`; otherwise the circuit is closed.
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
        """Let a call through. Raises `CircuitOpenError`."""
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
    """A call that a circuit breaker let through. It has to be ended."""

    def __init__(self, breaker: CircuitBreaker, *, probe: bool) -> None:
        self._breaker = breaker
        self._probe = probe

    def end(self, *, failed: bool | None) -> None:
        """Record the result; None if it says nothing about what was called."""
        self._breaker.record(failed=failed, probe=self._probe)
